"""`fairlead up` on a full disk: it answers, loses nothing, and goes on when there is room."""

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.ledger.sqlite import SqliteReader
from tests.api.servers import UnixConnection, budget, node, run, short_folder
from tests.e2e.planes import Plane
from tests.mounts import small_disk


@pytest.fixture
def small() -> Iterator[Path]:
    """A folder whose `data` is a file system of 8 MiB."""
    with short_folder() as folder, small_disk(folder / "data", "8m"):
        yield folder


@pytest.fixture
def plane(small: Path) -> Iterator[Plane]:
    """A control plane on it."""
    found = Plane(small, "--no-http").up()
    try:
        yield found
    finally:
        if found.process is not None and found.process.poll() is None:
            found.down(signal.SIGKILL)


def put(plane: Plane, body: dict[str, Any]) -> tuple[int, Any]:
    connection = UnixConnection(plane.socket)
    try:
        path = f"/v1/objects/{body['kind']}/{body['metadata']['name']}"
        connection.request("PUT", path, json.dumps(body).encode())
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def fill(ballast: Path) -> None:
    """Take every byte that is left."""
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b"x" * size)
    finally:
        os.close(descriptor)


@pytest.mark.component("mount")
def test_a_full_disk_is_told_and_survived(plane: Plane) -> None:
    """Writes are refused as a fault that may pass, reads go on; a kill changes nothing."""
    plane.apply(node(devices=64), budget("team-a", 8))
    acknowledged = []
    for i in range(5):
        assert put(plane, run(f"early-{i}", gpus=9))[0] == 200
        acknowledged.append(f"early-{i}")
    ballast = plane.folder / "data" / "ballast"
    fill(ballast)
    refused = 0
    for i in range(300):
        status, answer = put(plane, run(f"late-{i}", gpus=9, env={"FILLER": "y" * 2_000}))
        if status == 200:
            acknowledged.append(f"late-{i}")
            continue
        assert (status, answer["error"]["code"]) == (503, "TemporaryFault"), answer
        refused += 1
        if refused == 3:
            break
    assert refused == 3
    found = {each["metadata"]["name"] for each in plane.ask("/v1/objects/Run")["items"]}
    assert found == set(acknowledged)
    assert plane.ask("/v1/budgets")[0]["limit_gpus"] == 8
    plane.down(signal.SIGKILL)
    ballast.unlink()
    plane.process = None
    plane.up()
    found = {each["metadata"]["name"] for each in plane.ask("/v1/objects/Run")["items"]}
    assert found == set(acknowledged)
    assert put(plane, run("after", gpus=9))[0] == 200
    assert plane.down() == 0
    with SqliteReader(plane.folder / "data" / "ledger.db") as reader:
        assert reader.verify().ok


@pytest.mark.component("mount")
def test_health_says_when_nothing_can_be_recorded(plane: Plane) -> None:
    """503 with the reason while the disk is full, 200 when there is room, without a restart."""

    def healthy() -> bool:
        found = plane.ask("/healthz")
        assert "error" not in found or found["error"]["code"] == "Degraded", found
        return "ok" in found

    plane.apply(node(devices=64), budget("team-a", 8))
    assert healthy()
    ballast = plane.folder / "data" / "ballast"
    fill(ballast)

    late = itertools.count()

    def refused() -> bool:
        put(plane, run(f"late-{next(late)}", gpus=9, env={"FILLER": "y" * 2_000}))
        return not healthy()

    plane.until("it is degraded", refused)
    assert plane.ask("/healthz")["error"]["message"].startswith("the ledger cannot be written now")
    assert plane.ask("/v1/budgets")[0]["limit_gpus"] == 8
    ballast.unlink()
    plane.until("it is well again", healthy)
    assert put(plane, run("after", gpus=9))[0] == 200
    assert plane.down() == 0
