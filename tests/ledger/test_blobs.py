"""Blobs of entries: stored, verified, exported, archived and backed up with the entry."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from fairlead.core.canonical import canonical
from fairlead.core.invariant import InvariantBroken
from fairlead.ledger.segment import open_segment
from fairlead.ledger.sqlite import SqliteReader, backup
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.ledger import Blob, Damaged, Draft, HeadMoved
from tests.ledger.drafts import TIME_MS, draft, drafts
from tests.ledger.memory import MemoryLedger
from tests.ledger.worlds import SqliteWorld, World

BY = {"time_ms": TIME_MS, "author": "root"}
LARGE = [canonical({"leases": [f"{word}-{i}" for i in range(6_000)]}) for word in "abc"]
NAMES = [sha256(data).hexdigest() for data in LARGE]


@pytest.fixture
def ledger(world: World) -> Iterator[StoreWriter]:
    """A ledger that was just begun."""
    with world.open() as opened:
        yield opened


def with_blobs(number: int, *blobs: bytes) -> Draft:
    return draft(number, blobs=tuple(map(Blob.of, blobs)))


def test_a_blob_comes_with_its_entry(world: World) -> None:
    """The body names digest and size; both are there after a restart; the tree covers the name."""
    with world.open() as ledger:
        (entry, _) = ledger.append([with_blobs(1, LARGE[0], LARGE[1]), draft(2)])
        assert entry.body["blobs"] == {NAMES[0]: len(LARGE[0]), NAMES[1]: len(LARGE[1])}
        assert len(entry.data) < 1_000
    with world.open() as ledger:
        assert [ledger.blob_get(name) for name in NAMES] == [*LARGE[:2], None]
        assert ledger.verify().ok


def test_both_or_neither(ledger: StoreWriter) -> None:
    """A lost race leaves no blob behind, a repeated effect stores none again."""
    with pytest.raises(HeadMoved):
        ledger.append([with_blobs(1, LARGE[0])], expected_size=99)
    assert ledger.blob_get(NAMES[0]) is None
    first = ledger.append([with_blobs(1, LARGE[0])])
    assert ledger.append([with_blobs(1, LARGE[1])]) == first
    assert ledger.blob_get(NAMES[1]) is None


@pytest.mark.parametrize("blob", [b"two\nlines", b"x" * (64 * 2**20)], ids=["lines", "large"])
def test_what_no_export_could_carry_is_refused(blob: bytes) -> None:
    """And so is a body that names blobs by itself."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    with pytest.raises(InvariantBroken):
        ledger.append([with_blobs(1, blob)])
    with pytest.raises(InvariantBroken):
        ledger.append([draft(1, body={"blobs": {}}, blobs=(Blob.of(b"1"),))])


def test_an_export_carries_the_blobs_of_its_entries(ledger: StoreWriter, tmp_path: Path) -> None:
    """Each once; a changed, missing or strange one is found."""
    ledger.append([with_blobs(1, LARGE[0]), with_blobs(2, LARGE[1]), with_blobs(3, LARGE[0])])
    ledger.append([with_blobs(4, LARGE[2])])
    path = tmp_path / "part.jsonl"
    ledger.export(path, first=2, last=4)
    lines = path.read_bytes().splitlines(keepends=True)
    assert [line[:-1] for line in lines[4:]] == LARGE[:2]
    with open_segment(path) as segment:
        assert [entry.seq for entry in segment.entries()] == [2, 3, 4]
        assert list(segment.blobs()) == LARGE[:2]
    for changed, seq in (
        (lines[:-1], 3),
        ([*lines[:4], lines[5]], 2),
        ([*lines, LARGE[2] + b"\n"], None),
        ([*lines[:4], lines[4].replace(b"a-7", b"a-8", 1), lines[5]], None),
        ([*lines, b"\n"], None),
    ):
        path.write_bytes(b"".join(changed))
        with open_segment(path) as segment:
            found = segment.verify()
        assert (found.ok, found.seq) == (False, seq)
    path.write_bytes(b"".join(lines))
    with open_segment(path) as segment:
        assert segment.verify((ledger.head(),)).ok


