"""Queue: in which order waiting runs are considered for admission, and which are held back.

Version 1, without a `policy`, is first come, first served: by the number of the submission, then
by id. Version 2 orders by rank, in integers:

    tier = min(tiers_max, (GPUs in use + GPUs asked for before it) // GPUs granted)
    rank = time of submission + tier * tier_age

All three are its owner's, of its flavor. What an owner asks for beyond what its envelopes grant is
ordered as if it had come later by one `tier_age` for each time over. A run waits for at most
`tiers_max * tier_age` longer than first come, first served would have it, so no run starves. An
owner without an envelope of its own uses those of others, and is in tier 1.

An owner's priority moves its runs among the places that they have together: which owner has which
place does not follow from it.

A run that came to be first, and was promised its earliest start, stays first: else runs that come
later, of owners within their grants, would take its place again and again, and a wide run would
lose the devices that are kept for it each time. Its owner can put another of its runs before it.

Version 3 has holds that are `scoped`: an open outcome holds no run back that does not need the
devices in its scope.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated

from fairlead.core.gpu.place import matches
from fairlead.core.reasons import QueueHold, QueueReason
from fairlead.core.units import (
    HOUR_MS,
    Count,
    Duration,
    Gpus,
    Integer,
    Name,
    OutOfRange,
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
    owner_priority: Integer = 0
    reservation: ReservedStart | None = None
    submitted_ms: Annotated[int, Time(), Written("submitted_at")] | None = None
    """Of version 2."""
    promised_ms: Annotated[int, Time(), Written("promised_at")] | None = None
    """Of version 2: since when it is promised its earliest start; None: it is not."""
    location: Mapping[str, str] = field(default_factory=dict)

    @property
    def age_key(self) -> tuple[int, int, str]:
        """Older runs first; a preempted run has waited since its submission."""
        since_ms = self.waiting_since_ms if self.submitted_ms is None else self.submitted_ms
        return since_ms, self.submitted, self.id


@dataclass(frozen=True, slots=True)
class OwnerUse:
    """GPUs of a flavor that an owner's own envelopes grant, and those that its runs use."""

    owner: Name
    flavor: Name
    granted_gpus: Count
    used_gpus: Count


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How far back a run is moved for each time that its owner is over what it is granted."""

    tier_age_ms: Annotated[int, Duration(), Written("tier_age")] = HOUR_MS
    tiers_max: Count = 8


@dataclass(frozen=True, slots=True)
class FlavorHold:
    """Free devices of a flavor in a location are kept for the winner of an open outcome.

    `until_ms` None: until the outcome is over.
    """

    flavor: Name
    outcome: Count
    until_ms: Annotated[int, Time(), Written("until")] | None = None
    location: Mapping[str, str] = field(default_factory=dict)
    scoped: bool = False
    """Of version 3: a run that could start outside of the location, too, is not held, and is placed
    there. False: only one that asks for another location is not."""
    winner: Name | None = None
    """Of version 3: the run that the outcome is for."""

    def is_open(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms

    def applies(self, now_ms: int, run: str, location: Mapping[str, str]) -> bool:
        """Whether a run in this location waits: one that does not need the scope of the outcome
        does not. Its winner does, wherever it could start."""
        if not self.is_open(now_ms):
            return False
        if run == self.winner:
            return True
        return all(
            location.get(key, None if self.scoped else value) == value
            for key, value in self.location.items()
        )

    def keeps(self, location: Mapping[str, str]) -> bool:
        """Whether devices of a node with these labels are kept."""
        return matches(location, self.location)


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run and its place in the queue, from 1."""

    run: str
    position: int
    reason: QueueReason
    tier: int | None = None
    """How many times over its owner's grant it comes; of version 2."""


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
    policy: QueuePolicy | None = None
    """None: version 1."""
    owners: tuple[OwnerUse, ...] = ()
    """Of version 2; one that is not here is granted nothing and uses nothing."""

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("runs", "id", [run.id for run in self.runs])
        yield from repeats("holds", "flavor", [hold.flavor for hold in self.holds])
        pairs = [(row.owner, row.flavor) for row in self.owners]
        if len(set(pairs)) < len(pairs):
            yield OutOfRange("owners", "names an owner and flavor twice")


ANEW_MAX, STANDS_MS_PER_THOUSAND = 1_000, 200
"""Waiting runs that are ordered in every turn; and for how long the order of so many more stands.
To order 10 000 takes as long as to start dozens of runs, and devices stand idle meanwhile."""


