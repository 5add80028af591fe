"""Admission (sections 9.2 to 11): how many are let in, and what a dataplane does without its agent.

Restricting is immediate. Reopening goes one level at a time, each after T_recover_min of calm, and
never in a tick that also moves slots: two changes at once could not be told apart afterwards. Calm
starts when the trigger of the current level has ended, and counts afresh for each level.

Soft that follows hard starts at a tenth of the rate, grows by a tenth per calm second and halves at
each new trigger, so that clients that were refused do not all come back at once.
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Admission, Bucket
from fairlead.core.traffic.state import AdmissionMode, AdmissionState, Regime

# One at a time: a drip, not a gush.
DRIP_BURST: Final = 1.0


def triggered_level(
    config: Config,
    *,
    unroutable: bool,
    stall: bool,
    ttf_s: float | None,
    retry_index: float | None,
    blind: bool,
) -> AdmissionMode:
    """The strictest mode that any trigger asks for, conductance apart: it needs the new slots.
    `unroutable`: there is no backend, or none of them is routable.
    """
    left_s, retries = inf if ttf_s is None else ttf_s, -1.0 if retry_index is None else retry_index
    # Used up is hard at once, also where T_hard is set to 0.
    ends = left_s < config.t_hard_s or not left_s
    if unroutable or stall or ends or retries >= config.retry_hard:
        return AdmissionMode.HARD
    restricted = blind or left_s < config.t_safe_s or retries >= config.retry_soft
    return AdmissionMode.SOFT if restricted else AdmissionMode.NORMAL


def crisis_ahead(
    admission: AdmissionState, level: AdmissionMode, clock_ms: int, config: Config
) -> bool:
    """Will this tick be in hard? Conductance, still unknown, never asks for it."""
    if level is AdmissionMode.HARD:
        return True
    return admission.mode is AdmissionMode.HARD and not relaxes(admission, level, clock_ms, config)


def relaxes(admission: AdmissionState, level: AdmissionMode, clock_ms: int, config: Config) -> bool:
    """Would the calm of the current level end in this tick?"""
    if level.level >= admission.mode.level:
        return False
    since_ms = clock_ms if admission.calm_since_ms is None else admission.calm_since_ms
    return clock_ms - since_ms >= config.t_recover_min_ms


def advance_admission(
    admission: AdmissionState, level: AdmissionMode, clock_ms: int, config: Config, *, last_ms: int
) -> AdmissionState:
    """Admission after all triggers, conductance included. `last_ms` is the clock of the last
    tick: the time since then was not calm if it ends in a trigger.
    """
    if level.level > admission.mode.level:
        crisis = level is AdmissionMode.HARD
        return AdmissionState(level, Regime.CRISIS if crisis else Regime.TRANSITION)
    if admission.mode is AdmissionMode.NORMAL:
        return admission
    if level is admission.mode:
        return _triggered(admission, last_ms, config)
    if not relaxes(admission, level, clock_ms, config):
        since_ms = clock_ms if admission.calm_since_ms is None else admission.calm_since_ms
        return AdmissionState(admission.mode, admission.regime, since_ms, admission.rate_base)
    if admission.mode is AdmissionMode.SOFT:
        return AdmissionState()
    calm_since_ms = clock_ms if level is AdmissionMode.NORMAL else None
    start = config.recover_share * config.bucket_rate
    return AdmissionState(AdmissionMode.SOFT, Regime.RECOVERY, calm_since_ms, start)


def _triggered(admission: AdmissionState, last_ms: int, config: Config) -> AdmissionState:
    """Calm is over. A trigger that follows calm is a new one, and halves the rate of recovery."""
    base = admission.rate_base
    if base is not None and admission.calm_since_ms is not None:
        base = recovery_rate(admission, last_ms, config) * 0.5
    return AdmissionState(admission.mode, admission.regime, None, base)


def recovery_rate(admission: AdmissionState, clock_ms: int, config: Config) -> float:
    """The rate of soft: full, or what recovery has grown to."""
    if admission.rate_base is None:
        return config.bucket_rate
    calm_ms = 0 if admission.calm_since_ms is None else clock_ms - admission.calm_since_ms
    grown = admission.rate_base + config.recover_share * config.bucket_rate * (
        float(calm_ms) / 1000.0
    )
    return min(grown, config.bucket_rate)


def admission_of(
    admission: AdmissionState, requests: int, clock_ms: int, config: Config
) -> Admission:
    """What a dataplane needs. Hard keeps a drip, or it would blind its own signals."""
    if admission.mode is AdmissionMode.NORMAL:
        return Admission()
    if admission.mode is AdmissionMode.SOFT:
        rate = recovery_rate(admission, clock_ms, config)
        return Admission(AdmissionMode.SOFT, rate, config.bucket_burst)
    drip = max(config.drip_rate_min, config.drip_share * requests)
    return Admission(AdmissionMode.HARD, drip, DRIP_BURST)


def admit(
    bucket: Bucket | None, *, now_us: int, rate_per_s: float, burst: float, cost: float = 1.0
) -> tuple[Bucket, bool]:
    """Let one in, or not. Time that runs backwards refills nothing."""
    tokens = burst
    if bucket is not None:
        elapsed_us = max(0, now_us - bucket.at_us)
        tokens = min(burst, bucket.tokens + rate_per_s * elapsed_us / 1_000_000)
    allowed = tokens >= cost
    return Bucket(tokens - cost if allowed else tokens, now_us), allowed


HOLD_AFTER_MS, FALLBACK_AFTER_MS = 3_000, 15_000
_MASK = 2**64 - 1


def rendezvous(flow: bytes, backends: Iterable[str]) -> str | None:
    """The backend with the highest score for this flow, ties by id; None where there is none."""
    key = fnv1a(flow)
    # The first of the highest: `max` keeps the earlier one, and they come sorted.
    return max(sorted(backends), key=lambda id: scramble(key ^ fnv1a(id.encode())), default=None)


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a: a multiplication and an exclusive or per byte, also in a kernel program."""
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & _MASK
    return state


def scramble(value: int) -> int:
    """The finalizer of splitmix64: every bit of the input moves half of the output."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
