"""Backends' own metrics as signals: the `Signals` port over Prometheus-format endpoints.

Each backend is scraped every second or so, in the poller's thread. One that does not reply, replies
with an invalid text, or has not replied for three rounds is left out: missing, not idle. One that
begins to give hardly anything but errors is reported at once: until the next tick a quarter of a
group of four would fail.

A number that cannot be read is a missing number, never a zero.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from math import inf, isfinite
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from fairlead.core.traffic.counters import LOOKS, SPAN_MS, Streak, covering, is_urgent, outcomes
from fairlead.core.traffic.limits import LATENCY_QUANTILE
from fairlead.core.traffic.sighting import Reading
from fairlead.host.http import NoReply
from fairlead.host.http_async import get
from fairlead.node.traffic.poller import Poller, follow
from fairlead.ports.dataplane import Backend
from fairlead.schema.border import printable
from fairlead.schema.samples import Selector
from fairlead.schema.traffic_agent import SCRAPED, ScrapeDocument, Unit, selectors

COUNT_MAX = 2**53 - 1
LINE_CHARS_MAX = 8_192
PARSED_CHARS_MAX = 2**19
"""Of the lines that are wanted in one reply: the parser takes 0.2 s for so many, in which no other
backend's reply is read."""
_COUNTERS = ("requests", "errors", "retries")


class BadExposition(ValueError):
    """The text is not in Prometheus's format."""


