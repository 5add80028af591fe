"""Backfill: whether a run may start now although others, before it in the queue, lack devices.

EASY backfill. The first run of a scope that lacks devices is a head, and so is the first one that
lacks envelopes which others use. It is promised the earliest start that follows from the ends of
the leases that run: its devices are free then, and its envelopes have room. Another run may start
only if it ends before that, or leaves what the head needs then. So a head is never delayed by a run
that came behind it, as long as leases end when they were expected to.

A lease without an expected end is taken to end `assumed` after its start. One that is still there
after its end is taken to end a step later; the step doubles, so that a promise neither moves every
second nor is believed for ever. A run without a duration could stay for ever: it is let in only
where it leaves room.

Which runs are heads is decided by `heads` (version 3, a policy with `heads_max`).

The longer a head waits, the less time it leaves to others (version 2, a policy with `halving_ms`).
Most runs end long before their estimates, and what they free is taken by runs that end just before
the promise: a wide head would start only when it was promised to, and not when it could. So only
runs start beside it that end within a part of the time until its start:

    halving / (halving + time that the head has waited)

It is one half after `halving`, and never 0: while a lease without a known end keeps a head waiting
for weeks, short runs still use what is free.

An estimate is no way to the front. It does not count while the owner of the run has one that is
past its own; nor, before a head, while any run is that started after the head began to wait: owners
that take turns with short estimates would pass it for ever. Then only `latest_ms` counts, when a
run is ended by its `maxRuntime`.

Whether a gang fits follows from the free devices of each domain alone (`place`): groups of equal
size fill domains, and what has no groups may be scattered.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from fairlead.core.gpu.charges import ChargeOutlook, LeaseCharge, Payment
from fairlead.core.gpu.heads import QueueHead, choose
from fairlead.core.gpu.place import DOMAIN_KEYS, Gang, matches
from fairlead.core.reasons import BackfillReason
from fairlead.core.units import (
    HOUR_MS,
    Count,
    Duration,
    Gpus,
    Name,
    OutOfRange,
    PositiveCount,
    Time,
    Written,
    repeats,
)

LATEST_MS = 253_370_764_800_000
"""The year 9999: later times cannot be written."""


@dataclass(frozen=True, slots=True)
class BackfillPolicy:
    """What is assumed of leases whose end is not known."""

    assumed_ms: Annotated[int, Duration(), Written("assumed_duration")] = 24 * HOUR_MS
    overtime_ms: Annotated[int, Duration(), Written("overtime")] = 60_000
    """The first step past an expected end."""
    halving_ms: Annotated[int, Duration(), Written("halving_age")] | None = None
    """After so long a head leaves half of the time until its start to others; None: version 1, it
    always leaves all of it."""
    heads_max: PositiveCount | None = None
    """So many heads of each kind; None: versions 1 and 2, every one that is given is a head."""

    def ends_by_ms(self, head: QueueHead, start_ms: int, now_ms: int) -> int:
        """By when a run has to end that starts before a head."""
        since_ms, halving_ms = head.since_ms, self.halving_ms
        if since_ms is None or halving_ms is None:
            return start_ms
        waited_ms = max(0, now_ms - since_ms)
        return now_ms + (start_ms - now_ms) * halving_ms // (halving_ms + waited_ms)

    def end_ms(self, release: "Release | LeaseCharge", now_ms: int) -> int:
        """When a lease is taken to end: after now."""
        end_ms = release.end_ms
        if end_ms is None:
            end_ms = release.start_ms + self.assumed_ms
        late_ms = now_ms - end_ms
        if late_ms >= 0:
            end_ms += self.overtime_ms << (late_ms // self.overtime_ms).bit_length()
        return min(end_ms, LATEST_MS)


@dataclass(frozen=True, slots=True)
class Release:
    """Devices that a lease holds, and when it is expected to end."""

    gpus: Gpus
    start_ms: Annotated[int, Time(), Written("start")]
    end_ms: Annotated[int, Time(), Written("expected_end")] | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes in service that have the same labels: what is free there, and what will be."""

    name: Name
    location: Mapping[str, str] = field(default_factory=dict)
    free_gpus: Count = 0
    releases: tuple[Release, ...] = ()

    @property
    def domain(self) -> tuple[str, ...]:
        return tuple(self.location.get(key, "") for key in DOMAIN_KEYS)


