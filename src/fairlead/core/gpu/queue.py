"""Queue: in which order waiting runs are considered for admission, and which are held back.

Version 1 is first come, first served: by the number of the submission, then by id. What the other
fields say of a run (tier, age, size, duration, its owner's priority) is recorded with the decision
and does not change the order; a later version may use it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.reasons import QueueHold, QueueReason
from fairlead.core.units import (
    INTEGER_MAX,
    Count,
    Gpus,
    Name,
    OutOfRange,
    Range,
    Time,
    Written,
    repeats,
)


@dataclass(frozen=True, slots=True)
class ReservedStart:
    """The reservation that will start a run, and when it is due."""

    name: Name
    start_ms: Annotated[int, Time(), Written("earliest_start")]


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that is to be started. A preempted run keeps the number of its submission."""

    id: Name
    owner: Name
    flavor: Name
    gpus: Gpus
    submitted: Count
    """The number of its submission: unique among all that ever were, smaller is earlier."""
    waiting_since_ms: Annotated[int, Time(), Written("waiting_since")]
    min_gpus: Gpus | None = None
    duration_ms: Count | None = None
    tier: str | None = None
    owner_priority: Annotated[int, Range(-INTEGER_MAX, INTEGER_MAX)] = 0
    reservation: ReservedStart | None = None


@dataclass(frozen=True, slots=True)
class FlavorHold:
    """Free devices of a flavor are kept for the winner of an open outcome.

    `until_ms` None: until the outcome is over.
    """

    flavor: Name
    outcome: Count
    until_ms: Annotated[int, Time(), Written("until")] | None = None

    def applies(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run and its place in the queue, from 1."""

    run: str
    position: int
    reason: QueueReason


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run that is not considered now; `until_ms` None: it is not known until when."""

    run: str
    reason: QueueHold
    until_ms: Annotated[int, Time(), Written("until")] | None
    outcome: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """Runs in the order in which they are considered, and those that are held, by id."""

    order: tuple[QueuedRun, ...]
    held: tuple[HeldRun, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """All that the order of one turn is decided on."""

    now_ms: Annotated[int, Time(), Written("now")]
    runs: tuple[WaitingRun, ...] = ()
    holds: tuple[FlavorHold, ...] = ()

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("runs", "id", [run.id for run in self.runs])
        yield from repeats("holds", "flavor", [hold.flavor for hold in self.holds])


def queue(waiting: Waiting) -> Queue:
    by_flavor = {hold.flavor: hold for hold in waiting.holds}
    order: list[QueuedRun] = []
    held: list[HeldRun] = []
    for run in sorted(waiting.runs, key=lambda run: (run.submitted, run.id)):
        hold = _held(run, by_flavor.get(run.flavor), waiting.now_ms)
        if hold is not None:
            held.append(hold)
        else:
            order.append(QueuedRun(run.id, len(order) + 1, QueueReason.SUBMITTED))
    return Queue(tuple(order), tuple(sorted(held, key=lambda hold: hold.run)))


def _held(run: WaitingRun, hold: FlavorHold | None, now_ms: int) -> HeldRun | None:
    start = run.reservation
    if start is not None:
        due = now_ms >= start.start_ms
        reason = QueueHold.RESERVATION_DUE if due else QueueHold.RESERVATION_NOT_DUE
        return HeldRun(run.id, reason, start.start_ms)
    if hold is not None and hold.applies(now_ms):
        return HeldRun(run.id, QueueHold.RESOLVE_OPEN, hold.until_ms, hold.outcome)
    return None
