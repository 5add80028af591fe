"""A fleet as columns: core's `Snapshot` and `Plan`, one row per node and one row per pod.

The columns carry core's names, so that `FleetSnapshot.demand[7]` is the `demand` of the pod
`roster.uids[7]`. They are checked as core checks its values: whatever gets here may be cleared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from fairlead.core.cpu import CpuMode, Headroom, Plan, Pod, Policy, Snapshot
from fairlead.core.reasons import CpuReason
from fairlead.core.units import FLOAT_MAX, SIZE_MAX
from fairlead.fleet.columns import (
    MODE_CODE,
    MODES,
    POLICIES,
    POLICY_CODE,
    REASON_BIT,
    UNKNOWN,
    Bits,
    Bools,
    Codes,
    Floats,
    Ints,
    Roster,
    real,
    truth,
    whole,
)

_KNOWN = ("min_millicores", "max_millicores", "headroom_misses")
_OPTIONAL = ("usage_millicores", "current_millicores", "lower_millicores", "upper_millicores")
_HEADROOM = ("base", "per_demand", "per_miss", "cap")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FleetSnapshot:
    """All that a clearing of a fleet looks at. `of` fills in core's defaults.

    Integers are int64, the rest doubles. `policy` and `previous_mode` hold positions in core's
    enums. `UNKNOWN` stands for core's `None`. `headroom` has one row of four factors per node.
    """

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

    def __post_init__(self) -> None:
        nodes, pods = (self.roster.nodes,), (self.roster.pods,)
        self._whole("capacity_millicores", nodes, 0, SIZE_MAX)
        self._whole("policy", nodes, 0, len(POLICIES) - 1)
        self._whole("previous_mode", nodes, UNKNOWN, len(MODES) - 1)
        self._real("hysteresis_band", nodes, 1.0)
        self._real("headroom", (*nodes, len(_HEADROOM)), 1.0)
        for field in _KNOWN:
            self._whole(field, pods, 0, SIZE_MAX)
        for field in _OPTIONAL:
            self._whole(field, pods, UNKNOWN, SIZE_MAX)
        self._real("demand", pods, 1.0)
        self._real("weight", pods, FLOAT_MAX)
        checked = truth(self.signal_ok, "signal_ok", shape=pods)
        object.__setattr__(self, "signal_ok", checked)

    def _whole(self, field: str, shape: tuple[int, ...], low: int, high: int) -> None:
        checked = whole(getattr(self, field), field, shape=shape, low=low, high=high)
        object.__setattr__(self, field, checked)

    def _real(self, field: str, shape: tuple[int, ...], high: float) -> None:
        object.__setattr__(self, field, real(getattr(self, field), field, shape=shape, high=high))

    @classmethod
    def of(
        cls,
        roster: Roster,
        *,
        capacity_millicores: Ints,
        min_millicores: Ints,
        max_millicores: Ints,
        demand: Floats,
        policy: Policy = Policy.DEMAND_CAPPED,
        **others: npt.NDArray[np.generic],
    ) -> "FleetSnapshot":
        """A fleet under one policy; any other column may be left out and takes core's default."""
        nodes, pods, factors = roster.nodes, roster.pods, Headroom()
        columns: dict[str, npt.NDArray[np.generic]] = {
            "policy": np.full(nodes, POLICY_CODE[policy]),
            "previous_mode": np.full(nodes, UNKNOWN),
            "hysteresis_band": np.full(nodes, 0.05),
            "headroom": np.tile([getattr(factors, name) for name in _HEADROOM], (nodes, 1)),
            "weight": np.maximum(min_millicores, 1).astype(np.float64),
            "headroom_misses": np.zeros(pods, dtype=np.int64),
            "signal_ok": np.ones(pods, dtype=np.bool_),
            **{field: np.full(pods, UNKNOWN) for field in _OPTIONAL},
        }
        return cls(
            roster=roster,
            capacity_millicores=capacity_millicores,
            min_millicores=min_millicores,
            max_millicores=max_millicores,
            demand=demand,
            **(columns | others),  # type: ignore[arg-type]  # checked by name and type above
        )

    @classmethod
    def from_snapshots(cls, snapshots: Sequence[Snapshot]) -> "FleetSnapshot":
        """The columns of core's snapshots; node i is `snapshots[i]`."""
        members = [sorted(node.pods, key=attrgetter("uid")) for node in snapshots]
        pods = list(chain.from_iterable(members))
        return cls(
            roster=Roster.of([pod.uid for pod in node] for node in members),
            capacity_millicores=_ints([node.capacity_millicores for node in snapshots]),
            policy=_ints([POLICY_CODE[node.policy] for node in snapshots]),
            previous_mode=_ints([_mode_code(node.previous_mode) for node in snapshots]),
            hysteresis_band=np.array([node.hysteresis_band for node in snapshots], dtype=float),
            headroom=_factors([node.headroom for node in snapshots]),
            demand=np.array([pod.demand for pod in pods], dtype=float),
            weight=np.array([pod.share_weight for pod in pods], dtype=float),
            signal_ok=np.array([pod.signal_ok for pod in pods], dtype=bool),
            **{field: _ints([getattr(pod, field) for pod in pods]) for field in _KNOWN},
            **{field: _optional([getattr(pod, field) for pod in pods]) for field in _OPTIONAL},
        )

    def to_snapshots(self) -> list[Snapshot]:
        return [self.node(index) for index in range(self.roster.nodes)]

    def node(self, index: int) -> Snapshot:
        mode = int(self.previous_mode[index])
        return Snapshot(
            capacity_millicores=int(self.capacity_millicores[index]),
            pods=self._pods(self.roster.span(index)),
            policy=POLICIES[self.policy[index]],
            previous_mode=None if mode == UNKNOWN else MODES[mode],
            hysteresis_band=float(self.hysteresis_band[index]),
            headroom=Headroom(*self.headroom[index].tolist()),
        )

    def _pods(self, span: slice) -> tuple[Pod, ...]:
        fields = ("demand", "weight", "signal_ok", *_KNOWN, *_OPTIONAL)
        columns = [getattr(self, field)[span].tolist() for field in fields]
        for column in columns[-len(_OPTIONAL) :]:
            column[:] = [None if value == UNKNOWN else value for value in column]
        uids = self.roster.uids[span]
        rows = zip(uids, *columns, strict=True)
        return tuple(Pod(uid, **dict(zip(fields, row, strict=True))) for uid, *row in rows)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _optional(values: Sequence[int | None]) -> Ints:
    return _ints([UNKNOWN if value is None else value for value in values])


