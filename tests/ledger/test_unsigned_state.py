"""A user who can write to the database or a backup decides nothing: what the control plane reads
follows from entries, and what does not is found by `verify`.

Each test is an attack: a row beside the log, an old entry, the schema. The attacker knows SQL and
has not the key.
"""

import json
import sqlite3
import zlib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.api.access import SNAPSHOT, Access
from fairlead.api.shapes import UserRow
from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.checkpoint import NAME
from fairlead.ledger import store
from fairlead.ledger.sqlite import SqliteReader, backup, restore
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged, Ledger
from tests.engine.gpu.worlds import ALICE, START, World, budget, node, run
from tests.ledger.drafts import TIME_MS, draft, drafts
from tests.ledger.hostile import attack
from tests.ledger.worlds import SqliteWorld

ROOT = Author("root", admin=True)


@pytest.fixture
def place(tmp_path: Path) -> SqliteWorld:
    """A ledger in which alice is a user, and no one an admin."""
    place = SqliteWorld(tmp_path / "state")
    with place.open() as ledger:
        access(ledger).bind(UserRow("alice", ["a"], admin=False), author=ROOT)
    return place


def access(ledger: Ledger) -> Access:
    return Access(ledger, lambda: TIME_MS)


def admins(place: SqliteWorld) -> list[str]:
    with place.open() as ledger:
        return [user.name for user in access(ledger).users() if user.admin]


def problem(path: Path) -> str:
    with SqliteReader(path, inspect=True) as reader:
        return reader.verify().problem


def kept(path: Path, name: str) -> tuple[int, bytes]:
    with closing(sqlite3.connect(path)) as database:
        text = "SELECT seq, state FROM snapshots WHERE name = ?"
        return database.execute(text, (name,)).fetchone()


def put(path: Path, name: str, seq: int, state: bytes) -> None:
    attack(path, "REPLACE INTO snapshots VALUES (?, ?, ?)", name, seq, state)


def forged(path: Path, seq: int | None = None) -> None:
    """Mallory is an admin, says the snapshot."""
    after, state = kept(path, SNAPSHOT)
    document: dict[str, Any] = json.loads(state)
    document["users"]["mallory"] = {"name": "mallory", "owners": [], "admin": True}
    put(path, SNAPSHOT, after if seq is None else seq, msgspec.json.encode(document))


# --- snapshots


def test_an_edited_snapshot_makes_no_admin(place: SqliteWorld) -> None:
    """Whichever entry it claims to be of; `verify` does not say verified."""
    size = len(admins(place)) or 3
    for seq in (None, 0, size, 1_000):
        forged(place.path, seq)
        assert "snapshot 'api.access'" in problem(place.path)
        assert admins(place) == []
        with place.open() as ledger:
            assert [user.name for user in access(ledger).users()] == ["alice"]


def test_a_snapshot_where_none_was_confirmed_is_not_used(tmp_path: Path) -> None:
    """As in a ledger of an earlier release: the state is made from the entries, and `verify`
    says that it did not cover the row."""
    place = SqliteWorld(tmp_path / "state")
    with place.open() as ledger:
        ledger.append(drafts(0, 3))
    state = b'{"users":{"mallory":{"name":"mallory","owners":[],"admin":true}},"tokens":{}}'
    put(place.path, SNAPSHOT, 4, state)
    with SqliteReader(place.path) as reader:
        found = reader.verify()
    assert found.ok
    assert [row.what for row in found.not_covered] == ["snapshot api.access"]
    assert admins(place) == []


def test_a_snapshot_of_another_ledger_is_not_believed(place: SqliteWorld, tmp_path: Path) -> None:
    """Where the attacker is an admin of a ledger of their own, with the same numbers."""
    other = SqliteWorld(tmp_path / "other")
    with other.open() as ledger:
        access(ledger).bind(UserRow("mallory", [], admin=True), author=ROOT)
    put(place.path, SNAPSHOT, *kept(other.path, SNAPSHOT))
    assert admins(place) == []
    assert problem(place.path)