def order_stands(*, runs: int, age_ms: int) -> bool:
    """Whether an order of so many runs is followed for another turn. Who came since then waits for
    the next order. `age_ms`: since the end of the turn that decided it.

    Of runs in it that ask for the same, the first answers for the others: where it does not start,
    none of them does. That holds for runs with an equal `Request` and `GangShape`, an equal longest
    runtime, and the same will to run unfunded. Their answers by `start` and `claims` are equal, and
    by `backfill` the first one's is the mildest: it is itself the head that the others are behind.
    The winner of an open outcome waits for a reason of its own, and answers for no other run."""
    return 0 <= 1_000 * age_ms < STANDS_MS_PER_THOUSAND * (runs - ANEW_MAX)


def queue(waiting: Waiting) -> Queue:
    by_flavor = {hold.flavor: hold for hold in waiting.holds}
    free: list[WaitingRun] = []
    held: list[HeldRun] = []
    for run in waiting.runs:
        hold = _held(run, by_flavor.get(run.flavor), waiting.now_ms)
        if hold is None:
            free.append(run)
        else:
            held.append(hold)
    order = _by_number(free) if waiting.policy is None else _by_rank(free, waiting, waiting.policy)
    return Queue(tuple(order), tuple(sorted(held, key=lambda hold: hold.run)))


def _by_number(runs: list[WaitingRun]) -> Iterator[QueuedRun]:
    ordered = sorted(runs, key=lambda run: (run.submitted, run.id))
    for position, run in enumerate(ordered, start=1):
        yield QueuedRun(run.id, position, QueueReason.SUBMITTED)


_Place = tuple[int, int, str, int, str]
"""A place of an owner in the queue: its rank, number and id of the run that it is computed for
(of two places of one rank the older is first), its tier, and the run that its owner's priorities
put there. A plain tuple: tens of thousands are made and sorted in every turn."""


def _by_rank(runs: list[WaitingRun], waiting: Waiting, policy: QueuePolicy) -> Iterator[QueuedRun]:
    use = {(row.owner, row.flavor): row for row in waiting.owners}
    by_owner: dict[tuple[str, str], list[WaitingRun]] = {}
    for run in runs:
        by_owner.setdefault((run.owner, run.flavor), []).append(run)
    places: list[_Place] = []
    for key, mine in by_owner.items():
        places += _places(mine, use.get(key) or OwnerUse(*key, 0, 0), policy)
    places.sort()
    first = list(_promised(by_owner.values()))
    if first:
        rank = {name: place for place, name in enumerate(first)}
        places.sort(key=lambda place: rank.get(place[4], len(rank)))
    for position, (_, _, oldest, tier, name) in enumerate(places, start=1):
        reason = QueueReason.SUBMITTED if not tier else QueueReason.TIER
        if name != oldest:
            reason = QueueReason.PRIORITY
        if position <= len(first):
            reason = QueueReason.PROMISED
        yield QueuedRun(name, position, reason, tier)


def _promised(owners: Iterable[list[WaitingRun]]) -> Iterator[str]:
    """Runs that stay first, by the time of their promise; their owners prefer none to them."""
    kept = [
        (run.promised_ms, *run.age_key)
        for mine in owners
        for run in mine
        if run.promised_ms is not None
        and run.owner_priority == max(other.owner_priority for other in mine)
    ]
    return (name for *_, name in sorted(kept))


def _places(mine: list[WaitingRun], use: OwnerUse, policy: QueuePolicy) -> Iterator[_Place]:
    by_age = sorted([(*run.age_key, run) for run in mine], key=itemgetter(0, 1, 2))
    # Stable: of one priority the older run is first.
    chosen = sorted(by_age, key=lambda row: -row[3].owner_priority)
    gpus, granted = use.used_gpus, use.granted_gpus
    for (since_ms, submitted, name, run), (*_, takes) in zip(by_age, chosen, strict=True):
        tier = min(policy.tiers_max, gpus // granted if granted else 1)
        yield since_ms + tier * policy.tier_age_ms, submitted, name, tier, takes.id
        gpus += run.gpus


def _held(run: WaitingRun, hold: FlavorHold | None, now_ms: int) -> HeldRun | None:
    start = run.reservation
    if start is not None:
        due = now_ms >= start.start_ms
        reason = QueueHold.RESERVATION_DUE if due else QueueHold.RESERVATION_NOT_DUE
        return HeldRun(run.id, reason, start.start_ms)
    if hold is not None and hold.applies(now_ms, run.id, run.location):
        return HeldRun(run.id, QueueHold.RESOLVE_OPEN, hold.until_ms, hold.outcome)
    return None
