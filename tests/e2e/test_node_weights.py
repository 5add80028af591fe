"""The node agent on real cgroups with guarantees instead of limits."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agents import AgentProcess, fairlead
from tests.node.cgroup_worlds import RealTree, real_tree

pytestmark = pytest.mark.component("cgroups")


@pytest.fixture
def tree() -> Iterator[RealTree]:
    with real_tree() as made:
        yield made


def weight(tree: RealTree, path: str) -> int:
    name = "cpu.shares" if tree.version == 1 else "cpu.weight"
    return int((tree.root / path / name).read_text())


def test_weights_follow_the_guarantees_and_everything_is_restored(
    tree: RealTree, tmp_path: Path
) -> None:
    """Busy pods share by weight, without a limit; a pod of eight threads is contained; what was
    found is put back exactly; the record replays."""
    for path in ("web", "greedy", "duo/app", "duo/log"):
        tree.create(path)
    files = tree.files()
    own = files.quota("web")
    assert own is not None
    files.set_quota("web", own._replace(quota_us=140_000))
    files.set_weight("duo", 321)
    found = {path: weight(tree, path) for path in ("web", "greedy", "duo", "duo/app", "duo/log")}
    tree.run("duo/app")
    for _ in range(8):
        tree.run("greedy")
    agent = AgentProcess(tree.root, tmp_path, actuate="both")
    try:
        agent.until("contained", lambda: tree.limit("greedy") is not None)
        agent.until("guaranteed", lambda: weight(tree, "duo") != found["duo"])
        agent.until("whole", lambda: agent.status()["limits_millicores"] > 0)
        status, pods = agent.status(), agent.pods()
        assert status["actuate"] == "both"
        assert status["limits_millicores"] <= status["capacity_millicores"]
        greedy = pods["greedy"]
        assert greedy["guarantee_millicores"] <= greedy["limit_millicores"] < 1500
        assert pods["duo"]["limit_millicores"] is None
        assert tree.limit("duo/app") is None
        assert tree.limit("web") == 1400, "a declared limit stays"
        parts = weight(tree, "duo/app") + weight(tree, "duo/log")
        assert weight(tree, "duo") == parts
    finally:
        assert agent.stop() == 0
    replayed = fairlead("replay", str(agent.state / "record"), state=agent.state)
    assert replayed.returncode == 0, replayed.stdout
    result = fairlead("node", "restore", "--root", str(tree.root), state=agent.state)
    assert result.returncode == 0
    assert {path: weight(tree, path) for path in found} == found
    assert tree.limit("greedy") is None
    assert files.quota("web") == own._replace(quota_us=140_000)
    files.close()


def test_a_change_of_means_begins_with_what_was_found(tree: RealTree, tmp_path: Path) -> None:
    """Limits that one agent wrote are put back by the next one, which governs weights."""
    tree.create("pod")
    tree.run("pod")
    agent = AgentProcess(tree.root, tmp_path, actuate="limits")
    agent.until("limited", lambda: tree.limit("pod") is not None)
    assert agent.stop() == 0
    before = weight(tree, "pod")
    agent = AgentProcess(tree.root, tmp_path, actuate="weights")
    try:
        agent.until("guaranteed", lambda: weight(tree, "pod") != before)
        assert tree.limit("pod") is None
    finally:
        assert agent.stop() == 0
    originals = json.loads((agent.state / "originals.json").read_text())
    assert originals["actuate"] == "weights"
    agent = AgentProcess(tree.root, tmp_path, actuate="limits")
    try:
        agent.until("limited again", lambda: tree.limit("pod") is not None)
        assert weight(tree, "pod") == before
    finally:
        assert agent.stop() == 0
