"""Every parameter of a tick with its default and its range; each can be overridden by name.

The defaults are starting points (section 15 of the equations), not truth. Which equation uses
which, and in what unit, is in `docs/reference/equations.md`.
"""

from dataclasses import dataclass, field, fields

from fairlead.core import units
from fairlead.core.units import OutOfRange

LatencyMs = float
"""Measured milliseconds, fractions included. Times of decisions are whole milliseconds."""
DAY_MS = 86_400_000
# References and floors are divided by: small enough for any unit, large enough to stay finite.
POSITIVE_MIN = 1e-9
NUMBER_MAX = float(units.SIZE_MAX)
SLOTS_MAX = 1_000_000
SAMPLES_MAX = 1_000

INTEGER_RANGES = {
    "s_total": (1, SLOTS_MAX),
    "t_hold_ms": (0, DAY_MS),
    "t_recover_min_ms": (0, DAY_MS),
    "derivative_window_ms": (1, DAY_MS),
    "stall_m": (1, SAMPLES_MAX),
    "warmup_ms": (0, DAY_MS),
    "error_requests_min": (0, units.SIZE_MAX),
    "error_keep_ms": (0, DAY_MS),
    "skew_requests_min": (1, units.SIZE_MAX),
    "guard_quiet_ms": (1, DAY_MS),
    "inside_max": (1, units.SIZE_MAX),
}
_RATIO, _ANY, _POSITIVE = (0.0, 1.0), (0.0, NUMBER_MAX), (POSITIVE_MIN, NUMBER_MAX)
NUMBER_RANGES = {
    **dict.fromkeys(("delta_w", "epsilon_skew", "skew_max", "drip_share", "recover_share"), _RATIO),
    **dict.fromkeys(("alpha", "stall_p"), (POSITIVE_MIN, 1.0)),
    **dict.fromkeys(
        (
            *("w_q", "w_l", "w_e", "e_max", "eta", "k_e", "g_min", "t_safe_s", "t_hard_s"),
            *("retry_soft", "retry_hard", "wilson_z", "drip_rate_min", "stall_score_max"),
            *("w_rtt", "w_retx", "w_jit", "w_psi", "w_fd", "w_ct", "w_io", "w_debt", "debt_max"),
        ),
        _ANY,
    ),
    **dict.fromkeys(
        (
            *("q_ref", "l_ref_ms", "e_ref", "p_min", "p_ref", "ttf_max_s", "bucket_rate"),
            *("rtt_ref_ms", "retx_ref", "jit_ref_ms", "fd_ref", "ct_ref", "io_ref", "t_ref_s"),
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(("delta_max", "crisis_factor", "bucket_burst"), (1.0, NUMBER_MAX)),
}
LAYER_WEIGHTS = ("w_rtt", "w_retx", "w_jit", "w_psi", "w_fd", "w_ct", "w_io", "w_debt")


@dataclass(frozen=True, slots=True)
class Theta:
    """Shares of time above which a node counts as stalled, per kind of stall.

    `io some` is not here: a disk that is merely used makes somebody wait. Nor is `cpu full`, which
    the kernel reports as 0 for a whole node.
    """

    cpu_some: float = 0.40
    mem_some: float = 0.10
    mem_full: float = 0.05
    io_full: float = 0.10

    def __post_init__(self) -> None:
        for name in ("cpu_some", "mem_some", "mem_full", "io_full"):
            object.__setattr__(self, name, _number(getattr(self, name), f"theta.{name}", *_ANY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How a group is governed. Weights of the optional layers are 0: they are off."""

    s_total: int = 256
    """Slots of the group."""
    delta_max: float | None = None
    """Slots per backend and tick; None: max(1, s_total/64)."""
    crisis_factor: float = 4.0
    delta_w: float = 0.02
    t_hold_ms: int = 1_000
    warmup_ms: int = 30_000

    w_q: float = 0.5
    w_l: float = 1.0
    w_e: float = 3.0
    q_ref: float = 50.0
    l_ref_ms: LatencyMs = 100.0
    e_ref: float = 0.01
    e_max: float = 20.0
    eta: float = 0.05
    k_e: float = 10.0
    p_min: float = 0.1
    p_ref: float = 1.0
    g_min: float = 0.3

    error_requests_min: int = 20
    error_keep_ms: int = 5_000
    wilson_z: float = 1.96
    alpha: float = 0.2
    derivative_window_ms: int = 5_000

    stall_m: int = 10
    stall_p: float = 0.7
    theta: Theta = field(default_factory=Theta)
    t_safe_s: float = 120.0
    t_hard_s: float = 20.0
    ttf_max_s: float = 86_400.0
    retry_soft: float = 0.5
    retry_hard: float = 2.0

    skew_max: float = 0.2
    epsilon_skew: float = 0.02
    skew_requests_min: int = 50
    guard_quiet_ms: int = 5_000

    t_recover_min_ms: int = 20_000
    bucket_burst: float = 100.0
    bucket_rate: float = 100.0
    """Admissions per second in soft."""
    recover_share: float = 0.1
    """Of `bucket_rate`: where soft after hard starts, and what each calm second adds."""
    drip_share: float = 0.01
    drip_rate_min: float = 1.0
    inside_max: int | None = None
    """How many may be inside the group at once, for the plane to see to. The tick does not use it;
    it is here so that a record holds everything that a plane was told."""

    w_rtt: float = 0.0
    rtt_ref_ms: LatencyMs = 50.0
    w_retx: float = 0.0
    retx_ref: float = 0.01
    w_jit: float = 0.0
    jit_ref_ms: LatencyMs = 10.0
    w_psi: float = 0.0
    stall_score_max: float = 10.0
    w_fd: float = 0.0
    fd_ref: float = 0.8
    w_ct: float = 0.0
    ct_ref: float = 0.8
    w_io: float = 0.0
    io_ref: float = 0.1
    w_debt: float = 0.0
    t_ref_s: float = 10.0
    debt_max: float = 10.0

    def __post_init__(self) -> None:
        for name, (low, high) in INTEGER_RANGES.items():
            value = getattr(self, name)
            if value is None and name == "inside_max":
                continue
            if type(value) is not int or not low <= value <= high:
                raise OutOfRange(
                    name, f"must be an integer between {low} and {high}, got {value!r}"
                )
        for name, (least, most) in NUMBER_RANGES.items():
            number = getattr(self, name)
            if type(number) is float and least <= number <= most:
                continue
            if number is not None or name != "delta_max":
                object.__setattr__(self, name, _number(number, name, least, most))
        if self.t_hard_s >= self.t_safe_s:
            raise OutOfRange("t_hard_s", f"must be below t_safe_s, got {self.t_hard_s!r}")
        if self.retry_hard < self.retry_soft:
            raise OutOfRange("retry_hard", f"must not be below retry_soft, got {self.retry_hard!r}")

    @property
    def layered(self) -> bool:
        """Is any of the optional layers switched on?"""
        return any(getattr(self, name) for name in LAYER_WEIGHTS)

    @property
    def step(self) -> float:
        """Δmax before the factors: a 64th of the slots, at least 1."""
        return max(1.0, self.s_total / 64) if self.delta_max is None else self.delta_max


def _number(value: float, field_name: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise OutOfRange(field_name, f"must be between {low:g} and {high:g}, got {value!r}")
    return float(value)


DEFAULT_CONFIG = Config()
NAMES = tuple(each.name for each in fields(Config))
