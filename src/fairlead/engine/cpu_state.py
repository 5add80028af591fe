"""The CPU governor's values: its configuration, what it writes, and what is kept per pod.

Called by `engine.cpu`. Everything here is plain data; the state of a pod can be written to and
read from JSON, because the user's original bounds must survive a restart of the agent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple, Self

from fairlead.core import units
from fairlead.core.cpu import (
    Counters,
    Guardrails,
    Headroom,
    Peaks,
    Policy,
    Smoothing,
    hold_peak,
    pod_bounds,
    pod_weight,
    smooth,
)
from fairlead.core.units import OutOfRange
from fairlead.ports.cpu import Sighting


class BadState(ValueError):
    """A stored state that is not one of ours: refused whole rather than half believed."""


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """How a node is governed. `reserve` is the share of the node that is never handed out."""

    node_millicores: int
    policy: Policy = Policy.DEMAND_CAPPED
    reserve: float = 0.10
    sample_ms: int = 1_000
    clear_ms: int = 5_000
    hysteresis_band: float = 0.05
    headroom: Headroom = field(default_factory=Headroom)
    smoothing: Smoothing = field(default_factory=Smoothing)
    guardrails: Guardrails = field(default_factory=Guardrails)

    def __post_init__(self) -> None:
        for name in ("node_millicores", "sample_ms", "clear_ms"):
            units.size(getattr(self, name), name)
        if not 0 < self.sample_ms <= self.clear_ms:
            raise OutOfRange("sample_ms", "must be at least 1 and at most clear_ms")
        object.__setattr__(self, "policy", Policy(self.policy))
        object.__setattr__(self, "reserve", units.ratio(self.reserve, "reserve"))

    @property
    def capacity_millicores(self) -> int:
        """What may be handed out while no pod is opted out."""
        return self.node_millicores - int(self.node_millicores * self.reserve)

    @property
    def misses_max(self) -> int:
        """How many misses bring the headroom to its cap; more would only take longer to forget."""
        room = self.headroom
        return ceil(round((room.cap - room.base) / room.per_miss, 6)) if room.per_miss else 0


class Change(NamedTuple):
    """One container's limit to write. `before` None: it was unlimited."""

    uid: str
    container: str
    before: int | None
    after: int


class Changes(NamedTuple):
    """A plan as writes. Every decrease must be in force before the first increase is written,
    or the limits would pass the capacity in between.
    """

    decreases: tuple[Change, ...]
    increases: tuple[Change, ...]


@dataclass(slots=True)
class Held:
    """A smoothed signal and its highest value of the last while."""

    mean: float | None = None
    """None until the first good reading."""
    peaks: Peaks = ()

    @property
    def value(self) -> float:
        """What counts; 0 before the first reading."""
        return self.peaks[0][1] if self.peaks else 0.0

    def add(self, now_ms: int, reading: float, smoothing: Smoothing) -> None:
        """Fold a reading in."""
        self.mean = smooth(self.mean, reading, smoothing)
        self.peaks = hold_peak(self.peaks, now_ms, self.mean, smoothing.hold_ms)

    def not_after(self, now_ms: int) -> None:
        """Pull times out of the future, or a peak would be held until they come."""
        self.peaks = tuple((min(at_ms, now_ms), value) for at_ms, value in self.peaks)

    def export(self) -> list[Any]:
        """Ready for JSON."""
        return [self.mean, [list(peak) for peak in self.peaks]]

    @classmethod
    def restore(cls, stored: Any) -> Self:
        """The inverse of `export`."""
        mean, peaks = stored
        numbers = [mean] if mean is not None else []
        for at_ms, value in peaks:
            if type(at_ms) is not int:
                raise BadState(f"the time of a peak cannot be {at_ms!r}")
            numbers.append(value)
        if not all(type(number) in (int, float) for number in numbers):
            raise BadState("a peak must be a number")
        return cls(mean, tuple((at_ms, value) for at_ms, value in peaks))


