"""Signals to pressure (sections 1 to 3, 9.1 and 12): several resistances in one number.

    P = W_Q*Q/Q_ref + W_L*L/L_ref + W_E*clip(E/E_ref, 0, E_max)  [+ K_E where E > eta]

plus the optional layers (path, node, backlog debt) where their weights are not 0, floored at P_min:
an idle backend is not infinitely attractive. Each term keeps its label.

Missing is never zero. A backend whose latency is unknown is not fast, and one without requests is
not healthy; it is only unknown, and the group's worst is assumed. A signal that no backend has is
left out.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Final, NamedTuple, cast

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Backend, Node, Pressure
from fairlead.core.traffic.nodes import EPSILON, stall_score
from fairlead.core.traffic.state import BackendMemory

# A latency of 1e308 ms is rubbish, but finite rubbish: it must not turn into infinity on the way.
TERM_MAX: Final = 1e300
Terms = tuple[tuple[str, float], ...]
NO_TERMS: Terms = ()


def left_sum(values: list[float]) -> float:
    """Σ in the given order. `sum` of floats rounds differently from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def wilson_lower(rate: float, requests: int, z: float) -> float:
    """The lower end of Wilson's interval: the error rate that so few requests really prove."""
    if not requests or not rate:
        return 0.0
    square = z * z
    centre = rate + square / (2 * requests)
    margin = z * sqrt(rate * (1 - rate) / requests + square / (4 * requests * requests))
    return max(0.0, (centre - margin) / (1 + square / requests))


def normalise(value: float, weight: float, reference: float) -> float:
    """W*x/x_ref: a term of pressure. Every reference is a named parameter."""
    return min(weight * (value / reference), TERM_MAX) if weight else 0.0


class Imputed(NamedTuple):
    """A signal of every backend; `values` is None where none has it. `missing`: some have not."""

    values: list[float] | None
    missing: bool


def impute(signal: list[float | None]) -> Imputed:
    """The signal with the group's worst in place of what is unknown."""
    if None not in signal:
        return Imputed(cast("list[float]", signal) if signal else None, missing=False)
    known = [value for value in signal if value is not None]
    if not known:
        return Imputed(None, missing=True)
    worst = max(known)
    return Imputed([worst if value is None else value for value in signal], missing=True)


Counted = tuple[float | None, float | None, int | None]
"""The rate that counts now (None: missing); what to remember of it: the rate, and its time."""


def count_errors(backend: Backend, memory: BackendMemory, clock_ms: int, config: Config) -> Counted:
    """One backend's rate. Without a rate or a volume there is no evidence at all: missing.

    Of no requests at all many a sensor says null rather than 0; what is remembered answers both.
    """
    rate, requests, error_ms = backend.error_rate, backend.requests, memory.error_ms
    if rate is not None and requests:
        if requests < config.error_requests_min:
            rate = wilson_lower(rate, requests, config.wilson_z)
        return rate, rate, clock_ms
    if requests == 0 and error_ms is not None:
        if clock_ms - error_ms <= config.error_keep_ms:
            return memory.error_rate, memory.error_rate, error_ms
        return None if rate is None else 0.0, None, None
    if rate is None or requests is None:
        return None, memory.error_rate, error_ms
    return 0.0, None, None


class Pressures(NamedTuple):
    """P of every backend, in their order, the error rates behind it, and what was missing."""

    values: list[Pressure]
    errors: list[float] | None
    missing_latency: bool
    missing_errors: bool
    missing_queue: bool
    blind: bool
    """Neither latency nor errors of any backend are known."""


