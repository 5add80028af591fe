"""Metrics of the demo's simulated node and service, as agents on machines serve them.

They are on the two ports after the control plane's, where `deploy/prometheus/prometheus.yaml`
expects a machine's agents: the alert rules and all dashboards work on a demo as they are.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, start_http_server

from fairlead.core.invariant import known
from fairlead.engine.cpu import CpuLoop, CpuTurn
from fairlead.engine.traffic import TickRound
from fairlead.host.log import Log
from fairlead.node.metrics import NodeMeasures
from fairlead.node.traffic.reports import traffic_collector

_log = Log("fairlead.demo")


@dataclass(slots=True)
class NodeCounts:
    """What the node agent counts, over all rounds of the story."""

    current: Callable[[], CpuLoop | None]
    """The loop; each round has a new one."""
    last_turn: CpuTurn | None = None
    clears: int = 0
    writes: int = 0
    write_failures: int = 0
    missed_samples: int = 0
    faults: int = 0

    @property
    def loop(self) -> CpuLoop:
        return known(self.current(), "no crash is simulated")

    def add(self, turn: CpuTurn) -> None:
        self.last_turn = turn
        self.clears += 1
        self.writes += len(turn.written)
        self.write_failures += len(turn.failures)


@dataclass(slots=True)
class ServiceCounts:
    """What the traffic agent counts. A tick of simulated clients has no time of its own."""

    group: str
    last_round: TickRound | None = None
    ticks: int = 0
    early_ticks: int = 0
    missed_ticks: int = 0
    flips: int = 0
    faults: int = 0
    tick_seconds: float | None = None
    transitions: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, round: TickRound) -> None:
        (made,) = round.latest.values()
        self.last_round = replace(round, groups={self.group: made}, rested={})
        self.ticks += 1
        self.flips += sum(each.flipped for each in round.groups.values())
        self.faults += len(round.faults) + sum(bool(each.fault) for each in round.groups.values())
        self.transitions.update((self.group, change.what) for change in round.transitions)


@contextmanager
def demo_metrics(
    address: str | None, node: str, counts: tuple[NodeCounts, ServiceCounts]
) -> Iterator[None]:
    """Serve both; a port that another program has is left out, and logged."""
    first = None if address is None else urlsplit(address).port
    if first is None:
        yield
        return
    measures = NodeMeasures(counts[0], node=node, pressure=lambda: None)
    servers = []
    collectors = (measures.collector(), traffic_collector(counts[1]))
    for port, collector in enumerate(collectors, start=first + 1):
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            servers.append(start_http_server(port, addr="127.0.0.1", registry=registry))
        except (OSError, OverflowError) as error:
            _log.warning("simulated metrics are not served", port=port, why=str(error))
    try:
        yield
    finally:
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join()
