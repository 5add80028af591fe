"""A real Prometheus scrapes the demo: every dashboard has something to show."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairlead.api.story_acts import Act
from fairlead.host.process import free_port
from tests.e2e.demos import PATIENCE_S, Demo
from tests.monitoring.prometheus import Prometheus, metrics_in, panel_expressions, rules

pytestmark = pytest.mark.component("prometheus")
JOBS = ("fairlead-control-plane", "fairlead-node", "fairlead-traffic")
"""One port after the other, as in `deploy/prometheus/prometheus.yaml`."""

# The devices are virtual, nobody rejects or loses anything, and a tick of simulated clients takes
# no time of its own.
EMPTY = {
    "gpu: Use of each run's GPUs A",
    "gpu: GPUs in use by envelope B",
    "cpu: CPU pressure A",
    "traffic: Decisions that are not in force A",
    "traffic: Decisions that are not in force B",
    "traffic: Ticks A",
    "traffic: Time to failure A",
}


def neighbours() -> int:
    """A free port, and two that follow it."""
    while True:
        first = free_port()
        with ExitStack() as stack:
            try:
                for port in (first + 1, first + 2):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return first


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """While the first round of the story is played."""
    folder: Path = tmp_path_factory.mktemp("demo")
    port = neighbours()
    demo = Demo(folder, port=port)
    targets = {job: f"127.0.0.1:{port + number}" for number, job in enumerate(JOBS)}
    found = Prometheus(folder / "prometheus", targets)
    try:
        demo.until(
            "the last act is told", lambda: any(act["act"] == Act.SLOW for act in demo.acts())
        )
        yield found
    finally:
        found.stop()
        demo.stop()


def test_every_panel_shows_what_happens_in_the_story(prometheus: Prometheus) -> None:
    """All three governors are scraped where the example configuration expects them; each expression
    has a sample, but those of what a demo does not have."""
    up = 'count(up{job=~"fairlead-.*"} == 1) == ' + str(len(JOBS))
    prometheus.until("all are up", lambda: prometheus.query(up))
    panels = panel_expressions()
    for where, expression in panels.items():
        assert metrics_in(expression), where
    prometheus.until_answered({where: panels[where] for where in panels.keys() - EMPTY})


def test_the_story_is_seen_in_the_series(prometheus: Prometheus) -> None:
    """Who was preempted, which node was short of CPU, which backend was ejected: by what an
    operator would ask."""
    for seen in (
        'increase(fairlead_gpu_preemptions_total{reason="RandomPreempt"}[5m]) >= 1',
        'max_over_time(apex_allocation_mode{node="simulated-node",mode="congested"}[5m]) == 1',
        'max_over_time(fairlead_traffic_backend_isolated{group="simulated-web"}[5m]) == 1',
    ):
        prometheus.until(seen, lambda seen=seen: prometheus.query(seen), PATIENCE_S)


def test_the_story_raises_no_critical_alert(prometheus: Prometheus) -> None:
    """Every rule was evaluated."""
    groups = prometheus.ask("rules")["groups"]
    evaluated = [rule for group in groups for rule in group["rules"] if rule["health"] == "ok"]
    assert len(evaluated) == len(rules())
    assert prometheus.query('ALERTS{alertstate="firing", severity="critical"}') == []
