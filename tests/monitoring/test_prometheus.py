"""A real Prometheus scrapes a control plane, a node agent and a traffic agent at work."""

from collections.abc import Iterator

import pytest

from fairlead.ports.dataplane import Backend
from fairlead.schema.metrics import METRICS, Process
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.e2e.agents import AgentProcess
from tests.e2e.traffic_agents import TrafficProcess
from tests.monitoring.prometheus import Prometheus, metrics_in, panel_expressions, rules
from tests.node.cgroup_worlds import real_tree

pytestmark = [pytest.mark.component("prometheus"), pytest.mark.component("cgroups")]
CLUSTER = {row.name for row in METRICS[Process.CONTROLLER] if "_kube_" in row.name}

# Nothing of this happens here: no hours are limited, lent or lost, no device is metered, no request
# is sent, nothing runs out.
EMPTY = {
    "gpu: GPU-hours left in the period A",
    "gpu: GPUs in use by envelope B",
    "gpu: Preemptions per hour A",
    "gpu: Use of each run's GPUs A",
    "traffic: Decisions that are not in force A",
    "traffic: Decisions that are not in force B",
    "traffic: Latency (p95) A",
    "traffic: Queues A",
    "traffic: Time to failure A",
    "cpu: Shadow price A",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """After some scrapes of all three."""
    tmp_path = tmp_path_factory.mktemp("monitoring")
    server.apply(node(), budget("team-a"), run("train"))
    server.until("it runs", lambda: server.status("Run", "train")["phase"] == "Running")
    (tmp_path / "node").mkdir()
    (tmp_path / "web").mkdir()
    backends = [Backend("a", "127.0.0.1", 9), Backend("b", "127.0.0.1", 10)]
    with real_tree() as tree:
        tree.create("pod")
        tree.run("pod")
        agent = AgentProcess(tree.root, tmp_path / "node", "--metrics-port", "0")
        traffic = TrafficProcess(tmp_path / "web", "memory", 80, backends, metrics_port=0)
        agent.until("it decided", lambda: agent.pods()["pod"]["usage_millicores"] is not None)
        traffic.until("it decided", (traffic.state / "status.json").exists)
        targets = {
            "fairlead-control-plane": server.port,
            "fairlead-node": agent.events()[0]["metrics_port"],
            "fairlead-traffic": traffic.events("agent started")[0]["metrics_port"],
        }
        found = Prometheus(
            tmp_path / "p", {job: f"127.0.0.1:{port}" for job, port in targets.items()}
        )
        try:
            found.until("all are up", lambda: len(found.query("up == 1")) == len(targets))
            often = "min(count_over_time(up[1m])) >= 4"
            found.until("there are rates", lambda: found.query(often))
            yield found
        finally:
            found.stop()
            traffic.stop()
            agent.stop()


def test_every_alert_and_panel_is_answered(prometheus: Prometheus) -> None:
    """Valid, evaluated without an error, and of metrics that are scraped; a healthy lab fires no
    critical alert."""
    known = set(prometheus.metadata()) | CLUSTER | {"up"}
    panels = panel_expressions()
    for where, expression in panels.items():
        assert metrics_in(expression) <= known, where
        prometheus.query(expression.replace("$__rate_interval", "1m"))
    prometheus.until_answered({where: panels[where] for where in panels.keys() - EMPTY})
    for rule in rules():
        assert metrics_in(rule["expr"]) <= known, rule["alert"]
        prometheus.query(rule["expr"])
    prometheus.until(
        "the rules are evaluated",
        lambda: all(
            rule["health"] == "ok"
            for group in prometheus.ask("rules")["groups"]
            for rule in group["rules"]
        ),
    )
    assert prometheus.query('ALERTS{alertstate="firing", severity="critical"}') == []


def test_what_is_scraped_is_the_table(prometheus: Prometheus) -> None:
    """Names, types and sentences, as Prometheus understood them."""
    metadata = prometheus.metadata()
    for process in (Process.CONTROL_PLANE, Process.NODE_AGENT, Process.TRAFFIC_AGENT):
        for row in METRICS[process]:
            seen = metadata[row.name]
            assert (seen["type"], seen["help"]) == (row.kind.value, row.help), row.name