def _mode_code(mode: CpuMode | None) -> int:
    return UNKNOWN if mode is None else MODE_CODE[mode]


def _factors(headrooms: Sequence[Headroom]) -> Floats:
    rows = [[getattr(factors, name) for name in _HEADROOM] for factors in headrooms]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(_HEADROOM))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
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
    def blank(cls, roster: Roster, capacity_millicores: Ints) -> "FleetPlan":
        """A plan to write into. As it stands it is right for nodes without pods."""
        return cls(
            roster=roster,
            capacity_millicores=capacity_millicores,
            mode=np.zeros(roster.nodes, dtype=np.int8),
            total_min=np.zeros(roster.nodes, dtype=np.int64),
            total_need=np.zeros(roster.nodes, dtype=np.int64),
            shadow_price=np.zeros(roster.nodes),
            fallback=np.zeros(roster.nodes, dtype=np.bool_),
            needs=np.zeros(roster.pods, dtype=np.int64),
            allocations=np.zeros(roster.pods, dtype=np.int64),
            reduction_ratio=np.zeros(roster.pods),
            reasons=np.zeros(roster.pods, dtype=np.uint8),
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
        self.needs[span] = [plan.needs[uid] for uid in uids]
        self.allocations[span] = [plan.allocations[uid] for uid in uids]
        self.reduction_ratio[span] = [plan.reduction_ratio[uid] for uid in uids]
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
