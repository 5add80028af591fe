"""The values of GPU budgets: owners' budgets with their envelopes and caps, leases, requests.

Quantities are whole GPUs and GPU-milliseconds; times are milliseconds since 1970 in UTC. A budget
has many envelopes, each a right to use some GPUs of one flavor somewhere during a window. The
markers at the fields say how documents and manifests write them, which are derived from here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from fairlead.core.units import GpuLimit, Gpus, Hours, Name, OutOfRange, Time, Written

GpuCap = Annotated[GpuLimit, Written("max_concurrency")]
HourCap = Annotated[int, Hours(), Written("max_gpu_hours")]


class Sharing(StrEnum):
    """Which owners of the family may use an envelope besides its own."""

    FAMILY = "family"
    NONE = "none"


class Enforcement(StrEnum):
    """What follows when the GPU-hours of an envelope are used up."""

    SOFT = "soft"
    """Its leases go on unfunded, and are the first to be preempted."""
    HARD = "hard"
    """Their runs are asked to end, and have their grace."""


class Recurrence(StrEnum):
    """The calendar period (UTC) after which hour caps start afresh."""

    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    QUARTERLY = "quarterly"


@dataclass(frozen=True, slots=True)
class Window:
    """When an envelope can be used: start <= t < end."""

    start_ms: Annotated[int, Time(), Written("start")]
    end_ms: Annotated[int, Time(), Written("end")]

    def faults(self) -> Iterator[OutOfRange]:
        if self.end_ms <= self.start_ms:
            yield OutOfRange("end_ms", "must be after its start")


@dataclass(frozen=True, slots=True)
class Lending:
    """To which owners outside the family an envelope may be lent: names, `org:*`, or `*`."""

    allow: bool = False
    to: tuple[Name, ...] = ()
    max_gpus: GpuCap | None = None
    max_hours_ms: HourCap | None = None

    def admits(self, owner: str) -> bool:
        """Whether an entry matches: exact, a prefix like `org:*`, or `*`."""
        return self.allow and any(
            owner.startswith(entry[:-1]) if entry.endswith("*") else owner == entry
            for entry in self.to
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A right to use some GPUs of one flavor somewhere, during a window; hours are per period."""

    name: Name
    flavor: Name
    gpus: Annotated[Gpus, Written("concurrency")]
    location: Mapping[str, str] = field(default_factory=dict)
    max_hours_ms: HourCap | None = None
    window: Window | None = None
    recurrence: Recurrence | None = None
    sharing: Sharing = Sharing.FAMILY
    lending: Lending = Lending()
    enforcement: Enforcement = Enforcement.SOFT

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
    """A cap over several envelopes of the same budget."""

    name: Name
    flavor: Name
    envelopes: tuple[Name, ...]
    max_gpus: GpuCap | None = None
    max_hours_ms: HourCap | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What an owner has; `parents` are owners."""

    name: Name
    owner: Name
    parents: tuple[Name, ...] = ()
    envelopes: tuple[Envelope, ...] = ()
    aggregate_caps: tuple[AggregateCap, ...] = ()

    def faults(self) -> Iterator[OutOfRange]:
        """Names that come twice, and caps over envelopes that are not there or of another flavor.

        A cap of another flavor than its envelopes would look like one, and cap nothing.
        """
        flavors: dict[str, str] = {}
        for i, envelope in enumerate(self.envelopes):
            if envelope.name in flavors:
                yield OutOfRange(f"envelopes[{i}].name", f"repeats {envelope.name!r}")
            flavors[envelope.name] = envelope.flavor
        names: set[str] = set()
        for i, cap in enumerate(self.aggregate_caps):
            if cap.name in names:
                yield OutOfRange(f"aggregate_caps[{i}].name", f"repeats {cap.name!r}")
            names.add(cap.name)
            for j, member in enumerate(cap.envelopes):
                path = f"aggregate_caps[{i}].envelopes[{j}]"
                if member not in flavors:
                    yield OutOfRange(path, f"is no envelope of it: {member!r}")
                elif flavors[member] != cap.flavor:
                    text = f"is an envelope of {flavors[member]}, not of {cap.flavor}"
                    yield OutOfRange(path, text)


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs in use, paid by an envelope; `end` null means still open."""

    id: Name
    owner: Name
    budget: Name
    envelope: Name
    gpus: Gpus
    start_ms: Annotated[int, Time(), Written("start")]
    end_ms: Annotated[int, Time(), Written("end")] | None = None
    expected_end_ms: Annotated[int, Time(), Written("expected_end")] | None = None
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks for. A malleable one takes any width min + j*step up to `gpus`."""

    owner: Name
    flavor: Name
    gpus: Gpus
    min_gpus: Gpus | None = None
    step_gpus: Gpus | None = None
    location: Mapping[str, str] = field(default_factory=dict)
    duration_ms: Annotated[int, Hours(up=True), Written("duration_hours")] | None = None
    allow_borrow: bool = False
    max_borrow_gpus: GpuLimit | None = None
    sponsors: tuple[Name, ...] = ()

    @property
    def enough_gpus(self) -> int:
        """The least width that is worth anything to the run."""
        return self.gpus if self.min_gpus is None else self.min_gpus

    def faults(self) -> Iterator[OutOfRange]:
        low, step = self.min_gpus, self.step_gpus
        if low is not None and step is not None:
            if low > self.gpus:
                yield OutOfRange("min_gpus", f"must be at most gpus, {self.gpus}, got {low}")
            if (self.gpus - low) % step:
                yield OutOfRange("gpus", f"must be {low} plus a multiple of {step}")
        elif low is not None or step is not None:
            missing = "min_gpus" if low is None else "step_gpus"
            yield OutOfRange(missing, "must be given with the other: min_gpus and step_gpus")
