"""How long a run has to save its work once it is asked to end or to shrink.

It holds its devices for as long, so the operator has a say: a tenant with `checkpointGrace: 20d`
would keep them for weeks after it was preempted.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GracePolicy:
    """The operator's rules; the grace that follows stands in the entry that asks the run."""

    default_ms: int = 30_000
    """For a run that asks for none."""
    most_ms: int = 600_000

    def of(self, asked_ms: int | None) -> int:
        return self.default_ms if asked_ms is None else min(asked_ms, self.most_ms)

    def cuts(self, asked_ms: int | None) -> bool:
        return asked_ms is not None and asked_ms > self.most_ms
