"""Prometheus metrics of the control plane, computed when they are scraped."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from fairlead.engine.gpu import ControlPlane

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_PAYER = ["budget", "envelope"]
_GAUGES = {
    "budget_concurrency_used": ("GPUs in use that the envelope pays for", _PAYER),
    "budget_concurrency_remaining": ("GPUs that the envelope could still pay for", _PAYER),
    "budget_gpu_hours_used": ("GPU-hours used in the current period", _PAYER),
    "budget_gpu_hours_remaining": ("GPU-hours left in the current period, holds taken off", _PAYER),
    "budget_lent_gpus": ("GPUs in use by borrowers", _PAYER),
    "ledger_clock_behind_seconds": ("seconds that the clock is behind the last entry", []),
}
_COUNTERS = {
    "budget_gpu_hours_total": ("GPU-hours ever charged to the envelope", _PAYER),
    "budget_lending_denied_total": ("refusals because of the envelope's lending rules", _PAYER),
    "cover_plans_total": ("recorded funding decisions", ["result"]),
    "resolver_invocations_total": ("completed resolves", []),
    "resolver_spares_dropped_total": ("spare leases ended by preemption", []),
    "resolver_shrinks_total": ("leases of malleable runs ended by preemption", []),
    "resolver_lottery_draws_total": ("gangs selected by the lottery and preempted", []),
}


class ControlPlaneCollector:
    """Turns the control plane's numbers into metric families."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """All families, also those without a sample: dashboards show them from the start."""
        values = self._plane.reports.metrics()
        for family_of, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (text, keys) in table.items():
                family = family_of(name, text, labels=keys)
                for labels, value in values.get(name, ()):
                    family.add_metric([labels[key] for key in keys], value)
                yield family


def render(plane: ControlPlane) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(ControlPlaneCollector(plane))
    return generate_latest(registry)
