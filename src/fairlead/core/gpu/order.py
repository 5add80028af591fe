"""Order: which reservations are activated, which shrunk runs grow, which waiting runs take what
others use or leave idle, and which of them first.

`activate` also decides which reservations may preempt others: one for which others were preempted
already may not, nor one whose outcome was voided as long as nothing else has changed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fairlead.core.gpu.queue import FlavorHold, HeldRun, ReservedStart
from fairlead.core.reasons import ActivationReason, GrowthReason, QueueHold, QueueReason, RankCause
from fairlead.core.units import Count, Gpus, Name, OutOfRange, Time, Written, repeats


@dataclass(frozen=True, slots=True)
class LastOutcome:
    """How the last resolve for a reservation ended."""

    outcome: Count
    applied: bool
    """Others were preempted for it; else it was voided."""
    by_operator: bool = False
    """An operator voided it."""
    changed: bool = False
    """Objects, leases or funding have changed since."""

    @property
    def reason(self) -> ActivationReason:
        if self.applied:
            return ActivationReason.PREEMPTED_ONCE
        stays = self.by_operator or not self.changed
        return ActivationReason.OUTCOME_VOIDED if stays else ActivationReason.DUE


@dataclass(frozen=True, slots=True)
class WaitingReservation:
    """A reservation whose run is still to be started."""

    name: Name
    run: Name
    start_ms: Annotated[int, Time(), Written("earliest_start")]
    last: LastOutcome | None = None


@dataclass(frozen=True, slots=True)
class ActivateRequest:
    """All that the activations of one turn are decided on."""

    now_ms: Annotated[int, Time(), Written("now")]
    reservations: tuple[WaitingReservation, ...]

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("reservations", "name", [row.name for row in self.reservations])


@dataclass(frozen=True, slots=True)
class Activation:
    """A reservation that is due, and its place in the order, from 1."""

    reservation: str
    run: str
    position: int
    preempts: bool
    """Whether others may be preempted for it."""
    reason: ActivationReason


@dataclass(frozen=True, slots=True)
class LaterReservation:
    """A reservation that is not due."""

    reservation: str
    until_ms: Annotated[int, Time(), Written("until")]


@dataclass(frozen=True, slots=True)
class Activations:
    """Reservations in the order in which they are activated, and the later ones by time."""

    order: tuple[Activation, ...]
    held: tuple[LaterReservation, ...]


def activate(asked: ActivateRequest) -> Activations:
    order: list[Activation] = []
    held: list[LaterReservation] = []
    for row in sorted(asked.reservations, key=lambda row: (row.start_ms, row.name)):
        if asked.now_ms < row.start_ms:
            held.append(LaterReservation(row.name, row.start_ms))
            continue
        reason = ActivationReason.DUE if row.last is None else row.last.reason
        preempts = reason is ActivationReason.DUE
        order.append(Activation(row.name, row.run, len(order) + 1, preempts, reason))
    return Activations(tuple(order), tuple(held))


@dataclass(frozen=True, slots=True)
class ShrunkRun:
    """A run that has fewer groups than it asked for, or than an outcome took it from."""

    id: Name
    flavor: Name
    width: Count
    grows_to: Gpus
    settled: bool
    """It runs, and is neither paused nor about to end or to give leases back."""
    location: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShrunkRuns:
    """All that the growth of one turn is ordered by."""

    now_ms: Annotated[int, Time(), Written("now")]
    runs: tuple[ShrunkRun, ...]
    holds: tuple[FlavorHold, ...]

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("runs", "id", [run.id for run in self.runs])
        yield from repeats("holds", "flavor", [hold.flavor for hold in self.holds])


@dataclass(frozen=True, slots=True)
class GrowingRun:
    """A run that may grow, and its place in the order, from 1."""

    run: str
    position: int
    reason: GrowthReason


@dataclass(frozen=True, slots=True)
class GrowthOrder:
    """Runs in the order in which they are asked about, and those that are held, by id."""

    order: tuple[GrowingRun, ...]
    held: tuple[HeldRun, ...]


def grow(asked: ShrunkRuns) -> GrowthOrder:
    by_flavor = {hold.flavor: hold for hold in asked.holds}
    order: list[GrowingRun] = []
    held: list[HeldRun] = []
    for run in sorted(asked.runs, key=lambda run: run.id):
        hold = by_flavor.get(run.flavor)
        if not run.settled:
            held.append(HeldRun(run.id, QueueHold.NOT_SETTLED, None))
        elif hold is not None and hold.applies(asked.now_ms, run.id, run.location):
            held.append(HeldRun(run.id, QueueHold.RESOLVE_OPEN, hold.until_ms, hold.outcome))
        else:
            order.append(GrowingRun(run.id, len(order) + 1, GrowthReason.NAME))
    return GrowthOrder(tuple(order), tuple(held))


@dataclass(frozen=True, slots=True)
class RankedRun:
    """A run that waits, and may take what the cause of a ranking says."""

    id: Name
    flavor: Name
    submitted: Count
    """The number of its submission: smaller is earlier."""
    location: Mapping[str, str] = field(default_factory=dict)
    reservation: ReservedStart | None = None


@dataclass(frozen=True, slots=True)
class RankRequest:
    """All that one ranking is decided on."""

    now_ms: Annotated[int, Time(), Written("now")]
    cause: RankCause
    runs: tuple[RankedRun, ...]
    holds: tuple[FlavorHold, ...] = ()

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("runs", "id", [run.id for run in self.runs])
        yield from repeats("holds", "flavor", [hold.flavor for hold in self.holds])


@dataclass(frozen=True, slots=True)
class RankRow:
    """A run and its place in the order, from 1."""

    run: str
    position: int
    reason: QueueReason


@dataclass(frozen=True, slots=True)
class Ranking:
    """Runs in the order in which they are asked about, and those that are held, by id."""

    cause: RankCause
    order: tuple[RankRow, ...]
    held: tuple[HeldRun, ...]


def rank(asked: RankRequest) -> Ranking:
    """First come, first served. A reservation that is due recalls; it preempts and starts by
    `activate`, and not here."""
    by_flavor = {hold.flavor: hold for hold in asked.holds}
    order: list[RankRow] = []
    held: list[HeldRun] = []
    for run in sorted(asked.runs, key=lambda run: (run.submitted, run.id)):
        start, hold = run.reservation, by_flavor.get(run.flavor)
        if start is not None and asked.now_ms < start.start_ms:
            held.append(HeldRun(run.id, QueueHold.RESERVATION_NOT_DUE, start.start_ms))
        elif start is not None and asked.cause is not RankCause.RECALL:
            held.append(HeldRun(run.id, QueueHold.RESERVATION_DUE, start.start_ms))
        elif hold is not None and hold.applies(asked.now_ms, run.id, run.location):
            held.append(HeldRun(run.id, QueueHold.RESOLVE_OPEN, hold.until_ms, hold.outcome))
        else:
            order.append(RankRow(run.id, len(order) + 1, QueueReason.SUBMITTED))
    held.sort(key=lambda hold: hold.run)
    return Ranking(asked.cause, tuple(order), tuple(held))
