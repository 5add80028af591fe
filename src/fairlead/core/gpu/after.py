"""After: whether a run that is to start after others may start, waits, or never will."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fairlead.core.reasons import AfterReason
from fairlead.core.units import Name, OutOfRange, repeats


class AfterCondition(StrEnum):
    """How the run before has to end."""

    OK = "afterOK"
    """It succeeded."""
    ANY = "afterAny"
    """It ended, in whichever way."""


class RunProgress(StrEnum):
    """How far the run before has come."""

    OPEN = "open"
    """It waits or runs."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    """It was deleted: how it ended is not known."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One run that another one starts after."""

    run: Name
    condition: AfterCondition
    progress: RunProgress


@dataclass(frozen=True, slots=True)
class Dependencies:
    """All that one run starts after."""

    after: tuple[Dependency, ...]

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("after", "run", [one.run for one in self.after])


@dataclass(frozen=True, slots=True)
class AfterResult:
    """Whether it may start, and the runs that decide it, in the order given."""

    reason: AfterReason
    runs: tuple[str, ...]


def after(asked: Dependencies) -> AfterResult:
    """One that can no more be met decides, whatever the others do."""
    lost = (RunProgress.FAILED, RunProgress.GONE)
    never = [
        one.run
        for one in asked.after
        if one.condition is AfterCondition.OK and one.progress in lost
    ]
    if never:
        return AfterResult(AfterReason.FAILED, tuple(never))
    still = [one.run for one in asked.after if one.progress is RunProgress.OPEN]
    if still:
        return AfterResult(AfterReason.WAITS, tuple(still))
    return AfterResult(AfterReason.READY, tuple(one.run for one in asked.after))
