"""Queue: in which order waiting runs are considered for admission, and which are held back.

Version 1 is first come, first served: by the number of the submission, then by id. What the other
fields say of a run (tier, age, size, duration, its owner's priority) is recorded with the decision
and does not change the order; a later version may use it.
"""

from dataclasses import dataclass

from fairlead.core.reasons import QueueHold, QueueReason


@dataclass(frozen=True, slots=True)
class ReservedStart:
    """The reservation that will start a run, and when it is due."""

    name: str
    start_ms: int


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that is to be started. A preempted run keeps the number of its submission."""

    id: str
    owner: str
    flavor: str
    gpus: int
    submitted: int
    """The number of its submission: unique among all that ever were, smaller is earlier."""
    waiting_since_ms: int
    min_gpus: int | None = None
    duration_ms: int | None = None
    tier: str | None = None
    owner_priority: int = 0
    reservation: ReservedStart | None = None


@dataclass(frozen=True, slots=True)
class FlavorHold:
    """Free devices of a flavor are kept for the winner of an open outcome.

    `until_ms` None: until the outcome is over.
    """

    flavor: str
    outcome: int
    until_ms: int | None = None


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
    until_ms: int | None
    outcome: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """Runs in the order in which they are considered, and those that are held, by id."""

    order: tuple[QueuedRun, ...]
    held: tuple[HeldRun, ...]


def queue(runs: tuple[WaitingRun, ...], holds: tuple[FlavorHold, ...], now_ms: int) -> Queue:
    """The order of one turn."""
    by_flavor = {hold.flavor: hold for hold in sorted(holds, key=lambda hold: hold.outcome)}
    order: list[QueuedRun] = []
    held: list[HeldRun] = []
    for run in sorted(runs, key=lambda run: (run.submitted, run.id)):
        hold = _held(run, by_flavor.get(run.flavor), now_ms)
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
    if hold is not None and (hold.until_ms is None or now_ms < hold.until_ms):
        return HeldRun(run.id, QueueHold.RESOLVE_OPEN, hold.until_ms, hold.outcome)
    return None