def measure_pressure(
    backends: list[Backend], rates: list[float | None], nodes: Mapping[str, Node], config: Config
) -> Pressures:
    """P of every backend. A signal that none has is left out: its weight is 0 for the group."""
    queues = impute([backend.queue for backend in backends])
    latencies = impute([backend.p95_ms for backend in backends])
    errors = impute(rates)
    layers = layer_terms(backends, nodes, config)
    nothing = [0.0] * len(backends)
    queue = nothing if queues.values is None else queues.values
    latency = nothing if latencies.values is None else latencies.values
    error = nothing if errors.values is None else errors.values
    w_q, q_ref, w_l, l_ref_ms = config.w_q, config.q_ref, config.w_l, config.l_ref_ms
    w_e, e_ref, e_max = config.w_e, config.e_ref, config.e_max
    k_e, eta, p_min = config.k_e, config.eta, config.p_min
    values: list[Pressure] = []
    for index, rate in enumerate(error):
        waiting = normalise(queue[index], w_q, q_ref)
        slow = normalise(latency[index], w_l, l_ref_ms)
        failing = w_e * min(rate / e_ref, e_max)
        penalty = k_e if rate > eta else 0.0
        total = waiting + slow + failing + penalty
        terms = NO_TERMS
        if layers:
            terms = layers[index]
            for _, value in terms:
                total += value
        # As `Pressure(...)` does, without a call of Python code for each backend.
        whole = (max(total, p_min), waiting, slow, failing, penalty, terms)
        values.append(tuple.__new__(Pressure, whole))
    # A remembered rate is none: does any sensor report one, and of how many requests?
    told = any(b.error_rate is not None and b.requests is not None for b in backends)
    return Pressures(
        values,
        errors.values,
        missing_latency=latencies.missing,
        missing_errors=errors.missing,
        missing_queue=queues.missing,
        blind=bool(backends) and latencies.values is None and not told,
    )


def _fullness(name: str) -> Callable[[Backend, Node | None, Config], float | None]:
    """used/limit of a resource of the node."""

    def of(_backend: Backend, node: Node | None, _config: Config) -> float | None:
        for resource in () if node is None else node.resources:
            if resource.name == name and resource.limit and resource.used is not None:
                return resource.used / resource.limit
        return None

    return of


def _score(_backend: Backend, node: Node | None, config: Config) -> float | None:
    score = None if node is None else node.stall_score
    if score is None and node is not None:
        score = stall_score(node.psi, config.theta)
    return None if score is None else min(score, config.stall_score_max)


_LAYERS: tuple[tuple[str, str, str | None, Callable[..., float | None]], ...] = (
    ("rtt", "w_rtt", "rtt_ref_ms", lambda backend, *_: backend.rtt_ms),
    ("retransmits", "w_retx", "retx_ref", lambda backend, *_: backend.retrans_rate),
    ("jitter", "w_jit", "jit_ref_ms", lambda backend, *_: backend.jitter_ms),
    ("stall", "w_psi", None, _score),
    ("fds", "w_fd", "fd_ref", _fullness("fds")),
    ("conntrack", "w_ct", "ct_ref", _fullness("conntrack")),
    ("iowait", "w_io", "io_ref", lambda _, node, __: None if node is None else node.iowait_ratio),
)
"""Label, weight, reference (None: 1) and signal of each optional layer but the debt."""


def layer_terms(backends: list[Backend], nodes: Mapping[str, Node], config: Config) -> list[Terms]:
    """Labelled terms of each backend; an empty list where no layer is on."""
    if not config.layered:
        return []
    under = [None if backend.node is None else nodes.get(backend.node) for backend in backends]
    columns: list[tuple[str, list[float]]] = []
    for label, weight_name, reference_name, signal in _LAYERS:
        if weight := getattr(config, weight_name):
            reference = 1.0 if reference_name is None else getattr(config, reference_name)
            read = [signal(b, node, config) for b, node in zip(backends, under, strict=True)]
            values = impute(read).values or [0.0] * len(backends)
            columns.append((label, [normalise(value, weight, reference) for value in values]))
    if config.w_debt:
        columns.append(("debt", [debt_term(backend, config) for backend in backends]))
    return [tuple((label, terms[i]) for label, terms in columns) for i in range(len(backends))]


def debt_term(backend: Backend, config: Config) -> float:
    """W_debt*clip(T_drain/T_ref, 0, debt_max), T_drain = debt/drain rate.

    The equations divide the debt by T_drain, which is the drain rate again: a backend that drains
    faster would look worse. The time to drain is what a new request would wait.
    """
    if backend.debt is None or backend.drain_per_s is None:
        return 0.0
    drain_s = backend.debt / max(EPSILON, backend.drain_per_s)
    return config.w_debt * min(drain_s / config.t_ref_s, config.debt_max)


def conductance(slots: list[int], pressures: list[Pressure], config: Config) -> float:
    s_total, flow = float(config.s_total), 0.0
    for index, pressure in enumerate(pressures):
        flow += float(slots[index]) / s_total / pressure.total
    return config.p_ref * flow
