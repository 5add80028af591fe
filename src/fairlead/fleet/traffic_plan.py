"""What a tick decides for many groups, as columns; `to_plans` gives core's `TickPlan`s back."""

from dataclasses import dataclass

import numpy as np

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.model import Admission, Pressure, TickPlan
from fairlead.fleet.columns import UNKNOWN, Bools, Codes, Floats, Ints
from fairlead.fleet.traffic_state import MODE_CODE, MODES, REGIME_CODE, REGIMES, TrafficState

REASONS = tuple(TrafficReason)
REASON_CODE = {reason: code for code, reason in enumerate(REASONS)}
TERMS = ("queue", "latency", "error", "penalty")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrafficPlan:
    """Core's `TickPlan` for every group.

    `mode` and `regime` hold positions in core's enums, as do the two columns of `reasons`
    (`UNKNOWN`: there is only one). NaN stands for `None`. `fallback` marks the groups that core
    ticked; only they can have a `bypass`.
    """

    state: TrafficState
    slots: Ints
    weights: Floats
    target: Ints
    pressure: Floats
    queue: Floats
    latency: Floats
    error: Floats
    penalty: Floats
    mode: Codes
    rate_per_s: Floats
    burst: Floats
    regime: Codes
    ttf_s: Floats
    stall: Bools
    skew: Floats
    conductance: Floats
    applied: Bools
    scale_hint: Bools
    reasons: Codes
    bypass: dict[int, tuple[str, ...]]
    fallback: Bools

    @classmethod
    def blank(cls, state: TrafficState) -> "TrafficPlan":
        """A plan to write into."""
        groups, backends = state.groups, state.roster.pods
        return cls(
            state=state,
            slots=np.zeros(backends, dtype=np.int64),
            weights=np.zeros(backends),
            target=np.zeros(backends, dtype=np.int64),
            pressure=np.zeros(backends),
            queue=np.zeros(backends),
            latency=np.zeros(backends),
            error=np.zeros(backends),
            penalty=np.zeros(backends),
            mode=np.zeros(groups, dtype=np.int8),
            rate_per_s=np.full(groups, np.nan),
            burst=np.full(groups, np.nan),
            regime=np.zeros(groups, dtype=np.int8),
            ttf_s=np.full(groups, np.nan),
            stall=np.zeros(groups, dtype=np.bool_),
            skew=np.full(groups, np.nan),
            conductance=np.zeros(groups),
            applied=np.zeros(groups, dtype=np.bool_),
            scale_hint=np.zeros(groups, dtype=np.bool_),
            reasons=np.full((groups, 2), UNKNOWN, dtype=np.int8),
            bypass={},
            fallback=np.ones(groups, dtype=np.bool_),
        )

    @property
    def fallbacks(self) -> int:
        """How many groups core had to tick."""
        return int(self.fallback.sum())

    def put(self, index: int, plan: TickPlan) -> None:
        """Write a plan of core into the columns; its state is written apart."""
        span = self.state.roster.span(index)
        each = [plan.pressure[name] for name in self.state.roster.uids[span]]
        self.slots[span] = list(plan.slots.values())
        self.weights[span] = list(plan.weights.values())
        self.target[span] = list(plan.target.values())
        self.pressure[span] = [pressure.total for pressure in each]
        for term in TERMS:
            getattr(self, term)[span] = [getattr(pressure, term) for pressure in each]
        self.put_admission(index, plan.admission)
        self.regime[index] = REGIME_CODE[plan.regime]
        self.ttf_s[index], self.skew[index] = _column(plan.ttf_s), _column(plan.skew)
        self.stall[index], self.conductance[index] = plan.stall, plan.conductance
        self.applied[index], self.scale_hint[index] = plan.applied, plan.scale_hint
        codes = [REASON_CODE[reason] for reason in plan.reasons]
        self.reasons[index] = (*codes, UNKNOWN)[:2]
        if plan.bypass:
            self.bypass[index] = plan.bypass

    def put_admission(self, index: int, admission: Admission) -> None:
        """Write a door of core into the columns."""
        self.mode[index] = MODE_CODE[admission.mode]
        self.rate_per_s[index] = _column(admission.rate_per_s)
        self.burst[index] = _column(admission.burst)

    def to_plans(self) -> list[TickPlan]:
        """The plans of all groups in core's values; plan i is that of group i."""
        return [self.group(index) for index in range(self.state.groups)]

    def group(self, index: int) -> TickPlan:
        """The plan of one group in core's values."""
        span = self.state.roster.span(index)
        names = self.state.roster.uids[span]
        columns = (self.pressure, *(getattr(self, term) for term in TERMS))
        pressures = zip(*(column[span].tolist() for column in columns), strict=True)
        rate, burst = _value(self.rate_per_s[index]), _value(self.burst[index])
        return TickPlan(
            state=self.state.group(index),
            slots=dict(zip(names, self.slots[span].tolist(), strict=True)),
            weights=dict(zip(names, self.weights[span].tolist(), strict=True)),
            target=dict(zip(names, self.target[span].tolist(), strict=True)),
            pressure={n: Pressure(*row) for n, row in zip(names, pressures, strict=True)},
            admission=Admission(MODES[self.mode[index]], rate, burst),
            regime=REGIMES[self.regime[index]],
            ttf_s=_value(self.ttf_s[index]),
            stall=bool(self.stall[index]),
            skew=_value(self.skew[index]),
            conductance=float(self.conductance[index]),
            applied=bool(self.applied[index]),
            scale_hint=bool(self.scale_hint[index]),
            bypass=self.bypass.get(index, ()),
            reasons=tuple(
                REASONS[code] for code in self.reasons[index].tolist() if code != UNKNOWN
            ),
        )


def _column(value: float | None) -> float:
    return np.nan if value is None else value


def _value(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
