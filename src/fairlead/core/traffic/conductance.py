"""Conductance (section 9.1): how easily flow gets through, with the slots as they are.

    G* = P_ref * sum_b (s_b/S) / max(P_b, P_min)

Normalised by S, so that one threshold fits groups of any number of slots. P is floored already.
"""

from collections.abc import Sequence

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Pressure
from fairlead.core.traffic.signals import left_sum


def conductance(slots: Sequence[int], pressures: Sequence[Pressure], config: Config) -> float:
    """G*; 0 where there is nobody."""
    return config.p_ref * left_sum(
        slot / config.s_total / pressure.total
        for slot, pressure in zip(slots, pressures, strict=True)
    )
