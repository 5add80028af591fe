"""Limits: whether a run that holds devices has to end, or is to be warned.

Asked every turn of each run that has a limit, and recorded where the answer is not "go on". The
first limit that is over decides: its time, the hours of a hard envelope, idle devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.gpu.model import Enforcement
from fairlead.core.reasons import LimitReason
from fairlead.core.units import Count, Name, OutOfRange, PositiveCount, Time, Written, repeats


@dataclass(frozen=True, slots=True)
class PaidLease:
    """A lease, how its envelope holds its hours, and since when they are used up; None: not."""

    lease: Name
    budget: Name
    envelope: Name
    enforcement: Enforcement
    hours_over_ms: Annotated[int, Time(), Written("hours_over")] | None = None


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """After how long without work a run is warned, or ended; since when it has none, and whether
    it was warned of that."""

    after_ms: PositiveCount
    releases: bool = False
    since_ms: Annotated[int, Time(), Written("since")] | None = None
    warned: bool = False


@dataclass(frozen=True, slots=True)
class RunLimits:
    """A run, and what it may not go beyond."""

    now_ms: Annotated[int, Time(), Written("now")]
    run: Name
    running_since_ms: Annotated[int, Time(), Written("running_since")]
    """Since when it holds devices without a break; a start after a failure is none."""
    max_runtime_ms: Count | None = None
    leases: tuple[PaidLease, ...] = ()
    idle: IdleLimit | None = None

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("leases", "lease", [lease.lease for lease in self.leases])


@dataclass(frozen=True, slots=True)
class Limit:
    """What is over, and since when; `ends`: the run is asked to end, and has its grace."""

    reason: LimitReason
    ends: bool = False
    since_ms: Annotated[int, Time(), Written("since")] | None = None
    lease: str | None = None
    """The lease whose hours are used up."""


def limit(asked: RunLimits) -> Limit:
    if asked.max_runtime_ms is not None:
        end_ms = asked.running_since_ms + asked.max_runtime_ms
        if asked.now_ms >= end_ms:
            return Limit(LimitReason.MAX_RUNTIME, True, end_ms)
    over = [
        (lease.hours_over_ms, lease.lease)
        for lease in asked.leases
        if lease.enforcement is Enforcement.HARD and lease.hours_over_ms is not None
    ]
    if over:
        since_ms, lease = min(over)
        return Limit(LimitReason.HOURS_USED, True, since_ms, lease)
    idle = asked.idle
    if idle is not None and idle.since_ms is not None:
        is_over = asked.now_ms >= idle.since_ms + idle.after_ms
        if is_over and (idle.releases or not idle.warned):
            return Limit(LimitReason.IDLE, idle.releases, idle.since_ms)
    return Limit(LimitReason.WITHIN)
