"""The machines of many groups: `core.traffic.watch`, column by column."""

from typing import NamedTuple

import numpy as np

from fairlead.core.traffic.signals import EPSILON
from fairlead.core.traffic.stall import ROUNDING
from fairlead.core.units import FLOAT_MAX
from fairlead.fleet.columns import UNKNOWN, Bools, Floats, Ints
from fairlead.fleet.traffic_snapshot import STALLS, TrafficSnapshot
from fairlead.fleet.traffic_state import TrafficState

_GATING = ("cpu_some", "mem_some", "mem_full", "io_full")


class MachineWatch(NamedTuple):
    """Verdicts by group, and what to remember by machine and by resource."""

    stall: Bools
    ttf_s: Floats
    stalled: Bools
    ewma: Floats
    history_ms: Ints
    history: Floats


def watch_machines(
    snapshot: TrafficSnapshot, before: TrafficState, *, clock_ms: Ints, advanced: Bools, first: bool
) -> MachineWatch:
    """Judge every machine. `first`: there was no tick before this one."""
    machines, config = snapshot.machines, snapshot.config
    owner = np.repeat(np.arange(machines.nodes), machines.counts)
    stalled = _recent_stalls(snapshot, before, advanced[owner] | first)
    sick = stalled.sum(axis=1) + ROUNDING >= config.stall_m * config.stall_p
    stall = np.zeros(machines.nodes, dtype=np.bool_)
    stall[owner[sick]] = True
    rows = np.repeat(owner, snapshot.resources.counts)
    ewma, history_ms, history = _follow(snapshot, before, clock_ms[rows], advanced[rows])
    times = _time_to_failure(snapshot, ewma, history_ms, history, clock_ms[rows])
    ttf_s = np.full(machines.nodes, np.nan)
    np.fmin.at(ttf_s, rows, times)
    return MachineWatch(stall, ttf_s, stalled, ewma, history_ms, history)


def _recent_stalls(snapshot: TrafficSnapshot, before: TrafficState, taken: Bools) -> Bools:
    """The last m samples, the newest first; only where one was taken do they move on."""
    theta = snapshot.config.theta
    now = np.zeros(snapshot.machines.pods, dtype=np.bool_)
    for name in _GATING:
        now |= snapshot.psi[:, STALLS.index(name)] > getattr(theta, name)  # NaN is not above
    shifted = np.concatenate([now[:, None], before.stalled[:, :-1]], axis=1)
    return np.where(taken[:, None], shifted, before.stalled)


def _follow(
    snapshot: TrafficSnapshot, before: TrafficState, clock_ms: Ints, advanced: Bools
) -> tuple[Floats, Ints, Floats]:
    """Add a sample to each trail that gets one, and drop what lies behind the window."""
    config, used = snapshot.config, snapshot.used
    fresh = np.isnan(before.ewma)
    sampled = ~np.isnan(used) & (fresh | advanced)
    mean = np.minimum(config.alpha * used + (1 - config.alpha) * before.ewma, FLOAT_MAX)
    ewma = np.where(sampled, np.where(fresh, used, mean), before.ewma)
    at = np.where(sampled, clock_ms, UNKNOWN)
    history_ms = np.concatenate([before.history_ms, at[:, None]], axis=1)
    history = np.concatenate([before.history, ewma[:, None]], axis=1)
    reach_ms = clock_ms - config.derivative_window_ms
    old = (history_ms != UNKNOWN) & (history_ms <= reach_ms[:, None])
    width = history_ms.shape[1]
    # The newest sample that is a window old stays; what is before it goes.
    newest = np.where(old.any(axis=1), width - 1 - old[:, ::-1].argmax(axis=1), 0)
    history_ms[np.arange(width) < newest[:, None]] = UNKNOWN
    held = (history_ms != UNKNOWN).any(axis=0)
    start = int(held.argmax()) if held.any() else width
    return ewma, history_ms[:, start:], history[:, start:]


def _time_to_failure(
    snapshot: TrafficSnapshot, ewma: Floats, history_ms: Ints, history: Floats, clock_ms: Ints
) -> Floats:
    """Seconds, NaN where unknown."""
    config = snapshot.config
    rows = len(ewma)
    if not rows or not history_ms.shape[1]:
        return np.full(rows, np.nan)
    taken = history_ms != UNKNOWN
    oldest = taken.argmax(axis=1)
    at, before = history_ms[np.arange(rows), oldest], history[np.arange(rows), oldest]
    known = taken.any(axis=1) & ~np.isnan(snapshot.used) & ~np.isnan(snapshot.limit)
    remaining = snapshot.limit - snapshot.used
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are not known
        rising = np.maximum(0.0, (ewma - before) / (config.derivative_window_ms / 1000))
        times = np.minimum(remaining / np.maximum(EPSILON, rising), config.ttf_max_s)
    times = np.where(at <= clock_ms - config.derivative_window_ms, times, np.nan)
    return np.where(known, np.where(remaining <= 0, 0.0, times), np.nan)