def test_an_archived_entry_takes_its_blobs_along(ledger: StoreWriter, tmp_path: Path) -> None:
    """But not one that a later entry names, nor one that was kept for its own sake."""
    ledger.append([with_blobs(1, LARGE[0]), with_blobs(2, LARGE[1]), with_blobs(3, LARGE[2])])
    ledger.append([with_blobs(4, LARGE[1])])
    ledger.blob_put(LARGE[2])
    held = ledger.head()
    path = ledger.archive(tmp_path, last=4, **BY)
    assert [ledger.blob_get(name) for name in NAMES] == [None, LARGE[1], LARGE[2]]
    assert ledger.verify([held]).ok
    assert ledger.verify_archive(tmp_path).ok
    with open_segment(path) as segment:
        list(segment.entries())
        assert list(segment.blobs()) == LARGE
    path.write_bytes(path.read_bytes().replace(b"a-7", b"a-8", 1))
    assert not ledger.verify_archive(tmp_path).ok
    ledger.archive(tmp_path, last=5, **BY)
    assert ledger.blob_get(NAMES[1]) is None
    assert ledger.verify([held]).ok


def test_a_blob_that_is_gone_or_changed_is_found() -> None:
    """By following the log, and by whoever exports it."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    ledger.append([*drafts(0, 3), with_blobs(4, LARGE[0])])
    assert ledger.verify().ok
    execute = ledger.connection.execute
    execute("UPDATE blobs SET data = ? WHERE digest = ?", (LARGE[1], NAMES[0]))
    assert "content of its name" in ledger.verify().problem
    execute("DELETE FROM blobs WHERE digest = ?", (NAMES[0],))
    found = ledger.verify()
    assert (found.problem, found.seq) == ("a blob of entry 5 is missing", 5)
    with pytest.raises(Damaged, match="a blob of entry 5 is missing"):
        ledger.export(Path("/dev/null"))


def test_a_blob_is_written_in_parts_and_kept_small(ledger: StoreWriter) -> None:
    """The parts are one document; what repeats takes less room in the ledger."""
    blob = Blob.written(LARGE[0][place : place + 7] for place in range(0, len(LARGE[0]), 7))
    assert blob == Blob(NAMES[0], len(LARGE[0]), blob.packed)
    assert len(blob.packed) < len(LARGE[0]) / 3
    assert blob.document() == LARGE[0]
    (entry,) = ledger.append([draft(1, blobs=(blob,))])
    assert entry.body["blobs"] == {NAMES[0]: len(LARGE[0])}
    assert ledger.blob_get(NAMES[0]) == LARGE[0]


def test_a_blob_of_a_former_release_is_read() -> None:
    """They kept the document as it is."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    ledger.append([with_blobs(1, LARGE[0])])
    ledger.connection.execute("UPDATE blobs SET data = ?", (LARGE[0],))
    assert ledger.blob_get(NAMES[0]) == LARGE[0]
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "stored",
    [
        b"x",
        Blob.of(LARGE[0]).packed[:-1],
        Blob.of(LARGE[0]).packed + b"{}",
        Blob.of(LARGE[1]).packed,
        b"x" + LARGE[0],
        zlib.compress(bytes(65 * 2**20)),
    ],
    ids=["begun", "cut", "longer", "other", "garbled", "bomb"],
)
def test_what_is_stored_of_a_blob_is_not_believed(stored: bytes) -> None:
    """A user who can write the file can put anything there. No more than a document is read."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    ledger.append([with_blobs(1, LARGE[0])])
    ledger.connection.execute("UPDATE blobs SET data = ?", (stored,))
    with pytest.raises(Damaged, match=f"blob {NAMES[0]}"):
        ledger.blob_get(NAMES[0])
    assert NAMES[0] in ledger.verify().problem


def test_a_size_that_is_not_the_blobs_is_found() -> None:
    """Only whoever has the key can write such an entry."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    ledger.blob_put(LARGE[0])
    ledger.append([draft(1, body={"blobs": {NAMES[0]: 5}})])
    assert ledger.verify() == replace(
        ledger.verify(), problem="a blob of entry 2 is not as long as it says", seq=2
    )


def test_a_backup_has_the_blobs(tmp_path: Path) -> None:
    """The copy verifies by itself."""
    world = SqliteWorld(tmp_path)
    with world.open() as ledger:
        ledger.append([with_blobs(1, LARGE[0])])
        backup(world.path, tmp_path / "copy.db")
    with SqliteReader(tmp_path / "copy.db") as reader:
        assert reader.blob_get(NAMES[0]) == LARGE[0]
        assert reader.verify().ok
