"""Samples as Prometheus families, by the table of `metrics`; and which of a text are meant.

All metrics of a process are exposed from the first scrape on, also those without a sample:
dashboards and alerts find them. A metric with more than `SERIES_MAX` series loses the last ones.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from fairlead import __version__
from fairlead.core.invariant import require
from fairlead.schema.border import BadInput
from fairlead.schema.metrics import BUILD, LEFT_OUT, METRICS, SERIES_MAX, MetricKind, Process


class Histogram:
    """Counts of what was observed since the process began, by upper bound; one writer."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, with how many are at most as much."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


Value = float | Histogram
Series = Sequence[tuple[Mapping[str, str], Value]]
Samples = Mapping[str, Series]
"""Labels and value of each series, by metric."""


class TableCollector(Collector):
    """All metrics of a process, with the samples of this scrape."""

    def __init__(self, process: Process, samples: Callable[[], Samples]) -> None:
        self._rows, self._samples = METRICS[process], samples

    def collect(self) -> Iterator[Metric]:
        samples = dict(self._samples())
        unknown = sorted(samples.keys() - {row.name for row in self._rows})
        require(not unknown, f"a metric that is exposed is in the table: {unknown}")
        samples[BUILD] = [({"version": __version__}, 1.0)]
        samples[LEFT_OUT] = [
            ({"metric": name}, float(len(series) - SERIES_MAX))
            for name, series in samples.items()
            if len(series) > SERIES_MAX
        ]
        for row in self._rows:
            family = _FAMILIES[row.kind](row.name, row.help, labels=row.labels)
            for labels, value in samples.get(row.name, ())[:SERIES_MAX]:
                values = [labels[label] for label in row.labels]
                if isinstance(value, Histogram):
                    family.add_metric(values, value.buckets(), value.total)
                else:
                    family.add_metric(values, value)
            yield family


_FAMILIES: dict[MetricKind, Callable[..., Any]] = {
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


def exposed(collector: Collector) -> bytes:
    """The text that a scrape gets."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


# -- samples that are meant -----------------------------------------------------------------------


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"\\]*)"\s*(,|$)')


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric's name, and what its labels have to be like."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, path: str) -> Self:
        """Of `name` or `name{label="value",…}`; anything else is bad input at that path."""
        found = _NAME.match(text)
        if found is None:
            raise BadInput(path, f"must begin with the name of a metric, got {text!r}")
        rest = text[found.end() :].strip()
        if not rest:
            return cls(found[0])
        if not (rest.startswith("{") and rest.endswith("}")):
            raise BadInput(path, f'must be like name{{label="value"}}, got {text!r}')
        labels, inside, at = [], rest[1:-1], 0
        while at < len(inside):
            matcher = _MATCHER.match(inside, at)
            if matcher is None:
                raise BadInput(path, f'must be like name{{label="value"}}, got {text!r}')
            labels.append((matcher[1], matcher[2]))
            at = matcher.end()
        return cls(found[0], tuple(labels))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return name == self.name and all(
            fnmatchcase(labels.get(label, ""), wanted) for label, wanted in self.labels
        )
