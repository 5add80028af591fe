"""The table of metrics and the scrapes that are made by it."""

import re

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.schema.exposition import TableCollector, exposed
from fairlead.schema.metrics import LABELS, METRICS, SERIES_MAX, MetricKind, Process
from fairlead.schema.samples import Histogram, Samples
from tests.schema.scrapes import names_of, scraped

ROWS = [row for rows in METRICS.values() for row in rows]
SEEDED = ("apex_", "budget_", "resolver_", "cover_")
NAMED_BEFORE = (
    *("gpu_run_utilisation_percent", "gpu_run_memory_bytes", "gpu_devices_quarantined"),
    "ledger_clock_behind_seconds",
)


def text_of(samples: Samples, process: Process = Process.CONTROL_PLANE) -> str:
    return exposed(TableCollector(process, lambda: samples)).decode()


@pytest.mark.parametrize("process", Process)
def test_all_metrics_are_there_from_the_first_scrape(process: Process) -> None:
    """Also those without a sample; with their type and a sentence."""
    text = text_of({}, process)
    assert scraped(text) == names_of(process)
    assert len(re.findall(r"^# HELP \w+ \S", text, re.MULTILINE)) == len(METRICS[process])


def test_a_metric_outside_the_table_is_refused() -> None:
    """A bug, found by the first scrape: what is exposed is documented."""
    with pytest.raises(InvariantBroken, match=r"in the table: \['fairlead_unknown'\]"):
        text_of({"fairlead_unknown": [({}, 1.0)]})


def test_series_of_a_metric_are_bounded() -> None:
    """Tenants choose names: what is too much is left out, and said."""
    runs = [({"run": f"r{i}", "owner": "o"}, 1.0) for i in range(SERIES_MAX + 7)]
    text = text_of({"gpu_run_memory_bytes": runs})
    assert text.count("\ngpu_run_memory_bytes{") == SERIES_MAX
    assert 'fairlead_metrics_left_out{metric="gpu_run_memory_bytes"} 7.0' in text
    assert "fairlead_metrics_left_out{" not in text_of({"gpu_run_memory_bytes": runs[:SERIES_MAX]})


def test_hostile_names_stay_in_their_label() -> None:
    """Quotes and line breaks make no sample of their own."""
    labels = {"run": 'x"} 1\nbudget_lent_gpus{a="b', "owner": "\\"}
    text = text_of({"gpu_run_memory_bytes": [(labels, 1.0)]})
    assert "\nbudget_lent_gpus{" not in text
    assert r'owner="\\",run="x\"} 1\nbudget_lent_gpus{a=\"b"} 1.0' in text


def test_a_histogram_counts_what_is_at_most_its_bound() -> None:
    """Buckets are cumulative; the last holds all."""
    waits = Histogram((1, 5))
    for value in (0.5, 1, 3, 99):
        waits.observe(value)
    lines = text_of({"fairlead_gpu_queue_wait_seconds": [({}, waits)]}).splitlines()
    assert [line for line in lines if line.startswith("fairlead_gpu_queue_wait_seconds")] == [
        'fairlead_gpu_queue_wait_seconds_bucket{le="1.0"} 2.0',
        'fairlead_gpu_queue_wait_seconds_bucket{le="5.0"} 3.0',
        'fairlead_gpu_queue_wait_seconds_bucket{le="+Inf"} 4.0',
        "fairlead_gpu_queue_wait_seconds_count 4.0",
        "fairlead_gpu_queue_wait_seconds_sum 103.5",
    ]


def test_names_follow_the_rules() -> None:
    """Ours begin with fairlead_, counters end with _total, every label says what bounds it."""
    for row in ROWS:
        assert row.name.startswith(("fairlead_", *SEEDED)) or row.name in NAMED_BEFORE, row.name
        assert row.name.endswith("_total") == (row.kind is MetricKind.COUNTER), row.name
        assert set(row.labels) <= LABELS.keys(), row.name
    for process, rows in METRICS.items():
        assert len({row.name for row in rows}) == len(rows), process