@dataclass(slots=True)
class ContainerState:
    """One container: its user's limit for good, the one in force, and its want in millicores."""

    original_limit_millicores: int | None
    current_millicores: int | None
    want: Held = field(default_factory=Held)
    # Not kept across restarts: counters may have been reset meanwhile.
    counters: Counters | None = None


@dataclass(slots=True)
class PodState:
    """What the governor remembers of one pod. The first block is frozen at first sight."""

    uid: str
    min_millicores: int
    max_millicores: int
    weight: float
    original_limit_millicores: int | None
    started_ms: int
    current_millicores: int | None
    adopted: bool = False
    """A grant was applied whole, so that every limit in force is ours."""
    touched: bool = False
    """A limit of it was written: from here on it counts against the capacity."""
    changed_ms: int | None = None
    demand: Held = field(default_factory=Held)
    throttling: float | None = None
    """The smoothed share of throttled periods."""
    misses: int = 0
    missed_ms: int | None = None
    identity: str = ""
    containers: dict[str, ContainerState] = field(default_factory=dict)
    # Not kept across restarts: a window is cheap to refill.
    window_usage: list[int] = field(default_factory=list, compare=False)

    @classmethod
    def at_first_sight(cls, sighting: Sighting, config: CpuConfig, now_ms: int) -> Self:
        """Freeze the user's bounds: the current limit as ceiling would make every cut permanent."""
        low, high = pod_bounds(
            sighting.request_millicores,
            sighting.limit_millicores,
            capacity_millicores=config.capacity_millicores,
        )
        return cls(
            uid=units.name(sighting.uid, "uid"),
            min_millicores=low,
            max_millicores=high,
            weight=pod_weight(sighting.request_millicores, sighting.priority),
            original_limit_millicores=sighting.limit_millicores,
            started_ms=now_ms if sighting.started_ms is None else sighting.started_ms,
            current_millicores=sighting.limit_millicores,
            identity=sighting.identity,
        )

    def not_after(self, now_ms: int) -> None:
        """Pull times out of the future, or a cooldown would last until they come."""
        self.started_ms = min(self.started_ms, now_ms)
        self.changed_ms = None if self.changed_ms is None else min(self.changed_ms, now_ms)
        self.missed_ms = None if self.missed_ms is None else min(self.missed_ms, now_ms)
        for held in (self.demand, *(each.want for each in self.containers.values())):
            held.not_after(now_ms)

    def export(self) -> dict[str, Any]:
        """The lasting part, ready for JSON."""
        lasting = {name: getattr(self, name) for name in _LASTING}
        lasting["demand"] = self.demand.export()
        lasting["containers"] = {
            name: [c.original_limit_millicores, c.current_millicores, c.want.export()]
            for name, c in sorted(self.containers.items())
        }
        return lasting

    @classmethod
    def restore(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of `export`; what does not fit is refused."""
        if set(stored) != _LASTING.keys():
            raise BadState(f"a pod's state must have the fields {', '.join(_LASTING)}")
        for name, kinds in _LASTING.items():
            if type(stored[name]) not in kinds:
                raise BadState(f"{name} of a pod's state cannot be {stored[name]!r}")
        containers = {
            name: ContainerState(original, current, Held.restore(want))
            for name, (original, current, want) in stored["containers"].items()
        }
        demand = Held.restore(stored["demand"])
        return cls(**{**stored, "demand": demand, "containers": containers})


_INTEGER, _INTEGER_OR_NONE, _NUMBER_OR_NONE = (int,), (int, type(None)), (float, int, type(None))
_LASTING: Mapping[str, tuple[type, ...]] = {
    "uid": (str,),
    "min_millicores": _INTEGER,
    "max_millicores": _INTEGER,
    "weight": (float, int),
    "original_limit_millicores": _INTEGER_OR_NONE,
    "started_ms": _INTEGER,
    "current_millicores": _INTEGER_OR_NONE,
    "adopted": (bool,),
    "touched": (bool,),
    "changed_ms": _INTEGER_OR_NONE,
    "demand": (list,),
    "throttling": _NUMBER_OR_NONE,
    "misses": _INTEGER,
    "missed_ms": _INTEGER_OR_NONE,
    "identity": (str,),
    "containers": (dict,),
}
