"""Admission (section 9.2): how far the door is open, when it closes, how it opens again.

Closing is immediate. Opening goes one level at a time, each after T_recover_min of calm, and never
in a tick that also moves slots: two changes at once could not be told apart afterwards. Calm starts
when the trigger of the current level has ended, and counts afresh for each level.

Soft that follows hard starts at a tenth of the rate, grows by a tenth per calm second and halves at
each new trigger, so that those who were refused do not all come back at once.
"""

from typing import NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.modes import Mode, Regime
from fairlead.core.traffic.state import Door

# One at a time: a drip, not a gush.
DRIP_BURST = 1.0


class Triggers(NamedTuple):
    """What speaks for restricting admission now, conductance apart (it needs the new slots)."""

    nobody: bool
    """No backends, or none of them routable."""
    stall: bool
    ttf_s: float | None
    retry_index: float | None
    blind: bool

    def level(self, config: Config) -> Mode:
        """The strictest mode that any trigger asks for."""
        ttf_s, retries = self.ttf_s, self.retry_index
        if self.nobody or self.stall:
            return Mode.HARD
        # Used up is hard at once, also where T_hard is set to 0.
        if ttf_s is not None and (ttf_s < config.t_hard_s or not ttf_s):
            return Mode.HARD
        if retries is not None and retries >= config.retry_hard:
            return Mode.HARD
        soft = (
            self.blind
            or (ttf_s is not None and ttf_s < config.t_safe_s)
            or (retries is not None and retries >= config.retry_soft)
        )
        return Mode.SOFT if soft else Mode.NORMAL


def crisis_ahead(door: Door, level: Mode, clock_ms: int, config: Config) -> bool:
    """Will this tick be in hard? Conductance, still unknown, never asks for it."""
    if level is Mode.HARD:
        return True
    return door.mode is Mode.HARD and not relaxes(door, level, clock_ms, config)


def relaxes(door: Door, level: Mode, clock_ms: int, config: Config) -> bool:
    """Would the calm of the current level end in this tick?"""
    if level.level >= door.mode.level:
        return False
    since_ms = clock_ms if door.calm_since_ms is None else door.calm_since_ms
    return clock_ms - since_ms >= config.t_recover_min_ms


def advance_door(door: Door, level: Mode, clock_ms: int, config: Config, *, last_ms: int) -> Door:
    """The door after all triggers, conductance included, have been seen. `last_ms` is the clock of
    the last tick: the time since then was not calm if it ends in a trigger.
    """
    if level.level > door.mode.level:
        return _escalated(level)
    if door.mode is Mode.NORMAL:
        return door
    if level is door.mode:
        return _triggered(door, last_ms, config)
    if not relaxes(door, level, clock_ms, config):
        since_ms = clock_ms if door.calm_since_ms is None else door.calm_since_ms
        return Door(door.mode, door.regime, since_ms, door.rate_base)
    if door.mode is Mode.SOFT:
        return Door()
    calm_since_ms = clock_ms if level is Mode.NORMAL else None
    start = config.recover_share * config.bucket_rate
    return Door(Mode.SOFT, Regime.RECOVERY, calm_since_ms, start)


def _escalated(level: Mode) -> Door:
    regime = Regime.CRISIS if level is Mode.HARD else Regime.TRANSITION
    return Door(level, regime)


def _triggered(door: Door, last_ms: int, config: Config) -> Door:
    """Calm is over. A trigger that follows calm is a new one, and halves the rate of recovery."""
    base = door.rate_base
    if base is not None and door.calm_since_ms is not None:
        base = recovery_rate(door, last_ms, config) * 0.5
    return Door(door.mode, door.regime, None, base)


def recovery_rate(door: Door, clock_ms: int, config: Config) -> float:
    """The rate of soft: full, or what recovery has grown to."""
    if door.rate_base is None:
        return config.bucket_rate
    calm_ms = 0 if door.calm_since_ms is None else clock_ms - door.calm_since_ms
    grown = door.rate_base + config.recover_share * config.bucket_rate * (calm_ms / 1000)
    return min(grown, config.bucket_rate)


def admission_of(door: Door, requests: int, clock_ms: int, config: Config) -> Admission:
    """The door as a dataplane needs it. Hard keeps a drip, or it would blind its own signals."""
    if door.mode is Mode.NORMAL:
        return Admission(Mode.NORMAL, None, None)
    if door.mode is Mode.SOFT:
        return Admission(Mode.SOFT, recovery_rate(door, clock_ms, config), config.bucket_burst)
    drip = max(config.drip_rate_min, config.drip_share * requests)
    return Admission(Mode.HARD, drip, DRIP_BURST)
