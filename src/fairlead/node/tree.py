"""The part of the cgroup tree that the agent may touch: everything below its root, nothing else.

Paths are walked one component at a time from an open directory, without following symlinks, so
neither a link nor `..` leads outside. v1 keeps `cpu` and `cpuacct` in trees of the same shape.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from fairlead.ports.faults import PermanentFault

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CgroupTree:
    """One hierarchy below one root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self._fd = os.open(root, _DIRECTORY)
        except OSError as error:
            raise PermanentFault(
                f"{root}: cannot be opened as a cgroup ({error.strerror})"
            ) from error

    def close(self) -> None:
        """Give the root's descriptor back."""
        os.close(self._fd)

    @contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """A descriptor of the cgroup at `path` below the root; OSError if it is not one."""
        current = os.dup(self._fd)
        try:
            for part in components(path):
                deeper = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = deeper
            yield current
        finally:
            os.close(current)

    def children(self, path: str) -> list[str]:
        """Names of the cgroups directly below `path`, sorted; symlinks are not cgroups."""
        with self.directory(path) as fd, os.scandir(fd) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))

    def matching(self, pattern: str) -> list[str]:
        """Paths below the root that match `pattern` component by component, sorted."""
        found = [""]
        for glob in components(pattern):
            found = [
                f"{path}/{name}" if path else name
                for path in found
                for name in self._children_or_none(path)
                if fnmatchcase(name, glob)
            ]
        return sorted(found)

    def _children_or_none(self, path: str) -> list[str]:
        try:
            return self.children(path)
        except OSError:
            return []  # it went away while we looked

    def open_file(self, path: str, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a kernel file in the cgroup at `path`; links are refused."""
        with self.directory(path) as fd:
            opened = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise OSError(errno.EINVAL, "not a regular file", f"{path}/{name}")
        return opened


def components(path: str) -> list[str]:
    """The parts of a relative path; anything that could lead elsewhere is refused."""
    parts = path.split("/") if path else []
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise PermanentFault(f"{path!r} is not a path below the root")
    return parts
