"""Backends' own metrics as signals: the `Signals` port over Prometheus-format endpoints.

Each backend is asked every second or so, in the outreach thread. One that does not answer, answers
rubbish, or has not answered for three rounds is left out: missing, not idle. One that begins to
give hardly anything but errors is reported at once: until the next tick a quarter of a group of
four would fail.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from fairlead.core.traffic.counters import ERRORS_MIN, LOOKS, SPAN_MS, Streak, outcomes
from fairlead.node.traffic.exposition import (
    COUNT_MAX,
    BadExposition,
    Quantile,
    counter,
    gauge,
    samples,
)
from fairlead.node.traffic.outreach import NoAnswer, Outreach, get
from fairlead.ports.dataplane import Backend
from fairlead.ports.traffic import Reading
from fairlead.schema.selector import Selector

STALE_ROUNDS = 3
_COUNTERS = ("requests", "errors", "retries")


@dataclass(frozen=True, slots=True)
class ScrapeRules:
    """What is asked of each backend of a group."""

    selectors: Mapping[str, Selector]
    path: str = "/metrics"
    port: int | None = None
    """None: the backend's own."""
    every_ms: int = 1_000
    timeout_ms: int = 800
    ms_per_unit: float = 1_000.0
    window_ms: int = 5_000

    @property
    def covers(self) -> frozenset[str]:
        """The fields of a reading that come of it."""
        names = set(self.selectors)
        if names & {"latency", "p95"}:
            names = names - {"latency", "p95"} | {"p95_ms"}
        return frozenset(names)


class _Target:
    """One backend's metrics."""

    def __init__(self, backend: Backend, rules: ScrapeRules) -> None:
        self._host, self._port = backend.host, rules.port or backend.port
        self._rules = rules
        latency = rules.selectors.get("latency")
        self._latency = Quantile(latency, rules.window_ms) if latency else None
        self._names = {selector.name for selector in rules.selectors.values()}
        if self._latency is not None:
            self._names.add(self._latency.name)
        span_ms = max(SPAN_MS, LOOKS * rules.every_ms)
        self._streak, self._failed = Streak(span_ms=span_ms), False

    async def ask(self, clock_ms: Callable[[], int]) -> tuple[Reading, bool]:
        """What it says, and whether that is the first to show hardly anything but errors."""
        rules = self._rules
        status, body = await get(self._host, self._port, rules.path, timeout_ms=rules.timeout_ms)
        if status != 200:
            raise NoAnswer(f"{self._host}:{self._port}{rules.path}: status {status}")
        found = samples(body, self._names)
        wanted = rules.selectors
        requests, errors, retries = (
            counter(found, wanted[name]) if name in wanted else None for name in _COUNTERS
        )
        p95 = None
        if self._latency is not None:
            p95 = self._latency.add(clock_ms(), found)
        elif "p95" in wanted:
            p95 = gauge(found, wanted["p95"])
        reading = Reading(
            requests,
            errors,
            retries,
            queue=gauge(found, wanted["queue"]) if "queue" in wanted else None,
            p95_ms=None if p95 is None else p95 * rules.ms_per_unit,
        )
        inside = None if reading.queue is None else round(min(reading.queue, COUNT_MAX))
        counts = outcomes(None, reading, rules.covers)
        self._streak = self._streak.advance(clock_ms(), *counts, inside)
        before, self._failed = self._failed, self._streak.fails(ERRORS_MIN)
        return replace(reading, looks=self._streak.looks), self._failed and not before


class Scraper:
    """Asks the backends of all groups that have something to tell."""

    def __init__(
        self, outreach: Outreach, clock_ms: Callable[[], int], alarm: Callable[[], None]
    ) -> None:
        self.failures = 0
        """Answers that did not come or could not be read."""
        self._alarm = alarm
        self._outreach, self._clock_ms = outreach, clock_ms
        self._rules: dict[str, ScrapeRules] = {}
        self._began_ms: dict[str, int] = {}
        self._tasks: dict[tuple[str, Backend], Future[None]] = {}
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, str], tuple[int, Reading]] = {}

    def watch(
        self, rules: Mapping[str, ScrapeRules], members: Mapping[str, Sequence[Backend]]
    ) -> None:
        """Ask these backends and no others."""
        wanted = {(group, each) for group in rules for each in members.get(group, ())}
        kept = {key for key in wanted & self._tasks.keys() if rules[key[0]] == self._rules[key[0]]}
        for key in self._tasks.keys() - kept:
            self._tasks.pop(key).cancel()
        now_ms = self._clock_ms()
        self._began_ms = {group: self._began_ms.get(group, now_ms) for group in rules}
        with self._lock:
            self._rules = dict(rules)
            names = {(group, each.id) for group, each in kept}
            self._readings = {key: each for key, each in self._readings.items() if key in names}
        for group, backend in wanted - kept:
            self._tasks[group, backend] = self._begin(group, backend)

    def covers(self, group: str) -> Collection[str]:
        """What is asked for in this group. Before anybody could answer it is nothing: an agent that
        has just started is not blind, and must not close a door for it."""
        rules = self._rules.get(group)
        if rules is None:
            return ()
        with self._lock:
            heard = any(name == group for name, _ in self._readings)
        waiting_ms = self._clock_ms() - self._began_ms[group]
        early = waiting_ms <= STALE_ROUNDS * rules.every_ms + rules.timeout_ms
        return () if early and not heard else rules.covers

    def read(self, now_ms: int) -> Mapping[tuple[str, str], Reading]:
        """Answers that are fresh enough."""
        with self._lock:
            return {
                key: reading
                for key, (at_ms, reading) in self._readings.items()
                if now_ms - at_ms <= STALE_ROUNDS * self._rules[key[0]].every_ms
            }

    def _begin(self, group: str, backend: Backend) -> Future[None]:
        rules = self._rules[group]
        target = _Target(backend, rules)

        async def ask() -> None:
            try:
                reading, fails = await target.ask(self._clock_ms)
            except (NoAnswer, BadExposition):
                self.failures += 1
                return
            with self._lock:
                if group not in self._rules:
                    return  # it was dropped while the answer was read
                self._readings[group, backend.id] = (self._clock_ms(), reading)
            if fails:
                self._alarm()

        return self._outreach.repeat(rules.every_ms, ask, phase=f"{group}/{backend.id}")
