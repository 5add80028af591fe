"""The values of GPU budgets: owners' budgets with their envelopes and caps, leases, requests.

Quantities are whole GPUs and GPU-milliseconds; times are milliseconds since 1970 in UTC. A budget
has many envelopes, each a right to use some GPUs of one flavor somewhere during a window.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.core.units import HOUR_MS as HOUR_MS  # noqa: PLC0414 - part of the model


class Sharing(StrEnum):
    """Who in the family may use an envelope besides its owner."""

    FAMILY = "family"
    NONE = "none"


class Recurrence(StrEnum):
    """The calendar period (UTC) after which hour caps start afresh."""

    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    QUARTERLY = "quarterly"


@dataclass(frozen=True, slots=True)
class Window:
    """When an envelope can be used: start <= t < end."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Lending:
    """To whom outside the family an envelope may be lent, and how much of it."""

    allow: bool = False
    to: tuple[str, ...] = ()
    max_gpus: int | None = None
    max_hours_ms: int | None = None

    def admits(self, owner: str) -> bool:
        """Whether an entry matches: exact, a prefix like `org:*`, or `*`."""
        return self.allow and any(
            owner.startswith(entry[:-1]) if entry.endswith("*") else owner == entry
            for entry in self.to
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A right to use up to `gpus` GPUs of one flavor; `max_hours_ms` is per period."""

    name: str
    flavor: str
    gpus: int
    location: Mapping[str, str] = field(default_factory=dict)
    max_hours_ms: int | None = None
    window: Window | None = None
    recurrence: Recurrence | None = None
    sharing: Sharing = Sharing.FAMILY
    lending: Lending = Lending()

    def is_open(self, now_ms: int) -> bool:
        """Whether its window is open; a window gates at `now` only."""
        return self.window is None or self.window.start_ms <= now_ms < self.window.end_ms

    def serves(self, location: Mapping[str, str]) -> bool:
        """Whether every key of the selector is met; `*` needs the key to be there."""
        return all(
            key in location and (value in ("*", location[key]))
            for key, value in self.location.items()
        )


@dataclass(frozen=True, slots=True)
class AggregateCap:
    """A cap over several envelopes of one budget together."""

    name: str
    flavor: str
    envelopes: frozenset[str]
    max_gpus: int | None = None
    max_hours_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What an owner has, and whose child it is."""

    name: str
    owner: str
    parents: tuple[str, ...] = ()
    envelopes: tuple[Envelope, ...] = ()
    aggregate_caps: tuple[AggregateCap, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs in use, paid by an envelope. `end_ms` None: still open."""

    id: str
    owner: str
    budget: str
    envelope: str
    gpus: int
    start_ms: int
    end_ms: int | None = None
    expected_end_ms: int | None = None
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks for. A malleable one takes any width min + j*step up to `gpus`."""

    owner: str
    flavor: str
    gpus: int
    location: Mapping[str, str] = field(default_factory=dict)
    min_gpus: int | None = None
    step_gpus: int | None = None
    duration_ms: int | None = None
    allow_borrow: bool = False
    max_borrow_gpus: int | None = None
    sponsors: tuple[str, ...] = ()

    @property
    def enough_gpus(self) -> int:
        """The least width that is worth anything to the run."""
        return self.gpus if self.min_gpus is None else self.min_gpus
