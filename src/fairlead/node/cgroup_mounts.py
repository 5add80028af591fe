"""Where the `cpu` controller of this host lives: cgroup v1, v2, or a mixture of both.

The kernel binds each controller to exactly one hierarchy. On a hybrid host cgroup2 is mounted (at
`/sys/fs/cgroup/unified`) and even has a `cpu.stat`, but no limits: those are in a v1 hierarchy.
So the mount that *carries* `cpu` decides, not the one that exists. Called by the node agent at
start and by `fairlead doctor`; the parsing is pure, and lines that are not what the kernel writes
are left out, never guessed at. `read_cgroup_host` and `read_mounts` are the only readers.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.ports.faults import PermanentFault, faults

# The kernel escapes blank, tab, newline, `#` and backslash as three octal digits.
_ESCAPE = re.compile(r"\\([01][0-7]{2})")
_FIELDS_BEFORE_OPTIONAL = 6
# A node with 10 000 mounts writes about 2 MB; more than this is not a mountinfo.
_FILE_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of this process's namespace."""

    mount_id: int
    parent_id: int
    root: str  # the part of the file system that is mounted; not "/" for a bind mount
    point: str
    fstype: str
    options: frozenset[str]  # of this mount and of its file system together


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts in the kernel's order; garbage lines are skipped."""
    # Only "\n" ends a line: splitlines() would also split at a form feed inside a path.
    mounts = (_mount(line) for line in text.split("\n"))
    return tuple(mount for mount in mounts if mount is not None)


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

    def covered(mount: Mount) -> bool:
        above = children.get(mount.mount_id, ())
        return any(c.point == mount.point and c.mount_id != mount.mount_id for c in above)

    def hidden(mount: Mount) -> bool:
        # Were the sibling older, this mount would have become its child.
        return any(
            mount.point.startswith(sibling.point.rstrip("/") + "/")
            and sibling.point != mount.point
            and sibling.mount_id != mount.parent_id
            for sibling in children.get(mount.parent_id, ())
        )

    def reached(mount: Mount) -> bool:
        seen: set[int] = set()
        current: Mount | None = mount
        while current is not None and current.mount_id not in seen:  # a forged file may hold a ring
            if hidden(current):
                return False
            seen.add(current.mount_id)
            current = by_id.get(current.parent_id)
        return True

    return tuple(m for m in mounts if m.fstype == fstype and not covered(m) and reached(m))


@dataclass(frozen=True, slots=True)
class CgroupHost:
    """Where to read and write CPU limits on this host; all paths can be opened as they are."""

    version: Literal[1, 2]
    cpu_mount: Path
    cpuacct_mount: Path | None  # None on v2, where cpu.stat carries the usage
    unified_mount: Path | None  # the cgroup2 mount, for pressure files and eBPF


class NoCpuController(PermanentFault):
    """No hierarchy here carries `cpu`; says what is missing and what would help."""

    def __init__(self, missing: str, cure: str) -> None:
        super().__init__(f"{missing}: {cure}")
        self.missing, self.cure = missing, cure


@dataclass(frozen=True, slots=True)
class CgroupController:
    """One line of `/proc/cgroups`."""

    hierarchy: int  # 0: not bound to a v1 hierarchy
    enabled: bool


def parse_proc_cgroups(text: str) -> dict[str, CgroupController]:
    """Name to controller; comments and garbage lines are skipped.

    Only good for explaining a failure: since Linux 6.12 it leaves out what v1 cannot offer.
    """
    controllers = {}
    for line in text.split("\n"):
        fields = line.split()
        if len(fields) != 4 or line.startswith("#"):
            continue
        name, hierarchy, _, enabled = fields
        if hierarchy.isascii() and hierarchy.isdigit() and len(hierarchy) < 20:
            controllers[name] = CgroupController(int(hierarchy), enabled == "1")
    return controllers


def carrying(mounts: Sequence[Mount], controller: str) -> Mount | None:
    """The best visible v1 mount of the hierarchy that carries `controller`."""
    # Whole option names: `cpu` is neither `cpuset` nor `cpuacct` nor `name=cpu`.
    return _best(mount for mount in visible(mounts, fstype="cgroup") if controller in mount.options)


def unified(mounts: Sequence[Mount]) -> Mount | None:
    """The best visible cgroup2 mount, whatever controllers it has."""
    return _best(visible(mounts, fstype="cgroup2"))


