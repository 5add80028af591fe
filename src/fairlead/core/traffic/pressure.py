"""Backend pressure (section 2): several resistances in one number, each term kept with its label.

    P = W_Q*Q/Q_ref + W_L*L/L_ref + W_E*clip(E/E_ref, 0, E_max)  [+ K_E where E > eta]

plus the layers of section 3 where they are switched on, then floored at P_min: an idle backend is
not infinitely attractive.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.layers import layer_terms
from fairlead.core.traffic.model import Backend, Node, Pressure
from fairlead.core.traffic.signals import impute, normalise


class Pressures(NamedTuple):
    """P of every backend, in their order, the error rates behind it, and what was missing."""

    each: list[Pressure]
    errors: list[float] | None
    missing_latency: bool
    missing_errors: bool
    missing_queue: bool
    blind: bool
    """Neither latency nor errors of anybody are known."""


def measure_pressure(
    backends: Sequence[Backend],
    rates: Sequence[float | None],
    nodes: Mapping[str, Node],
    config: Config,
) -> Pressures:
    """P of every backend. A signal that nobody has is left out: its weight is 0 for the group."""
    queues = impute([backend.queue for backend in backends])
    latencies = impute([backend.p95_ms for backend in backends])
    errors = impute(rates)
    layers = layer_terms(backends, nodes, config)
    each = [
        _pressure(
            _term(queues.values, index, config.w_q, config.q_ref),
            _term(latencies.values, index, config.w_l, config.l_ref_ms),
            0.0 if errors.values is None else errors.values[index],
            layers[index] if layers else (),
            config,
        )
        for index in range(len(backends))
    ]
    return Pressures(
        each,
        errors.values,
        missing_latency=latencies.missing,
        missing_errors=errors.missing,
        missing_queue=queues.missing,
        blind=bool(backends) and latencies.values is None and not _tells_errors(backends),
    )


def _tells_errors(backends: Sequence[Backend]) -> bool:
    """Does anybody's sensor tell an error rate, and of how many requests? One that is only
    remembered is no eyesight.
    """
    return any(b.error_rate is not None and b.requests is not None for b in backends)


def _term(values: list[float] | None, index: int, weight: float, reference: float) -> float:
    return 0.0 if values is None else normalise(values[index], weight, reference)


def _pressure(
    queue: float, latency: float, rate: float, layers: tuple[tuple[str, float], ...], config: Config
) -> Pressure:
    error = config.w_e * min(rate / config.e_ref, config.e_max)
    penalty = config.k_e if rate > config.eta else 0.0
    total = queue + latency + error + penalty
    for _, value in layers:
        total += value
    return Pressure(max(total, config.p_min), queue, latency, error, penalty, layers)
