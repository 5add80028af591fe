"""Every change is found: bit by bit, row by row, and with the key by a head held elsewhere."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fairlead.core.audit import Frontier, SignedHead, leaf_hash
from fairlead.ledger import sqlite_schema
from fairlead.ledger.keys import sign_head
from fairlead.ledger.sqlite import SqliteReader
from fairlead.ledger.store import StoredRow, store_head
from fairlead.ports.faults import Fault
from tests.ledger.drafts import TIME_MS, drafts
from tests.ledger.hostile import attack
from tests.ledger.memory import MemoryKeys, MemoryLedger
from tests.ledger.worlds import SqliteWorld


@pytest.fixture
def keys() -> MemoryKeys:
    """Keys that a test can share between two ledgers."""
    return MemoryKeys()


@pytest.fixture
def ledger(keys: MemoryKeys) -> MemoryLedger:
    """Nine entries: the first, five, a rotation, two."""
    ledger = MemoryLedger(keys, ledger_id="l", time_ms=TIME_MS)
    ledger.append(drafts(0, 5))
    ledger.rotate_key(time_ms=TIME_MS, author="root")
    ledger.append(drafts(5, 2))
    return ledger


class Tables:
    """Where the changes are made, without the guards against our own mistakes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        for guard in ("TRIGGER entries_stay", "TRIGGER entries_keep", "INDEX entries_by_plan"):
            connection.execute(f"DROP {guard}")

    @property
    def rows(self) -> list[StoredRow]:
        """All entries, in order."""
        return [StoredRow(*row) for row in self._execute("SELECT * FROM entries ORDER BY seq")]

    def put(self, row: StoredRow) -> None:
        """Write an entry over the one of its number, whatever it says."""
        self._execute("PRAGMA ignore_check_constraints = ON")
        self._execute("REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)

    def put_head(self, head: SignedHead) -> None:
        """Write another head."""
        store_head(lambda text, *values: self._execute(text, values), head, head.head.size)

    def put_checkpoint(self, signed: SignedHead) -> None:
        """Keep another head for good; the one in force stays."""
        row = {**asdict(signed.head), "signature": signed.signature}
        marks = ", ".join("?" * len(row))
        text = f"INSERT INTO checkpoints ({', '.join(row)}) VALUES ({marks})"
        self._execute(text, tuple(row.values()))

    def rebuild(self, rows: list[StoredRow]) -> str:
        """What a forger does: numbers and tree made anew; returns the root."""
        data = [_renumber(row.data, row.seq, seq) for seq, row in enumerate(rows, start=1)]
        grown = Frontier().extend(map(leaf_hash, data))
        self._execute("DELETE FROM entries")
        for seq, row in enumerate(rows, start=1):
            self.put(row._replace(seq=seq, nodes=grown.completed[seq - 1], data=data[seq - 1]))
        return grown.frontier.root().hex()


@pytest.fixture
def tables(ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """The tables of the ledger; that their guards are gone is not what is looked for here."""
    monkeypatch.setattr(sqlite_schema, "problem", lambda _: "")
    return Tables(ledger.connection)


def flips(data: bytes) -> Iterator[bytes]:
    """The same bytes with one bit flipped, for every byte."""
    for at, byte in enumerate(data):
        yield data[:at] + bytes([byte ^ (1 << at % 8)]) + data[at + 1 :]


def test_every_flipped_bit_of_every_entry_is_found(ledger: MemoryLedger, tables: Tables) -> None:
    """With the number of the entry."""
    for row in tables.rows:
        assert row.data is not None
        for changed in flips(row.data):
            tables.put(row._replace(data=changed))
            found = ledger.verify()
            assert (found.ok, found.seq) == (False, row.seq), changed
        tables.put(row)
    assert ledger.verify().ok


def test_every_flipped_bit_of_every_node_is_found(ledger: MemoryLedger, tables: Tables) -> None:
    """Leaves and the nodes above them: a proof can only be as good as they are."""
    for row in tables.rows:
        for changed in (*flips(row.nodes), row.nodes[:-32], row.nodes + row.nodes[:32]):
            tables.put(row._replace(nodes=changed))
            found = ledger.verify()
            assert (found.ok, found.seq) == (False, row.seq)
        tables.put(row)
    assert ledger.verify().ok


def test_every_change_of_the_head_is_found(ledger: MemoryLedger, tables: Tables) -> None:
    """Each field and the signature."""
    good = ledger.head()
    others: dict[str, object] = {
        "ledger": "m",
        "epoch": 1,
        "size": 8,
        "root": "00" * 32,
        "time_ms": 1,
        "key_id": "ab" * 8,
    }
    for name, value in others.items():
        tables.put_head(replace(good, head=replace(good.head, **{name: value})))  # type: ignore[arg-type]
        assert not ledger.verify().ok, name
    for changed in flips(good.signature.encode()):
        forged = SignedHead(good.head, changed.decode("latin-1"))
        tables.put_head(forged)
        if forged.signature.lower() != good.signature:
            assert not ledger.verify().ok
    tables.put_head(good)
    tables.put_checkpoint(replace(good, head=replace(good.head, size=4, time_ms=5)))
    assert "checkpoint" in ledger.verify().problem


def test_what_an_entry_is_found_by_is_what_it_says(ledger: MemoryLedger, tables: Tables) -> None:
    """A forged column would hide an effect, and let it be recorded again."""
    row = tables.rows[3]
    for changed in (
        row._replace(kind="lease.open"),
        row._replace(plan_id="plan-99"),
        row._replace(effect=None),
        row._replace(plan_id=None, effect=None),
    ):
        tables.put(changed)
        found = ledger.verify()
        assert (found.ok, found.seq) == (False, 4)


def _renumber(data: bytes | None, old: int, new: int) -> bytes:
    return (data or b"").replace(b'"seq":%d,' % old, b'"seq":%d,' % new)


CHANGES = {
    "dropped at the end": lambda rows: rows[:-1],
    "dropped in the middle": lambda rows: [*rows[:3], *rows[4:]],
    "reordered": lambda rows: [*rows[:2], rows[3], rows[2], *rows[4:]],
    "inserted": lambda rows: [*rows[:3], rows[2], *rows[3:]],
    "replaced": lambda rows: [*rows[:3], rows[4], *rows[4:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_history_rewritten_without_the_key_is_found(
    ledger: MemoryLedger, tables: Tables, change: str
) -> None:
    """Everything was made to fit, but the head cannot be signed."""
    rows, head = CHANGES[change](tables.rows), ledger.head()
    root = tables.rebuild(rows)
    tables.put_head(replace(head, head=replace(head.head, size=len(rows), root=root)))
    assert not ledger.verify().ok


@pytest.mark.parametrize("change", CHANGES)
def test_one_rewritten_with_the_key_is_found_by_a_head_held_elsewhere(
    ledger: MemoryLedger, tables: Tables, keys: MemoryKeys, change: str
) -> None:
    """And by nothing else: that is why heads are handed out."""
    held = ledger.head()
    rows = CHANGES[change](tables.rows)
    head = replace(held.head, size=len(rows), root=tables.rebuild(rows))
    tables.put_head(sign_head(head, keys.load(held.head.key_id)))
    assert ledger.verify().ok
    assert not ledger.verify([held]).ok


def test_a_head_held_elsewhere_must_be_this_ledgers(ledger: MemoryLedger, keys: MemoryKeys) -> None:
    """Of another ledger, longer, of a later epoch, signed by nobody we know, or forged."""
    good = ledger.head()
    other = MemoryLedger(keys, ledger_id="other", time_ms=TIME_MS).head()
    stranger = MemoryLedger(ledger_id="l", time_ms=TIME_MS).head()
    longer = replace(good, head=replace(good.head, size=99))
    later = replace(good, head=replace(good.head, epoch=1))
    forged = replace(good, head=replace(good.head, time_ms=1))
    for held, word in (
        (other, "ledger"),
        (stranger, "introduced"),
        (longer, "more than"),
        (later, "more than"),
        (forged, "signature"),
    ):
        found = ledger.verify([good, held])
        assert not found.ok
        assert word in found.problem


def test_a_flipped_byte_of_the_file_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """At random places of the SQLite file; unused space may hold anything."""
    world = SqliteWorld(tmp_path)
    with world.open() as ledger:
        ledger.append(drafts(0, 40))
        ledger.blob_put(random.Random(1).randbytes(3_000).hex().encode())
        entries, held = [entry.data for entry in ledger.entries()], ledger.head()
    good, rng, found = world.path.read_bytes(), random.Random(4), 0
    copy = tmp_path / "copy.db"
    for _ in range(300):
        at = rng.randrange(len(good))
        copy.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
        try:
            with SqliteReader(copy) as reader:
                if not reader.verify([held]).ok:
                    found += 1
                    continue
                assert [entry.data for entry in reader.entries()] == entries, at
                posts = reader.entries(kind="charge.post", plan_id="plan-7")
                assert [entry.seq for entry in posts] == [9], at
        except Fault:
            found += 1
        finally:
            for file in tmp_path.glob("copy.db-*"):
                file.unlink()
    assert found > 90  # about as many as bytes that are in use


def test_changed_rows_of_the_file_are_found(tmp_path: Path) -> None:
    """By somebody who knows SQL: dropped, reordered and changed rows, nodes, blobs, heads."""
    world = SqliteWorld(tmp_path)
    with world.open() as ledger:
        ledger.append(drafts(0, 9))
        ledger.blob_put(b"blob")
    swap = "UPDATE entries SET seq = {} WHERE seq = {}"
    for number, change in enumerate(
        [
            "DELETE FROM entries WHERE seq = 4",
            "DELETE FROM entries WHERE seq = 10",
            "UPDATE entries SET nodes = zeroblob(length(nodes)) WHERE seq = 4",
            "UPDATE entries SET nodes = CAST(nodes || nodes AS BLOB) WHERE seq = 4",
            "UPDATE entries SET nodes = substr(nodes, 1, 32) WHERE seq = 4",
            "UPDATE blobs SET data = x'00'",
            "UPDATE kept SET size = 9",
            "UPDATE kept SET signature = 'zz'",
            "UPDATE entries SET data = NULL WHERE seq = 3",
            "UPDATE kept SET archived_to = 3; UPDATE entries SET data = NULL WHERE seq = 1",
            "UPDATE entries SET plan_id = 'other' WHERE seq = 3",
            ";".join([swap.format(99, 3), swap.format(3, 4), swap.format(4, 99)]),
            "DELETE FROM kept",
        ]
    ):
        copy = tmp_path / f"copy-{number}.db"
        shutil.copy(world.path, copy)
        attack(copy, change)
        with SqliteReader(copy) as reader:
            assert not reader.verify().ok, change
