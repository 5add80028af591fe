"""What an operator is told without asking for it: health, faults, the clock; old output pruned."""

import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.responses import Response
from structlog.testing import capture_logs

from fairlead.api import background
from fairlead.api.access import Access
from fairlead.api.background import Background
from fairlead.api.service import Service
from fairlead.api.tables import health
from fairlead.cli.up import command
from fairlead.compose.up import check_room
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.faults import TemporaryFault
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.engine.gpu import worlds
from tests.engine.gpu.test_disk import fill_quietly, room
from tests.ledger.memory import MemoryKeys


class Served:
    """A control plane on fakes, as the server's threads see it."""

    def __init__(self, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fairlead.ledger.entries.now_ms", lambda: worlds.START)
            self.ledger = SqliteLedger.open(folder / "ledger.db", MemoryKeys())
        self.world = worlds.World(self.ledger)
        self.world.apply(worlds.budget("a"), worlds.node(), worlds.run("busy", command=["train"]))
        self.world.turn()
        access = Access(self.ledger, lambda: self.world.now_ms)
        self.service = Service(
            self.world.plane, self.ledger, access, lambda run, jobs: [], lambda: self.world.now_ms
        )
        self.bugs: list[BaseException] = []
        self.background = Background(self.service, self.bugs.append)

    def health(self) -> Any:
        return health(self.service, None)  # type: ignore[arg-type] - it asks nothing of the call

    def fill(self) -> None:
        """Until not even the shortest entry is recorded."""
        room(self.ledger, 2)
        fill_quietly(self.world)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(background, "TURN_S", 0.01)
    found = Served(tmp_path)
    yield found
    found.ledger.close()
    assert found.bugs == []


def test_health_is_degraded_while_nothing_can_be_recorded(served: Served) -> None:
    """503 with the reason, whoever tried to write; ok again when a turn could."""
    assert served.health()["ok"]
    served.fill()
    reply = served.health()
    assert isinstance(reply, Response)
    assert reply.status_code == 503
    assert b'"code":"Degraded"' in reply.body
    assert b"full" in reply.body
    with pytest.raises(TemporaryFault):
        served.background._turn()
    room(served.ledger, 100_000)
    assert served.health().status_code == 503, "nobody knows yet"
    served.background._turn()
    assert served.health()["ok"]


def test_health_is_degraded_while_turns_fail(served: Served) -> None:
    """The ledger is away altogether: nothing was tried to be recorded, and nothing can be."""
    real = served.ledger.entries

    def away(*_: Any, **__: Any) -> Any:
        raise TemporaryFault("the database is away", retry_after_ms=1)

    served.ledger.entries = away  # type: ignore[method-assign]
    with pytest.raises(TemporaryFault):
        served.background._turn()
    assert b"the database is away" in served.health().body
    served.ledger.entries = real  # type: ignore[method-assign]
    served.background._turn()
    assert served.health()["ok"]


def test_a_fault_that_stays_is_said_once(served: Served) -> None:
    """However often it is tried, and whatever the other threads do meanwhile."""
    served.fill()
    polled: list[int] = []
    poll = served.world.executor.poll
    served.world.executor.poll = lambda: polled.append(1) or poll()  # type: ignore[func-returns-value, method-assign]
    with capture_logs() as lines:
        served.background.start()
        while len(polled) < 10 and not served.bugs:
            served.background._stop.wait(0.01)
        served.background.stop()
    assert [line["event"] for line in lines if line["event"] == "fault"] == ["fault"]


def test_a_clock_that_jumps_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With by how much, and what to do."""
    monkeypatch.setattr(background, "TURN_S", 0.01)
    served = Served(tmp_path)
    clocks = worlds.Clocks(served.world.now_ms)
    served.world.clocks = clocks
    served.world.plane = served.service.plane = served.world.open()
    served.background._turn()
    clocks.wall_ms -= worlds.HOUR
    with capture_logs() as lines:
        for _ in range(3):
            served.background._turn()
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("clock jumped", "warning")
    assert "1h behind" in line["fault"]
    assert "fairlead clock accept|reject" in line["fault"]
    assert "*clock" in served.health()["faults"], "told, and no reason to be taken out of service"
    served.ledger.close()


def logs(server: Running, name: str) -> bytes:
    return server.send("GET", f"/v1/runs/{name}/logs").data


def test_output_is_kept_for_a_while_after_a_runs_end() -> None:
    """Thirty days unless told otherwise; of runs that have not ended it is never forgotten."""
    with short_folder() as folder:
        with serving(folder) as first:
            first.apply(node(), budget("team-a"))
            first.apply(run("ended", command=["echo", "old"]))
            first.apply(run("waits", command=["sh", "-c", "echo mine; sleep 600"]))
            first.ended("ended")
            first.until("it said something", lambda: logs(first, "waits") == b"mine\n")
            first.ok("POST", "/v1/objects/Node/box/actions/drain")
            done = folder / "runs" / "done"
            first.until("both are put away", lambda: len([*done.iterdir()]) == 2)
        with serving(folder, keep_output_ms=None) as second:
            second.until("a turn", lambda: second.ok("GET", "/healthz")["ok"])
            assert logs(second, "ended") == b"old\n"
        with serving(folder, keep_output_ms=1) as third:
            third.until("it is forgotten", lambda: logs(third, "ended") == b"")
            assert logs(third, "waits") == b"mine\n"
            assert third.status("Run", "waits")["phase"] == "Pending"
            assert third.status("Run", "ended")["phase"] == "Completed"


@pytest.mark.parametrize("given", ["soon", "0d", "-1d", "9999d", ""])
def test_how_long_output_is_kept_is_checked(given: str, tmp_path: Path) -> None:
    """A duration, or forever."""
    arguments = ["--data", str(tmp_path / "data"), "--keep-output", given]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert "or forever" in " ".join(done.output.split())
    assert not (tmp_path / "data").exists()


def test_a_full_disk_is_said_before_an_entry_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle control plane wrote nothing, and so said nothing. A chore's fault is logged once
    while it lasts."""
    check_room(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 2**20))
    with pytest.raises(TemporaryFault, match="has less than 64 MiB free") as first:
        check_room(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9, 0))
    with pytest.raises(TemporaryFault) as second:
        check_room(tmp_path)
    assert str(first.value) == str(second.value)
