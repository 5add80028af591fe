"""Whether a proxy may send a failed request to a second backend: once, and within a budget.

    memory = watch_retries(memory, clock_ms, requests=900, retries=12, restricted=False)
    plan_retries(memory, clock_ms, inside_max=60)      # RetryLimit(times=1, inside_max=40)

One unhealthy backend of several costs its clients nothing where their requests are repeated at
another one. Under overload every backend fails some requests, and repeating them adds load where
there is too much of it. So retries stop while admission is restricted, while open admission rejects
requests, and when they exceed their share of the requests of the last seconds. They stay off until
none of that was seen for as long. Only requests of `IDEMPOTENT` methods are ever repeated.
"""

from dataclasses import dataclass, replace

from fairlead.core.traffic.counters import Window, add, counted

RETRY_PERCENT = 20
"""Of the requests of the last seconds: the most that may have been repeated."""
INSIDE_PERCENT = 50
"""Of what is inside a proxy that keeps a budget of its own: while one backend of four fails at once
a quarter of all requests is under way for the second time, some moments twice as many. With a fifth
every second failure reached a client, until the backend was ejected."""
RETRIES_LEAST = 10
"""So many may be repeated however few requests there are."""
RETRY_WINDOW_MS = 5_000
IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
"""Methods of which HTTP says that twice is the same as once; TRACE is left out."""


@dataclass(frozen=True, slots=True)
class RetryLimit:
    """What a proxy may repeat."""

    times: int = 0
    """At another backend; 0: nothing is repeated."""
    inside_max: int | None = None
    """Only what comes while fewer requests than this are inside; None: whatever is inside."""
    percent: int = INSIDE_PERCENT
    """Of what is inside, for proxies that keep a budget of their own."""


@dataclass(frozen=True, slots=True)
class RetryMemory:
    """What was repeated in the last seconds, and when that was last too much."""

    requests: Window = ()
    retries: Window = ()
    stopped_ms: int | None = None


def watch_retries(
    memory: RetryMemory,
    clock_ms: int,
    *,
    requests: int | None,
    retries: int | None,
    restricted: bool,
) -> RetryMemory:
    """Count one tick. `requests` and `retries` are since the dataplane began; `restricted`: some
    requests are rejected."""
    sent = add(memory.requests, clock_ms, requests, RETRY_WINDOW_MS)
    repeated = add(memory.retries, clock_ms, retries, RETRY_WINDOW_MS)
    most = RETRIES_LEAST + (counted(sent) or 0) * RETRY_PERCENT // 100
    stop = restricted or (counted(repeated) or 0) >= most
    return replace(
        memory, requests=sent, retries=repeated, stopped_ms=clock_ms if stop else memory.stopped_ms
    )


def plan_retries(
    memory: RetryMemory, clock_ms: int, *, inside_max: int | None, percent: int = INSIDE_PERCENT
) -> RetryLimit:
    """What may be repeated until the next tick, in a group that holds `inside_max` at the most. The
    last third of that is left to requests that come for the first time."""
    if memory.stopped_ms is not None and clock_ms - memory.stopped_ms < RETRY_WINDOW_MS:
        return RetryLimit(percent=percent)
    most = None if inside_max is None else max(1, 2 * inside_max // 3)
    return RetryLimit(1, most, percent)
