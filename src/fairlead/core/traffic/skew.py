"""Skew (section 8.1, 8.2): how far the requests went from where the weights wanted them."""

from collections.abc import Sequence

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Backend


def observed_skew(
    backends: Sequence[Backend], weights: Sequence[float], config: Config
) -> float | None:
    """max |share - w| by request shares; None (and no guard) where it says nothing.

    It says nothing about a monopoly, where somebody's requests are unknown, and below 50 requests:
    five of ten is a coin, not a share.
    """
    counts = [backend.requests for backend in backends]
    requests = [count for count in counts if count is not None]
    total = sum(requests)
    if len(requests) < len(backends) or total < config.skew_requests_min:
        return None
    if len(backends) == 1 and any(weights):
        return None
    return max(abs(each / total - w) for each, w in zip(requests, weights, strict=True))


def predicted_skew(slots: Sequence[int], weights: Sequence[float], s_total: int) -> float:
    """max |s/S - w|: the skew once the requests follow the slots."""
    return max(abs(slot / s_total - w) for slot, w in zip(slots, weights, strict=True))
