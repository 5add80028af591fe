"""A job's output on disk, bounded: the newest part and the one before it.

Used by the shim; standard library only. A full disk costs output, never the job.
"""

import contextlib
import os

NAME = "output.log"
OLDER = "output.1.log"


class Output:
    """Appends to `output.log`; at half the bound it becomes `output.1.log`, the older one goes."""

    def __init__(self, folder: str, bytes_max: int) -> None:
        self._path, self._older = os.path.join(folder, NAME), os.path.join(folder, OLDER)
        self._part_max = max(1, bytes_max // 2)
        self.dropped = 0
        """Bytes that are no longer, or were never, on disk."""
        self._descriptor = self._open()
        self._size = os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        """Keep what fits. The caller has already read it, so the command is never held up."""
        rest = memoryview(data)
        while rest:
            if self._size >= self._part_max:
                self._turn()
            try:
                written = os.write(self._descriptor, rest[: self._part_max - self._size])
            except OSError:
                self.dropped += len(rest)
                return
            self._size += written
            rest = rest[written:]

    def close(self) -> None:
        """Make what was kept durable, so that an exit never stands without its output."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _turn(self) -> None:
        with contextlib.suppress(OSError):
            self.dropped += os.stat(self._older).st_size
        os.close(self._descriptor)
        os.rename(self._path, self._older)
        self._descriptor, self._size = self._open(), 0

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)
