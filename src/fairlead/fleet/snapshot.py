"""A fleet as columns: core's `Snapshot` and `Plan`, one row per node and one row per pod.

The columns carry core's names, so that `FleetSnapshot.demand[7]` is the `demand` of the pod
`uids[7]`. They are made from core's values, which were checked. Enums travel as small integers: the
code is the position in the enum, which is closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fairlead.core.cpu import CpuMode, Plan, Policy, Snapshot
from fairlead.core.reasons import CpuReason

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint8]
Item = TypeVar("Item", bound=np.generic)

POLICIES, MODES = tuple(Policy), tuple(CpuMode)
UNKNOWN = -1
"""What a column of optional sizes (or of previous modes) holds where core says `None`: sizes are
never negative, so one column is enough where a mask would double it."""

MODE_CODE = {mode: code for code, mode in enumerate(MODES)}
# Reasons are a set of bits, in the order in which core lists a pod's reasons: what became of its
# minimum, where its need comes from, what was bent.
_FIRST, _LAST = CpuReason.MIN_ABOVE_MAX, CpuReason.GUARDRAIL_RELAXED
_REASONS = (_FIRST, *(reason for reason in CpuReason if reason not in (_FIRST, _LAST)), _LAST)
REASON_BIT = {reason: 1 << place for place, reason in enumerate(_REASONS)}

_INTEGERS = (
    *("min_millicores", "max_millicores", "headroom_misses"),
    *("usage_millicores", "current_millicores", "lower_millicores", "upper_millicores"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Node i holds the pods `uids[offsets[i]:offsets[i + 1]]`, ascending by code point.

    Core breaks ties by uid, so the position inside a node *is* the tie-break.
    """

    offsets: Ints
    uids: tuple[str, ...]

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Ints:
        return np.diff(self.offsets)

    def span(self, node: int) -> slice:
        """Where the pods of a node lie in every column of pods."""
        return slice(int(self.offsets[node]), int(self.offsets[node + 1]))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FleetSnapshot:
    """All that a clearing of a fleet looks at; `headroom` has one row of four factors per node."""

    snapshots: Sequence[Snapshot]
    roster: Roster
    capacity_millicores: Ints
    policy: Ints
    previous_mode: Ints
    hysteresis_band: Floats
    headroom: Floats
    min_millicores: Ints
    max_millicores: Ints
    demand: Floats
    weight: Floats
    usage_millicores: Ints
    current_millicores: Ints
    headroom_misses: Ints
    signal_ok: Bools
    lower_millicores: Ints
    upper_millicores: Ints

    @classmethod
    def from_snapshots(cls, snapshots: Sequence[Snapshot]) -> "FleetSnapshot":
        """The columns of core's snapshots; node i is `snapshots[i]`."""
        pods = [pod for node in snapshots for pod in sorted(node.pods, key=attrgetter("uid"))]
        modes = [node.previous_mode for node in snapshots]
        rooms = [node.headroom for node in snapshots]
        factors = [(room.base, room.per_demand, room.per_miss, room.cap) for room in rooms]
        ends = accumulate(len(node.pods) for node in snapshots)
        return cls(
            snapshots=snapshots,
            roster=Roster(_ints([0, *ends]), tuple(pod.uid for pod in pods)),
            capacity_millicores=_ints([node.capacity_millicores for node in snapshots]),
            policy=_ints([POLICIES.index(node.policy) for node in snapshots]),
            previous_mode=_ints([None if mode is None else MODE_CODE[mode] for mode in modes]),
            hysteresis_band=np.array([node.hysteresis_band for node in snapshots], dtype=float),
            headroom=np.array(factors, dtype=float).reshape(len(factors), 4),
            demand=np.array([pod.demand for pod in pods], dtype=float),
            weight=np.array([pod.share_weight for pod in pods], dtype=float),
            signal_ok=np.array([pod.signal_ok for pod in pods], dtype=bool),
            **{name: _ints([getattr(pod, name) for pod in pods]) for name in _INTEGERS},
        )


def _ints(values: Sequence[int | None]) -> Ints:
    return np.array([UNKNOWN if value is None else value for value in values], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class FleetPlan:
    """Core's `Plan` for every node. `mode` holds positions in core's enum, `shadow_price` NaN for
    core's `None`, `reasons` one bit per `CpuReason`. `fallback` marks the nodes that the scalar
    path cleared because the fast path could not be certain.
    """

    roster: Roster
    capacity_millicores: Ints
    mode: Codes
    total_min: Ints
    total_need: Ints
    shadow_price: Floats
    fallback: Bools
    needs: Ints
    allocations: Ints
    reduction_ratio: Floats
    reasons: Bits

    @classmethod
    def blank(cls, fleet: FleetSnapshot) -> "FleetPlan":
        """A plan to write into. As it stands it is right for nodes without pods."""
        nodes: list[type[Any]] = [np.int8, np.int64, np.int64, np.float64, np.bool_]
        pods: list[type[Any]] = [np.int64, np.int64, np.float64, np.uint8]
        return cls(
            fleet.roster,
            fleet.capacity_millicores,
            *(np.zeros(fleet.roster.nodes, dtype=kind) for kind in nodes),
            *(np.zeros(len(fleet.roster.uids), dtype=kind) for kind in pods),
        )

    @property
    def fallbacks(self) -> int:
        return int(self.fallback.sum())

    def put(self, index: int, plan: Plan) -> None:
        span = self.roster.span(index)
        self.fallback[index] = True
        self.mode[index] = MODE_CODE[plan.mode]
        self.total_min[index], self.total_need[index] = plan.total_min, plan.total_need
        self.shadow_price[index] = np.nan if plan.shadow_price is None else plan.shadow_price
        uids = self.roster.uids[span]
        for name in ("needs", "allocations", "reduction_ratio"):
            getattr(self, name)[span] = [getattr(plan, name)[uid] for uid in uids]
        self.reasons[span] = [sum(REASON_BIT[r] for r in plan.reasons[uid]) for uid in uids]

    def to_plans(self) -> list[Plan]:
        return [self.node(index) for index in range(self.roster.nodes)]

    def node(self, index: int) -> Plan:
        span, price = self.roster.span(index), float(self.shadow_price[index])
        uids = self.roster.uids[span]
        reasons = [_reasons(bits) for bits in self.reasons[span].tolist()]
        return Plan(
            mode=MODES[self.mode[index]],
            capacity_millicores=int(self.capacity_millicores[index]),
            total_min=int(self.total_min[index]),
            total_need=int(self.total_need[index]),
            shadow_price=None if np.isnan(price) else price,
            needs=dict(zip(uids, self.needs[span].tolist(), strict=True)),
            allocations=dict(zip(uids, self.allocations[span].tolist(), strict=True)),
            reduction_ratio=dict(zip(uids, self.reduction_ratio[span].tolist(), strict=True)),
            reasons=dict(zip(uids, reasons, strict=True)),
        )


def _reasons(bits: int) -> tuple[CpuReason, ...]:
    return tuple(reason for reason, bit in REASON_BIT.items() if bits & bit)
