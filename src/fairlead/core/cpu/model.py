"""The values of a clearing: pods and capacity in (`Snapshot`), grants and reasons out (`Plan`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Annotated

from fairlead.core import units
from fairlead.core.reasons import CpuReason
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, SIZE_MAX, NonEmpty, OutOfRange, Range

Uid = Annotated[str, NonEmpty()]
Millicores = Annotated[int, Range(0, SIZE_MAX)]
Count = Annotated[int, Range(0, SIZE_MAX)]
Total = Annotated[int, Range(0, INTEGER_MAX)]
Ratio = Annotated[float, Range(0, 1)]
Weight = Annotated[float, Range(0, FLOAT_MAX)]
Pause = Annotated[int, Range(0, 86_400_000)]
Instant = Annotated[int, Range(-INTEGER_MAX, INTEGER_MAX)]
"""Milliseconds since 1970."""


class CpuMode(StrEnum):
    """How scarce the node is."""

    UNCONGESTED = "uncongested"
    """Σ needs fit: every pod gets its need."""
    CONGESTED = "congested"
    """Σ needs do not fit, Σ minimums do: the policy decides which pods are cut."""
    OVERLOADED = "overloaded"
    """Not even Σ minimums fit: the minimums are scaled down."""


class Policy(StrEnum):
    """How a congested node is shared."""

    DEMAND_CAPPED = "demand-capped"
    """Every pod's surplus need is cut by the same ratio."""
    MARKET = "market"
    """The whole capacity is handed out in proportion to bids (weight times demand)."""
    NASH = "nash"
    """Weighted Nash bargaining, capped at the need; claiming more than one needs gains nothing."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """How much is added on top of the raw need: min(cap, base + per_demand*d + per_miss*misses)."""

    base: Ratio = 0.10
    per_demand: Ratio = 0.15
    per_miss: Ratio = 0.05
    cap: Ratio = 0.50

    def __post_init__(self) -> None:
        for field in ("base", "per_demand", "per_miss", "cap"):
            object.__setattr__(self, field, units.ratio(getattr(self, field), field))

    @property
    def misses_max(self) -> int:
        """How many misses bring the headroom to its cap; more would only take longer to forget."""
        room = self.cap - self.base
        if room <= 0 or not self.per_miss:
            return 0
        return ceil(min(round(room / self.per_miss, 6), units.SIZE_MAX))


DEFAULT_HEADROOM = Headroom()


@dataclass(frozen=True, slots=True)
class Pod:
    """One claimant. `None` means unknown; `weight` defaults to max(1, min_millicores)."""

    uid: str
    min_millicores: int
    max_millicores: int
    demand: float
    weight: float | None = None
    usage_millicores: int | None = None
    current_millicores: int | None = None
    headroom_misses: int = 0
    signal_ok: bool = True
    lower_millicores: int | None = None
    upper_millicores: int | None = None

    def __post_init__(self) -> None:
        if not units.name(self.uid, "uid"):
            raise OutOfRange("uid", f"must be a non-empty string, got {self.uid!r}")
        # The values first, their names only for a culprit: a fleet has a million of these.
        for value in (self.min_millicores, self.max_millicores, self.headroom_misses):
            if type(value) is not int or not 0 <= value <= units.SIZE_MAX:
                self._name_culprit()
        for known in (
            self.usage_millicores,
            self.current_millicores,
            self.lower_millicores,
            self.upper_millicores,
        ):
            if known is not None and (type(known) is not int or not 0 <= known <= units.SIZE_MAX):
                self._name_culprit()
        if type(self.signal_ok) is not bool:
            raise OutOfRange("signal_ok", f"must be true or false, got {self.signal_ok!r}")
        if type(self.demand) is not float or not 0 <= self.demand <= 1:
            object.__setattr__(self, "demand", units.ratio(self.demand, "demand"))
        if self.weight is None:
            object.__setattr__(self, "weight", float(max(1, self.min_millicores)))
        else:
            object.__setattr__(self, "weight", units.weight(self.weight, "weight"))

    def _name_culprit(self) -> None:
        units.size(self.min_millicores, "min_millicores")
        units.size(self.max_millicores, "max_millicores")
        units.size(self.headroom_misses, "headroom_misses")
        units.size_or_none(self.usage_millicores, "usage_millicores")
        units.size_or_none(self.current_millicores, "current_millicores")
        units.size_or_none(self.lower_millicores, "lower_millicores")
        units.size_or_none(self.upper_millicores, "upper_millicores")

    @property
    def floor_millicores(self) -> int:
        """The minimum in force: where it lies above the maximum, the ceiling wins."""
        low, high = self.min_millicores, self.max_millicores
        return low if low <= high else high

    @property
    def share_weight(self) -> float:
        """The weight, its default filled in."""
        return self.weight if self.weight is not None else float(max(1, self.min_millicores))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a clearing looks at. The order of the pods never matters."""

    capacity_millicores: int
    pods: tuple[Pod, ...]
    policy: Policy = Policy.DEMAND_CAPPED
    previous_mode: CpuMode | None = None
    hysteresis_band: float = 0.05
    headroom: Headroom = DEFAULT_HEADROOM

    def __post_init__(self) -> None:
        units.size(self.capacity_millicores, "capacity_millicores")
        object.__setattr__(self, "pods", tuple(self.pods))
        object.__setattr__(self, "policy", Policy(self.policy))
        if self.previous_mode is not None:
            object.__setattr__(self, "previous_mode", CpuMode(self.previous_mode))
        band = units.ratio(self.hysteresis_band, "hysteresis_band")
        object.__setattr__(self, "hysteresis_band", band)
        seen: dict[str, int] = {}
        for index, pod in enumerate(self.pods):
            first = seen.setdefault(pod.uid, index)
            if first != index:
                raise OutOfRange(f"pods[{index}].uid", f"repeats pods[{first}].uid, {pod.uid!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What each pod gets and why, by uid. All in millicores; `shadow_price` is lambda = 1/t."""

    mode: CpuMode
    capacity_millicores: Millicores
    total_min: Total
    total_need: Total
    shadow_price: float | None
    needs: Mapping[str, Millicores]
    allocations: Mapping[str, Millicores]
    reduction_ratio: Mapping[str, float]
    reasons: Mapping[str, tuple[CpuReason, ...]]
