"""`fairlead audit verify` covers what decides beside the entries, and says what it covered."""

import json
import os
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.api.access import SNAPSHOT, Access
from fairlead.api.shapes import UserRow
from fairlead.compose.archive import archivable
from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.checkpoint import NAME
from fairlead.host import files
from fairlead.ledger.place import open_file
from fairlead.ports.faults import PermanentFault
from tests.cli.shells import run_inside
from tests.engine.gpu.worlds import START, World, budget, node, run
from tests.ledger.hostile import attack

ROOT = Author("root", admin=True)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with users, objects, kept states, and a job."""
    path = tmp_path / "state"
    with open_file(path / "ledger.db") as ledger:
        world = World(ledger)
        world.apply(budget("a"), node())
        user = Author(str(os.getuid()), frozenset({"a"}))
        world.plane.objects.apply_all([run("r", command=["true"])], author=user)
        world.turn()
        world.plane.committer.checkpoint()
        Access(ledger, lambda: START).bind(UserRow("alice", ["a"], admin=False), author=ROOT)
        job = world.projection.runs["r"].job
    folder = path / "runs" / "jobs" / "one"
    folder.mkdir(parents=True)
    document = {"id": job, "run": "r", "uid": os.getuid(), "argv": ["true"]}
    document |= {"refused": None, "allow_root": True}
    files.replace_json(folder / "job.json", document)
    return path


def audit(state: Path, *arguments: object) -> tuple[int, str]:
    environment = {**os.environ, "FAIRLEAD_STATE": str(state)}
    done = run_inside("audit", *map(str, arguments), environment=environment)
    return done.returncode, done.stdout.decode()


def verify(state: Path, *more: object) -> tuple[int, str]:
    return audit(state, "verify", *more)


def test_the_answer_lists_what_was_covered_and_what_not(state: Path) -> None:
    code, text = verify(state, "-o", "json")
    answer = json.loads(text)
    assert (code, answer["problem"]) == (0, "")
    covered = {row["what"] for row in answer["covered"]}
    assert covered >= {
        *("entries", "checkpoints", "keys", "archive mark", "blobs", "schema", "files"),
        *("snapshot api.access", "snapshot gpu.control", "users and tokens", "signing key"),
        *("objects, runs and charges", "jobs of the executor"),
    }
    left_out = " ".join(row["what"] for row in answer["not_covered"])
    assert "holder of the signing key" in left_out
    assert "options and files" in left_out
    code, text = verify(state)
    assert "  covered: jobs of the executor (1): " in text
    assert "  not covered: options and files of `fairlead up`: " in text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"uid": 2989}, "runs as user 2989"),
        ({"argv": ["sh"]}, "another command"),
        ({"id": "x"}, "no start"),
        ({"argv": [1]}, "is not the file of a job: "),
    ],
)
def test_a_job_that_runs_as_another_user_is_found(
    state: Path, change: dict[str, object], word: str
) -> None:
    place = state / "runs" / "jobs" / "one" / "job.json"
    files.replace_json(place, {**json.loads(place.read_bytes()), **change})
    code, text = verify(state)
    assert code == 1
    assert word in text
    files.replace_json(place.parent / "exit.json", {"time_ms": 1})
    assert verify(state)[0] == 0, "one that is over decides nothing"


def test_files_that_others_may_write_are_found(state: Path) -> None:
    for name in ("", "ledger.db", "keys", "runs/jobs"):
        place = state / name
        mode = place.stat().st_mode
        place.chmod(mode | 0o020)
        code, text = verify(state)
        assert (code, "can be written by other users" in text) == (1, True)
        place.chmod(mode)


def test_a_state_that_was_bound_but_is_wrong_is_found(state: Path) -> None:
    """By a holder of the key: the digest fits, the entries say something else."""
    for name in (SNAPSHOT, NAME):
        with open_file(state / "ledger.db") as ledger:
            kept = ledger.snapshot_get(name)
            assert kept is not None
            wrong = b'{"users":{},"tokens":{}}'
            if name == NAME:
                wrong = zlib.decompress(kept.state).replace(b'"owner":"a"', b'"owner":"b"')
                assert wrong != zlib.decompress(kept.state)
            ledger.snapshot_put(name, kept.seq, wrong)
        code, text = verify(state)
        assert code == 1
        assert f"{name!r} is not what its entries add up to" in text
        with open_file(state / "ledger.db") as ledger:
            ledger.snapshot_put(name, kept.seq, kept.state)


def test_a_ledger_whose_archive_holds_the_past_is_rebuilt_from_it(
    state: Path, tmp_path: Path
) -> None:
    """Without a state that an entry confirms, no start; with the segments, all as before."""
    archive = tmp_path / "archive"
    archive.mkdir()
    with archivable(state / "ledger.db", 5) as ledger:
        ledger.archive(archive, last=5, time_ms=START, author="root")
    attack(state / "ledger.db", "DELETE FROM snapshots")
    with open_file(state / "ledger.db") as ledger, pytest.raises(PermanentFault, match="rebuild"):
        ControlPlane(ledger, None, lambda: START)
    assert audit(state, "rebuild")[0] == 3
    assert audit(state, "rebuild", "--archive", archive)[0] == 0
    with open_file(state / "ledger.db") as ledger:
        plane = ControlPlane(ledger, None, lambda: START)
        assert plane.committer.projection.get("Run", "r") is not None
        assert [user.name for user in Access(ledger, lambda: START).users()] == ["alice"]
    code, text = verify(state, "--archive", archive)
    assert code == 0
    assert "covered: archived entries (5)" in text


def test_a_backup_with_changed_states_is_restored_without_them(state: Path, tmp_path: Path) -> None:
    copy, ledger = tmp_path / "copy.db", str(state / "ledger.db")
    assert audit(state, "backup", copy)[0] == 0
    attack(copy, "UPDATE snapshots SET state = x'00'")
    (state / "ledger.db").rename(tmp_path / "old.db")
    command = ("restore", copy, "--reason", "x")
    assert audit(state, *command)[0] == 3
    assert audit(state, *command, "--drop-snapshots")[0] == 0
    with closing(sqlite3.connect(ledger)) as database:
        assert database.execute("SELECT * FROM snapshots").fetchall() == []
