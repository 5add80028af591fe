"""What the projection knows of objects, runs and leases. Only folding an entry changes it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairlead.core.gpu import Lease
from fairlead.schema.specs import Spec


class Phase(StrEnum):
    """Where a run stands. A preempted or displaced run is Pending again, with the reason."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Whether it will never run again."""
        return self in (Phase.COMPLETED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was last applied; `version` is the ledger's number of that entry."""

    kind: str
    name: str
    uid: str
    generation: int
    version: int
    created_ms: int
    labels: dict[str, str]
    spec: Spec
    document: dict[str, Any]
    """The spec as plain data, defaults filled in."""
    user: str
    """Who created it."""


def job_prefix(run: str, uid: str) -> str:
    """What the ids of a run's jobs and leases begin with; no other run of its name shares it."""
    return f"{run}.{uid[:8]}."


@dataclass(frozen=True, slots=True)
class LeaseFact:
    """A lease: immutable facts at birth, and once, at its end, how it ended and what it cost."""

    id: str
    run: str
    owner: str
    role: str
    group: int
    slots: tuple[str, ...]
    budget: str
    envelope: str
    borrowed: bool
    start_ms: int
    expected_end_ms: int | None
    reason: str
    seq: int
    end_ms: int | None = None
    end_reason: str | None = None
    used_ms: int | None = None
    overdraft_ms: int | None = None
    payer: str = ""
    """The budget's owner when it began: whoever has the budget later did not pay for this."""

    @property
    def gpus(self) -> int:
        """One per slot."""
        return len(self.slots)

    @property
    def is_active(self) -> bool:
        """Whether it counts to the run's width; a spare does not."""
        return self.role == "Active"

    def to_lease(self) -> Lease:
        """Core's lease."""
        return Lease(
            self.id,
            self.owner,
            self.budget,
            self.envelope,
            self.gpus,
            self.start_ms,
            self.end_ms,
            self.expected_end_ms,
            self.borrowed,
        )


@dataclass(slots=True)
class Cut:
    """What a run is to give up: some of its leases, or all of them (`preempts`).

    A process is told first, and has its grace; without one the leases close at once.
    """

    outcome: int | None
    """The resolve that decided it; None when its owner asked for it."""
    leases: dict[str, str]
    """Those that are still open, with the reason that they will end with."""
    preempts: bool
    draw: int | None
    since_ms: int
    grace_ms: int

    @property
    def due_ms(self) -> int:
        """When the grace is over."""
        return self.since_ms + self.grace_ms


@dataclass(slots=True)
class RunState:
    """What happened to a run so far."""

    submitted_seq: int
    phase: Phase = Phase.PENDING
    reason: str = "Submitted"
    message: str = ""
    since_ms: int = 0
    attempt: int = 0
    job: str | None = None
    """The plan id of the current start; effects are idempotent by it."""
    leases: dict[str, LeaseFact] = field(default_factory=dict)
    cover_seq: int | None = None
    place_seq: int | None = None
    refusal: dict[str, Any] | None = None
    shortfall_gpus: int = 0
    """Devices that were missing when it was funded and could not be placed."""
    paused: bool = False
    stopping: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_reason: str | None = None
    """What the executor said of the end, where a code alone does not say it."""
    cut: Cut | None = None
    nominated: bool = False
    """Its owner offers it to give way before the owner's others."""
    last_outcome: int | None = None
    """The last resolve that cut it."""
    shrunk: bool = False
    """Whether it has given up groups since it started, and not got them back."""
    grows_to: int = 0
    """The width that an outcome took it from, and that it may have again; 0: nothing is lacking."""
    grown: bool = False
    """Whether it has grown since it started: then its process has to be told its width."""
    numbered: int = 0
    """The number of the next lease of its job; 0: not known."""

    @property
    def width(self) -> int:
        """Active GPUs."""
        return sum(lease.gpus for lease in self.leases.values() if lease.is_active)

    @property
    def spares(self) -> int:
        """Spare GPUs."""
        return sum(lease.gpus for lease in self.leases.values() if not lease.is_active)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a budget; `since_ms` moves only with the status."""

    type: str
    status: bool
    reason: str
    message: str
    generation: int
    since_ms: int
