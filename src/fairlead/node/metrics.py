"""Prometheus metrics of the node agent, computed when they are scraped.

The `apex_*` names and units are those of the allocator specification Fairlead implements; ours
start with `fairlead_cpu_`. On plain cgroups `pod` is the path below the root, `namespace` is empty.
"""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.core.cpu import CpuMode
from fairlead.engine.cpu import CpuTurn
from fairlead.node.agent import Agent
from fairlead.node.kernel_files import read_node_pressure
from fairlead.ports.faults import PermanentFault

_POD = ["pod", "namespace"]


class NodeCollector:
    """Turns the agent's last turn into metric families."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._node = os.uname().nodename

    def collect(self) -> Iterator[Metric]:
        """All families; the per-pod ones are empty until the first clearing."""
        yield from self._agent_metrics()
        turn = self._agent.last_turn
        if turn is not None:
            yield from self._node_metrics(turn)
            yield from self._pod_metrics(turn)

    def _agent_metrics(self) -> Iterator[Metric]:
        agent = self._agent
        for name, text, value in (
            ("clears", "clearings decided", agent.clears),
            ("limit_writes", "limits written", agent.writes),
            ("limit_write_failures", "limits that could not be written", agent.write_failures),
            ("samples_missed", "samples that came too late", agent.missed_samples),
            ("faults", "temporary faults survived", agent.faults),
        ):
            yield CounterMetricFamily(f"fairlead_cpu_{name}", text, value=value)
        pressure = read_node_pressure()
        if pressure is not None:
            yield CounterMetricFamily(
                "fairlead_cpu_pressure_some_seconds",
                "time some task waited for CPU (PSI)",
                value=pressure.some_us / 1e6,
            )

    def _node_metrics(self, turn: CpuTurn) -> Iterator[Metric]:
        plan, governor = turn.plan, self._agent.loop.governor
        mode = GaugeMetricFamily(
            "apex_allocation_mode", "which allocation mode was used", labels=["node", "mode"]
        )
        for each in CpuMode:
            mode.add_metric([self._node, each.value], float(each is plan.mode))
        yield mode
        for name, text, millicores in (
            ("capacity_cores", "what may be handed out", plan.capacity_millicores),
            ("need_cores", "sum of needs", plan.total_need),
            ("min_cores", "sum of minimums", plan.total_min),
            ("limits_cores", "sum of the limits in force", governor.adopted_millicores),
        ):
            yield GaugeMetricFamily(f"fairlead_cpu_{name}", text, value=millicores / 1000)
        if plan.shadow_price is not None:
            yield GaugeMetricFamily(
                "fairlead_cpu_shadow_price",
                "marginal value of one more millicore",
                value=plan.shadow_price,
            )
        yield GaugeMetricFamily(
            "fairlead_cpu_observe_only",
            "1 while limits are not touched",
            value=float(turn.observed_only),
        )

    def _pod_metrics(self, turn: CpuTurn) -> Iterator[Metric]:
        plan, pods = turn.plan, self._agent.loop.governor.pods
        usage = {pod.uid: pod.usage_millicores for pod in turn.snapshot.pods}
        need = GaugeMetricFamily("apex_need_milli", "what the pod needs", labels=_POD)
        grant = GaugeMetricFamily("apex_allocation_milli", "what the pod got", labels=_POD)
        cut = GaugeMetricFamily(
            "apex_nash_reduction_ratio", "(need - allocation)/(need - baseline)", labels=_POD
        )
        used = GaugeMetricFamily(
            "apex_headroom_utilization", "actual usage / allocation", labels=_POD
        )
        throttled = GaugeMetricFamily(
            "fairlead_cpu_throttled_ratio", "smoothed share of throttled periods", labels=_POD
        )
        for uid, allocation in plan.allocations.items():
            labels = [uid, ""]
            need.add_metric(labels, plan.needs[uid])
            grant.add_metric(labels, allocation)
            cut.add_metric(labels, plan.reduction_ratio[uid])
            seen, state = usage.get(uid), pods.get(uid)
            if seen is not None and allocation:
                used.add_metric(labels, seen / allocation)
            if state is not None and state.throttling is not None:
                throttled.add_metric(labels, state.throttling)
        yield from (need, grant, cut, used, throttled)


def serve_metrics(agent: Agent, address: str, port: int) -> int:
    """Serve /metrics in a background thread; returns the port (0 asks for any free one)."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(agent))
    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise PermanentFault(f"metrics on {address}:{port}: {error.strerror}") from error
    return int(server.server_port)
