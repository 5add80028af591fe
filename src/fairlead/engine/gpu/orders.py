"""Orders that core decides in a turn: each is recorded with the first act that follows from it."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fairlead.core import gpu
from fairlead.core.reasons import RankCause
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.entries import NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.schema.gpu import STYLE


class TurnOrder:
    """The order of one turn, and how far it is the order that was last recorded."""

    def __init__(
        self, projection: Projection, key: str, names: Sequence[str], decide: Callable[[], NewEntry]
    ) -> None:
        self.names, self.decision = names, decide
        self._projection, self._key = projection, key
        self._places = {name: place for place, name in enumerate(names)}
        self._recorded: Sequence[str] | None = None
        self._same = 0
        """So many at the beginning are the same ones, those that wait no more left out."""

    def entries(self, name: str) -> list[NewEntry]:
        """The order, where it decides about this one and is not recorded: others come behind it,
        and the recorded order does not have the same ones before it."""
        recorded = self._projection.orders.get(self._key, ())
        if recorded is not self._recorded:
            self._recorded, self._same = recorded, 0
            left = (other for other in recorded if other in self._places)
            for mine, other in zip(self.names, left, strict=False):
                if mine != other:
                    break
                self._same += 1
        said = self.names[-1] == name or self._places[name] < self._same
        return [] if said else [self.decision()]


def turn_order(
    projection: Projection,
    kind: type[entries.OrderDecision],
    names: Sequence[str],
    found: object,
    asked: gpu.ActivateRequest | gpu.ShrunkRuns | gpu.RankRequest,
    *,
    key: str = "",
) -> TurnOrder:
    decide = partial(order_decision, kind, found, asked, asked.now_ms)
    return TurnOrder(projection, key or kind.ENTRY, names, decide)


def order_decision(
    kind: type[entries.OrderDecision], found: object, asked: object, now_ms: int
) -> NewEntry:
    """An order as it is recorded, with its whole input."""
    return NewEntry(kind(STYLE.from_core(found)), now_ms, input=STYLE.from_core(asked))


def rank_order(
    projection: Projection, cause: RankCause, runs: Iterable[str], now_ms: int, hold_ms: int
) -> TurnOrder:
    """Of waiting runs that may take what others use, or leave idle."""
    rows = tuple(_row(projection, run) for run in sorted(runs))
    asked = gpu.RankRequest(now_ms, cause, rows, projection.holds(hold_ms))
    found, kind = gpu.rank(asked), entries.RankDecision
    names = [row.run for row in found.order]
    return turn_order(projection, kind, names, found, asked, key=f"{kind.ENTRY}.{cause.value}")


def _row(projection: Projection, run: str) -> gpu.RankedRun:
    spec, submitted = projection.run_spec(run), projection.runs[run].submitted_seq
    start = projection.reserved_start(run)
    return gpu.RankedRun(run, spec.flavor, submitted, spec.location, start)
