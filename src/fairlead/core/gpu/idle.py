"""Idle: since when the devices of a run do nothing, from readings every few seconds.

Idle means no use of any device of the run in any reading. What was not read is not known: a gap
between two readings that is longer than `gap` does not count as idle time, and after one that is
longer than `resume`, or while the run is paused, idle time counts anew.

Readings are too many to record. Those of a streak are all the same, so spans of them say as much;
the streak is recorded every `recorded_every`, when it ends, and where a limit follows from it. A
control plane that starts again goes on from there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from fairlead.core.units import Duration, Name, OutOfRange, Time, Written, repeats

SPANS_MAX = 100
"""More are made by gaps alone; idle time is then counted from a later one."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """How far apart readings may be, and how often a streak is recorded."""

    gap_ms: Annotated[int, Duration(), Written("gap")] = 30_000
    resume_ms: Annotated[int, Duration(), Written("resume")] = 600_000
    recorded_every_ms: Annotated[int, Duration(), Written("recorded_every")] = 300_000


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """Readings without use, none further apart than the gap."""

    from_ms: Annotated[int, Time(), Written("from")]
    to_ms: Annotated[int, Time(), Written("to")]


@dataclass(frozen=True, slots=True)
class IdleStreak:
    """Since when devices do nothing, less what was not read; and the last reading."""

    since_ms: Annotated[int, Time(), Written("since")]
    read_ms: Annotated[int, Time(), Written("read")]


@dataclass(frozen=True, slots=True)
class IdleRun:
    """One start of a run: the streak that was last recorded, and what was read since."""

    run: Name
    job: Name
    before: IdleStreak | None = None
    worked: bool = False
    """Its devices did something since: what was recorded before counts no more."""
    spans: tuple[IdleSpan, ...] = ()
    """Of readings after that."""

    def read(self, now_ms: int, policy: IdlePolicy, *, busy: bool) -> "IdleRun":
        """The same after one more reading."""
        if busy:
            return IdleRun(self.run, self.job, self.before, True)
        spans, from_ms = self.spans, now_ms
        if spans and 0 <= now_ms - spans[-1].to_ms <= policy.gap_ms:
            *rest, last = spans
            spans, from_ms = tuple(rest), last.from_ms
        spans = (*spans[1 - SPANS_MAX :], IdleSpan(from_ms, now_ms))
        return IdleRun(self.run, self.job, self.before, self.worked, spans)

    def streak(self, policy: IdlePolicy) -> IdleStreak | None:
        found = None if self.worked else self.before
        for span in self.spans:
            since_ms = span.from_ms
            if found is not None and 0 <= since_ms - found.read_ms <= policy.resume_ms:
                unread_ms = span.from_ms - found.read_ms
                since_ms = found.since_ms + (unread_ms if unread_ms > policy.gap_ms else 0)
            found = IdleStreak(since_ms, span.to_ms)
        return found

    def is_due(self, policy: IdlePolicy) -> bool:
        """Whether the streak is to be recorded for the next process: it goes on, or has ended."""
        if self.before is not None and self.worked:
            return True
        found = self.streak(policy)
        if found is None:
            return False
        recorded_ms = found.since_ms if self.before is None else self.before.read_ms
        return found.read_ms - recorded_ms >= policy.recorded_every_ms


@dataclass(frozen=True, slots=True)
class IdleRequest:
    """Runs whose streaks are recorded."""

    runs: tuple[IdleRun, ...]
    policy: IdlePolicy = field(default_factory=IdlePolicy)

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("runs", "run", [row.run for row in self.runs])


@dataclass(frozen=True, slots=True)
class IdleRow:
    """The streak of a run; None: its devices are in use."""

    run: str
    job: str
    streak: IdleStreak | None


@dataclass(frozen=True, slots=True)
class IdleResult:
    """Streaks by run."""

    runs: tuple[IdleRow, ...]


def idle(asked: IdleRequest) -> IdleResult:
    rows = sorted(asked.runs, key=lambda row: row.run)
    return IdleResult(tuple(IdleRow(row.run, row.job, row.streak(asked.policy)) for row in rows))
