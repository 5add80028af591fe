"""From pressure to desired shares (section 4): the lower the pressure, the more it attracts.

w_b = (1/P_b) / sum_i (1/P_i)     over those that are not isolated; the isolated get 0
"""

from collections.abc import Sequence

from fairlead.core.traffic.model import Backend, Pressure
from fairlead.core.traffic.signals import left_sum
from fairlead.core.traffic.state import BackendMemory


def inverse_weights(backends: Sequence[Backend], pressures: Sequence[Pressure]) -> list[float]:
    """w of every backend; all 0 when nobody is routable."""
    shares = [
        0.0 if backend.isolated else 1 / pressure.total
        for backend, pressure in zip(backends, pressures, strict=True)
    ]
    return normalised(shares)


def held_weights(
    backends: Sequence[Backend], memories: Sequence[BackendMemory], fallback: list[float]
) -> list[float]:
    """The weights as they were, for a group that has gone blind.

    Only where somebody with a weight has left are the others scaled up. Who came since then has no
    weight to hold, and gets none; if that is everybody, the blind guess is all there is.
    """
    kept = [
        0.0 if backend.isolated else memory.weight
        for backend, memory in zip(backends, memories, strict=True)
    ]
    total = left_sum(kept)
    if not total:
        return fallback
    return kept if abs(total - 1) < 1e-9 else normalised(kept)


def warm_shares(
    weights: Sequence[float], backends: Sequence[Backend], warmup_ms: int
) -> list[float]:
    """Shares for the target: w times age/T_warmup for newborns, renormalised.

    Where all are newborn there is nobody to spare them, and nothing is scaled.
    """
    factors = [
        1.0 if b.age_ms is None or b.age_ms >= warmup_ms else b.age_ms / warmup_ms for b in backends
    ]
    routable = [f for f, b in zip(factors, backends, strict=True) if not b.isolated]
    if max(routable, default=1.0) < 1.0 or min(routable, default=1.0) == 1.0:
        return list(weights)
    scaled = [w * f for w, f in zip(weights, factors, strict=True)]
    # Held weights may all lie with newborns of age 0.
    return normalised(scaled) if any(scaled) else list(weights)


def normalised(shares: Sequence[float]) -> list[float]:
    """The same shares with a sum of 1; all 0 stay 0."""
    total = left_sum(shares)
    return [share / total for share in shares] if total else list(shares)
