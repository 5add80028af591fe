"""What a fleet is granted, as columns; `to_plans` gives core's `Plan`s back."""

from dataclasses import dataclass

import numpy as np

from fairlead.core.cpu import Plan
from fairlead.core.reasons import CpuReason
from fairlead.fleet.columns import MODE_CODE, MODES, REASON_BIT, Bits, Bools, Codes, Floats, Ints
from fairlead.fleet.roster import Roster


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
        """How many nodes the scalar path had to clear."""
        return int(self.fallback.sum())

    def put(self, index: int, plan: Plan) -> None:
        """Write a scalar plan into the columns, as a fallback."""
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
        """The plans of all nodes in core's values; plan i is that of node i."""
        return [self.node(index) for index in range(self.roster.nodes)]

    def node(self, index: int) -> Plan:
        """The plan of one node in core's values."""
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
