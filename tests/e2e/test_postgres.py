"""`fairlead up --ledger postgresql://…`: the same control plane, its ledger in a database."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.up import command
from tests.api.servers import budget, node, run, short_folder
from tests.e2e.planes import Plane, documents
from tests.ledger.postgres_server import server

pytestmark = pytest.mark.component("postgres")
FAULT, BAD_USAGE = 3, 2


@pytest.fixture
def plane() -> Iterator[Plane]:
    """On a database of its own, which goes with it."""
    with short_folder() as folder, server() as address:
        found = Plane(folder, "--no-http", "--ledger", address)
        try:
            yield found.up()
        finally:
            if found.process is not None and found.process.poll() is None:
                found.down(signal.SIGKILL)


def test_a_control_plane_on_postgres(plane: Plane, tmp_path: Path) -> None:
    """A run from submission to charge, a kill in between; nothing is started twice or lost."""
    address, data = plane.flags[-1], plane.folder / "data"
    plane.apply(node(devices=4), budget("team-a", 4))
    marks = tmp_path / "marks"
    script = f"echo begun >> {marks}; while [ ! -e {marks}.end ]; do sleep 0.05; done; echo bye"
    long = run("long", gpus=2, command=["sh", "-c", script])
    plane.ok("submit", "-f", "-", input=documents(long))
    plane.until("it runs", marks.exists)
    assert [row["gpus"] for row in plane.json("leases")] == [2]
    plane.down(signal.SIGKILL)
    plane.process = None
    plane.up()
    assert plane.phase("long") == "Running"
    marks.with_name("marks.end").touch()
    plane.until("it ended", lambda: plane.phase("long") == "Completed")
    assert marks.read_text() == "begun\n"
    assert plane.ok("logs", "long") == "bye\n"
    assert plane.json("budgets")[0]["used_gpu_hours"] > 0
    plane.environment["FAIRLEAD_LEDGER"] = address
    assert plane.ok("audit", "verify").startswith("verified")
    assert not (data / "ledger.db").exists()
    for verb in ("rotate-key", "archive"):
        more = [str(tmp_path), "--last", "1"] if verb == "archive" else []
        refused = plane.run("audit", verb, *more)
        assert (refused.returncode, "not to one in PostgreSQL" in refused.stderr) == (FAULT, True)


def test_there_is_one_control_plane_and_a_directory_keeps_its_ledger(plane: Plane) -> None:
    """A second one would start every run again; another ledger would end all that run."""
    whole = ("--user", "root") if os.geteuid() == 0 else ()
    other = ("up", *whole, "--no-http", "--data", str(plane.folder / "other"))
    second = plane.run(*other, "--ledger", plane.flags[-1])
    assert second.returncode == FAULT
    assert "another control plane runs on this ledger" in second.stderr
    data = str(plane.folder / "data")
    plane.down()
    plane.process = None
    forgot = plane.run("up", *whole, "--no-http", "--data", data)
    assert (forgot.returncode, "is in PostgreSQL" in forgot.stderr) == (FAULT, True)
    third = Plane(plane.folder, "--no-http", "--data", str(plane.folder / "file"))
    third.socket = plane.folder / "file" / "fairlead.sock"
    assert third.up().down() == 0
    file = str(plane.folder / "file")
    mixed = plane.run("up", *whole, "--no-http", "--data", file, "--ledger", plane.flags[-1])
    assert (mixed.returncode, "is the ledger of this directory" in mixed.stderr) == (FAULT, True)


def test_health_says_when_the_database_is_away() -> None:
    """Reads and writes fail until it is back; the process stays, and ends when asked."""
    with short_folder() as folder:
        with server() as address:
            plane = Plane(folder, "--no-http", "--ledger", address).up()
            plane.until("it is well", lambda: "ok" in plane.ask("/healthz"))
        try:
            plane.until("it says so", lambda: "error" in (plane.ask("/healthz") or {}))
            assert plane.ask("/healthz")["error"]["code"] == "Degraded"
            assert plane.down() == 0
        finally:
            if plane.process is not None and plane.process.poll() is None:
                plane.down(signal.SIGKILL)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("ledger.db", "must be postgresql://"),
        ("mysql://hush@host/db", "must be postgresql://"),
        ("postgresql://user:hush/word@host/db", "in a password write %2F for /"),
        ("postgresql://hush@host/db?nonsense=1", "is not a database address"),
    ],
)
def test_a_bad_address_is_refused_and_not_repeated(given: str, says: str, tmp_path: Path) -> None:
    """By option or by environment; it may hold a password. Nothing is made."""
    data = tmp_path / "data"
    for arguments, environment in ((["--ledger", given], {}), ([], {"FAIRLEAD_UP_LEDGER": given})):
        done = CliRunner().invoke(
            command, ["--data", str(data), *arguments], env={**os.environ, **environment}
        )
        assert done.exit_code == BAD_USAGE
        # Wrapped to the terminal's width.
        assert says in " ".join(done.output.split())
        assert "hush" not in done.output
    assert not data.exists()