def _best(mounts: Iterable[Mount]) -> Mount | None:
    """Mounts of one hierarchy differ in reach: whole before bind-mounted part, then writable.

    Container runtimes and network plugins mount the same hierarchy again elsewhere, so the usual
    place wins before any other, and the shortest path before a longer one.
    """

    def rank(mount: Mount) -> tuple[bool, bool, bool, int, str]:
        usual = f"{mount.point}/".startswith("/sys/fs/cgroup/")
        read_only = "ro" in mount.options
        return mount.root != "/", read_only, not usual, len(mount.point), mount.point

    return min(mounts, key=rank, default=None)


def locate(
    mounts: Sequence[Mount],
    *,
    unified_controllers: frozenset[str],
    known: Mapping[str, CgroupController],
    root: Path = Path("/"),
) -> CgroupHost:
    """Decide from the parsed files; NoCpuController says what is missing."""
    cgroup2, cpu, cpuacct = unified(mounts), carrying(mounts, "cpu"), carrying(mounts, "cpuacct")
    unified_mount = below(root, cgroup2.point) if cgroup2 else None
    if cpu is not None:
        usage_mount = below(root, cpuacct.point) if cpuacct else None
        return CgroupHost(1, below(root, cpu.point), usage_mount, unified_mount)
    if unified_mount is not None and "cpu" in unified_controllers:
        return CgroupHost(2, unified_mount, None, unified_mount)
    raise _no_cpu(cgroup2, unified_controllers, known)


def _no_cpu(
    cgroup2: Mount | None,
    unified_controllers: frozenset[str],
    known: Mapping[str, CgroupController],
) -> NoCpuController:
    """What stands between us and the `cpu` controller, the clearest sign first."""
    cpu = known.get("cpu")
    missing, cure = "no cgroup file system is mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    if cpu is not None and not cpu.enabled:
        missing = "the cpu controller is disabled"
        cure = "remove cgroup_disable=cpu from the kernel's options"
    elif cpu is not None and cpu.hierarchy:
        missing = (
            f"the cpu controller is bound to v1 hierarchy {cpu.hierarchy}, which is not mounted"
        )
        cure = "mkdir -p /sys/fs/cgroup/cpu && mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu"
    elif cgroup2 is not None:
        others = ", ".join(sorted(unified_controllers)) or "none"
        missing = f"the cgroup2 mount {cgroup2.point} has no cpu controller (it has: {others})"
        cure = "add +cpu to cgroup.subtree_control of its parent (in a container: on the host)"
    elif known and cpu is None:
        missing = "this kernel offers no cpu controller"
        cure = "boot one with CONFIG_CGROUP_SCHED and without cgroup_disable=cpu"
    return NoCpuController(missing, cure)


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    path = root / "proc/self/mountinfo"
    with faults(f"read {path}"):
        return parse_mountinfo(_text(path))


def read_cgroup_host(root: Path = Path("/")) -> CgroupHost:
    """Look at this machine, or at a recorded one whose files lie below `root`.

    PermanentFault (mostly `NoCpuController`) says what is missing.
    """
    mounts = read_mounts(root)
    cgroup2 = unified(mounts)
    return locate(
        mounts,
        # Either file may be absent on a healthy host: its absence is judged by `locate`.
        unified_controllers=frozenset(
            _text_or_empty(below(root, cgroup2.point) / "cgroup.controllers").split()
            if cgroup2
            else ()
        ),
        known=parse_proc_cgroups(_text_or_empty(root / "proc/cgroups")),
        root=root,
    )


def host_at(folder: Path) -> CgroupHost:
    """A host's hierarchies that are mounted below `folder`, whatever this process's own mounts are:
    for an agent in a container, which sees only its own part under the usual path.
    """
    if "cpu" in _text_or_empty(folder / "cgroup.controllers").split():
        return CgroupHost(2, folder, None, folder)
    cpu, usage = (_hierarchy(folder, name) for name in ("cpu", "cpuacct"))
    if cpu is None:
        cure = "mount the host's /sys/fs/cgroup there"
        raise NoCpuController(f"{folder} has no cgroups with the cpu controller", cure)
    return CgroupHost(1, cpu, usage, None)


def _hierarchy(folder: Path, controller: str) -> Path | None:
    """Where `cpu` and `cpuacct` are one hierarchy their names are links to it."""
    for name in (controller, "cpu,cpuacct"):
        if (folder / name / "cgroup.procs").exists():
            return (folder / name).resolve()
    return None


def below(root: Path, point: str) -> Path:
    """The path to open for an absolute path of the machine whose files lie below `root`."""
    return root / point.lstrip("/")


def _text(path: Path) -> str:
    with path.open("rb") as file:
        # A path may hold any byte; fsdecode keeps it openable.
        return os.fsdecode(file.read(_FILE_BYTES_MAX))


def _text_or_empty(path: Path) -> str:
    try:
        return _text(path)
    except OSError:
        return ""