@dataclass(frozen=True, slots=True)
class Backfiller:
    """A run that could start now, or grow: the GPUs that it would take of each pool, and who would
    pay for them."""

    run: Name
    gpus: Mapping[str, Count]
    end_ms: Annotated[int, Time(), Written("expected_end")] | None = None
    payments: tuple[Payment, ...] = ()
    owner: Name | None = None
    latest_ms: Annotated[int, Time(), Written("latest_end")] | None = None
    """When it is ended by its `maxRuntime`."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """A run that holds devices of the flavor, and is past its own estimate."""

    run: Name
    owner: Name
    start_ms: Annotated[int, Time(), Written("start")]


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """All that is looked at: the pools of one flavor, heads in the order of the queue.

    Releases and charges that end after the last promised start may be left out, and so may runs
    that are no heads: they change nothing.
    """

    now_ms: Annotated[int, Time(), Written("now")]
    run: Backfiller
    heads: tuple[QueueHead, ...]
    pools: tuple[Pool, ...]
    policy: BackfillPolicy = field(default_factory=BackfillPolicy)
    charges: tuple[LeaseCharge, ...] = ()
    overruns: tuple[Overrun, ...] = ()
    """One of the run's owner, and the one that started last: these decide."""

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("heads", "run", [head.run for head in self.heads])
        yield from repeats("pools", "name", [pool.name for pool in self.pools])
        names = {pool.name for pool in self.pools}
        for name in self.run.gpus:
            if name not in names:
                yield OutOfRange(f"run.gpus.{name}", "names no pool")


@dataclass(frozen=True, slots=True)
class Promise:
    """The earliest start of a head; None: it does not fit, or is not funded, even when all leases
    have ended."""

    run: str
    start_ms: Annotated[int, Time(), Written("earliest_start")] | None


@dataclass(frozen=True, slots=True)
class Backfill:
    """Whether the run may start, and the head that it would delay."""

    reason: BackfillReason
    delays: str | None
    promises: tuple[Promise, ...]
    overrun: str | None = None
    """Because of this run the estimate did not count."""
    ends_by_ms: Annotated[int, Time(), Written("ends_by")] | None = None
    """Of version 2, where a head would be delayed: a run that ends by then would not delay it."""

    @property
    def starts(self) -> bool:
        return self.reason is not BackfillReason.DELAYS


def backfill(asked: BackfillRequest) -> Backfill:
    outlook = Outlook(asked.pools, asked.now_ms, asked.policy, asked.charges)
    found = list(choose(asked.heads, asked.policy.heads_max, outlook.promise_ms))
    promises = tuple(Promise(head.run, start_ms) for head, start_ms in found)
    return check(replace(asked, heads=tuple(head for head, _ in found)), promises, outlook)


def check(asked: BackfillRequest, promises: tuple[Promise, ...], outlook: "Outlook") -> Backfill:
    """The same where the heads and their promises are known."""
    run, reason = asked.run, BackfillReason.ENDS_BEFORE
    for head, promise in zip(asked.heads, promises, strict=True):
        start_ms = promise.start_ms
        if start_ms is None:
            continue
        overrun = _overrun(run, head, asked.overruns)
        end_ms = run.end_ms if overrun is None else run.latest_ms
        ends_by_ms = asked.policy.ends_by_ms(head, start_ms, asked.now_ms)
        if end_ms is not None and end_ms <= ends_by_ms:
            continue
        if not outlook.leaves(head, start_ms, run):
            return Backfill(BackfillReason.DELAYS, head.run, promises, overrun, ends_by_ms)
        reason = BackfillReason.LEAVES_ROOM
    return Backfill(reason, None, promises)


