"""The token bucket (section 10): refill, cap, test, subtract.

Called by planes that keep the bucket themselves (the in-memory one) and by simulations; the eBPF
program and the proxies do the same in their own languages.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens at a moment. A new bucket is full."""

    tokens: float
    at_us: int


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
