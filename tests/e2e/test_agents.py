"""One command runs all three governors: `fairlead up` with the agents beside it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fairlead.cli.up import _agents
from tests.api.servers import budget, run, short_folder
from tests.e2e.agents import FAST
from tests.e2e.planes import Plane, split_plane
from tests.node.cgroup_worlds import RealTree, real_tree
from tests.node.test_supervisor import alive
from tests.node.traffic.servers import until

pytestmark = pytest.mark.component("cgroups")


@pytest.fixture
def tree() -> Iterator[RealTree]:
    """Cgroups of our own, with one pod."""
    with real_tree() as found:
        found.create("pod")
        yield found


@pytest.fixture(params=["one process", "no rights"])
def plane(tree: RealTree, request: pytest.FixtureRequest) -> Iterator[Plane]:
    """A control plane with both agents; the traffic agent's plane is in its memory."""
    split = request.param == "no rights"
    if split and os.geteuid() != 0:
        pytest.skip("only root can be two users")
    with short_folder() as folder:
        node = {**FAST, "root": str(tree.root)}
        backends = [{"id": id, "host": "127.0.0.1", "port": n} for n, id in enumerate("ab", 9)]
        traffic = {
            "plane": "memory",
            "state_dir": str(folder / "traffic"),
            "node": {"watch": False},
            "groups": [{"name": "web", "vip": "127.0.0.1", "port": 80, "backends": backends}],
        }
        files = {"node": folder / "node.yaml", "traffic": folder / "web.yaml"}
        for name, document in (("node", node), ("traffic", traffic)):
            files[name].write_text(json.dumps(document))  # JSON is YAML
        flags = [part for name, file in files.items() for part in (f"--{name}", str(file))]
        found = (split_plane if split else Plane)(folder, "--no-http", *flags).up()
        try:
            yield found
        finally:
            if found.process is not None and found.process.poll() is None:
                found.down()


def pids(plane: Plane, name: str) -> list[int]:
    """Of every life of an agent, in order."""
    said = re.findall(rf"the {name} agent runs as process (\d+)", plane.log.read_text())
    return [int(pid) for pid in said]


def test_all_three_governors_run_and_end_together(plane: Plane) -> None:
    """One that is killed comes back as another process; with the control plane they end."""
    state = plane.folder / "data" / "node", plane.folder / "traffic"
    statuses = [directory / "status.json" for directory in state]
    plane.until("both decide", lambda: all(status.exists() for status in statuses))
    (node,), (traffic,) = pids(plane, "node"), pids(plane, "traffic")
    os.kill(traffic, signal.SIGKILL)
    plane.until("another traffic agent", lambda: len(pids(plane, "traffic")) == 2)
    assert "the traffic agent ended by signal 9; it starts again in 1 s" in plane.log.read_text()
    assert alive(node)
    assert pids(plane, "node") == [node]
    assert plane.down() == 0
    assert not any(map(alive, (node, *pids(plane, "traffic"))))


def test_agents_do_not_outlive_a_control_plane_that_is_killed(plane: Plane) -> None:
    """The next one starts its own, and they find the state directories free."""
    plane.until("both run", lambda: pids(plane, "node") and pids(plane, "traffic"))
    first = [*pids(plane, "node"), *pids(plane, "traffic")]
    plane.down(signal.SIGKILL)
    until(lambda: not any(map(alive, first)), "ended")
    plane.up()
    plane.until("both again", lambda: len(pids(plane, "node")) == len(pids(plane, "traffic")) == 2)


def test_a_bad_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """By the path of the field, exit code 2; there is no ledger yet."""
    plane = Plane(tmp_path)
    for flag, text, path in (
        ("--node", "root: x\nsample_ms: soon\n", "sample_ms"),
        ("--node", "sample_ms: 1000\n", "root: is missing"),
        ("--node", "root: /\n", "root: must be a cgroup below"),
        ("--traffic", "plane: memory\ngroups: []\n", "groups"),
    ):
        (tmp_path / "agent.yaml").write_text(text)
        done = plane.run("up", "--data", str(tmp_path / "data"), flag, str(tmp_path / "agent.yaml"))
        assert done.returncode == 2
        assert path in done.stderr
    assert not (tmp_path / "data").exists()


def test_an_agent_imports_nothing_from_where_the_operator_is(tmp_path: Path) -> None:
    """An agent may be root's, and the folder another user's."""
    backend = {"id": "a", "host": "127.0.0.1", "port": 9}
    group = {"name": "web", "vip": "127.0.0.1", "port": 80, "backends": [backend]}
    (tmp_path / "web.yaml").write_text(json.dumps({"plane": "memory", "groups": [group]}))
    (command,) = _agents(None, tmp_path / "web.yaml", None, tmp_path / "socket").values()
    hostile = tmp_path / "fairlead"
    hostile.mkdir()
    (hostile / "__init__.py").write_text("raise SystemExit('taken over')")
    asked = [*command[: command.index("run") + 1], "--help"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: ")


def test_an_agent_goes_on_when_nobody_reads_its_log(tree: RealTree, tmp_path: Path) -> None:
    """`| head -1` is not the end of a machine's governor."""
    config = tmp_path / "node.yaml"
    config.write_text(json.dumps({**FAST, "root": str(tree.root)}))
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "node",
        "run",
        "--config",
        str(config),
        "--state-dir",
        str(tmp_path / "state"),
    ]
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with agent:
        assert agent.stderr is not None
        assert json.loads(agent.stderr.readline())["agent"] == "node"
        agent.stderr.close()
        tree.create("another")  # which is worth a line
        status = tmp_path / "state" / "status.json"
        until(lambda: status.exists() and "another" in status.read_text(), "saw the other pod")
        assert agent.poll() is None
        agent.terminate()
        assert agent.wait(30) == 0


def test_a_control_plane_goes_on_when_nobody_reads_its_log() -> None:
    """The pipe to a log that is rotated, a terminal that is closed: each run is answered still."""
    with short_folder() as folder:
        plane = Plane(folder, "--no-http")
        command = [sys.executable, "-m", "fairlead", "up", *plane.flags]
        plane.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=plane.environment)
        with plane.process as process:
            plane.until("answers", lambda: plane.ask("/healthz"))
            assert process.stderr is not None
            process.stderr.close()
            plane.apply(budget("team-a"))

            def refused(name: str) -> bool:
                return "CapExceeded" in plane.ok("describe", f"run/{name}")

            for name in ("one", "two", "three"):  # nobody can pay for them, which is worth a line
                plane.apply(run(name, gpus=99))
                plane.until("refused", partial(refused, name))
            assert process.poll() is None
            assert plane.down() == 0
