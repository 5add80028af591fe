"""A disk in memory below SQLite: what is not synced may be lost or torn when the power goes.

    disk = SimDisk()
    connection = disk.connect("ledger.db")     # the file layer is a VFS of apsw
    disk.lose(stream)                          # a crash: each unsynced write stays, goes or is torn

Every write, sync and truncation is a point at which a crash can be set. A full disk refuses to grow
a file.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apsw

from fairlead.sim.clock import Stream

SECTOR_BYTES = 512
Point = Callable[[str], None]
"""Called before each act of the disk, with its name; raises `Crash` where one is set."""


class Crash(BaseException):
    """The process is gone in the middle of what it did. No handler of ours catches it."""


class SimFile:
    """One file: what is safe, and what was written since the last sync."""

    def __init__(self) -> None:
        self.safe, self.now = bytearray(), bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """(offset, data) of a write, (size, None) of a truncation."""

    def write(self, data: bytes, offset: int) -> None:
        self.pending.append((offset, data))
        _put(self.now, data, offset)

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        del self.now[size:]

    def sync(self) -> None:
        for offset, data in self.pending:
            if data is None:
                del self.safe[offset:]
            else:
                _put(self.safe, data, offset)
        self.pending.clear()

    def lose(self, stream: Stream) -> None:
        """The power goes: of what was not synced each write is there, or not, or half."""
        found = self.safe
        for offset, data in self.pending:
            fate = stream.below(4)
            if fate == 0:
                continue
            if data is None:
                del found[offset:]
                continue
            sectors = len(data) // SECTOR_BYTES
            kept = SECTOR_BYTES * stream.below(sectors) if fate == 1 and sectors else len(data)
            _put(found, data[:kept], offset)
        self.now = bytearray(found)
        self.pending.clear()


def _put(into: bytearray, data: bytes, offset: int) -> None:
    if len(into) < offset:
        into.extend(bytes(offset - len(into)))
    into[offset : offset + len(data)] = data


class SimDisk:
    """The files of a machine."""

    def __init__(self, point: Point = lambda _: None) -> None:
        self.files: dict[str, SimFile] = {}
        self.full = False
        self.point = point
        self.crashed = False
        """A crash has begun: nothing is written any more until `lose`."""
        self.process = 0
        """Which process has the disk now."""
        self._vfs = _Vfs(self)
        self._open: list[apsw.Connection] = []

    def connect(self, name: str) -> "SimConnection":
        self._open.append(apsw.Connection(name, vfs=self._vfs.name))
        return SimConnection(self, self._open[-1])

    def act(self, what: str) -> None:
        if self.crashed:
            raise apsw.IOError("the power is gone")
        try:
            self.point(what)
        except Crash:
            self.crashed = True
            raise apsw.IOError("the power is gone") from None

    def sync(self) -> None:
        self.point("sync")
        for file in self.files.values():
            file.sync()

    def lose(self, stream: Stream) -> None:
        for _, file in sorted(self.files.items()):
            file.lose(stream)

    def detach(self) -> None:
        """The process is gone: its connections reach the files no more."""
        self.process += 1
        self.crashed = False
        for connection in self._open:
            connection.close(True)
        self._open.clear()
        self._vfs.unregister()
        self._vfs = _Vfs(self)

    def close(self) -> None:
        self.detach()
        self._vfs.unregister()


class _Vfs(apsw.VFS):
    """What SQLite asks of an operating system, on a `SimDisk`; one for each process."""

    _made = 0

    def __init__(self, disk: SimDisk) -> None:
        _Vfs._made += 1
        self.name, self._disk, self._process = f"fairlead-sim-{_Vfs._made}", disk, disk.process
        super().__init__(self.name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        return _Handle(self._disk, self._disk.files.setdefault(str(path), SimFile()))

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001 - as SQLite calls it
        if self._process == self._disk.process:
            self._disk.act("delete")
            self._disk.files.pop(filename, None)

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self._disk.files

    def xFullPathname(self, name: str) -> str:
        return name

    def xRandomness(self, numbytes: int) -> bytes:
        return bytes(numbytes)

    def xSleep(self, microseconds: int) -> int:
        return microseconds

    def xCurrentTimeInt64(self) -> int:
        return 0


class _Handle:
    """An open file, with the methods that SQLite calls."""

    def __init__(self, disk: SimDisk, file: SimFile) -> None:
        self._disk, self._file, self._process = disk, file, disk.process

    @property
    def _gone(self) -> bool:
        """Whether its process is gone: what Python closes later is not written."""
        return self._process != self._disk.process

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._file.now[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._gone:
            return
        self._disk.act("write")
        if self._disk.full and offset + len(data) > len(self._file.now):
            raise apsw.FullError("the disk is full")
        self._file.write(bytes(data), offset)

    def xTruncate(self, size: int) -> None:
        if self._gone:
            return
        self._disk.act("truncate")
        self._file.truncate(size)

    def xSync(self, flags: int) -> None:
        if self._gone:
            return
        self._disk.act("sync")
        self._file.sync()

    def xFileSize(self) -> int:
        return len(self._file.now)

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xLock(self, level: int) -> None:
        """One process has the disk."""

    def xUnlock(self, level: int) -> None:
        """The same."""

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xClose(self) -> None:
        """What was written stays as it is."""


class SimConnection:
    """An apsw connection in the manner of `sqlite3`, as far as the ledger uses that."""

    def __init__(self, disk: SimDisk, inner: apsw.Connection) -> None:
        self._disk, self._inner = disk, inner

    @property
    def in_transaction(self) -> bool:
        return bool(self._inner.in_transaction)

    def execute(self, text: str, values: Sequence[Any] = ()) -> "_Rows":
        return _Rows(self._run(self._inner.execute, text, tuple(values)), self._run)

    def executemany(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        self._run(self._inner.executemany, text, [tuple(row) for row in rows])

    def executescript(self, text: str) -> None:
        self._run(self._inner.execute, text)

    def close(self) -> None:
        """Python closes it when the process is gone."""

    def _run(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return work(*given)
        except apsw.Error as error:
            if self._disk.crashed:
                raise Crash from None
            kind: type[sqlite3.Error] = sqlite3.OperationalError
            if isinstance(error, apsw.ConstraintError):
                kind = sqlite3.IntegrityError
            found = kind(str(error))
            found.sqlite_errorcode = _CODES.get(type(error), sqlite3.SQLITE_ERROR)
            raise found from error


_CODES: dict[type[apsw.Error], int] = {
    apsw.FullError: sqlite3.SQLITE_FULL,
    apsw.IOError: sqlite3.SQLITE_IOERR,
    apsw.BusyError: sqlite3.SQLITE_BUSY,
    apsw.CorruptError: sqlite3.SQLITE_CORRUPT,
    apsw.NotADBError: sqlite3.SQLITE_NOTADB,
}


class _Rows:
    """The rows of a statement."""

    def __init__(self, cursor: Any, run: Callable[..., Any]) -> None:
        self._cursor, self._run = cursor, run

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    def fetchall(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._run(self._cursor.fetchall)
        return found

    def fetchone(self) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self._run(self._cursor.fetchone)
        return found
