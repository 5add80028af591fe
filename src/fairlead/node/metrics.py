"""Prometheus metrics of the node agent, computed when they are scraped.

The `apex_*` names and units are those of the allocator specification Fairlead implements; ours
start with `fairlead_cpu_`. On plain cgroups `pod` is the path below the root, `namespace` is empty;
on Kubernetes they are the pod's. `fairlead.schema.metrics` lists them all.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from fairlead.core.cpu import Actuation, CpuMode
from fairlead.engine.cpu import CpuLoop, CpuTurn
from fairlead.host.bounded import BoundedServer
from fairlead.node.kernel_files import StallTime, read_node_pressure
from fairlead.ports.faults import faults
from fairlead.schema.exposition import TableCollector
from fairlead.schema.metrics import Process
from fairlead.schema.samples import Samples


class CountingAgent(Protocol):
    """What is read of an agent: on a machine, or simulated."""

    @property
    def loop(self) -> CpuLoop: ...

    last_turn: CpuTurn | None
    clears: int
    writes: int
    write_failures: int
    missed_samples: int
    faults: int


class NodeMeasures:
    """The agent's counters and its last turn as samples."""

    def __init__(
        self,
        agent: CountingAgent,
        *,
        node: str | None = None,
        kube: bool = False,
        pressure: Callable[[], StallTime | None] = read_node_pressure,
    ) -> None:
        self._agent, self._kube, self._pressure = agent, kube, pressure
        self._node = node or os.environ.get("NODE_NAME") or os.uname().nodename

    def collector(self) -> Collector:
        return TableCollector(Process.NODE_AGENT, self.samples)

    def samples(self) -> Samples:
        """Those of pods and of the node are empty until the first clearing."""
        agent, pressure = self._agent, self._pressure()
        values: dict[str, float | None] = {
            "clears_total": agent.clears,
            "limit_writes_total": agent.writes,
            "limit_write_failures_total": agent.write_failures,
            "samples_missed_total": agent.missed_samples,
            "faults_total": agent.faults,
            "pressure_some_seconds_total": None if pressure is None else pressure.some_us / 1e6,
        }
        if agent.last_turn is None:
            return _plain(values)
        plain = _plain(values | self._node_values(agent.last_turn))
        return {**plain, **self._modes(agent.last_turn), **self._pods(agent.last_turn)}

    def _node_values(self, turn: CpuTurn) -> dict[str, float | None]:
        plan, governor = turn.plan, self._agent.loop.governor
        return {
            "capacity_cores": plan.capacity_millicores / 1000,
            "need_cores": plan.total_need / 1000,
            "min_cores": plan.total_min / 1000,
            "limits_cores": governor.adopted_millicores / 1000,
            "shadow_price": plan.shadow_price,
            "observe_only": float(turn.observed_only),
        }

    def _modes(self, turn: CpuTurn) -> Samples:
        rows = [
            ({"node": self._node, "mode": mode.value}, float(mode is turn.plan.mode))
            for mode in CpuMode
        ]
        return {"apex_allocation_mode": rows}

    def _pods(self, turn: CpuTurn) -> Samples:
        plan, pods = turn.plan, turn.snapshot.pods
        shares = {pod.uid: (pod.usage_millicores, plan.allocations[pod.uid]) for pod in pods}
        used = {
            uid: use / grant for uid, (use, grant) in shares.items() if use is not None and grant
        }
        throttled = {pod.uid: pod.throttling for pod in pods if pod.throttling is not None}
        values: dict[str, Mapping[str, float]] = {
            "apex_need_milli": plan.needs,
            "apex_allocation_milli": plan.allocations,
            "apex_nash_reduction_ratio": plan.reduction_ratio,
            "apex_headroom_utilization": used,
            "fairlead_cpu_throttled_ratio": throttled,
            "fairlead_cpu_contained": self._contained(),
        }
        return {
            name: [(self._labels(uid), value) for uid, value in rows.items()]
            for name, rows in values.items()
        }

    def _contained(self) -> dict[str, float]:
        """None where limits are governed: there every pod has one."""
        governor = self._agent.loop.governor
        if governor.config.actuate is Actuation.LIMITS:
            return {}
        return {uid: float(pod.is_contained) for uid, pod in governor.pods.items()}

    def _labels(self, uid: str) -> dict[str, str]:
        namespace, slash, name = uid.partition("/")
        if self._kube and slash:
            return {"pod": name, "namespace": namespace}
        return {"pod": uid, "namespace": ""}


def _plain(values: Mapping[str, float | None]) -> Samples:
    """Metrics without labels; what is not known has no sample."""
    return {
        f"fairlead_cpu_{name}": [({}, value)] for name, value in values.items() if value is not None
    }


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # seconds for each read

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""


class _MetricsServer(BoundedServer, WSGIServer):
    daemon_threads = True


class _MetricsServer6(_MetricsServer):
    address_family = socket.AF_INET6


def serve_metrics(collector: Collector, address: str, port: int) -> int:
    """Serve /metrics of either agent in a thread; returns the port (0 asks for any free one)."""
    registry = CollectorRegistry()
    registry.register(collector)
    with faults(f"serve metrics on {address}:{port}"):
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        kind = _MetricsServer6 if family == socket.AF_INET6 else _MetricsServer
        server = kind((address, port), _Handler)
    server.set_app(make_wsgi_app(registry))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)
