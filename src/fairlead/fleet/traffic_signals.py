"""From signals to shares for a table of groups: `core.traffic` errors, pressure, weights, skew.

The same operations on doubles in the same order as core's, so the same bits. Groups in which a
signal is missing are not decided here.
"""

from typing import NamedTuple

import numpy as np

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.signals import TERM_MAX
from fairlead.fleet.columns import UNKNOWN, Bools, Floats, Ints
from fairlead.fleet.traffic_slots import left_sums
from fairlead.fleet.traffic_snapshot import TrafficSnapshot
from fairlead.fleet.traffic_state import TrafficState
from fairlead.fleet.traffic_table import GroupTable

# Wilson's bound squares the number of requests; doubles hold it exactly up to here.
EVIDENCE_MAX = 1 << 25
REQUESTS_MAX = 1 << 53


class Signals(NamedTuple):
    """What is known of the backends of a table; padding is isolated and has no signals."""

    isolated: Bools
    requests: Ints
    rate: Floats
    """The error rate that counts."""
    kept_rate: Floats
    kept_ms: Ints
    queue: Floats
    latency: Floats
    error: Floats
    penalty: Floats
    total: Floats
    known: Bools
    """Rows in which nothing is missing and nobody is too large for doubles."""


def read_signals(
    table: GroupTable, snapshot: TrafficSnapshot, before: TrafficState, clock_ms: Ints
) -> Signals:
    """Conditioned signals and pressure of every backend."""
    config = snapshot.config
    queue, latency = table.cells(snapshot.queue, 0.0), table.cells(snapshot.p95_ms, 0.0)
    raw, requests = table.cells(snapshot.error_rate, 0.0), table.cells(snapshot.requests, 0)
    known = ~(np.isnan(queue) | np.isnan(latency) | np.isnan(raw) | (requests == UNKNOWN))
    fit = known.all(axis=1) & (requests.sum(axis=1) < REQUESTS_MAX)
    fit &= config.error_requests_min <= EVIDENCE_MAX
    last_rate = table.cells(before.error_rate, np.nan)
    last_ms = table.cells(before.error_ms, UNKNOWN)
    kept = (last_ms != UNKNOWN) & (clock_ms[:, None] - last_ms <= config.error_keep_ms)
    counted = np.where(requests >= config.error_requests_min, raw, _wilson(raw, requests, config))
    some = requests > 0
    rate = np.where(some, counted, np.where(kept, last_rate, 0.0))
    queue_term = _normalise(queue, config.w_q, config.q_ref)
    latency_term = _normalise(latency, config.w_l, config.l_ref_ms)
    error = config.w_e * np.minimum(rate / config.e_ref, config.e_max)
    penalty = np.where(rate > config.eta, config.k_e, 0.0)
    total = np.maximum(queue_term + latency_term + error + penalty, config.p_min)
    return Signals(
        isolated=table.cells(snapshot.isolated, 1),
        requests=requests,
        rate=rate,
        kept_rate=np.where(some, counted, np.where(kept, last_rate, np.nan)),
        kept_ms=np.where(some, clock_ms[:, None], np.where(kept, last_ms, UNKNOWN)),
        queue=queue_term,
        latency=latency_term,
        error=error,
        penalty=penalty,
        total=total,
        known=fit,
    )


def _normalise(value: Floats, weight: float, reference: float) -> Floats:
    if not weight:
        return np.zeros(value.shape)
    with np.errstate(over="ignore"):
        return np.minimum(weight * (value / reference), TERM_MAX)


def _wilson(rate: Floats, requests: Ints, config: Config) -> Floats:
    few = (requests > 0) & (requests < config.error_requests_min) & (rate > 0)
    bound = np.zeros(rate.shape)
    if few.any():
        p, n, z = rate[few], requests[few].astype(np.float64), config.wilson_z
        square = z * z
        centre = p + square / (2 * n)
        margin = z * np.sqrt(p * (1 - p) / n + square / (4 * n * n))
        bound[few] = np.maximum(0.0, (centre - margin) / (1 + square / n))
    return bound


def weigh(signals: Signals) -> Floats:
    """w of every backend."""
    return _normalised(np.where(signals.isolated, 0.0, 1 / signals.total))


def warm(weights: Floats, ages_ms: Ints, isolated: Bools, warmup_ms: int) -> tuple[Floats, Bools]:
    """Shares for the target, and the rows in which they are certain."""
    sure = np.ones(len(weights), dtype=np.bool_)
    young = (ages_ms != UNKNOWN) & (ages_ms < warmup_ms)
    newborn = young & ~isolated
    mixed = newborn.any(axis=1) & (~young & ~isolated).any(axis=1)
    if not mixed.any():
        return weights, sure
    shares = weights.copy()
    factors = np.where(young[mixed], ages_ms[mixed] / warmup_ms, 1.0)
    scaled = weights[mixed] * factors
    sure[mixed] = (scaled > 0).any(axis=1)
    with np.errstate(invalid="ignore"):  # rows that are not sure
        shares[mixed] = _normalised(scaled)
    return shares, sure


def skews(signals: Signals, weights: Floats, counts: Ints, config: Config) -> Floats:
    """max |share - w| of each row, NaN where it says nothing."""
    total = signals.requests.sum(axis=1)
    defined = (counts >= 2) & (total >= config.skew_requests_min)
    shares = signals.requests / np.maximum(total, 1)[:, None]
    return np.where(defined, np.abs(shares - weights).max(axis=1), np.nan)


def _normalised(shares: Floats) -> Floats:
    total = left_sums(shares)
    with np.errstate(invalid="ignore", divide="ignore"):  # rows in which nobody is routable
        divided: Floats = shares / total[:, None]
    return divided
