"""What only the SQLite adapter has: pragmas, one writer, full disks, damage at the opening."""

import os
import resource
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from fairlead.ledger import sqlite as adapter
from fairlead.ledger import store
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.sqlite import SqliteLedger, SqliteReader, open_writer
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.ledger import Damaged
from tests.ledger.drafts import draft, drafts
from tests.ledger.hostile import attack
from tests.ledger.memory import MemoryKeys
from tests.ledger.worlds import SqliteWorld
from tests.mounts import small_disk


@pytest.fixture
def world(tmp_path: Path) -> SqliteWorld:
    """A place for a file."""
    return SqliteWorld(tmp_path)


def test_what_was_asked_of_sqlite_is_in_force(world: SqliteWorld) -> None:
    """A log ahead of the file, synced at each commit, tables that are strict."""
    world.open().close()
    with closing(open_writer(world.path)) as connection:
        answers = {
            pragma: connection.execute(f"PRAGMA {pragma}").fetchone()[0]
            for pragma in ("journal_mode", "synchronous", "foreign_keys", "user_version")
        }
        tables = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
    assert answers == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "user_version": 1,
    }
    assert all(sql.endswith("STRICT") for (sql,) in tables)


def test_a_refused_switch_to_wal_is_a_fault(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite goes on without it and says so in a row that is easily not read."""

    def without_shared_memory(path: Path, mode: str) -> sqlite3.Connection:
        place = f"{path.absolute().as_uri()}?mode={mode}&vfs=unix-none"
        return sqlite3.connect(place, uri=True, isolation_level=None)

    monkeypatch.setattr(adapter, "_connect", without_shared_memory)
    with pytest.raises(PermanentFault, match=r"refuses journal_mode = WAL \(it stays 'delete'"):
        world.open()


def test_there_is_one_writer(world: SqliteWorld) -> None:
    """The second is told who has it; readers are welcome; the dead are forgotten."""
    with world.open() as ledger:
        with pytest.raises(PermanentFault, match=f"another writer: process {os.getpid()}"):
            world.open()
        with SqliteReader(world.path) as reader:
            ledger.append([draft(1)])
            assert reader.head() == ledger.head()
            assert reader.verify().ok
    with world.open() as ledger:
        assert ledger.head().head.size == 2
    with pytest.raises(PermanentFault, match="closed"):
        ledger.append([draft(2)])
    with pytest.raises(PermanentFault, match="closed"):
        ledger.head()
    ledger.close()


def test_another_programs_lock_is_waited_for_and_then_a_temporary_fault(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody with the sqlite3 shell inside a transaction; nothing is half written."""
    monkeypatch.setattr(adapter, "BUSY_TIMEOUT_S", 0.05)
    with world.open() as ledger, closing(sqlite3.connect(world.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TemporaryFault, match="locked"):
            ledger.append([draft(1)])
        with pytest.raises(TemporaryFault):
            ledger.blob_put(b"x")
        other.execute("ROLLBACK")
        assert ledger.append([draft(1)])[0].seq == 2
        assert ledger.verify().ok


def test_a_reader_holds_nobody_up(world: SqliteWorld) -> None:
    """A long verification sees one moment, while appends go on."""
    with world.open() as ledger, SqliteReader(world.path) as reader:
        ledger.append(drafts(0, 50))
        seen: list[int] = []

        def append_meanwhile(done: int, total: int) -> None:
            if not seen:
                ledger.append(drafts(100, 5))
            seen.append(total)

        assert reader.verify(progress=append_meanwhile).size == 51
        assert set(seen) == {51}
        assert reader.head().head.size == 56


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with small_disk(tmp_path / "tiny", "1m") as place:
        yield place


def _fill(ledger: StoreWriter) -> int:
    """Append until the disk is full; returns how many drafts were acknowledged."""
    for first in range(0, 100_000, 20):
        try:
            ledger.append(drafts(first, 20))
        except TemporaryFault:
            return first
    raise AssertionError("a disk without an end")


@pytest.mark.component("mount")
def test_a_full_disk_is_a_temporary_fault_and_nothing_is_half_written(tiny_disk: Path) -> None:
    """A real one: faults until there is room again; then it goes on as if nothing had been."""
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 300_000)
    world = SqliteWorld(tiny_disk)
    with world.open() as ledger:
        acknowledged = _fill(ledger)
        for _ in range(3):
            with pytest.raises(TemporaryFault):
                ledger.append(drafts(acknowledged, 500))
            with pytest.raises(TemporaryFault):
                ledger.blob_put(Random(1).randbytes(900_000).hex().encode())
        assert ledger.head().head.size == acknowledged + 1
        assert ledger.verify().ok
        ballast.unlink()
        assert ledger.append(drafts(acknowledged, 20))[-1].seq == acknowledged + 21
    with world.open() as ledger:
        numbers = [entry.body["number"] for entry in ledger.entries(1, 100_000)]
        assert numbers == list(range(acknowledged + 20))
        assert ledger.verify().ok


@pytest.mark.component("mount")
def test_a_ledger_that_is_opened_on_a_full_disk_says_that_it_is_full(tiny_disk: Path) -> None:
    """SQLite calls it an I/O error."""
    world = SqliteWorld(tiny_disk)
    with world.open():
        pass
    room = os.statvfs(tiny_disk)
    (tiny_disk / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_bsize))
    with pytest.raises(TemporaryFault, match="the disk is full"), world.open():
        pass


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_size_limit_leaves_the_ledger_consistent(world: SqliteWorld) -> None:
    """The kernel's own refusal in the middle of a commit."""
    with world.open() as ledger:
        ledger.append(drafts(0, 20))
        log = world.path.with_name("ledger.db-wal")
        with file_size_limit(log.stat().st_size + 5_000), pytest.raises(PermanentFault):
            ledger.append(drafts(20, 200))
        assert ledger.head().head.size == 21
        assert ledger.append(drafts(20, 200))[-1].seq == 221
        assert ledger.verify().ok
    with world.open() as ledger:
        assert ledger.verify().size == 221


