"""Where the `cpu` controller of this host lives: cgroup v1, v2, or a mixture of both.

The kernel binds each controller to exactly one hierarchy. On a hybrid host cgroup2 is mounted (at
`/sys/fs/cgroup/unified`) and even has a `cpu.stat`, but no limits: those are in a v1 hierarchy.
So the mount that *carries* `cpu` decides, not the one that exists. Called by the node agent at
start and by `fairlead doctor`; the parsing is pure, `read_cgroup_host` is the only reader.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.node.mounts import Mount, parse_mountinfo, visible
from fairlead.ports.faults import PermanentFault

# A node with 10 000 mounts writes about 2 MB; more than this is not a mountinfo.
_FILE_BYTES_MAX = 64 * 2**20


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
        self.missing = missing
        self.cure = cure


@dataclass(frozen=True, slots=True)
class Controller:
    """One line of `/proc/cgroups`."""

    hierarchy: int  # 0: not bound to a v1 hierarchy
    enabled: bool


def parse_proc_cgroups(text: str) -> dict[str, Controller]:
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
            controllers[name] = Controller(int(hierarchy), enabled == "1")
    return controllers


def parse_controllers(text: str) -> frozenset[str]:
    """The names in a `cgroup.controllers` or `cgroup.subtree_control` file."""
    return frozenset(text.split())


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
    ranked = sorted(
        mounts,
        key=lambda mount: (
            mount.root != "/",
            mount.read_only,
            not f"{mount.point}/".startswith("/sys/fs/cgroup/"),
            len(mount.point),
            mount.point,
        ),
    )
    return ranked[0] if ranked else None


def locate(
    mounts: Sequence[Mount],
    *,
    unified_controllers: frozenset[str],
    known: Mapping[str, Controller],
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
    cgroup2: Mount | None, unified_controllers: frozenset[str], known: Mapping[str, Controller]
) -> NoCpuController:
    """What stands between us and the `cpu` controller, the most telling sign first."""
    cpu = known.get("cpu")
    if cpu is not None and not cpu.enabled:
        return NoCpuController(
            "the cpu controller is disabled", "remove cgroup_disable=cpu from the kernel's options"
        )
    if cpu is not None and cpu.hierarchy:
        return NoCpuController(
            f"the cpu controller is bound to v1 hierarchy {cpu.hierarchy}, which is not mounted",
            "mkdir -p /sys/fs/cgroup/cpu && mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu",
        )
    if cgroup2 is not None:
        others = ", ".join(sorted(unified_controllers)) or "none"
        return NoCpuController(
            f"the cgroup2 mount {cgroup2.point} has no cpu controller (it has: {others})",
            "add +cpu to cgroup.subtree_control of its parent (in a container: on the host)",
        )
    if known and cpu is None:
        return NoCpuController(
            "this kernel offers no cpu controller",
            "boot one with CONFIG_CGROUP_SCHED and without cgroup_disable=cpu",
        )
    return NoCpuController(
        "no cgroup file system is mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    )


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """This process's mounts; PermanentFault where the file cannot be read."""
    path = root / "proc/self/mountinfo"
    try:
        return parse_mountinfo(_text(path))
    except OSError as error:
        raise PermanentFault(f"{path}: cannot be read ({error.strerror})") from error


def read_cgroup_host(root: Path = Path("/")) -> CgroupHost:
    """Look at this machine, or at a recorded one whose files lie below `root`.

    PermanentFault (mostly `NoCpuController`) says what is missing.
    """
    mounts = read_mounts(root)
    cgroup2 = unified(mounts)
    return locate(
        mounts,
        # Either file may be absent on a healthy host: its absence is judged by `locate`.
        unified_controllers=parse_controllers(
            _text_or_empty(below(root, cgroup2.point) / "cgroup.controllers") if cgroup2 else ""
        ),
        known=parse_proc_cgroups(_text_or_empty(root / "proc/cgroups")),
        root=root,
    )


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
