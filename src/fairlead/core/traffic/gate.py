"""Hysteresis (section 5.3) for the group: small or short deviations move nothing.

What is applied is what the slots say. Once a share has been off by more than delta_w for T_hold
without a break, slots step in every tick until it is back.
"""

from collections.abc import Sequence

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.state import Gate


def deviation(shares: Sequence[float], slots: Sequence[int], s_total: int) -> float:
    """max |w - slots/S|."""
    return max(
        (abs(share - slot / s_total) for share, slot in zip(shares, slots, strict=True)),
        default=0.0,
    )


def advance_gate(gate: Gate, off: float, clock_ms: int, config: Config) -> Gate:
    """The gate after seeing a deviation of `off`."""
    if off <= config.delta_w:
        return Gate()
    since_ms = clock_ms if gate.since_ms is None else gate.since_ms
    held = clock_ms - since_ms >= config.t_hold_ms
    return Gate(since_ms, stepping=gate.stepping or held)
