"""Small files that are either whole and on disk, or not there; and the lock that says a shim lives.

Used by the shim and by the executor; standard library only, and as little of it as possible.
"""

import errno
import fcntl
import json
import os
import struct
from typing import Any

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"
TEMPORARY = frozenset(
    (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    )
)
"""Errors that may go away by themselves."""


def write(path: str, document: dict[str, Any], *, lasting: bool = True, mode: int = 0o600) -> None:
    """Make a document appear under its name, whole; when this returns it survives a power cut.

    Not `lasting`: it survives any kill, which is enough for what means nothing after a reboot.
    """
    draft = f"{path}.draft-{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)  # whatever the mask of whoever started us
        rest = memoryview(json.dumps(document, sort_keys=True).encode())
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if lasting:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    if lasting:
        sync_folder(os.path.dirname(path))


def read(path: str) -> dict[str, Any] | None:
    """The document under a name; None when there is none (a half-written one has no name)."""
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        document = None
    if not isinstance(document, dict):  # we never write such a thing: the disk is at fault
        raise OSError(errno.EIO, f"{path} is damaged")
    return document


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: str) -> int | None:
    """Hold the lock as long as the descriptor is open; None when somebody else holds it.

    An open-file-description lock: it passes through fork (so it is held without a gap while the
    shim detaches), ends with the last holder however that dies, and can be asked about.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def locked(path: str) -> bool:
    """Whether somebody holds the lock; asking never takes it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
    finally:
        os.close(descriptor)
    kind: int = struct.unpack(_FLOCK, answer[: struct.calcsize(_FLOCK)])[0]
    return kind != fcntl.F_UNLCK


def _flock(kind: int) -> bytes:
    # The kernel insists on pid 0 here; the trailing 4 bytes are the structure's padding.
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0) + bytes(4)
