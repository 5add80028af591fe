"""Every parameter of a tick with its default and its range; each can be overridden by name.

The defaults are starting points (section 15 of the equations), not truth; units and equations are
in `docs/reference/equations.md`.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated

from fairlead.core import units
from fairlead.core.units import OutOfRange, Range

DAY_MS = 86_400_000
# References and floors are divided by: small enough for any unit, large enough to stay finite.
POSITIVE_MIN = 1e-9
NUMBER_MAX = float(units.SIZE_MAX)
SLOTS_MAX = 1_000_000
SAMPLES_MAX = 1_000

Measure = Annotated[float, Range(0, units.FLOAT_MAX)]
LatencyMs = Measure
"""Measured milliseconds, fractions included. Times of decisions are whole milliseconds."""
TimeMs = Annotated[int, Range(0, units.INTEGER_MAX, "milliseconds")]
AgeMs = Annotated[int, Range(0, units.SIZE_MAX, "milliseconds")]
Share = Annotated[float, Range(0, 1)]
Part = Annotated[float, Range(POSITIVE_MIN, 1)]
Number = Annotated[float, Range(0, NUMBER_MAX)]
Positive = Annotated[float, Range(POSITIVE_MIN, NUMBER_MAX)]
Factor = Annotated[float, Range(1, NUMBER_MAX)]
PauseMs = Annotated[int, Range(0, DAY_MS, "milliseconds")]
WindowMs = Annotated[int, Range(1, DAY_MS, "milliseconds")]
Requests = Annotated[int, Range(0, units.SIZE_MAX)]
SomeRequests = Annotated[int, Range(1, units.SIZE_MAX)]


@dataclass(frozen=True, slots=True)
class Theta:
    """Shares of time above which a node counts as stalled, per kind of stall.

    `io some` is not here: a disk that is merely used makes some task wait. Nor is `cpu full`, which
    the kernel reports as 0 for a whole node.
    """

    cpu_some: Number = 0.40
    mem_some: Number = 0.10
    mem_full: Number = 0.05
    io_full: Number = 0.10

    def __post_init__(self) -> None:
        units.check(self, "theta.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How a group is governed. Weights of the optional layers are 0: they are off."""

    s_total: Annotated[int, Range(1, SLOTS_MAX)] = 256
    """Slots of the group."""
    delta_max: Factor | None = None
    """Slots per backend and tick; None: max(1, s_total/64)."""
    crisis_factor: Factor = 4.0
    delta_w: Share = 0.02
    t_hold_ms: PauseMs = 1_000
    warmup_ms: PauseMs = 30_000

    w_q: Number = 0.5
    w_l: Number = 1.0
    w_e: Number = 3.0
    q_ref: Positive = 50.0
    l_ref_ms: Positive = 100.0
    e_ref: Positive = 0.01
    e_max: Number = 20.0
    eta: Number = 0.05
    k_e: Number = 10.0
    p_min: Positive = 0.1
    p_ref: Positive = 1.0
    g_min: Number = 0.3

    error_requests_min: Requests = 20
    error_keep_ms: PauseMs = 5_000
    wilson_z: Number = 1.96
    alpha: Part = 0.2
    derivative_window_ms: WindowMs = 5_000

    stall_m: Annotated[int, Range(1, SAMPLES_MAX)] = 10
    stall_p: Part = 0.7
    theta: Theta = field(default_factory=Theta)
    t_safe_s: Number = 120.0
    t_hard_s: Number = 20.0
    ttf_max_s: Positive = 86_400.0
    retry_soft: Number = 0.5
    retry_hard: Number = 2.0

    skew_max: Share = 0.2
    epsilon_skew: Share = 0.02
    skew_requests_min: SomeRequests = 50
    guard_quiet_ms: WindowMs = 5_000

    t_recover_min_ms: PauseMs = 20_000
    bucket_burst: Factor = 100.0
    bucket_rate: Positive = 100.0
    """Admissions per second in soft."""
    recover_share: Share = 0.1
    """Of `bucket_rate`: where soft after hard starts, and what each calm second adds."""
    drip_share: Share = 0.01
    drip_rate_min: Number = 1.0
    inside_max: SomeRequests | None = None
    """How many requests may be inside the group at once, for the dataplane's limits. The tick does
    not use it."""

    w_rtt: Number = 0.0
    rtt_ref_ms: Positive = 50.0
    w_retx: Number = 0.0
    retx_ref: Positive = 0.01
    w_jit: Number = 0.0
    jit_ref_ms: Positive = 10.0
    w_psi: Number = 0.0
    stall_score_max: Number = 10.0
    w_fd: Number = 0.0
    fd_ref: Positive = 0.8
    w_ct: Number = 0.0
    ct_ref: Positive = 0.8
    w_io: Number = 0.0
    io_ref: Positive = 0.1
    w_debt: Number = 0.0
    t_ref_s: Positive = 10.0
    debt_max: Number = 10.0

    def __post_init__(self) -> None:
        units.check(self)
        if self.t_hard_s >= self.t_safe_s:
            raise OutOfRange("t_hard_s", f"must be below t_safe_s, got {self.t_hard_s!r}")
        if self.retry_hard < self.retry_soft:
            raise OutOfRange("retry_hard", f"must not be below retry_soft, got {self.retry_hard!r}")

    @property
    def layered(self) -> bool:
        path = self.w_rtt or self.w_retx or self.w_jit
        node = self.w_psi or self.w_fd or self.w_ct or self.w_io
        return bool(path or node or self.w_debt)

    @property
    def step(self) -> float:
        """Δmax before the factors: a 64th of the slots, at least 1."""
        return max(1.0, float(self.s_total) / 64.0) if self.delta_max is None else self.delta_max


OPTIONAL = frozenset(rule.field for rule in units.rules(Config) if rule.optional)
"""Parameters that may be None."""
INTEGER_RANGES, NUMBER_RANGES = (
    {rule.field: (rule.low, rule.high) for rule in units.rules(Config) if rule.kind is kind}
    for kind in (int, float)
)
DEFAULT_CONFIG = Config()
NAMES = tuple(parameter.name for parameter in fields(Config))
