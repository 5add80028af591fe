"""What one user may take of the server: requests per second, and work at the same time.

A user has a token bucket, filled by time, emptied by requests.

A request takes one token, and one more for each 64 KiB of its body: what is written is kept for
good. A bucket holds four seconds' worth, so that a script may begin with many.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

BURST_S = 4
BYTES_A_TOKEN = 64 * 1024
_USERS_KEPT = 10_000
WORK_EACH = 8
"""Requests of one user that are worked on at the same time, where the library has threads for 40;
and large bodies of one user that come at the same time."""


class TooManyRequests(Exception):
    """The user asked more often than the operator allows (HTTP 429)."""

    def __init__(self, per_s: int, retry_after_s: int) -> None:
        super().__init__(
            f"more than {per_s} requests per second, or large bodies: ask again in "
            f"{retry_after_s} s (fairlead describe policy)"
        )
        self.retry_after_s = retry_after_s


class RequestRates:
    """The buckets of all users. For one thread; `per_s` None: no limit."""

    def __init__(self, per_s: int | None, clock: Callable[[], float]) -> None:
        self._per_s, self._clock = per_s, clock
        self._buckets: dict[Hashable, tuple[float, float]] = {}
        """What is left, and since when."""

    def take(self, user: Hashable, tokens: int = 1) -> None:
        """Raises `TooManyRequests`. A bucket may go below zero by one request: a body is counted
        once it is read."""
        if self._per_s is None:
            return
        now, full = self._clock(), float(self._per_s * BURST_S)
        left, since = self._buckets.get(user, (full, now))
        left = min(full, left + (now - since) * self._per_s)
        if left < 1:
            self._buckets[user] = (left, now)
            raise TooManyRequests(self._per_s, max(1, int((1 - left) / self._per_s + 0.999)))
        if len(self._buckets) >= _USERS_KEPT and user not in self._buckets:
            self._forget(now, full)
        self._buckets[user] = (left - tokens, now)

    def charge(self, user: Hashable, body_bytes: int) -> None:
        """Take what a body costs; it was read already, so it is not refused."""
        if self._per_s is not None and user in self._buckets and body_bytes:
            left, since = self._buckets[user]
            self._buckets[user] = (left - body_bytes / BYTES_A_TOKEN, since)

    def _forget(self, now: float, full: float) -> None:
        """Drop buckets that are full by now: a new one is the same."""
        self._buckets = {
            user: (left, since)
            for user, (left, since) in self._buckets.items()
            if left + (now - since) * (self._per_s or 0) < full
        }


class WorkShares:
    """Work at the same time, by user: who asks for much waits for itself. For one event loop."""

    def __init__(self, each: int = WORK_EACH) -> None:
        self._each = each
        self._shares: dict[Hashable, tuple[asyncio.Semaphore, int]] = {}
        """With how many use it or wait for it."""

    @asynccontextmanager
    async def of(self, account: Hashable) -> AsyncIterator[None]:
        """A place among those of an account; None has as many as there are."""
        if account is None:
            yield
            return
        share, users = self._shares.get(account, (asyncio.Semaphore(self._each), 0))
        self._shares[account] = share, users + 1
        try:
            async with share:
                yield
        finally:
            share, users = self._shares.pop(account)
            if users > 1:
                self._shares[account] = share, users - 1
