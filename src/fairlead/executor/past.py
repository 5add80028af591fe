"""The ids of forgotten jobs: no start is carried out twice, however long ago the first one was.

A start is recorded for good, so its evidence stays good, too. While the folder of its job is there,
asking again does nothing; this file remembers it after that. 16 bytes a job: a million take 16 MB
of disk, none of memory, and a look of some milliseconds.
"""

import hashlib
import mmap
import os
from pathlib import Path

from fairlead.host import files

_BYTES = 16


class PastJobs:
    """Digests, one behind the other, in a file that only grows. Raises OSError as the disk does."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, id: str) -> None:
        """Durable when it returns."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            os.lseek(descriptor, size - size % _BYTES, os.SEEK_SET)  # over what a crash cut off
            files.write_all(descriptor, _digest(id))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __contains__(self, id: str) -> bool:
        wanted = _digest(id)
        try:
            with (
                self._path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                at = data.find(wanted)
                while at >= 0 and at % _BYTES:
                    at = data.find(wanted, at + 1)
                return at >= 0
        except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
            return False


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode()).digest()[:_BYTES]
