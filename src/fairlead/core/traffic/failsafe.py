"""The failsafe (section 11): what a dataplane does when its agent falls silent.

The plane judges the age of the heartbeat by its own clock. Then it holds its table, and at last it
stands on its own: a rendezvous hash keeps every flow inside its group and moves only the flows of
backends that left (modulo moves three in four when one of four leaves).
"""

from collections.abc import Iterable
from enum import StrEnum

from fairlead.core.traffic.modes import Mode

HOLD_AFTER_MS, FALLBACK_AFTER_MS = 3_000, 15_000
_MASK = 2**64 - 1


class Standing(StrEnum):
    """What the age of the heartbeat means."""

    NORMAL = "normal"
    HOLD = "hold"
    """Keep the active table, refuse flips."""
    FALLBACK = "fallback"
    """Choose by rendezvous; hard decays to soft."""


def judge(
    age_ms: int, *, hold_after_ms: int = HOLD_AFTER_MS, fallback_after_ms: int = FALLBACK_AFTER_MS
) -> Standing:
    """normal < tau1 <= hold < tau2 <= fallback."""
    if age_ms >= fallback_after_ms:
        return Standing.FALLBACK
    return Standing.HOLD if age_ms >= hold_after_ms else Standing.NORMAL


def mode_without_agent(mode: Mode, standing: Standing) -> Mode:
    """In fallback hard becomes soft: a dead agent never leaves a closed door."""
    return Mode.SOFT if standing is Standing.FALLBACK and mode is Mode.HARD else mode


def rendezvous(flow: bytes, backends: Iterable[str]) -> str | None:
    """The backend with the highest score for this flow, ties by id; None where there is none."""
    key = fnv1a(flow)
    scored = ((scramble(key ^ fnv1a(backend.encode())), backend) for backend in sorted(backends))
    # The first of the highest: `max` keeps the earlier one, and they come sorted.
    best = max(scored, key=lambda pair: pair[0], default=None)
    return None if best is None else best[1]


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
