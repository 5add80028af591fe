"""The node agent on real cgroups: load spikes, contention, restarts, restores."""

import json
import resource
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.node.cgroups import CONTAINERS_MAX
from fairlead.schema.metrics import Process
from tests.e2e.agents import AgentProcess, fairlead
from tests.node.cgroup_worlds import RealTree, real_tree
from tests.schema.scrapes import names_of, scraped

pytestmark = pytest.mark.component("cgroups")

# A service that works for a tenth of the time.
LIGHT = """
import time
while True:
    end = time.process_time() + 0.005
    while time.process_time() < end: pass
    time.sleep(0.045)
"""


@pytest.fixture
def tree() -> Iterator[RealTree]:
    with real_tree() as made:
        yield made


def test_load_spike(tree: RealTree, tmp_path: Path) -> None:
    """Low demand: a small limit. Load arrives: the limit follows it. Load goes: it comes back."""
    tree.create("web")
    tree.run("web", LIGHT)
    agent = AgentProcess(tree.root, tmp_path)
    try:
        agent.until("small", lambda: (tree.limit("web") or 9999) <= 250)
        assert agent.status()["mode"] == "uncongested"
        spike = tree.run("web")
        agent.until("raised", lambda: (tree.limit("web") or 0) >= 400)
        tree.end(spike)
        agent.until("small again", lambda: (tree.limit("web") or 9999) <= 300, seconds=30)
    finally:
        assert agent.stop() == 0


