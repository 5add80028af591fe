"""Numbers out of a Prometheus text: sums of selected samples, and quantiles of histograms.

Called by the scrapers. Rubbish is a missing number, never a zero.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf, isfinite
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from fairlead.schema.selector import Selector

COUNT_MAX = 2**53 - 1
LINE_CHARS_MAX = 8_192


class BadExposition(ValueError):
    """The text is not in Prometheus's format."""


class Sample(NamedTuple):
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(body: bytes, names: Collection[str]) -> list[Sample]:
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
    try:
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        return [
            Sample(each.name, each.labels, float(each.value))
            for family in families
            for each in family.samples
        ]
    except Exception as error:  # the parser raises whatever a line leads it to
        raise BadExposition(f"not in Prometheus's text format: {error}") from error


def _name(line: str) -> str:
    words = line.split("{", 1)[0].split(None, 1)
    return words[0] if words else ""


def gauge(found: Iterable[Sample], selector: Selector) -> float | None:
    """The selected samples added up; None when there are none, or they are rubbish."""
    values = [each.value for each in found if selector.matches(each.name, each.labels)]
    if not values or not all(isfinite(value) and value >= 0 for value in values):
        return None
    total = sum(values)
    return total if isfinite(total) else None


def counter(found: Iterable[Sample], selector: Selector) -> int | None:
    """The same for something that is counted."""
    total = gauge(found, selector)
    return None if total is None or total > COUNT_MAX else round(total)


class Quantile:
    """The 95th percentile of what a histogram counted over the last seconds."""

    def __init__(self, selector: Selector, window_ms: int) -> None:
        self._selector = Selector(f"{selector.name}_bucket", selector.labels)
        self._window_ms = window_ms
        self._history: deque[tuple[int, dict[float, float]]] = deque()

    @property
    def name(self) -> str:
        """Of the samples that it wants."""
        return self._selector.name

    def add(self, now_ms: int, found: Iterable[Sample]) -> float | None:
        """Take a reading; None as long as nothing was counted in the window."""
        buckets = dict(self._buckets(found))
        if inf not in buckets:
            self._history.clear()
            return None
        if self._history and not _grew(self._history[-1][1], buckets):
            self._history.clear()
        self._history.append((now_ms, buckets))
        while len(self._history) > 1 and self._history[1][0] <= now_ms - self._window_ms:
            self._history.popleft()
        before = self._history[0][1]
        return quantile(0.95, {edge: total - before[edge] for edge, total in buckets.items()})

    def _buckets(self, found: Iterable[Sample]) -> Iterator[tuple[float, float]]:
        sums: dict[float, float] = {}
        for each in found:
            if self._selector.matches(each.name, each.labels) and each.value >= 0:
                try:
                    edge = float(each.labels["le"])
                except (KeyError, ValueError):
                    continue
                sums[edge] = sums.get(edge, 0.0) + each.value
        return iter(sums.items())


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
