"""What `/proc/self/mountinfo` says, and which of its mounts a path really leads to.

Pure functions over text, called by `host` (cgroup hierarchies) and by the checks of
`fairlead doctor` (bpffs). Lines that are not what the kernel writes are left out, never guessed at.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The kernel escapes blank, tab, newline, `#` and backslash as three octal digits.
_ESCAPE = re.compile(r"\\([01][0-7]{2})")
_FIELDS_BEFORE_OPTIONAL = 6


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of this process's namespace."""

    mount_id: int
    parent_id: int
    root: str  # the part of the file system that is mounted; not "/" for a bind mount
    point: str
    fstype: str
    options: frozenset[str]  # of this mount and of its file system together

    @property
    def read_only(self) -> bool:
        """Whether either the mount or the file system refuses writes."""
        return "ro" in self.options


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts in the kernel's order; garbage lines are skipped."""
    # Only "\n" ends a line: splitlines() would also split at a form feed inside a path.
    found = (_mount(line) for line in text.split("\n"))
    return tuple(mount for mount in found if mount is not None)


def _mount(line: str) -> Mount | None:
    """`36 35 98:0 /root /point rw,noatime [optional fields] - fstype source rw,errors=continue`."""
    before, dash, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not dash or len(left) < _FIELDS_BEFORE_OPTIONAL or len(right) < 3:
        return None
    numbers = left[0], left[1]
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):
        return None
    root, point = unescape(left[3]), unescape(left[4])
    if not (root.startswith("/") and point.startswith("/")) or "\0" in point:
        return None
    # Options are split before anything is unescaped: a comma inside a value stays escaped.
    options = frozenset([*left[5].split(","), *right[2].split(",")])
    return Mount(int(left[0]), int(left[1]), root, point, right[0], options)


def unescape(field: str) -> str:
    r"""`\040` to a blank and so on; a lone backslash stays as it is."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def visible(mounts: Sequence[Mount], *, fstype: str) -> tuple[Mount, ...]:
    """The mounts of `fstype` that their own path still leads to, in the kernel's order.

    The order of the lines says nothing about what covers what (`/` is often listed after `/proc`),
    so this follows the tree: a mount is covered by one stacked on its own point, and hidden when
    a sibling sits on a directory above it, or when its parent is hidden.
    """
    by_id = {mount.mount_id: mount for mount in mounts}
    children: dict[int, list[Mount]] = {}
    for mount in mounts:
        children.setdefault(mount.parent_id, []).append(mount)
    return tuple(
        mount
        for mount in mounts
        if mount.fstype == fstype
        and not _covered(mount, children)
        and not any(_hidden(each, children) for each in _lineage(mount, by_id))
    )


def _covered(mount: Mount, children: dict[int, list[Mount]]) -> bool:
    return any(
        child.point == mount.point and child.mount_id != mount.mount_id
        for child in children.get(mount.mount_id, ())
    )


def _hidden(mount: Mount, children: dict[int, list[Mount]]) -> bool:
    # Were the sibling older, this mount would have become its child.
    return any(
        mount.point.startswith(sibling.point.rstrip("/") + "/")
        and sibling.point != mount.point
        and sibling.mount_id != mount.parent_id
        for sibling in children.get(mount.parent_id, ())
    )


def _lineage(mount: Mount, by_id: dict[int, Mount]) -> Iterator[Mount]:
    """The mount and its ancestors; a cycle in a forged file ends the walk."""
    seen: set[int] = set()
    current: Mount | None = mount
    while current is not None and current.mount_id not in seen:
        seen.add(current.mount_id)
        yield current
        current = by_id.get(current.parent_id)