def _overrun(run: Backfiller, head: QueueHead, overruns: Iterable[Overrun]) -> str | None:
    """The first run because of which an estimate does not count before a head."""
    return min(
        (
            row.run
            for row in overruns
            if row.owner == run.owner
            or (head.since_ms is not None and row.start_ms > head.since_ms)
        ),
        default=None,
    )


class Outlook:
    """What is free of the devices of a flavor and of envelopes, now and later."""

    def __init__(
        self,
        pools: Iterable[Pool],
        now_ms: int,
        policy: BackfillPolicy,
        charges: Iterable[LeaseCharge] = (),
    ) -> None:
        self.charges = ChargeOutlook(charges, lambda charge: policy.end_ms(charge, now_ms))
        self._pools = {pool.name: pool for pool in pools}
        self.now_ms = now_ms
        self.ends = sorted(
            (policy.end_ms(release, now_ms), pool.name, release.gpus)
            for pool in self._pools.values()
            for release in pool.releases
        )

    def promise_ms(self, head: QueueHead) -> int | None:
        """The first time at which a head has both devices and funding, if nothing else starts."""
        start_ms = self.start_ms(head.gang)
        if start_ms is None or head.funding is None:
            return start_ms
        return self.charges.start_ms(head.funding, start_ms)

    def leaves(self, head: QueueHead, time_ms: int, run: Backfiller) -> bool:
        """Whether a head can still start at a time if a run does not end before."""
        funding = head.funding
        if funding is not None and not self.charges.pay(funding, time_ms, run.payments):
            return False
        return self.fits(head.gang, time_ms, without=run.gpus)

    def start_ms(self, gang: Gang) -> int | None:
        """The first time at which a gang fits, if nothing else starts."""
        rooms = self._rooms(gang)
        if rooms.fits():
            return self.now_ms
        last, ends = len(self.ends) - 1, self.ends
        for i, (end_ms, pool, gpus) in enumerate(ends):
            rooms.add(pool, gpus)
            if (i == last or ends[i + 1][0] > end_ms) and rooms.fits():
                return end_ms
        return None

    def fits(self, gang: Gang, time_ms: int, *, without: Mapping[str, int]) -> bool:
        """Whether a gang fits at a time, on what other runs of then leave."""
        rooms = self._rooms(gang)
        for pool, gpus in without.items():
            rooms.add(pool, -gpus)
        for end_ms, pool, gpus in self.ends:
            if end_ms > time_ms:
                break
            rooms.add(pool, gpus)
        return rooms.fits()

    def _rooms(self, gang: Gang) -> "_Rooms":
        rooms = _Rooms(gang)
        for pool in self._pools.values():
            rooms.add_pool(pool)
        return rooms


_Area = tuple[bool, tuple[str, ...]]
"""Whether it is in the gang's location, and the domain: a group is placed inside one."""


class _Rooms:
    """What a gang could use, by area; counted as devices come and go."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        spares = gang.spares_per_group
        *whole, last = gang.groups()
        self._scatters = gang.group_gpus is None and not spares
        self._unit = (whole[0] if whole else last) + spares
        self._rest = 0 if not whole or last + spares == self._unit else last + spares
        self._groups = len(whole) + (not self._rest)
        self._areas: dict[str, _Area] = {}
        self._rooms: dict[_Area, int] = {}
        self._total = self._fitting = 0

    def add_pool(self, pool: Pool) -> None:
        here = matches(pool.location, self._gang.location)
        if here or self._gang.elsewhere:
            area = self._areas[pool.name] = (here, pool.domain)
            self._rooms.setdefault(area, 0)
            self.add(pool.name, pool.free_gpus)

    def add(self, pool: str, gpus: int) -> None:
        area = self._areas.get(pool)
        if area is not None:
            room = self._rooms[area]
            self._rooms[area] = room + gpus
            self._total += gpus
            self._fitting += (room + gpus) // self._unit - room // self._unit

    def fits(self) -> bool:
        if self._scatters:
            return self._total >= self._unit
        if self._fitting != self._groups or not self._rest:
            return self._fitting >= self._groups
        return any(room % self._unit >= self._rest for room in self._rooms.values())
