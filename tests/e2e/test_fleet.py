"""Agents report to the control plane: real agents, a real server, one list of the fleet."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.canonical import canonical
from fairlead.executor.devices import host_name
from fairlead.host.process import free_port
from fairlead.schema.replay import SHIPPED
from tests.api.servers import serving, short_folder
from tests.e2e.agents import FAST, AgentProcess
from tests.e2e.planes import Plane
from tests.node.cgroup_worlds import RealTree, real_tree

pytestmark = pytest.mark.component("cgroups")
BACKENDS = [{"id": id, "host": "127.0.0.1", "port": n} for n, id in enumerate("ab", 9)]


@pytest.fixture
def tree() -> Iterator[RealTree]:
    """Cgroups of our own, with one busy pod."""
    with real_tree() as found:
        found.create("web")
        found.run("web")
        yield found


@pytest.fixture
def plane(tree: RealTree) -> Iterator[Plane]:
    """A control plane with both agents beside it, as one command starts them."""
    with short_folder() as folder:
        node = {**FAST, "root": str(tree.root)}
        traffic = {
            "plane": "memory",
            "node": {"watch": False},
            "groups": [{"name": "web", "vip": "127.0.0.1", "port": 80, "backends": BACKENDS}],
        }
        for name, document in (("node", node), ("traffic", traffic)):
            (folder / f"{name}.yaml").write_text(json.dumps(document))  # JSON is YAML
        flags = ["--node", str(folder / "node.yaml"), "--traffic", str(folder / "traffic.yaml")]
        found = Plane(folder, "--no-http", *flags).up()
        try:
            yield found
        finally:
            if found.process is not None and found.process.poll() is None:
                found.down()


def cpu(plane: Plane) -> dict[str, Any] | None:
    """The governor of this machine."""
    rows = {row["name"]: row["cpu"] for row in plane.ask("/v1/nodes") or ()}
    return rows.get(host_name())


def test_one_command_shows_all_three_governors(plane: Plane) -> None:
    """`fairlead up --node --traffic`: nodes and groups are listed, described, and their decisions
    run again byte for byte."""
    plane.until("a node reports", lambda: cpu(plane))
    (document,) = plane.json("get", "nodes")
    assert (document["kind"], document["metadata"]["name"]) == ("CpuNode", host_name())
    row = document["status"]["cpu"]
    assert (row["capacity_millicores"], row["pods"], row["stale_since"]) == (1500, 1, None)
    plane.until("a group reports", lambda: plane.ask("/v1/groups"))
    (group,) = plane.json("get", "groups")
    assert (group["name"], group["mode"], group["backends"]) == ("web", "normal", 2)
    table = plane.ok("get", "nodes")
    assert "live" in table
    assert host_name() in table
    assert "web" in plane.ok("describe", f"node/{host_name()}")
    assert "SLOTS" in plane.ok("describe", "group/web")
    for kind, name, number in (
        ("nodes", host_name(), row["decision"]),
        ("groups", "web", group["decision"]),
    ):
        decision = plane.ask(f"/v1/{kind}/{name}/decisions/{number}")
        again = SHIPPED[decision["kind"], decision["version"]]
        result = again.run(json.dumps(decision["input"]).encode()).result
        assert canonical(result) == canonical(decision["output"])


def backends(plane: Plane) -> dict[str, Any]:
    rows = (plane.ask("/v1/groups/web") or {}).get("state", {}).get("backends", ())
    return {row["backend"]: row for row in rows}


def test_an_order_of_the_control_plane_is_a_recorded_decision_of_the_agent(plane: Plane) -> None:
    """Ordered here, decided and recorded there, reported back; a killed control plane and a killed
    agent forget nothing; the agent's record replays."""
    plane.until("a group reports", lambda: backends(plane))
    plane.post("/v1/groups/web/backends/a/orders/isolate")
    plane.until("ejected", lambda: backends(plane)["a"]["isolated"] == "operator")
    row = plane.until("no slots", lambda: (r := backends(plane)["a"])["slots"] == 0 and r)
    assert row["order"] == "isolate"
    assert plane.down(signal.SIGKILL) != 0
    plane.up()
    plane.until("still ejected", lambda: backends(plane).get("a", {}).get("order") == "isolate")
    said = plane.ok("traffic", "restore", "web", "a", "--server", str(plane.socket))
    assert said == "web/a: restore ordered\n"
    plane.until("lifted", lambda: backends(plane)["a"]["order"] is None)
    kinds = [row["kind"] for row in plane.ask("/v1/events?limit=1000")["items"]]
    assert kinds.count("traffic.order") == 2
    assert plane.down() == 0
    replayed = plane.run("replay", str(plane.folder / "data" / "traffic" / "record" / "web"))
    assert replayed.returncode == 0, replayed.stderr


def test_an_agent_with_a_token_outlives_its_control_plane(tree: RealTree, tmp_path: Path) -> None:
    """Over TCP with its own token: it governs while the control plane is away, and reports to the
    next one; a revoked token ends its reports and nothing else."""
    secret, port = tmp_path / "agent.token", free_port()
    with short_folder() as folder:
        with serving(folder, port=port) as server:
            made = server.ok("POST", "/v1/tokens", {"agent": host_name()})
            secret.write_text(made["token"])
            to = {"to": f"http://127.0.0.1:{port}", "token_file": str(secret)}
            agent = AgentProcess(tree.root, tmp_path, report=to)
            try:
                path = f"/v1/nodes/{host_name()}"
                server.until("reported", lambda: server.send("GET", path).status == 200)
            except BaseException:
                agent.stop()
                raise
        try:
            away = agent.status()["sequence"]
            agent.until("governs on", lambda: agent.status()["sequence"] > away + 5)
            with serving(folder, port=port) as server:
                server.until("reported again", lambda: server.send("GET", path).status == 200)
                row = server.ok("GET", path)["cpu"]
                assert row["decision"] > away
                server.ok("DELETE", f"/v1/tokens/{made['id']}")
                agent.until("refused", lambda: '"notice"' in agent.log() and "401" in agent.log())
                last = agent.status()["sequence"]
                agent.until("governs all the same", lambda: agent.status()["sequence"] > last)
        finally:
            assert agent.stop() == 0