def test_an_older_snapshot_brings_no_rights_back(place: SqliteWorld) -> None:
    """It was true once, and an entry confirms it; what came after it counts all the same."""
    with place.open() as ledger:
        access(ledger).bind(UserRow("mallory", [], admin=True), author=ROOT)
    before = kept(place.path, SNAPSHOT)
    assert admins(place) == ["mallory"]
    with place.open() as ledger:
        access(ledger).unbind("mallory", author=ROOT)
    put(place.path, SNAPSHOT, *before)
    assert admins(place) == []
    put(place.path, SNAPSHOT, kept(place.path, SNAPSHOT)[0] + 2, before[1])
    assert admins(place) == [], "nor with a later number"


def test_an_edited_snapshot_starts_no_run_as_another_user(tmp_path: Path) -> None:
    """The state of the control plane itself: who submitted a run is who it runs as."""
    place = SqliteWorld(tmp_path / "state")
    with place.open() as ledger:
        world = World(ledger)
        world.apply(budget("a"), node())
        world.plane.objects.apply_all([run("r")], author=ALICE)
        world.plane.committer.checkpoint()
    seq, state = kept(place.path, NAME)
    put(place.path, NAME, seq, zlib.decompress(state).replace(b'"alice"', b'"root"'))
    assert "snapshot 'gpu.control'" in problem(place.path)
    with place.open() as ledger:
        plane = ControlPlane(ledger, None, lambda: START)
        stored = plane.committer.projection.get("Run", "r")
        assert stored is not None
        assert stored.user == "alice"


def test_a_rebuilt_state_is_bound_again(place: SqliteWorld) -> None:
    """So that only the first start after it takes longer."""
    forged(place.path)
    with place.open() as ledger:
        access(ledger).bind(UserRow("bob", [], admin=False), author=ROOT)
    assert problem(place.path) == ""


# --- backups


def test_an_edited_backup_is_not_restored(place: SqliteWorld, tmp_path: Path) -> None:
    copy, target = tmp_path / "backup.db", tmp_path / "state" / "restored.db"
    backup(place.path, copy)
    forged(copy)
    how = {"time_ms": TIME_MS, "author": "root", "reason": "test"}
    with pytest.raises(Damaged, match="does not verify: the snapshot"):
        restore(copy, target, place.keys, **how)
    assert not target.exists()
    attack(copy, "DELETE FROM snapshots")
    restore(copy, target, place.keys, **how)


# --- the archive


def test_an_archive_that_no_entry_tells_of_hides_nothing(place: SqliteWorld) -> None:
    """Neither by the mark alone, nor with the content taken away."""
    for change in (
        "UPDATE kept SET archived_to = 2",
        "UPDATE kept SET archived_to = 2; UPDATE entries SET data = NULL WHERE seq = 2",
    ):
        attack(place.path, change)
        assert "marked as archived" in problem(place.path) or "entry" in problem(place.path)
        with pytest.raises(Damaged, match=r"marked as archived|content of entry"):
            place.open()