def test_cgroups_of_some_pods_leave_files_for_the_others(tree: RealTree, tmp_path: Path) -> None:
    """A service has 1024 open files by default, and three pods with 64 cgroups took them all."""
    for pod in ("a", "b"):
        tree.create(pod)
        for number in range(CONTAINERS_MAX):
            tree.create(f"{pod}/{number}")
    tree.create("web")
    tree.run("web", LIGHT)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        agent = AgentProcess(tree.root, tmp_path, capacity_millicores=8000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        agent.until("small", lambda: (tree.limit("web") or 9999) <= 250)
    finally:
        assert agent.stop() == 0


def test_contention(tree: RealTree, tmp_path: Path) -> None:
    """Two busy pods on one capacity: congested, Σ fits, both cut; one leaves: uncongested."""
    for name in ("a", "b"):
        tree.create(name)
    # Alone, a pod without a limit of its own would want all of the capacity: congestion would stay.
    files = tree.files()
    for name in ("a", "b"):
        unlimited = files.quota(name)
        assert unlimited is not None
        files.set_quota(name, unlimited._replace(quota_us=20_000, period_us=100_000))
    files.close()
    tree.run("a")
    other = tree.run("b")
    # A capacity that two spinning threads pass even on a machine that others use as well.
    agent = AgentProcess(tree.root, tmp_path, capacity_millicores=300)
    try:
        agent.until("congested", lambda: agent.status()["mode"] == "congested")
        agent.until("handed out", lambda: agent.status()["limits_millicores"] == 300)
        limits = [tree.limit("a"), tree.limit("b")]
        assert sum(limit or 0 for limit in limits) == 300
        assert all(pod["reduction_ratio"] > 0 for pod in agent.pods().values())
        tree.end(other)
        tree.remove("b")
        agent.until("uncongested", lambda: agent.status()["mode"] == "uncongested")
    finally:
        assert agent.stop() == 0


def test_originals_survive_restarts_and_are_restored_exactly(
    tree: RealTree, tmp_path: Path
) -> None:
    """A cut limit is never taken for the user's own, not even after kill -9."""
    tree.create("limited")
    tree.create("free")
    files = tree.files()
    quota_before = files.quota("limited")
    assert quota_before is not None
    files.set_quota("limited", quota_before._replace(quota_us=40_000, period_us=50_000))
    agent = AgentProcess(tree.root, tmp_path)
    agent.until("cut", lambda: (tree.limit("limited") or 9999) < 300)
    assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
    cut = tree.limit("limited")
    agent = AgentProcess(tree.root, tmp_path)
    try:
        agent.until("back", lambda: agent.process.poll() is None and "limited" in agent.pods())
        assert agent.pods()["limited"]["max_millicores"] == 800
        assert (cut or 9999) < 300
    finally:
        assert agent.stop(signal.SIGINT) == 0
    assert (tree.limit("limited") or 9999) < 300, "stopping leaves the last limits"
    result = fairlead("node", "restore", "--root", str(tree.root), state=agent.state)
    assert result.returncode == 0
    assert result.stdout.splitlines() == ["restored free", "restored limited"]
    restored = files.quota("limited")
    assert restored is not None
    assert (restored.quota_us, restored.period_us) == (40_000, 50_000)
    assert tree.limit("free") is None
    files.close()


def test_restore_refuses_while_an_agent_runs(tree: RealTree, tmp_path: Path) -> None:
    """Two hands on the same limits would undo each other."""
    tree.create("a")
    agent = AgentProcess(tree.root, tmp_path)
    try:
        agent.until("running", lambda: True)
        result = fairlead("node", "restore", "--root", str(tree.root), state=agent.state)
        assert result.returncode == 3
        assert "an agent is running on" in result.stderr
        assert "stop it first" in result.stderr
    finally:
        agent.stop()


def test_containers_are_limited_one_by_one(tree: RealTree, tmp_path: Path) -> None:
    """Σ containers = pod, split by what each wants."""
    tree.create("pod/app")
    tree.create("pod/sidecar")
    tree.run("pod/app")
    tree.run("pod/sidecar", LIGHT)
    agent = AgentProcess(tree.root, tmp_path)
    try:
        agent.until(
            "split", lambda: (tree.limit("pod/app") or 0) > 4 * (tree.limit("pod/sidecar") or 9999)
        )
        parts = agent.pods()["pod"]["containers"]
        assert sum(parts.values()) == agent.pods()["pod"]["limit_millicores"]
        assert tree.limit("pod") is None, "the pod's own cgroup is left alone"
    finally:
        agent.stop()


def test_opted_out_pods_are_left_alone_and_subtracted(tree: RealTree, tmp_path: Path) -> None:
    """Their limit is not touched; what they may use is not handed out."""
    tree.create("mine")
    tree.create("theirs")
    tree.files().set_quota("theirs", tree.files().quota("theirs")._replace(quota_us=60_000))  # type: ignore[union-attr]
    rules = [{"match": "theirs", "opted_out": True}]
    agent = AgentProcess(tree.root, tmp_path, pods=rules)
    try:
        agent.until("governed", lambda: tree.limit("mine") is not None)
        assert agent.status()["capacity_millicores"] == 1500 - 600
        assert set(agent.pods()) == {"mine"}
        assert tree.limit("theirs") == 600
    finally:
        agent.stop()


def test_observe_only_decides_and_records_but_writes_nothing(
    tree: RealTree, tmp_path: Path
) -> None:
    """By flag, and by a switch that a running agent obeys."""
    tree.create("a")
    agent = AgentProcess(tree.root, tmp_path, "--observe-only")
    agent.until("decided", lambda: agent.status()["observed_only"])
    assert agent.stop() == 0
    assert tree.limit("a") is None
    agent = AgentProcess(tree.root, tmp_path)
    try:
        agent.until("limited", lambda: tree.limit("a") is not None)
        assert fairlead("node", "observe-only", "on", state=agent.state).returncode == 0
        agent.until("watching", lambda: agent.status()["observed_only"])
        files = tree.files()
        files.set_quota("a", files.quota("a")._replace(quota_us=77_000))  # type: ignore[union-attr]
        before = agent.status()["sequence"]
        agent.until("three more decisions", lambda: agent.status()["sequence"] >= before + 3)
        assert tree.limit("a") == 770
        assert fairlead("node", "observe-only", "off", state=agent.state).returncode == 0
        agent.until("governing again", lambda: tree.limit("a") != 770)
    finally:
        agent.stop()


def test_dry_run_explains_and_touches_nothing(tree: RealTree, tmp_path: Path) -> None:
    """No limit, no state directory; the explanation is the output."""
    tree.create("a")
    agent = AgentProcess(tree.root, tmp_path, "--dry-run", "--clears", "2")
    out, _ = agent.process.communicate(timeout=60)
    assert agent.process.returncode == 0
    events = [json.loads(line) for line in out.splitlines()]
    would = [event for event in events if event["event"] == "would limit"]
    assert would
    assert would[0]["pod"] == "a"
    assert would[0]["reasons"]
    assert events[-1]["limits"] == "none was written"
    assert tree.limit("a") is None
    assert not agent.state.exists()


def test_status_explain_and_replay(tree: RealTree, tmp_path: Path) -> None:
    """What it shows is what was recorded, and the record replays byte for byte."""
    tree.create("a")
    tree.run("a")
    agent = AgentProcess(tree.root, tmp_path)
    agent.until("ten decisions", lambda: agent.status()["sequence"] >= 20)
    table = fairlead("node", "status", state=agent.state)
    assert table.returncode == 0
    assert "POD" in table.stdout
    assert "demand-driven" in table.stdout
    shown = json.loads(fairlead("node", "status", "-o", "json", state=agent.state).stdout)
    assert shown["running"]
    words = fairlead("node", "explain", "a", state=agent.state).stdout
    assert "demand-driven: The need follows" in words
    unknown = fairlead("node", "explain", "nobody", state=agent.state)
    assert unknown.returncode == 2
    assert "governed pods: a" in unknown.stderr
    assert agent.stop() == 0
    replay = fairlead("replay", str(agent.state / "record"))
    assert replay.returncode == 0, replay.stderr
    assert " same, 0 different, 0 unknown" in replay.stdout
    assert "No agent is running" in fairlead("node", "status", state=agent.state).stdout


def test_metrics_carry_the_specified_names(tree: RealTree, tmp_path: Path) -> None:
    """The allocator's own names and ours, for Prometheus: those of the table and no others."""
    tree.create("a")
    tree.run("a", LIGHT)
    agent = AgentProcess(tree.root, tmp_path, "--metrics-port", "0")
    try:
        agent.until("measured", lambda: agent.pods()["a"]["usage_millicores"] is not None)
        port = agent.events()[0]["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            text = reply.read().decode()
    finally:
        agent.stop()
    for line in (
        'apex_allocation_mode{mode="uncongested",node=',
        'apex_need_milli{namespace="",pod="a"}',
        'apex_allocation_milli{namespace="",pod="a"}',
        'apex_nash_reduction_ratio{namespace="",pod="a"}',
        'apex_headroom_utilization{namespace="",pod="a"}',
    ):
        assert line in text
    assert scraped(text) == names_of(Process.NODE_AGENT)


def test_logs_are_structured_and_carry_reasons(tree: RealTree, tmp_path: Path) -> None:
    """JSON lines with the reasons of every write."""
    tree.create("a")
    agent = AgentProcess(tree.root, tmp_path)
    agent.until("limited", lambda: tree.limit("a") is not None)
    assert agent.stop() == 0
    limited = [event for event in agent.events() if event["event"] == "limited"]
    assert limited[0]["pod"] == "a"
    assert limited[0]["before_millicores"] is None
    assert limited[0]["reasons"]
    assert agent.events()[-1]["event"] == "agent stopped"


def test_bad_configuration_is_refused_with_its_path(tmp_path: Path) -> None:
    """Nothing is started, nothing is written."""
    config = tmp_path / "node.yaml"
    for text, said in (
        ("reserve: 2", "reserve: must be between 0 and 1, got 2"),
        ("guardrails: {cooldown_ms: -1}", "guardrails.cooldown_ms"),
        ("bogus: 1", "bogus: is not a known field"),
        ("pods: [{match: a, request_millicores: x}]", "pods[0].request_millicores"),
    ):
        config.write_text(text)
        result = fairlead(
            "node", "run", "--config", str(config), "--root", "x", state=tmp_path / "s"
        )
        assert result.returncode == 2
        assert said in result.stderr
    no_root = fairlead("node", "run", state=tmp_path / "s")
    assert no_root.returncode == 2
    assert "--root" in no_root.stderr
    for root in ("/", ".", "../..", "a/../../b"):
        everything = fairlead("node", "run", "--root", root, state=tmp_path / "s")
        assert everything.returncode == 2
        assert "root: must be a cgroup below" in everything.stderr
    assert not (tmp_path / "s").exists()
