"""The values of a clearing: pods and capacity in (`Snapshot`), grants and reasons out (`Plan`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Annotated

from fairlead.core import units
from fairlead.core.reasons import CpuReason
from fairlead.core.units import (
    FLOAT_MAX,
    INTEGER_MAX,
    SIZE_MAX,
    Integer,
    NonEmpty,
    OutOfRange,
    Range,
)

Uid = Annotated[str, NonEmpty()]
Millicores = Annotated[int, Range(0, SIZE_MAX, "thousandths of a CPU core")]
Count = Annotated[int, Range(0, SIZE_MAX)]
Total = Annotated[int, Range(0, INTEGER_MAX)]
Ratio = Annotated[float, Range(0, 1)]
Weight = Annotated[float, Range(0, FLOAT_MAX, "defaults to max(1, min)")]
Pause = Annotated[int, Range(0, 86_400_000)]
Instant = Integer
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


class Actuation(StrEnum):
    """What is written to put an allocation in force."""

    LIMITS = "limits"
    """A limit (quota) per container; what a pod does not use stays unused."""
    WEIGHTS = "weights"
    """A guarantee (scheduling weight) per container; the kernel lends out what is not used."""
    BOTH = "both"
    """Guarantees, and limits for pods that must be contained."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """How much is added on top of the raw need: min(cap, base + per_demand*d + per_miss*misses)."""

    base: Ratio = 0.10
    per_demand: Ratio = 0.15
    per_miss: Ratio = 0.05
    cap: Ratio = 0.50

    def __post_init__(self) -> None:
        units.check(self)

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

    uid: Uid
    min_millicores: Millicores
    max_millicores: Millicores
    demand: Ratio
    weight: Weight | None = None
    usage_millicores: Millicores | None = None
    current_millicores: Millicores | None = None
    headroom_misses: Count = 0
    signal_ok: bool = True
    lower_millicores: Millicores | None = None
    upper_millicores: Millicores | None = None

    def __post_init__(self) -> None:
        units.check(self)
        object.__setattr__(self, "weight", self.share_weight)

    @property
    def floor_millicores(self) -> int:
        """The minimum in force: where it lies above the maximum, the ceiling wins."""
        low, high = self.min_millicores, self.max_millicores
        return low if low <= high else high

    @property
    def share_weight(self) -> float:
        return self.weight if self.weight is not None else float(max(1, self.min_millicores))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a clearing looks at. The order of the pods never matters."""

    capacity_millicores: Millicores
    pods: tuple[Pod, ...]
    policy: Policy = Policy.DEMAND_CAPPED
    previous_mode: CpuMode | None = None
    hysteresis_band: Ratio = 0.05
    headroom: Headroom = DEFAULT_HEADROOM

    def __post_init__(self) -> None:
        units.check(self)
        check_distinct("pods", "uid", [pod.uid for pod in self.pods])


def check_distinct(items: str, key: str, names: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        first = seen.setdefault(name, index)
        if first != index:
            raise OutOfRange(f"{items}[{index}].{key}", f"repeats {items}[{first}].{key}, {name!r}")


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
