"""Border type of the traffic governor's parameters: every default can be overridden by its name."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core.traffic.config import (
    DAY_MS,
    DEFAULT_CONFIG,
    NUMBER_MAX,
    POSITIVE_MIN,
    SAMPLES_MAX,
    SLOTS_MAX,
    Config,
    Theta,
)
from fairlead.core.units import SIZE_MAX, OutOfRange
from fairlead.schema.border import BadInput

Share = Annotated[float, Meta(ge=0, le=1)]
Part = Annotated[float, Meta(ge=POSITIVE_MIN, le=1)]
Number = Annotated[float, Meta(ge=0, le=NUMBER_MAX)]
Positive = Annotated[float, Meta(ge=POSITIVE_MIN, le=NUMBER_MAX)]
Factor = Annotated[float, Meta(ge=1, le=NUMBER_MAX)]
Pause = Annotated[int, Meta(ge=0, le=DAY_MS, description="milliseconds")]
Window = Annotated[int, Meta(ge=1, le=DAY_MS, description="milliseconds")]
Requests = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
_CORE, _THETA = DEFAULT_CONFIG, DEFAULT_CONFIG.theta


class ThetaDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Stall thresholds by PSI field, merged over the defaults; `io_some` never stalls anything."""

    cpu_some: Number = _THETA.cpu_some
    mem_some: Number = _THETA.mem_some
    mem_full: Number = _THETA.mem_full
    io_full: Number = _THETA.io_full
    io_some: Number = 1.0


class ConfigDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Parameters by name; what is left out keeps its default."""

    s_total: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] = _CORE.s_total
    delta_max: Factor | None = _CORE.delta_max
    crisis_factor: Factor = _CORE.crisis_factor
    delta_w: Share = _CORE.delta_w
    t_hold_ms: Pause = _CORE.t_hold_ms
    warmup_ms: Pause = _CORE.warmup_ms
    w_q: Number = _CORE.w_q
    w_l: Number = _CORE.w_l
    w_e: Number = _CORE.w_e
    q_ref: Positive = _CORE.q_ref
    l_ref_ms: Positive = _CORE.l_ref_ms
    e_ref: Positive = _CORE.e_ref
    e_max: Number = _CORE.e_max
    eta: Number = _CORE.eta
    k_e: Number = _CORE.k_e
    p_min: Positive = _CORE.p_min
    p_ref: Positive = _CORE.p_ref
    g_min: Number = _CORE.g_min
    error_requests_min: Requests = _CORE.error_requests_min
    error_keep_ms: Pause = _CORE.error_keep_ms
    wilson_z: Number = _CORE.wilson_z
    alpha: Part = _CORE.alpha
    derivative_window_ms: Window = _CORE.derivative_window_ms
    stall_m: Annotated[int, Meta(ge=1, le=SAMPLES_MAX)] = _CORE.stall_m
    stall_p: Part = _CORE.stall_p
    theta: ThetaDocument = ThetaDocument()
    t_safe_s: Number = _CORE.t_safe_s
    t_hard_s: Number = _CORE.t_hard_s
    ttf_max_s: Positive = _CORE.ttf_max_s
    retry_soft: Number = _CORE.retry_soft
    retry_hard: Number = _CORE.retry_hard
    skew_max: Share = _CORE.skew_max
    epsilon_skew: Share = _CORE.epsilon_skew
    skew_requests_min: Annotated[int, Meta(ge=1, le=SIZE_MAX)] = _CORE.skew_requests_min
    guard_quiet_ms: Window = _CORE.guard_quiet_ms
    t_recover_min_ms: Pause = _CORE.t_recover_min_ms
    bucket_burst: Factor = _CORE.bucket_burst
    bucket_rate: Positive = _CORE.bucket_rate
    recover_share: Share = _CORE.recover_share
    drip_share: Share = _CORE.drip_share
    drip_rate_min: Number = _CORE.drip_rate_min
    inside_max: Annotated[int, Meta(ge=1, le=SIZE_MAX)] | None = _CORE.inside_max
    w_rtt: Number = _CORE.w_rtt
    rtt_ref_ms: Positive = _CORE.rtt_ref_ms
    w_retx: Number = _CORE.w_retx
    retx_ref: Positive = _CORE.retx_ref
    w_jit: Number = _CORE.w_jit
    jit_ref_ms: Positive = _CORE.jit_ref_ms
    w_psi: Number = _CORE.w_psi
    stall_score_max: Number = _CORE.stall_score_max
    w_fd: Number = _CORE.w_fd
    fd_ref: Positive = _CORE.fd_ref
    w_ct: Number = _CORE.w_ct
    ct_ref: Positive = _CORE.ct_ref
    w_io: Number = _CORE.w_io
    io_ref: Positive = _CORE.io_ref


class AgentConfigDocument(ConfigDocument, frozen=True):
    """With what only the agent can see: backlog debt."""

    w_debt: Number = _CORE.w_debt
    t_ref_s: Positive = _CORE.t_ref_s
    debt_max: Number = _CORE.debt_max


DEFAULT = ConfigDocument()
AGENT_DEFAULTS: Mapping[str, Any] = {"warmup_ms": 15_000, "error_requests_min": 1_000}
"""Where the agent departs from the tick's own defaults, unless it is told otherwise. Half the
warm-up, because who comes back has been probed first, and is to be back within 20 s. A raw rate
only where it means something: one error of 200 requests is chance, and weighs 1.5 in a pressure."""


@lru_cache(maxsize=64)
def to_config(document: ConfigDocument) -> Config:
    """Core's value. Kept, because a group's parameters are the same tick after tick."""
    names = [name for name in document.__struct_fields__ if name != "theta"]
    theta = document.theta
    try:
        return Config(
            theta=Theta(theta.cpu_some, theta.mem_some, theta.mem_full, theta.io_full),
            **{name: getattr(document, name) for name in names},
        )
    except OutOfRange as error:
        raise BadInput(f"config.{error.field}", error.message) from error


def from_config(config: Config) -> dict[str, Any]:
    """The document of the parameters: what differs from the defaults, by name."""
    document: dict[str, Any] = {}
    for name in AgentConfigDocument.__struct_fields__:
        value, default = getattr(config, name), getattr(DEFAULT_CONFIG, name)
        if value == default:
            continue
        if name == "theta":
            fields = ("cpu_some", "mem_some", "mem_full", "io_full")
            value = {
                f: getattr(value, f) for f in fields if getattr(value, f) != getattr(default, f)
            }
        document[name] = value
    return document
