"""A user with all rights on the PostgreSQL database, and without the key, decides nothing."""

import json
from contextlib import suppress
from uuid import uuid4

import msgspec
import pytest

from fairlead.api.access import SNAPSHOT, Access
from fairlead.api.shapes import UserRow
from fairlead.engine.gpu import Author
from fairlead.ledger import postgres_batches, store
from fairlead.ledger.entries import prepare
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.postgres import PostgresLedger, PostgresReader
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged
from tests.ledger.drafts import TIME_MS, draft, drafts
from tests.ledger.test_postgres import alone, execute
from tests.ledger.worlds import PostgresWorld

pytestmark = pytest.mark.component("postgres")
FREE = "SET session_replication_role = replica; "
"""Without the triggers, which leaves no trace in the schema."""
ROOT = Author("root", admin=True)


def problem(world: PostgresWorld) -> str:
    with PostgresReader(world.address, schema=world.schema, inspect=True) as reader:
        return reader.verify().problem


def access(ledger: PostgresLedger) -> Access:
    return Access(ledger, lambda: TIME_MS)


def test_an_edited_snapshot_makes_no_admin(postgres_world: PostgresWorld) -> None:
    with alone(postgres_world) as ledger:
        access(ledger).bind(UserRow("alice", ["a"], admin=False), author=ROOT)
    assert problem(postgres_world) == ""
    ((state,),) = execute(postgres_world, "SELECT state FROM snapshots WHERE name = %s", SNAPSHOT)
    document = json.loads(state)  # type: ignore[arg-type]
    document["users"]["mallory"] = {"name": "mallory", "owners": [], "admin": True}
    execute(postgres_world, "UPDATE snapshots SET state = %s", msgspec.json.encode(document))
    assert "snapshot 'api.access'" in problem(postgres_world)
    with alone(postgres_world) as ledger:
        assert [user.name for user in access(ledger).users()] == ["alice"]


def test_a_batch_that_no_holder_of_the_key_wrote_is_not_numbered(
    postgres_world: PostgresWorld,
) -> None:
    """It would be signed. Neither by a replica nor by a writer that is alone."""
    bad = draft(1, kind="access.user", effect=None, body={"name": "mallory", "admin": True})
    data = msgspec.msgpack.encode([prepare(bad)])
    text = "INSERT INTO batches (id, time_ms, drafts, after, seal) VALUES (%s, 1, %s, 1, %s)"
    with postgres_world.open() as replica:
        for seal in (None, b"", bytes(64)):
            execute(postgres_world, text, uuid4(), data, seal)
            replica.append([draft(10 + len(seal or b"x"))])
        assert replica.entries(0, kind="access.user") == []
        assert execute(postgres_world, "SELECT 1 FROM batches WHERE answered IS NULL") == []
    with alone(postgres_world) as ledger:
        execute(postgres_world, text, uuid4(), data, bytes(64))
        ledger.append([draft(5)])
        assert ledger.entries(0, kind="access.user") == []
        assert ledger.verify().ok


