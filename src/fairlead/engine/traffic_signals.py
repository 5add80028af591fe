"""Counters in, signals out: what a plane and an application have counted, over the last seconds.

Called by `engine.traffic` once per tick and backend. Counters only grow; one that falls belongs to
a new process, and its window begins again. One that vanishes is a missing signal, not a zero.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import isfinite

from fairlead.ports.dataplane import BackendSeen
from fairlead.ports.traffic import Reading

WINDOW_MS, QUEUE_MS = 5_000, 350


@dataclass(frozen=True, slots=True)
class Seen:
    """One backend over the window, ready for a snapshot. None: unknown."""

    queue: float | None = None
    p95_ms: float | None = None
    error_rate: float | None = None
    requests: int | None = None
    successes: int | None = None
    failures: int | None = None
    retries: int | None = None
    rtt_ms: float | None = None
    retrans_rate: float | None = None
    jitter_ms: float | None = None
    drain_per_s: float | None = None
    """Successes per second; None where nobody counts them, or the window has just begun."""
    connect_failures_in_a_row: int = 0


class Meter:
    """One counter over the window."""

    def __init__(self, window_ms: int = WINDOW_MS) -> None:
        self._window_ms = window_ms
        self._readings: deque[tuple[int, int]] = deque()

    def add(self, clock_ms: int, total: int | None) -> int | None:
        """Take a reading; how much was counted over the window, as far as it is known."""
        if total is None:
            self._readings.clear()
            return None
        if self._readings and total < self._readings[-1][1]:
            self._readings.clear()
        self._readings.append((clock_ms, total))
        # The newest reading that is old enough stays: the window is covered, and not more.
        while len(self._readings) > 1 and self._readings[1][0] <= clock_ms - self._window_ms:
            self._readings.popleft()
        return total - self._readings[0][1]

    @property
    def span_ms(self) -> int:
        """How much of the window is covered."""
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0

    def forget(self) -> None:
        """Begin again."""
        self._readings.clear()


class BackendMeters:
    """All counters of one backend, and the latency of its last probe."""

    def __init__(self, window_ms: int = WINDOW_MS) -> None:
        names = ("requests", "successes", "errors", "connect", "retries", "retransmits", "asked")
        self._meters = {name: Meter(window_ms) for name in names}
        self._probe_ms: float | None = None
        self._answers = False
        self._queues: deque[tuple[int, float]] = deque()

    def probed(self, latency_ms: float | None) -> None:
        """An isolated backend answered; None: not, or badly. The last answer counts: the tracker
        wants several in a row that are all fast enough. With the first of them the errors before
        it are forgotten, or it would have to wait until none is left in the window.
        """
        answers, self._answers = self._answers, latency_ms is not None
        if latency_ms is None:
            return
        self._probe_ms = latency_ms
        if not answers:
            for name in ("asked", "successes", "errors", "connect"):
                self._meters[name].forget()

    def forget_probes(self) -> None:
        """It is back, or was sent away again: what it answered before says nothing now."""
        self._probe_ms, self._answers = None, False

    def see(
        self, clock_ms: int, seen: BackendSeen | None, reading: Reading, covered: Collection[str]
    ) -> Seen:
        """Signals of this tick. `covered` are those for which the application itself is asked."""
        plane = seen or BackendSeen()
        known = seen is not None
        admitted = self._add("requests", clock_ms, plane.admitted if known else None)
        asked = self._add("asked", clock_ms, reading.requests)
        requests = asked if "requests" in covered else admitted
        successes, failures = self._outcomes(clock_ms, plane, reading, asked, covered)
        retries = self._add("retries", clock_ms, reading.retries)
        retransmits = self._add("retransmits", clock_ms, plane.retransmits)
        return Seen(
            queue=self._queue(clock_ms, reading.queue if "queue" in covered else _queue(plane)),
            p95_ms=self._p95(plane, reading, covered),
            error_rate=_rate(successes, failures),
            requests=requests,
            successes=successes,
            failures=failures,
            retries=retries,
            rtt_ms=plane.rtt_ms,
            retrans_rate=None if not admitted or retransmits is None else retransmits / admitted,
            jitter_ms=plane.jitter_ms,
            drain_per_s=self._drain(successes, covered),
            connect_failures_in_a_row=plane.consecutive_failures or 0,
        )

    def _outcomes(
        self,
        clock_ms: int,
        plane: BackendSeen,
        reading: Reading,
        asked: int | None,
        covered: Collection[str],
    ) -> tuple[int | None, int | None]:
        """Successes and failures. Connects that fail are failures, whoever tells the rest."""
        successes = self._add("successes", clock_ms, plane.successes)
        connect = self._add("connect", clock_ms, plane.connect_failures)
        if "errors" not in covered:
            errors = self._add("errors", clock_ms, plane.errors)
            if errors is None and connect is None:
                return successes, None
            return successes, (errors or 0) + (connect or 0)
        errors = self._add("errors", clock_ms, reading.errors)
        if errors is None or asked is None:
            return None, None
        # Scraped counters are read one after the other: a request may be in one of them only.
        return max(0, asked - errors), errors + (connect or 0)

    def _drain(self, successes: int | None, covered: Collection[str]) -> float | None:
        span_ms = self._meters["asked" if "errors" in covered else "successes"].span_ms
        return None if successes is None or not span_ms else successes * 1000 / span_ms

    def _queue(self, clock_ms: int, queue: float | None) -> float | None:
        """The mean of the last two looks: one is mostly noise, and five come too late (harness)."""
        if queue is None or not isfinite(queue):
            self._queues.clear()
            return None
        while self._queues and self._queues[0][0] <= clock_ms - QUEUE_MS:
            self._queues.popleft()
        self._queues.append((clock_ms, queue))
        return sum(each for _, each in self._queues) / len(self._queues)

    def _p95(self, plane: BackendSeen, reading: Reading, covered: Collection[str]) -> float | None:
        if self._probe_ms is not None:
            return self._probe_ms
        return reading.p95_ms if "p95_ms" in covered else plane.p95_ms

    def _add(self, name: str, clock_ms: int, total: int | None) -> int | None:
        return self._meters[name].add(clock_ms, total)


def _queue(plane: BackendSeen) -> float | None:
    """What waits for a backend and what is in it. Where a plane cannot see what waits, its open
    connections may be idle ones, and say nothing.
    """
    return None if plane.queue is None else float(plane.queue + max(0, plane.open or 0))


def _rate(successes: int | None, failures: int | None) -> float | None:
    """Of nothing at all, measured, the rate is 0; `requests` says how much it is worth."""
    if successes is None or failures is None:
        return None
    done = successes + failures
    return failures / done if done else 0.0
