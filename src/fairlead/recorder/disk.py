"""What the writer asks of the disk: a lock, a file that only grows by whole lines, and faults."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault

LOCK = "recorder.lock"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
# Space comes back when somebody cleans up, not within a clearing: no use in trying sooner.
RETRY_AFTER_MS = 1_000
_TEMPORARY = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EAGAIN,
    errno.EINTR,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
}


def fault(error: OSError, doing: str) -> Fault:
    """The fault that an error of the disk is to the engine; raise it `from error`."""
    message = f"cannot {doing}: {error.strerror or error}"
    if error.errno in _TEMPORARY:
        return TemporaryFault(message, retry_after_ms=RETRY_AFTER_MS)
    return PermanentFault(message)


def lock(directory: Path) -> int:
    """Be the only writer, as long as the returned descriptor is open. The kernel forgets the dead.

    The file stays: removing it would let two writers hold two files of the same name.
    """
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise PermanentFault(f"{directory} has another writer: process {holder}") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SegmentFile:
    """A segment open for writing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, header: bytes) -> Self:
        """Make a segment appear under its name with its header whole, or not at all.

        A leftover of an earlier try is overwritten; no reader looks at its name.
        """
        draft = path.with_suffix(".draft")
        descriptor = os.open(draft, _APPEND | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            _write_all(descriptor, header)
            os.fdatasync(descriptor)
            draft.rename(path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    @classmethod
    def open(cls, path: Path, *, whole_bytes: int) -> Self:
        """Go on with a segment after its last complete line."""
        file = cls(os.open(path, _APPEND))
        try:
            file._cut(whole_bytes)
        except BaseException:
            file.close()
            raise
        return file

    def append(self, line: bytes, *, at: int, sync: bool = True) -> None:
        """Write a line after the first `at` bytes; durable when it returns, else not there.

        Whatever lies beyond `at` belongs to an append that failed and was promised to nobody.
        Every line is synced by itself, so a sync that fails concerns this line alone; cutting it
        off and writing again makes its pages dirty again, where a second sync alone would report
        success for data that the kernel has given up.
        """
        self._cut(at)
        try:
            _write_all(self._descriptor, line)
            if sync:
                self.sync()
        except BaseException:
            with suppress(OSError):  # if not now, then before the next line or at the next opening
                self._cut(at)
            raise

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fdatasync(self._descriptor)

    def _cut(self, at: int) -> None:
        if os.fstat(self._descriptor).st_size != at:
            os.ftruncate(self._descriptor, at)

    def close(self) -> None:
        """Close the file; every line is already durable."""
        os.close(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    """A full disk may take a part before it refuses the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