def test_an_old_batch_that_is_put_back_is_not_numbered_again(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that was taken away since would come back."""
    monkeypatch.setattr(postgres_batches, "WAITING_MAX", 5)
    with postgres_world.open() as ledger:
        dead = postgres_world.open()
        dead._number = _die  # type: ignore[attr-defined]
        with suppress(SystemExit):
            dead.append([draft(1, effect=None)])
        dead.close()
        columns = "id, time_ms, drafts, after, seal"
        (old,) = execute(postgres_world, f"SELECT {columns} FROM batches")
        ledger.append(drafts(2, 6))
        assert [entry.body["number"] for entry in ledger.entries(1, 1)] == [1]
        execute(postgres_world, "DELETE FROM batches")
        text = f"INSERT INTO batches ({columns}) VALUES (%s, %s, %s, %s, %s)"
        execute(postgres_world, text, *old)
        ledger.append([draft(20)])
        assert [entry.body["number"] for entry in ledger.entries(1)].count(1) == 1


def _die(*_: object) -> None:
    raise SystemExit


def test_an_answer_that_is_not_ours_is_not_taken(postgres_world: PostgresWorld) -> None:
    """A revocation that another entry pretends to be would be acknowledged and never recorded."""
    with alone(postgres_world) as ledger:
        ledger.append([draft(1)])
        real = ledger._number

        def number(connection, own):  # type: ignore[no-untyped-def]
            statement = "UPDATE batches SET answered = now(), seqs = '{2}' WHERE id = %s"
            connection.execute(statement, (own.id,))
            return ledger._position

        ledger._number = number  # type: ignore[method-assign]
        with pytest.raises(Damaged, match="not what was appended"):
            ledger.append([draft(2)])
        ledger._number = real  # type: ignore[method-assign]
        assert ledger.append([draft(2)])[0].seq == 3


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE kept SET size = size - 1",
        "UPDATE kept SET root = repeat('00', 32)",
        "UPDATE kept SET signature = repeat('00', 64)",
        "UPDATE entries SET data = overlay(data placing '\\x41' from 9) WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 4",
        "INSERT INTO entries VALUES (7, 'a.b', NULL, NULL, decode(repeat('00', 32), 'hex'), '{}')",
    ],
)
def test_what_is_changed_while_it_runs_is_neither_read_nor_built_on(
    postgres_world: PostgresWorld, change: str
) -> None:
    """By a writer that is open: it knows the head that it signed."""
    with postgres_world.open() as ledger:
        ledger.append(drafts(0, 5))
        execute(postgres_world, FREE + change)
        with pytest.raises(PermanentFault):
            read_and_append(ledger)
        assert problem(postgres_world)


def read_and_append(ledger: StoreWriter) -> None:
    ledger.entries(0)
    ledger.append([draft(9)])


def test_the_archive_mark_is_what_entries_say(postgres_world: PostgresWorld) -> None:
    with postgres_world.open() as ledger:
        ledger.append(drafts(0, 5))
    execute(postgres_world, "UPDATE kept SET archived_to = 3")
    with pytest.raises(Damaged, match="marked as archived"):
        postgres_world.open()
    assert "marked as archived" in problem(postgres_world)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("CREATE TABLE more (x int)", "table more"),
        ("CREATE VIEW more AS SELECT 1 AS x", "view more"),
        ("CREATE INDEX more ON entries (length(data))", "index more"),
        ("CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'", "function more"),
        (
            "CREATE TRIGGER more BEFORE INSERT ON entries FOR EACH ROW "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "trigger more",
        ),
        ("CREATE RULE more AS ON INSERT TO blobs DO INSTEAD NOTHING", "rule more"),
        ("ALTER TABLE entries DISABLE TRIGGER entries_keep", "trigger entries_keep"),
        ("ALTER TABLE kept ALTER archived_to SET DEFAULT 7", "archived_to"),
        ("ALTER TABLE entries ENABLE ROW LEVEL SECURITY", "entries with policies"),
        ("CREATE TABLE more () INHERITS (entries)", "more"),
        (
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN NEW; END $$",
            "function refuse_change",
        ),
        ("DROP INDEX entries_by_kind", "lacks: 'index entries_by_kind'"),
        ("INSERT INTO migrations VALUES (99, 'later')", "later release"),
    ],
)
def test_a_foreign_schema_is_refused(postgres_world: PostgresWorld, change: str, word: str) -> None:
    """By a writer and a reader; `verify` says it."""
    postgres_world.open().close()
    execute(postgres_world, change)
    with pytest.raises(PermanentFault, match=word):
        postgres_world.open()
    with pytest.raises(PermanentFault, match=word):
        PostgresReader(postgres_world.address, schema=postgres_world.schema)
    if "later" not in word:
        assert word in problem(postgres_world)


def test_a_ledger_of_the_release_before_is_taken_over(postgres_world: PostgresWorld) -> None:
    """Its batches have no seal; one that waits is dropped, as its writer never heard of it."""
    with postgres_world.open() as ledger:
        ledger.append(drafts(0, 3))
    execute(
        postgres_world,
        "ALTER TABLE batches DROP COLUMN after, DROP COLUMN seal; "
        "DELETE FROM migrations WHERE number > 1",
    )
    keys = KeyDirectory(postgres_world.directory / "keys")
    with PostgresLedger.open(postgres_world.address, keys, schema=postgres_world.schema) as ledger:
        assert ledger.append([draft(9)])[0].seq == 5
        assert ledger.verify().ok


def test_a_reader_beside_an_appending_thread_is_not_alarmed(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for the head, and before the answer arrived another thread had appended."""
    with postgres_world.open() as ledger, postgres_world.open() as other:
        real = store.read_kept

        def late(query):  # type: ignore[no-untyped-def]
            found = real(query)
            monkeypatch.setattr(store, "read_kept", real)
            ledger.append([draft(2)])
            return found

        other.append([draft(1)])
        monkeypatch.setattr(store, "read_kept", late)
        assert ledger.head().head.size == 2
        assert ledger.head().head.size == 3