class MetricSample(NamedTuple):
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(body: bytes, names: Collection[str]) -> list[MetricSample]:
    """The samples of these names. Others are not even parsed: an application may have thousands."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadExposition(f"must be UTF-8: {error.reason}") from error
    # By "\n" alone: a label may hold any other thing that ends a line somewhere. The parser's time
    # grows with the square of a line's length.
    lines = [
        line.rstrip("\r")
        for line in text.split("\n")
        if len(line) <= LINE_CHARS_MAX and _name(line) in names
    ]
    if sum(map(len, lines)) > PARSED_CHARS_MAX:
        raise BadExposition(
            f"more than {PARSED_CHARS_MAX} characters about {', '.join(sorted(names))}"
        )
    try:
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        return [
            MetricSample(sample.name, sample.labels, float(sample.value))
            for family in families
            for sample in family.samples
        ]
    except Exception as error:  # the parser raises whatever a line leads it to
        text = printable(str(error))  # it quotes the line, and a backend writes what it likes
        raise BadExposition(f"not in Prometheus's text format: {text}") from error


def _name(line: str) -> str:
    words = line.split("{", 1)[0].split(None, 1)
    return words[0] if words else ""


def gauge(read: Iterable[MetricSample], selector: Selector) -> float | None:
    """The selected samples added up; None when there are none, or one is invalid."""
    values = [row.value for row in read if selector.matches(row.name, row.labels)]
    if not values or not all(isfinite(value) and value >= 0 for value in values):
        return None
    total = sum(values)
    return total if isfinite(total) else None


def counter(read: Iterable[MetricSample], selector: Selector) -> int | None:
    total = gauge(read, selector)
    return None if total is None or total > COUNT_MAX else round(total)


class Quantile:
    """The 95th percentile of what a histogram counted over the last seconds."""

    def __init__(self, selector: Selector, window_ms: int) -> None:
        self.name = f"{selector.name}_bucket"
        self._selector = Selector(self.name, selector.labels)
        self._window_ms = window_ms
        self._history: tuple[tuple[int, dict[float, float]], ...] = ()

    def add(self, now_ms: int, read: Iterable[MetricSample]) -> float | None:
        """Take a reading; None as long as nothing was counted in the window."""
        buckets = self._buckets(read)
        if inf not in buckets:
            self._history = ()
            return None
        if self._history and not _grew(self._history[-1][1], buckets):
            self._history = ()
        self._history = covering((*self._history, (now_ms, buckets)), now_ms - self._window_ms)
        before = self._history[0][1]
        return quantile(
            LATENCY_QUANTILE, {edge: total - before[edge] for edge, total in buckets.items()}
        )

    def _buckets(self, read: Iterable[MetricSample]) -> dict[float, float]:
        sums: dict[float, float] = {}
        for row in read:
            if self._selector.matches(row.name, row.labels) and row.value >= 0:
                try:
                    edge = float(row.labels["le"])
                except (KeyError, ValueError):
                    continue
                sums[edge] = sums.get(edge, 0.0) + row.value
        return sums


def _grew(before: Mapping[float, float], after: Mapping[float, float]) -> bool:
    return before.keys() == after.keys() and all(after[e] >= total for e, total in before.items())


def quantile(q: float, counted: Mapping[float, float]) -> float | None:
    """The q-quantile of cumulative counts by upper edge, straight inside a bucket.

    What lies above the last finite edge is that edge: more is not known.
    """
    edges = sorted(counted)
    total = counted[edges[-1]] if edges else 0.0
    if total <= 0:
        return None
    rank, low, below = q * total, 0.0, 0.0
    for edge in edges:
        if counted[edge] >= rank:
            if edge == inf:
                return low
            inside = counted[edge] - below
            return low + (edge - low) * ((rank - below) / inside if inside > 0 else 1.0)
        low, below = max(low, edge), counted[edge]
    return low


class _Target:
    def __init__(self, backend: Backend, rules: ScrapeDocument, window_ms: int) -> None:
        self._host, self._port = backend.host, rules.port or backend.port
        self._rules, self._selectors = rules, selectors(rules)
        self._ms_per_unit = 1_000.0 if rules.unit is Unit.SECONDS else 1.0
        latency = self._selectors.get("latency")
        self._latency = Quantile(latency, window_ms) if latency else None
        self._names = {selector.name for selector in self._selectors.values()}
        if self._latency is not None:
            self._names.add(self._latency.name)
        span_ms = max(SPAN_MS, LOOKS * rules.every_ms)
        self._streak, self._failed = Streak(span_ms=span_ms), False

    async def scrape(self, clock_ms: Callable[[], int]) -> tuple[Reading, bool]:
        """Its reading, and whether this is the first to show hardly anything but errors."""
        rules, wanted = self._rules, self._selectors
        status, body = await get(self._host, self._port, rules.path, timeout_ms=rules.timeout_ms)
        if status != 200:
            raise NoReply(f"{self._host}:{self._port}{rules.path}: status {status}")
        read = samples(body, self._names)
        requests, errors, retries = (
            counter(read, wanted[name]) if name in wanted else None for name in _COUNTERS
        )
        p95 = None
        if self._latency is not None:
            p95 = self._latency.add(clock_ms(), read)
        elif "p95" in wanted:
            p95 = gauge(read, wanted["p95"])
        reading = Reading(
            requests,
            errors,
            retries,
            queue=gauge(read, wanted["queue"]) if "queue" in wanted else None,
            p95_ms=None if p95 is None else p95 * self._ms_per_unit,
        )
        inside = None if reading.queue is None else round(min(reading.queue, COUNT_MAX))
        counts = outcomes(None, reading, _covered(rules))
        self._streak = self._streak.advance(clock_ms(), *counts, inside)
        before, self._failed = self._failed, is_urgent(self._streak.looks)
        return replace(reading, looks=self._streak.looks), self._failed and not before


def _covered(rules: ScrapeDocument) -> frozenset[str]:
    """The fields of a reading that are scraped."""
    names = [name for name in SCRAPED if getattr(rules, name) is not None]
    return frozenset("p95_ms" if name in ("latency", "p95") else name for name in names)


class Scraper:
    """Scrapes the backends of all groups that have metrics of their own."""

    def __init__(
        self,
        poller: Poller,
        clock_ms: Callable[[], int],
        alarm: Callable[[], None],
        *,
        window_ms: int = 5_000,
    ) -> None:
        self.failures = 0
        """Replies that did not come or could not be read."""
        self._alarm, self._window_ms = alarm, window_ms
        self._poller, self._clock_ms = poller, clock_ms
        self._rules: dict[str, ScrapeDocument] = {}
        self._began_ms: dict[str, int] = {}
        self._tasks: dict[tuple[str, Backend, ScrapeDocument], Future[None]] = {}
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, str], Reading] = {}
        self._answered: set[tuple[str, Backend, ScrapeDocument]] = set()
        """Scrapes that were made at least once, with whatever result."""

    def watch(
        self, rules: Mapping[str, ScrapeDocument], members: Mapping[str, Sequence[Backend]]
    ) -> None:
        wanted = {
            (group, backend, rule)
            for group, rule in rules.items()
            for backend in members.get(group, ())
        }
        now_ms = self._clock_ms()
        self._began_ms = {group: self._began_ms.get(group, now_ms) for group in rules}
        with self._lock:
            self._rules = dict(rules)
            kept = {(group, backend.id) for group, backend, _ in wanted & self._tasks.keys()}
            self._readings = {key: seen for key, seen in self._readings.items() if key in kept}
        follow(self._tasks, wanted, self._begin)
        with self._lock:
            self._answered &= wanted

    def unseen(self, group: str) -> set[str]:
        """Backends whose first scrape has no result yet."""
        with self._lock:
            waiting = set(self._tasks) - self._answered
        return {backend.id for name, backend, _ in waiting if name == group}

    def covers(self, group: str) -> Collection[str]:
        return _covered(self._rules[group]) if group in self._rules else ()

    def asked_ms(self, group: str, now_ms: int) -> int | None:
        return now_ms - self._began_ms[group] if group in self._began_ms else None

    def read(self, now_ms: int) -> Mapping[tuple[str, str], Reading]:
        with self._lock:
            return dict(self._readings)

    def _begin(self, group: str, backend: Backend, rules: ScrapeDocument) -> Future[None]:
        target = _Target(backend, rules, self._window_ms)

        async def request() -> None:
            try:
                reading, fails = await target.scrape(self._clock_ms)
            except (NoReply, BadExposition):
                self.failures += 1
                with self._lock:
                    self._answered.add((group, backend, rules))
                return
            with self._lock:
                self._answered.add((group, backend, rules))
                if group not in self._rules:
                    return  # it was dropped while the reply was read
                self._readings[group, backend.id] = replace(reading, at_ms=self._clock_ms())
            if fails:
                self._alarm()

        return self._poller.repeat(rules.every_ms, request, phase=f"{group}/{backend.id}")
