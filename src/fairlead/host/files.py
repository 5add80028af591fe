"""Files that are whole under their name or not there, and locks that end with their holder.

    replace(path, data)                          # durable when it returns
    replace_json(path, document, durable=False)  # survives a kill, not a power cut
    with draft(path) as name: ...                # a large file, written by the caller
    replace(path, data, new=True)                # never in place of another's

Standard library only, and little of it: the job shim stays in memory with this module.
"""

import contextlib
import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator
from typing import Any

Path = str | os.PathLike[str]
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
TEMPORARY = frozenset(_NO_ROOM | {errno.EAGAIN, errno.EINTR})
"""Error numbers that may go away by themselves."""
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"


def replace(
    path: Path, data: bytes, *, durable: bool = True, mode: int = 0o600, new: bool = False
) -> None:
    """Put a new version of a file in place, whole. Durable: it survives a power cut.

    The draft is named by our process, so that two writers never share one. `new`:
    FileExistsError if there is a file, which stays.
    """
    name = os.fspath(path)
    temporary = f"{name}.draft-{os.getpid()}"
    try:
        _write_new(temporary, data, os.O_TRUNC, durable=durable, mode=mode)
        if new:
            os.link(temporary, name)  # unlike a rename, never in place of another's
            os.unlink(temporary)
        else:
            os.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(os.path.dirname(name) or ".")


@contextlib.contextmanager
def draft(path: Path, *, mode: int = 0o640) -> Iterator[str]:
    """The name of an empty file to fill; it becomes `path`, durably, if the block succeeds.

    For large files with one writer: the name is fixed, so that a draft left by a killed process
    is removed by the next attempt instead of filling the disk.
    """
    name = os.fspath(path)
    temporary = f"{name}.draft"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        _write_new(temporary, b"", os.O_EXCL, durable=False, mode=mode)
        yield temporary
        _sync(temporary, os.O_RDONLY)
        os.rename(temporary, name)
        sync_directory(os.path.dirname(name) or ".")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def replace_json(
    path: Path, document: dict[str, Any], *, durable: bool = True, mode: int = 0o600
) -> None:
    data = json.dumps(document, sort_keys=True).encode()
    replace(path, data, durable=durable, mode=mode)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no file; OSError (EIO) when it is damaged."""
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(errno.EIO, f"{os.fspath(path)} is damaged ({error})") from error
    if not isinstance(document, dict):
        raise OSError(errno.EIO, f"{os.fspath(path)} is damaged (not an object)")
    return document


def read_private(path: Path) -> bytes:
    """The content of a secret; PermissionError when users other than its owner can read it."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            message = "must be readable by its owner alone (chmod 600)"
            raise PermissionError(errno.EACCES, message, os.fspath(path))
        return file.read()


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte: a full disk may take a part before it refuses the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Make what was written to a file durable, by whomever."""
    _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(name: str, data: bytes, flags: int, *, durable: bool, mode: int) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, mode)
    try:
        os.fchmod(descriptor, mode)  # whatever the umask of the process that started us
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockHeld(OSError):
    """Another process holds the lock; `holder` is its process number, where that is known."""

    def __init__(self, what: Path, holder: str) -> None:
        super().__init__(f"{os.fspath(what)} has another writer: process {holder}")
        self.holder = holder


def try_lock(path: Path, *, mode: int = 0o600) -> int | None:
    """Lock a file, made if it is missing, for as long as the returned descriptor is open.

    None when another process holds it. An open-file-description lock: it passes through fork,
    ends with its last holder however that dies, and `locked` can ask about it without taking it.
    A directory, which can only be opened for reading, is locked with flock instead.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    except IsADirectoryError:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _take(descriptor, wait=False)
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock_alone(path: Path, *, of: Path | None = None, mode: int = 0o640) -> int:
    """The lock `of` a single writer, with its process number in the file; `LockHeld` if taken.

    The file stays: removing it would let two writers hold two files of the same name.
    """
    descriptor = try_lock(path, mode=mode)
    if descriptor is None:
        with open(path, "rb") as file:
            holder = file.read(20).decode("ascii", "replace").strip()
        raise LockHeld(of or path, holder or "unknown")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; asking never takes it."""
    try:
        with open(path, "rb+") as file:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _whole_file())
    except FileNotFoundError:
        return False
    kind: int = struct.unpack(_FLOCK, answer[: struct.calcsize(_FLOCK)])[0]
    return kind != fcntl.F_UNLCK


@contextlib.contextmanager
def holding(path: Path, *, mode: int = 0o600) -> Iterator[None]:
    """Wait for the lock of a file, made if it is missing, and hold it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        _take(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, *, wait: bool) -> None:
    try:
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(descriptor, command, _whole_file())
    except OSError as error:
        if error.errno != errno.EBADF:  # a directory: not open for writing
            raise
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _whole_file() -> bytes:
    # The kernel insists on pid 0 here; the trailing 4 bytes are the structure's padding.
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) + bytes(4)