def test_an_interrupt_in_the_middle_of_an_append_is_no_damage(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the rows are stored: nothing of it stays, the next append works."""
    real = adapter.SqliteSession.store

    def interrupt(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with world.open() as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(adapter.SqliteSession, "store", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ledger.append(drafts(0, 3))
        assert ledger.head().head.size == 1
        assert [entry.seq for entry in ledger.append(drafts(0, 2))] == [2, 3]
        assert ledger.verify().ok


def test_an_opening_verifies_what_came_since_the_last_checkpoint(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage there is found at once; what lies before is found by `verify`."""
    monkeypatch.setattr(store, "CHECKPOINT_EVERY", 100)
    with world.open() as ledger:
        for first in range(0, 350, 50):
            ledger.append(drafts(first, 50))
        assert ledger.verify().ok
    with closing(sqlite3.connect(world.path)) as database:
        sizes = database.execute("SELECT size FROM checkpoints").fetchall()
    assert sizes == [(101,), (201,), (301,)]
    for seq, opens in ((150, True), (330, False)):
        copy = SqliteWorld(world.directory / f"copy-{seq}")
        shutil.copytree(world.directory / "keys", copy.directory / "keys")
        shutil.copy(world.path, copy.path)
        changed = "UPDATE entries SET data = CAST(replace(data, 'settled', 'Settled') AS BLOB) "
        attack(copy.path, changed + "WHERE seq = ?", seq)
        if opens:
            with copy.open() as ledger:
                found = ledger.verify()
                assert (found.ok, found.seq) == (False, seq)
        else:
            with pytest.raises(Damaged, match=f"entry {seq}"):
                copy.open()


def test_a_changed_checkpoint_is_found_at_the_opening(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what the opening trusts, so it is checked first."""
    monkeypatch.setattr(store, "CHECKPOINT_EVERY", 10)
    with world.open() as ledger:
        ledger.append(drafts(0, 30))
    good = world.path.read_bytes()
    for change, word in (
        ("UPDATE checkpoints SET root = printf('%064d', 0)", "not that of the checkpoint"),
        ("UPDATE checkpoints SET time_ms = 1", "signature that does not hold"),
        ("UPDATE entries SET nodes = substr(nodes, 1, 32) WHERE seq = 16", "nodes .* are missing"),
        ("DELETE FROM entries WHERE seq = 16", "entry 16 .* is missing"),
    ):
        attack(world.path, change)
        with pytest.raises(Damaged, match=word):
            world.open()
        world.path.write_bytes(good)


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    """Nothing there, another program's file, rubbish, a later release's tables."""
    with pytest.raises(PermanentFault, match="no ledger at"):
        SqliteReader(tmp_path / "none.db")
    rubbish = SqliteWorld(tmp_path / "rubbish")
    rubbish.directory.mkdir()
    rubbish.path.write_bytes(b"not a database, but long enough to look at " * 100)
    with pytest.raises(Damaged):
        rubbish.open()
    with pytest.raises(Damaged):
        SqliteReader(rubbish.path)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE t (x)")
    with pytest.raises(PermanentFault, match="not of this release: 't'"):
        SqliteReader(other)
    later = SqliteWorld(tmp_path / "later")
    later.open().close()
    with closing(sqlite3.connect(later.path)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(PermanentFault, match="later release"):
        later.open()


def test_the_key_must_be_ours_alone(world: SqliteWorld) -> None:
    """Made at the first start with mode 0600; refused when others can read it, or it is not it."""
    world.open().close()
    (key,) = (world.directory / "keys").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o640)
    with pytest.raises(PermanentFault, match="chmod 600"):
        world.__class__(world.directory).open()
    key.chmod(0o600)
    secret = key.read_bytes()
    KeyDirectory(world.directory / "others").create()
    (other,) = (world.directory / "others").iterdir()
    for content, word in ((b"", "cannot read"), (other.read_bytes(), "the key of its name")):
        key.write_bytes(content)
        with pytest.raises(PermanentFault, match=word):
            world.__class__(world.directory).open()
    key.unlink()
    with pytest.raises(PermanentFault, match="which is not in"):
        world.__class__(world.directory).open()
    with SqliteReader(world.path) as reader:  # reading and verifying need none
        assert reader.verify().ok
    key.write_bytes(secret)
    key.chmod(0o600)
    world.__class__(world.directory).open().close()


def test_a_file_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    """A directory in its place."""
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(PermanentFault, match="cannot open"):
        SqliteLedger.open(tmp_path / "ledger.db", KeyDirectory(tmp_path / "keys"))


def test_readers_in_threads_see_whole_batches(world: SqliteWorld) -> None:
    """A head never covers what cannot be read."""
    with world.open() as ledger:
        stop, problems = threading.Event(), list[str]()

        def read() -> None:
            while not stop.is_set():
                size = ledger.head().head.size
                if (size - 1) % 7 or ledger.entry(size) is None:
                    problems.append(f"half a batch at {size}")

        reader = threading.Thread(target=read)
        reader.start()
        for first in range(0, 210, 7):
            ledger.append(drafts(first, 7))
        stop.set()
        reader.join()
    assert not problems


def test_what_an_opening_reads_is_synced_before_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed between a write and its sync leaves a log that SQLite recovers
    from and does not sync: a power loss would take back what the next process has shown."""
    keys = MemoryKeys()
    SqliteLedger.open(tmp_path / "ledger.db", keys).close()
    synced: list[str] = []
    monkeypatch.setattr(
        "fairlead.ledger.sqlite.files.sync_file", lambda path: synced.append(path.name)
    )
    with SqliteLedger.open(tmp_path / "ledger.db", keys):
        assert synced == ["ledger.db-wal", "ledger.db"]
