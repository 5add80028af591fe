"""Prometheus metrics of the node agent, computed when they are scraped.

The `apex_*` names and units are those of the allocator specification Fairlead implements; ours
start with `fairlead_cpu_`. On plain cgroups `pod` is the path below the root, `namespace` is empty;
on Kubernetes they are the pod's.
"""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.cpu import CpuMode
from fairlead.engine.cpu import CpuTurn
from fairlead.node.agent import Agent
from fairlead.node.kernel_files import read_node_pressure
from fairlead.ports.faults import faults


class NodeCollector(Collector):
    """Turns the agent's last turn into metric families."""

    def __init__(self, agent: Agent, *, node: str | None = None, kube: bool = False) -> None:
        self._agent, self._kube = agent, kube
        self._node = node or os.environ.get("NODE_NAME") or os.uname().nodename

    def collect(self) -> Iterator[Metric]:
        """All families; the per-pod ones are empty until the first clearing."""
        agent = self._agent
        for name, text, value in (
            ("clears", "clearings decided", agent.clears),
            ("limit_writes", "limits written", agent.writes),
            ("limit_write_failures", "limits that could not be written", agent.write_failures),
            ("samples_missed", "samples that came too late", agent.missed_samples),
            ("faults", "temporary faults survived", agent.faults),
        ):
            yield CounterMetricFamily(f"fairlead_cpu_{name}", text, value=value)
        if pressure := read_node_pressure():
            name, text = "pressure_some_seconds", "time some task waited for CPU (PSI)"
            yield CounterMetricFamily(f"fairlead_cpu_{name}", text, value=pressure.some_us / 1e6)
        if agent.last_turn is not None:
            yield from self._node_metrics(agent.last_turn)
            yield from self._pod_metrics(agent.last_turn)

    def _node_metrics(self, turn: CpuTurn) -> Iterator[Metric]:
        plan, governor = turn.plan, self._agent.loop.governor
        name, text = "apex_allocation_mode", "which allocation mode was used"
        family = GaugeMetricFamily(name, text, labels=["node", "mode"])
        for mode in CpuMode:
            family.add_metric([self._node, mode.value], float(mode is plan.mode))
        yield family
        for name, text, value in (
            ("capacity_cores", "what may be handed out", plan.capacity_millicores / 1000),
            ("need_cores", "sum of needs", plan.total_need / 1000),
            ("min_cores", "sum of minimums", plan.total_min / 1000),
            ("limits_cores", "sum of the limits in force", governor.adopted_millicores / 1000),
            ("shadow_price", "marginal value of one more millicore", plan.shadow_price),
            ("observe_only", "1 while limits are not touched", float(turn.observed_only)),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"fairlead_cpu_{name}", text, value=value)

    def _pod_metrics(self, turn: CpuTurn) -> Iterator[Metric]:
        plan, labels = turn.plan, ["pod", "namespace"]
        pods = turn.snapshot.pods
        shares = {pod.uid: (pod.usage_millicores, plan.allocations[pod.uid]) for pod in pods}
        used = {
            uid: use / grant for uid, (use, grant) in shares.items() if use is not None and grant
        }
        throttled = {pod.uid: pod.throttling for pod in pods if pod.throttling is not None}
        for name, text, values in (
            ("apex_need_milli", "what the pod needs", plan.needs),
            ("apex_allocation_milli", "what the pod got", plan.allocations),
            (
                "apex_nash_reduction_ratio",
                "(need - allocation)/(need - baseline)",
                plan.reduction_ratio,
            ),
            ("apex_headroom_utilization", "actual usage / allocation", used),
            ("fairlead_cpu_throttled_ratio", "smoothed share of throttled periods", throttled),
        ):
            family = GaugeMetricFamily(name, text, labels=labels)
            for uid, value in values.items():
                family.add_metric(self._labels(uid), value)
            yield family

    def _labels(self, uid: str) -> tuple[str, str]:
        namespace, slash, name = uid.partition("/")
        return (name, namespace) if self._kube and slash else (uid, "")


def serve_metrics(collector: Collector, address: str, port: int) -> int:
    """Serve /metrics of either agent in a thread; returns the port (0 asks for any free one)."""
    registry = CollectorRegistry()
    registry.register(collector)
    with faults(f"serve metrics on {address}:{port}"):
        server, _ = start_http_server(port, addr=address, registry=registry)
    return int(server.server_port)
