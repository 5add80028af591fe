"""What the projection knows of outcomes, chains of outcomes and reservations. Folded, not set."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairlead.core.lottery import OwnerWeighting


class Stage(StrEnum):
    """How far an outcome has come. Only the first two can still change."""

    COMMITTED = "committed"
    """The conflict is frozen; nobody knows yet who gives way."""
    DRAWN = "drawn"
    """It is decided and shown; those who give way are given their grace."""
    APPLIED = "applied"
    VOID = "void"
    """It was given up, and disclosed; nobody was cut."""

    @property
    def open(self) -> bool:
        """Whether something is still to be done."""
        return self in (Stage.COMMITTED, Stage.DRAWN)


@dataclass(slots=True)
class Chain:
    """The sequence of outcomes of one scope."""

    chain: str
    flavor: str
    location: dict[str, str]
    capped: bool
    published_seq: int
    """The entry that fixed the entropy of the next outcome."""
    commitment: str
    """SHA-256 of that entropy."""
    k: int = 0
    """The number of the next outcome."""
    open_seq: int | None = None
    """The commitment that is not answered yet."""


@dataclass(slots=True)
class Outcome:
    """One resolve, known by the number of its commit entry."""

    seq: int
    chain: str
    k: int
    flavor: str
    deficit_gpus: int
    conflict_digest: str
    notice_digest: str
    beacon: dict[str, Any] | None
    nonces: list[dict[str, str]]
    time_ms: int
    stage: Stage = Stage.COMMITTED
    cause: str = ""
    """What asked for it: reservation, run, scope, cap or drain."""
    author: str = ""
    run: str | None = None
    """Who is to be placed on what is freed."""
    reservation: str | None = None
    node: str | None = None
    final_seq: int | None = None
    """The entry that revealed it, a draw or a void."""
    result_digest: str | None = None
    label: str = ""
    reason: str = ""
    """Why it was given up."""
    voided_by: str = ""
    cutting: dict[str, bool] = field(default_factory=dict)
    """Runs that still hold what they are to give up."""
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    """Between whom its chance is fair."""


@dataclass(slots=True)
class Reservation:
    """Where a reservation stands."""

    state: str = "Pending"
    reason: str = "NotDue"
    message: str = ""
    since_ms: int = 0
    shortfall_gpus: int = 0
    outcome: int | None = None
    """The resolve of its activation; there is at most one."""
    activated_ms: int | None = None
    released_ms: int | None = None

    @property
    def waits(self) -> bool:
        """Whether its run is still to be started by it."""
        return self.state in ("Pending", "Blocked")


Step = tuple[str, str]
"""A cap of a budget, by kind and name; or the place, which has none."""
PLACE: Step = ("place", "")


@dataclass(slots=True)
class Asked:
    """A request to bring a budget back within its caps, as far as it is not done."""

    seq: int
    author: str
    budget: str
    steps: list[Step]
    """What is left of it, in order."""
    place: dict[str, Any] | None
    """Flavor, location and GPUs."""
    outcome: int | None = None
    """The last resolve that was made for it; the next one waits for its end."""


@dataclass(slots=True)
class ResolverState:
    """All of it."""

    owners: dict[str, int] = field(default_factory=dict)
    """Owners whose secret is committed to, and in which entry."""
    chains: dict[str, Chain] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    nonces: dict[str, str] = field(default_factory=dict)
    """What owners want to add to the next outcome; each is used once."""
    beacons: dict[str, str] = field(default_factory=dict)
    """Values of beacon rounds, by `source/round`."""
    reservations: dict[str, Reservation] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    """What was applied, by metric."""
    world_seq: int = 0
    """The last entry after which a blocked reservation may be another case."""
    open_seqs: dict[str, int] = field(default_factory=dict)
    """The outcome of each flavor that is not over; there is at most one."""
    asked: dict[int, Asked] = field(default_factory=dict)
    """Requests with several steps that are not over."""

    def open_outcome(self, flavor: str) -> Outcome | None:
        """The resolve of a flavor that is not over."""
        seq = self.open_seqs.get(flavor)
        return None if seq is None else self.outcomes[seq]
