"""`fairlead up` on a machine with NVIDIA devices: they become a Node, once, unless told not to."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.executor.devices import host_name
from tests.api.servers import budget, run, short_folder
from tests.e2e.planes import Plane, documents

SOURCE = Path(__file__).parents[1] / "executor" / "fake_nvml.c"
pytestmark = pytest.mark.component("cc")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """NVML answers here: two devices of one flavor."""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    paths = [str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(paths))
    monkeypatch.setenv("FAKE_NVML_DEVICES", "2")
    with short_folder() as place:
        yield place


def nodes(plane: Plane) -> dict[str, dict]:
    return {each["metadata"]["name"]: each for each in plane.ask("/v1/objects/Node")["items"]}


def test_discovered_devices_become_a_node_and_are_leased(folder: Path, tmp_path: Path) -> None:
    """A run sees the UUID of its device; an operator's edit survives a restart."""
    plane = Plane(folder, "--no-http").up()
    (node,) = nodes(plane).values()
    name = node["metadata"]["name"]
    assert name == host_name()
    assert node["metadata"]["labels"] == {"product": "Fake H100"}
    assert (node["spec"]["flavor"], node["spec"]["devices"]) == ("Fake", 2)
    owned = budget("team-a", 2)
    owned["spec"]["envelopes"][0]["flavor"] = "Fake"
    seen = tmp_path / "seen"
    mine = run("r", command=["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {seen}"])
    mine["spec"]["flavor"] = "Fake"
    plane.apply(owned)
    plane.ok("submit", "-f", "-", input=documents(mine))
    plane.until("completed", lambda: plane.phase("r") == "Completed")
    assert seen.read_text() == "GPU-00000000\n"
    node["spec"]["devices"] = 1
    plane.apply(node)
    plane.down()
    plane.process = None
    plane.up()
    assert nodes(plane)[name]["spec"]["devices"] == 1
    plane.down()


def test_nothing_is_declared_when_told_not_to(folder: Path) -> None:
    """Virtual devices are then whatever the operator declares."""
    plane = Plane(folder, "--no-http", "--no-discover").up()
    assert nodes(plane) == {}
    plane.down()
