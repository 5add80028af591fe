"""Policy: what keeps preemption from being a weapon, and whether a reservation may be made.

A reservation preempts others at its time, so its owner has to announce it: no start in the past, a
minimum notice, and so many open reservations per owner. A run that has just started, or was just
preempted, is no candidate for a while; `deficit` asks `RunProtection` about that. A run that others
took the devices from starts anew; one that its own limits ended is as old as it was, or a run that
ends every nine minutes would be protected for ever.

    notice        the operator and owners that may preempt at once need none
    quota         of reservations that still wait, per owner; moving one does not count
    past          a start up to a minute ago is now: clocks differ, and requests take time
    moved later   needs no new notice, because those at risk only gain time
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from fairlead.core.reasons import EndCause, Exclusion, ReserveReason
from fairlead.core.units import HOUR_MS, Count, Name, Time, Written

PAST_MS = 60_000


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """The operator's settings, in milliseconds."""

    min_notice_ms: Count = HOUR_MS
    """From making a reservation to its start."""
    max_reservations: Count = 4
    """Reservations of one owner that wait."""
    min_runtime_ms: Count = 600_000
    """A funded run is no candidate before it has run so long."""
    cooldown_ms: Count = HOUR_MS
    """A funded run that was preempted is no candidate again before this is over."""


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """All that decides whether a reservation may be made, or moved."""

    now_ms: Annotated[int, Time(), Written("now")]
    owner: Name
    start_ms: Annotated[int, Time(), Written("earliest_start")]
    open_reservations: Count
    """Of the same owner, without this one."""
    policy: PreemptionPolicy
    exempt: bool = False
    """The operator, or an owner that may preempt at once: no notice, no quota."""
    moved_from_ms: Annotated[int, Time(), Written("moved_from")] | None = None
    """Its start so far; None: it is new."""


@dataclass(frozen=True, slots=True)
class ReserveAnswer:
    """Whether it may be made; if only its start is wrong, the earliest that would do."""

    reason: ReserveReason
    earliest_ms: Annotated[int, Time(), Written("earliest")] | None = None

    @property
    def allowed(self) -> bool:
        return self.reason is ReserveReason.ALLOWED


def reserve(asked: ReserveRequest) -> ReserveAnswer:
    policy, moved_ms = asked.policy, asked.moved_from_ms
    notice_ms = 0 if asked.exempt else policy.min_notice_ms
    earliest_ms = asked.now_ms + notice_ms
    if moved_ms is not None:
        earliest_ms = max(asked.now_ms, min(earliest_ms, moved_ms))
    if asked.start_ms < asked.now_ms - PAST_MS:
        return ReserveAnswer(ReserveReason.IN_THE_PAST, earliest_ms)
    is_new = moved_ms is None
    if is_new and not asked.exempt and asked.open_reservations >= policy.max_reservations:
        return ReserveAnswer(ReserveReason.QUOTA)
    if notice_ms and asked.start_ms < earliest_ms:
        return ReserveAnswer(ReserveReason.NOTICE_TOO_SHORT, earliest_ms)
    return ReserveAnswer(ReserveReason.ALLOWED)


_BY_OTHERS = frozenset({EndCause.PREEMPTED, EndCause.INTERRUPTED})


def protected_since_ms(cause: EndCause, since_ms: int | None) -> int | None:
    """From when the minimum runtime of a run counts that waits again; None: from its next start.
    `since_ms`: from when it did."""
    return None if cause in _BY_OTHERS else since_ms


class Standing(IntEnum):
    """How the leases of a run are paid for."""

    FUNDED = 0
    RECALLED = 1
    """They began with funding, and the owner of the envelope recalled it: it has its minimum
    runtime, or it would be preempted in its first second, and no more, or the owner would be
    locked out of its own envelope."""
    UNFUNDED = 2
    """Who pays does not wait for who does not."""


@dataclass(frozen=True, slots=True)
class RunProtection:
    """For how long runs are no candidates, and what time it is."""

    now_ms: Count
    min_runtime_ms: Count
    cooldown_ms: Count

    def exclusion(
        self, started_ms: int | None, preempted_ms: int | None, standing: Standing = Standing.FUNDED
    ) -> Exclusion | None:
        """Why a run with these times is no candidate; None: it is one."""
        if standing is Standing.UNFUNDED:
            return None
        if started_ms is not None and self.now_ms < started_ms + self.min_runtime_ms:
            return Exclusion.MIN_RUNTIME
        if standing is Standing.RECALLED:
            return None
        if preempted_ms is not None and self.now_ms < preempted_ms + self.cooldown_ms:
            return Exclusion.COOLDOWN
        return None

    def until_ms(
        self, started_ms: int | None, preempted_ms: int | None, standing: Standing = Standing.FUNDED
    ) -> int:
        """When a run with these times is a candidate at the latest."""
        young = 0 if started_ms is None else started_ms + self.min_runtime_ms
        if standing is Standing.RECALLED:
            return young
        recent = 0 if preempted_ms is None else preempted_ms + self.cooldown_ms
        return max(young, recent)
