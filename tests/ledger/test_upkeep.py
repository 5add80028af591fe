"""The life of the data: archives that verify, backups, and a restore that says so."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.ledger.segment import open_segment
from fairlead.ledger.sqlite import SqliteReader, backup, restore
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Archived, Damaged, Verification
from fairlead.schema.border import BadInput
from tests.ledger.drafts import TIME_MS, draft, drafts
from tests.ledger.worlds import SqliteWorld, World

BY = {"time_ms": TIME_MS, "author": "root"}


@pytest.fixture
def ledger(world: World) -> Iterator[StoreWriter]:
    """Thirty entries and a rotated key, in every adapter."""
    with world.open() as opened:
        opened.append(drafts(0, 20))
        opened.rotate_key(**BY)
        opened.append(drafts(20, 8))
        yield opened


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A directory for segments."""
    path = tmp_path / "archive"
    path.mkdir()
    return path


def test_an_archive_keeps_content_and_the_ledger_keeps_proof(
    ledger: StoreWriter, archive: Path
) -> None:
    """Twice in a row: content is gone from the ledger, everything else is as it was."""
    held, before = ledger.head(), ledger.entries(0, 100)
    first = ledger.archive(archive, last=10, **BY)
    second = ledger.archive(archive, last=25, **BY)
    assert ledger.verify([held]).ok
    assert ledger.verify_archive(archive) == Verification(25, ledger.verify_archive(archive).root)
    with pytest.raises(Archived):
        ledger.entry(5)
    with pytest.raises(Archived):
        ledger.entries(0, 3)
    with pytest.raises(Archived):
        ledger.append([draft(3)])  # the effect is remembered: it is not recorded again
    assert ledger.entry(1) is not None  # the ledger's own stay
    assert len(ledger.keys()) == 2
    ledger.inclusion(5, held.head.size)
    assert [entry.kind for entry in ledger.entries(30)] == ["ledger.archived"] * 2
    kept = []
    for path in (first, second):
        with open_segment(path) as segment:
            kept += [entry.data for entry in segment.entries()]
    assert kept == [entry.data for entry in before[:25]]


def test_segments_verify_alone_and_damage_is_found(ledger: StoreWriter, archive: Path) -> None:
    """A line changed, dropped, added, swapped; another head; a segment that is missing."""
    held = ledger.head()
    path = ledger.archive(archive, last=12, **BY)
    good = path.read_bytes()
    lines = good.splitlines(keepends=True)
    assert _verify(path).ok
    other = lines[0].replace(b'"epoch":0', b'"epoch":1')
    for changed in (
        lines[:-1],
        [*lines, lines[-1]],
        [lines[0], *lines[2:]],
        [other, *lines[1:]],
        [*lines[:3], lines[4], lines[3], *lines[5:]],
        [*lines[:4], b"{}\n", *lines[5:]],
        [*lines[:4], lines[4].replace(b"settled", b"Settled"), *lines[5:]],
        [*lines[:4], b"\xff\n", *lines[5:]],
    ):
        path.write_bytes(b"".join(changed))
        assert not _verify(path).ok
        assert not ledger.verify_archive(archive).ok
    for first_line in (b"", b"{}\n", b"[]\n", lines[1], b"x" * 3_000_000):
        path.write_bytes(first_line + b"".join(lines[1:]))
        with pytest.raises(BadInput):
            _verify(path)
        assert not ledger.verify_archive(archive).ok
    path.write_bytes(good)
    at_ten = replace(held, head=replace(held.head, size=10))
    assert "not those of" in _verify(path, at_ten).problem
    assert "outside" in _verify(path, replace(held, head=replace(held.head, size=20))).problem
    assert "of ledger" in _verify(path, replace(held, head=replace(held.head, ledger="m"))).problem
    assert _verify(path, held).ok
    path.unlink()
    assert ledger.verify_archive(archive).seq == 1
    with pytest.raises(PermanentFault):
        _verify(path)


def _verify(path: Path, *held) -> Verification:  # type: ignore[no-untyped-def]
    with open_segment(path) as segment:
        return segment.verify(held)


def test_an_archive_of_another_history_is_not_ours(
    ledger: StoreWriter, archive: Path, tmp_path: Path
) -> None:
    """The same ledger id, entries that verify by themselves, but not those of our tree."""
    ledger.archive(archive, last=10, **BY)
    (path,) = archive.iterdir()
    world = SqliteWorld(tmp_path / "other")
    world.directory.mkdir()
    with world.open() as other:
        other.append(drafts(100, 30))
        (archive / path.name).unlink()
        other.archive(archive, last=10, **BY)
    assert not ledger.verify_archive(archive).ok


def test_a_crash_between_the_segment_and_the_dropping_is_repaired_by_doing_it_again(
    ledger: StoreWriter, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content in both places is no harm; the next segment begins where the last one did."""
    with monkeypatch.context() as patch:
        patch.setattr(type(ledger), "_change", lambda *_: None)
        ledger.archive(archive, last=10, **BY)
    assert ledger.entry(5) is not None
    ledger.archive(archive, last=15, **BY)
    assert ledger.verify_archive(archive).ok
    assert ledger.verify().ok


def test_a_backup_beside_a_running_writer_and_the_way_back(tmp_path: Path) -> None:
    """What came after the backup is lost, and said to be; who held a later head learns it."""
    world = SqliteWorld(tmp_path)
    copy = tmp_path / "copy.db"
    with world.open() as ledger:
        ledger.append(drafts(0, 5))
        saved = backup(world.path, copy)
        assert saved == ledger.head()
        with pytest.raises(PermanentFault, match="already"):
            backup(world.path, copy)
        ledger.append(drafts(5, 5))
        lost = ledger.head()
    said = {**BY, "reason": "disk died", "lost": lost}
    with pytest.raises(PermanentFault, match="move it away"):
        restore(copy, world.path, world.keys, **said)  # type: ignore[arg-type]
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    entry = restore(copy, world.path, world.keys, **said)  # type: ignore[arg-type]
    assert (entry.seq, entry.body["epoch"], entry.body["lost"]["size"]) == (7, 1, 11)
    with world.open() as ledger:
        ledger.append(drafts(50, 9))
        assert ledger.head().head.epoch == 1
        assert ledger.verify([saved, ledger.head()]).ok
        found = ledger.verify([lost])
        assert "restored from a backup of 6 entries" in found.problem
        assert found.seq == 7
    assert not list(tmp_path.glob("*.draft*"))


def test_a_bad_backup_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """Damaged, without its key, or no ledger at all."""
    world = SqliteWorld(tmp_path)
    with world.open() as ledger:
        ledger.append(drafts(0, 5))
    copy, target = tmp_path / "copy.db", tmp_path / "new" / "ledger.db"
    target.parent.mkdir()
    backup(world.path, copy)
    good = copy.read_bytes()
    said = {**BY, "reason": "r"}
    with pytest.raises(PermanentFault, match="is not in"):
        restore(copy, target, SqliteWorld(target.parent).keys, **said)  # type: ignore[arg-type]
    copy.write_bytes(good.replace(b"28800000", b"28800001", 1))
    with pytest.raises(Damaged, match="does not verify"):
        restore(copy, target, world.keys, **said)  # type: ignore[arg-type]
    assert list(target.parent.iterdir()) == []
    with pytest.raises(PermanentFault, match="cannot write"):
        backup(world.path, tmp_path / "none" / "copy.db")
    with SqliteReader(world.path) as reader:
        assert reader.verify().ok
