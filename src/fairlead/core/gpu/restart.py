"""Restart: whether a run whose command failed starts again, on the devices that it has.

All of it starts again, every rank: the ranks of a gang cannot go on without one of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.reasons import RestartReason
from fairlead.core.units import Count, OutOfRange, Range

RESTARTS_MAX = 1000
ExitCode = Annotated[int, Range(1, 255)]


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What follows when a run's command fails."""

    max_restarts: Annotated[int, Range(0, RESTARTS_MAX)] = 0
    fail_exit_codes: tuple[ExitCode, ...] = ()
    """With these the run fails at once: to start it again would be no use."""

    def faults(self) -> Iterator[OutOfRange]:
        seen: set[int] = set()
        for i, code in enumerate(self.fail_exit_codes):
            if code in seen:
                yield OutOfRange(f"fail_exit_codes[{i}]", f"repeats {code}")
            seen.add(code)


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A command that failed. `exit_code` None: it is gone and left none; 128 and the signal's
    number where a signal ended it. `restarts`: how often the run was started again before."""

    policy: FailurePolicy
    restarts: Count
    exit_code: ExitCode | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether the run starts again, and for which time; `restarts` counts this one, too."""

    reason: RestartReason
    restarts: Count


def restart(asked: RunFailure) -> Restart:
    policy, restarts = asked.policy, asked.restarts
    if asked.exit_code in policy.fail_exit_codes:
        return Restart(RestartReason.EXIT_CODE, restarts)
    if restarts >= policy.max_restarts:
        return Restart(RestartReason.NONE_LEFT, restarts)
    return Restart(RestartReason.RESTARTS, restarts + 1)
