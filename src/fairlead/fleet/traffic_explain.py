"""Reasons of many groups: `core.traffic.explain` as bits, the lowest bit the most urgent."""

from typing import NamedTuple

import numpy as np

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.config import Config
from fairlead.fleet.columns import UNKNOWN, Bools, Codes, Floats, Ints
from fairlead.fleet.traffic_plan import REASON_CODE
from fairlead.fleet.traffic_signals import Signals
from fairlead.fleet.traffic_slots import left_sums


class Conditions(NamedTuple):
    """What reasons are made of, a row per group. Nothing is missing in these rows."""

    signals: Signals
    live: Bools
    changes: Ints
    held: Bools
    skew: Floats
    flow: Floats
    stall: Bools
    ttf_s: Floats
    retry_index: Floats


def reason_codes(conditions: Conditions, config: Config) -> Codes:
    """The two most urgent reasons of each row; `UNKNOWN` where there is only one."""
    signals, live = conditions.signals, conditions.live
    failing = ((signals.rate > config.eta) & ~signals.isolated).any(axis=1)
    isolated = (signals.isolated & live).any(axis=1)
    moved = (conditions.changes != 0).any(axis=1)
    alone = live.sum(axis=1) == 1
    holding = {
        TrafficReason.PSI_STALL: conditions.stall,
        TrafficReason.TTF: conditions.ttf_s < config.t_safe_s,
        TrafficReason.RETRY_STORM: conditions.retry_index >= config.retry_soft,
        TrafficReason.ERRORS: failing,
        TrafficReason.CONDUCTANCE: conditions.flow < config.g_min,
        TrafficReason.SKEW: conditions.skew > config.skew_max,
        TrafficReason.ISOLATION: isolated,
        TrafficReason.GUARD_HOLD: conditions.held,
        TrafficReason.MONOPOLY: alone,
    }
    bits = np.zeros(len(live), dtype=np.int64)
    for reason, holds in holding.items():
        bits |= holds.astype(np.int64) << REASON_CODE[reason]
    if moved.any():
        bits[moved] |= np.int64(1) << _moving_terms(conditions, moved)
    idle = (bits & ~(1 << REASON_CODE[TrafficReason.MONOPOLY])) == 0
    bits |= idle.astype(np.int64) << REASON_CODE[TrafficReason.STEADY]
    first = bits & -bits
    rest = bits & ~first
    return np.stack([_place(first), _place(rest & -rest)], axis=1)


def _place(bit: Ints) -> Codes:
    """The position of a single bit; `UNKNOWN` of none."""
    _, exponent = np.frexp(bit.astype(np.float64))
    return np.where(bit == 0, UNKNOWN, exponent - 1).astype(np.int8)


def _moving_terms(conditions: Conditions, rows: Bools) -> Ints:
    """The code of the term that moved the slots most, as `core.traffic.explain.moving_term`."""
    signals, live = conditions.signals, conditions.live[rows]
    count = live.sum(axis=1)
    changes = np.abs(conditions.changes[rows])
    terms = (
        (TrafficReason.PRESSURE_ERRORS, signals.error[rows] + signals.penalty[rows]),
        (TrafficReason.PRESSURE_LATENCY, signals.latency[rows]),
        (TrafficReason.PRESSURE_QUEUE, signals.queue[rows]),
    )
    best = np.full(len(count), REASON_CODE[TrafficReason.PRESSURE_ERRORS])
    most, most_total = np.full(len(count), -1.0), np.full(len(count), -1.0)
    for reason, values in terms:
        total = left_sums(values)
        moved = left_sums(changes * np.abs(values - (total / count)[:, None]))
        least = np.where(live, values, np.inf).min(axis=1)
        moved[least == np.where(live, values, -np.inf).max(axis=1)] = 0.0
        larger = (moved > most) | ((moved == most) & (total > most_total))
        best = np.where(larger, REASON_CODE[reason], best)
        most, most_total = np.where(larger, moved, most), np.where(larger, total, most_total)
    return best
