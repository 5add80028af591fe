"""Restart: what becomes of a run whose command has ended, or that lost its devices.

A command that failed starts again on the devices that the run has; all of it, every rank: the ranks
of a gang cannot go on without one of them. A run that lost its devices waits for others.

    ended because              Never   OnPreemption   OnFailure   Always
    its devices were taken     ends    waits again    waits again waits again
    the machine restarted      ends    waits again*   waits again* waits again*
    its command failed         ends    ends           restarts*   restarts*
    a limit of its own, or 0   ends    ends           ends        waits again*, or restarts*

    * counted: at most `max_restarts` in all

What restarts on its devices waits before, each time twice as long: a command that fails at once
would use all its restarts within seconds. The delay begins anew when a command has run for long
enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from fairlead.core.reasons import EndCause, RestartReason
from fairlead.core.units import Count, OutOfRange, Range

RESTARTS_MAX = 1000
RESTARTS_DEFAULT = 6
"""Where a policy does not say: as many as a Job of Kubernetes has."""
ExitCode = Annotated[int, Range(1, 255)]


class RestartPolicy(StrEnum):
    """After which ends a run starts again by itself."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ON_PREEMPTION = "OnPreemption"
    ALWAYS = "Always"

    @property
    def causes(self) -> frozenset[EndCause]:
        """The ends after which it does."""
        return _CAUSES[self]


_LOST = frozenset({EndCause.PREEMPTED, EndCause.HOURS_USED, EndCause.INTERRUPTED})
_CAUSES = {
    RestartPolicy.NEVER: frozenset[EndCause](),
    RestartPolicy.ON_PREEMPTION: _LOST,
    RestartPolicy.ON_FAILURE: _LOST | {EndCause.FAILED},
    RestartPolicy.ALWAYS: frozenset(EndCause),
}
_UNCOUNTED = frozenset({EndCause.PREEMPTED, EndCause.HOURS_USED})
_IN_PLACE = frozenset({EndCause.FAILED, EndCause.SUCCEEDED})


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
class RestartBackoff:
    """How long a run waits before it restarts, in milliseconds."""

    first_ms: Count = 10_000
    most_ms: Count = 300_000
    reset_ms: Count = 600_000
    """A command that ran for so long is no crash loop: the next delay is the first again."""

    def delay_ms(self, delays: int) -> int:
        """After so many delays in a row."""
        return min(self.most_ms, self.first_ms << min(delays, 62))


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A run that has ended. `exit_code` None: its command is gone and left none; 128 and the
    signal's number where a signal ended it. `restarts`: how often it was started again before."""

    policy: FailurePolicy
    restarts: Count
    exit_code: ExitCode | None = None
    cause: EndCause = EndCause.FAILED
    restart_policy: RestartPolicy = RestartPolicy.ON_FAILURE
    backoff: RestartBackoff | None = None
    """None: it restarts at once."""
    ran_ms: Count = 0
    """How long the command ran."""
    delays: Count = 0
    """How many restarts in a row have waited."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether the run starts again, and for which time; `restarts` counts this one, too."""

    reason: RestartReason
    restarts: Count
    delay_ms: Count = 0
    """It starts so long after its end."""
    delays: Count = 0
    """Counts this delay, too."""

    @property
    def goes_on(self) -> bool:
        return self.reason in (RestartReason.RESTARTS, RestartReason.REQUEUES)


def restart(asked: RunFailure) -> Restart:
    policy, restarts, cause = asked.policy, asked.restarts, asked.cause
    if cause not in asked.restart_policy.causes:
        return Restart(RestartReason.POLICY, restarts)
    if cause in _UNCOUNTED:
        return Restart(RestartReason.REQUEUES, restarts)
    if asked.exit_code in policy.fail_exit_codes:
        return Restart(RestartReason.EXIT_CODE, restarts)
    if restarts >= policy.max_restarts:
        return Restart(RestartReason.NONE_LEFT, restarts)
    if cause not in _IN_PLACE:
        return Restart(RestartReason.REQUEUES, restarts + 1)
    return _delayed(Restart(RestartReason.RESTARTS, restarts + 1), asked)


def _delayed(found: Restart, asked: RunFailure) -> Restart:
    backoff = asked.backoff
    if backoff is None:
        return found
    delays = 0 if asked.ran_ms >= backoff.reset_ms else asked.delays
    return replace(found, delay_ms=backoff.delay_ms(delays), delays=delays + 1)
