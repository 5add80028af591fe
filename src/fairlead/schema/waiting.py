"""`gpu.deficit` and `gpu.queue`: who waits for GPUs, what is missing, who may be preempted."""

from dataclasses import dataclass
from typing import Any

from fairlead.core import gpu
from fairlead.schema.derive import Style

STYLE = Style(
    strict=False,
    required={
        gpu.Node: {"location", "free"},
        gpu.Scope: {"location"},
        gpu.Waiting: {"runs", "holds"},
    },
)


@dataclass(frozen=True, slots=True)
class DeficitInput:
    """Input of `gpu.deficit`."""

    demand: gpu.GangDemand | gpu.CapDemand | gpu.PlaceDemand | gpu.NodeDemand
    nodes: tuple[gpu.Node, ...]
    runs: tuple[gpu.HoldingRun, ...]
    leases: tuple[gpu.HeldLease, ...]

    @property
    def holdings(self) -> gpu.Holdings:
        """What is held, without the demand."""
        return gpu.Holdings(self.nodes, self.runs, self.leases)

    def faults(self) -> Any:
        """Those of the holdings."""
        return self.holdings.faults()


def decide_deficit(document: Any) -> dict[str, Any]:
    """The whole contract: documents in, result document out."""
    given = STYLE.to_core(DeficitInput, document)
    return from_deficit(gpu.find_deficit(given.demand, given.holdings))


def deficit_document(demand: gpu.Demand, holdings: gpu.Holdings) -> dict[str, Any]:
    """The input document of one decision, as plain data; lists by id."""
    return STYLE.from_core(
        DeficitInput(
            demand,
            tuple(sorted(holdings.nodes, key=lambda node: node.name)),
            tuple(sorted(holdings.runs, key=lambda run: run.id)),
            tuple(sorted(holdings.leases, key=lambda lease: lease.id)),
        )
    )


def from_deficit(deficit: gpu.Deficit) -> dict[str, Any]:
    """The result document of a deficit."""
    return STYLE.from_core(deficit)


def decide_queue(document: Any) -> dict[str, Any]:
    """The whole contract: documents in, result document out."""
    return from_queue(gpu.queue(STYLE.to_core(gpu.Waiting, document)))


def queue_document(waiting: gpu.Waiting) -> dict[str, Any]:
    """The input document of one decision, as plain data."""
    return STYLE.from_core(waiting)


def from_queue(queue: gpu.Queue) -> dict[str, Any]:
    """The result document of a queue."""
    return STYLE.from_core(queue)