def test_the_mark_of_a_real_archive_cannot_be_moved(place: SqliteWorld, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    with place.open() as ledger:
        ledger.append(drafts(0, 20))
        ledger.archive(tmp_path / "archive", last=5, time_ms=TIME_MS, author="root")
        ledger.archive(tmp_path / "archive", last=9, time_ms=TIME_MS, author="root")
    assert problem(place.path) == ""
    for mark in (0, 4, 10, 21):
        attack(place.path, "UPDATE kept SET archived_to = ?", mark)
        assert problem(place.path)
        with pytest.raises(Damaged, match=r"marked as archived|content of entry"):
            place.open()


@pytest.mark.parametrize("change", ["kind = 'x.y'", "plan_id = 'p'", "effect = NULL"])
def test_an_archived_entry_keeps_its_names(place: SqliteWorld, tmp_path: Path, change: str) -> None:
    """By them nothing is recorded twice; its content is in the segment, and says them."""
    folder = tmp_path / "archive"
    folder.mkdir()
    with place.open() as ledger:
        ledger.append(drafts(0, 20))
        ledger.archive(folder, last=5, time_ms=TIME_MS, author="root")
        assert ledger.verify_archive(folder).ok
    attack(place.path, f"UPDATE entries SET {change} WHERE seq = 5")
    with SqliteReader(place.path, inspect=True) as reader:
        found = reader.verify_archive(folder)
    assert (found.problem, found.seq) == ("entry 5 is kept under other names than it says", 5)


# --- entries where an opening does not look


def test_old_entries_that_were_changed_make_no_admin(
    place: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the last checkpoint, with the snapshot removed so that they are read again."""
    monkeypatch.setattr(store, "CHECKPOINT_EVERY", 10)
    with place.open() as ledger:
        access(ledger).bind(UserRow("eve", [], admin=True), author=ROOT)
        access(ledger).unbind("eve", author=ROOT)
        gone = ledger.last("access.user")
        assert gone is not None
        ledger.append(drafts(0, 30))
    assert admins(place) == []
    good = place.path.read_bytes()
    for change in (
        "UPDATE entries SET data = CAST(replace(data, 'min\":false', 'min\":true') AS BLOB)",
        f"UPDATE entries SET kind = 'charge.post' WHERE seq = {gone.seq}",
        f"UPDATE entries SET data = CAST(replace(data, 'access.user', 'access.usex') AS BLOB) "
        f"WHERE seq = {gone.seq}",
    ):
        attack(place.path, "DELETE FROM snapshots; " + change)
        with suppress(Damaged):
            assert admins(place) == []
        assert problem(place.path)
        place.path.write_bytes(good)


def test_an_entry_that_another_process_inserted_is_not_read(place: SqliteWorld) -> None:
    """While the control plane runs: it knows how far its own log goes."""
    with place.open() as ledger:
        size = ledger.head().head.size
        data = b'{"author":"root","body":{"admin":true,"name":"mallory","owners":[]},'
        row = (size + 1, "access.user", None, None, bytes(32), data)
        attack(place.path, "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", *row)
        with pytest.raises(Damaged, match="not covered by the head"):
            ledger.entries(0)
        with pytest.raises(Damaged, match=r"cannot be read|not covered"):
            ledger.entry(size + 1)


def test_an_entry_that_was_changed_meanwhile_is_not_read(place: SqliteWorld) -> None:
    with place.open() as ledger:
        ledger.append([draft(1)])
        attack(
            place.path, "UPDATE entries SET data = CAST(replace(data, 'alice', 'malic') AS BLOB)"
        )
        with pytest.raises(Damaged, match="not th"):
            ledger.entries(0)
        with pytest.raises(Damaged, match="not the one"):
            ledger.last("access.user")


# --- the schema


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (
            "CREATE TRIGGER more AFTER INSERT ON entries BEGIN "
            "UPDATE kept SET archived_to = 0; END",
            "trigger that is not of this release: 'more' on entries",
        ),
        ("CREATE TABLE more (x)", "table that is not of this release: 'more'"),
        ("CREATE VIEW more AS SELECT * FROM entries", "view that is not of this release"),
        ("CREATE INDEX more ON entries (length(data))", "index that is not of this release"),
        ("DROP INDEX entries_by_plan", "lacks its index 'entries_by_plan'"),
        (
            "ALTER TABLE snapshots RENAME TO hidden; CREATE VIEW snapshots AS SELECT * FROM hidden",
            "not of this release: 'hidden'",
        ),
        ("ALTER TABLE kept ADD COLUMN more TEXT", "table 'kept' of the ledger's file was changed"),
        ("PRAGMA user_version = 2", "later release"),
        ("PRAGMA user_version = -1", "no ledger"),
    ],
)
def test_a_foreign_schema_is_refused(place: SqliteWorld, change: str, word: str) -> None:
    """By a writer, a reader, a backup; and `verify` says it, where it is a ledger at all."""
    attack(place.path, change)
    with pytest.raises(PermanentFault, match=word):
        place.open()
    with pytest.raises(PermanentFault, match=word):
        SqliteReader(place.path)
    with pytest.raises(PermanentFault, match=word):
        backup(place.path, place.directory / "copy.db")
    if "user_version" not in change:
        assert word.split(":", maxsplit=1)[0] in problem(place.path)


def test_a_trigger_that_is_added_while_it_runs_changes_no_answer(place: SqliteWorld) -> None:
    """What an append returns is what was signed; the changed row is found when it is read."""
    with place.open() as ledger:
        attack(place.path, "SELECT 1")
        with closing(sqlite3.connect(place.path)) as database:
            database.executescript(
                "DROP TRIGGER entries_keep; CREATE TRIGGER more AFTER INSERT ON entries BEGIN "
                "UPDATE entries SET data = CAST(replace(data, 'team', 'mall') AS BLOB) "
                "WHERE seq = NEW.seq; END"
            )
        (entry,) = ledger.append([draft(1)])
        assert entry.body["owner"] == "team-ä"
        with pytest.raises(Damaged):
            ledger.entries(0)
    with pytest.raises(Damaged, match="not of this release"):
        place.open()


# --- positions of receivers


def test_a_position_that_was_moved_loses_no_event(place: SqliteWorld) -> None:
    """Forward: not believed. Back, or removed: events are delivered again."""
    with place.open() as ledger:
        ledger.append(drafts(0, 30))
        ledger.position_put("notify.x", 5)
        ledger.position_put("notify.x", 12)
    assert problem(place.path) == ""
    old = kept(place.path, "notify.x")
    with place.open() as ledger:
        assert ledger.position_get("notify.x") == 12
        ledger.position_put("notify.x", 20)
    put(place.path, "notify.x", 28, old[1])
    assert "snapshot 'notify.x'" in problem(place.path)
    with place.open() as ledger:
        assert ledger.position_get("notify.x") == 5
    put(place.path, "notify.x", *old)
    with place.open() as ledger:
        assert ledger.position_get("notify.x") == 12
    attack(place.path, "DELETE FROM snapshots")
    with place.open() as ledger:
        assert ledger.position_get("notify.x") == 5
        assert ledger.position_get("notify.y") is None


@pytest.mark.parametrize("number", [-1, 2**53, 2**62])
def test_a_number_that_no_entry_can_have_ends_no_process(place: SqliteWorld, number: int) -> None:
    """JSON has no such numbers, so nothing can be signed for them: a head with one is damage, a
    position with one is not believed."""
    with place.open() as ledger:
        ledger.append(drafts(0, 3))
        ledger.position_put("notify.x", 2)
    _, seal = kept(place.path, "notify.x")
    put(place.path, "notify.x", number, seal)
    assert "snapshot 'notify.x'" in problem(place.path)
    with place.open() as ledger:
        assert ledger.position_get("notify.x") == 2
    for column in ("epoch", "size", "time_ms"):
        before = place.path.read_bytes()
        attack(place.path, f"UPDATE kept SET {column} = ?", number)
        assert problem(place.path)
        with pytest.raises(Damaged):
            place.open()
        place.path.write_bytes(before)


# --- what verify says


def test_verify_names_what_it_covered(place: SqliteWorld) -> None:
    with SqliteReader(place.path) as reader:
        found = reader.verify()
    covered = {row.what for row in found.covered}
    assert {"entries", "checkpoints", "keys", "blobs", "schema", "archive mark"} <= covered
    assert "snapshot api.access" in covered
    assert found.not_covered == ()
