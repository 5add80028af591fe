"""Samples as Prometheus families, by the table of `metrics`.

All metrics of a process are exposed from the first scrape on, also those without a sample:
dashboards and alerts find them. A metric with more than `SERIES_MAX` series loses the last ones.
"""

from collections.abc import Callable, Iterator
from typing import Any

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
from fairlead.schema.metrics import BUILD, LEFT_OUT, METRICS, SERIES_MAX, MetricKind, Process
from fairlead.schema.samples import Histogram, Samples


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
