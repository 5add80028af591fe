"""The cgroups that the agent may touch, v1 or v2: everything below its root, nothing else.

Paths are walked one component at a time from an open directory, without following symlinks, so
neither a link nor `..` leads outside. `CgroupFiles` hides what differs between the versions: file
names, units, order of writes. v1 keeps `cpu` and `cpuacct` in trees of the same shape. The sensor
keeps one `ContainerFiles` per container, because an `open()` per reading costs seven `pread`s.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from fairlead.core.cpu import Counters
from fairlead.core.units import INTEGER_MAX
from fairlead.node import kernel_files
from fairlead.node.kernel_files import FILE_BYTES_MAX, WEIGHTS, Quota
from fairlead.node.waits import WaitMeter, Waits
from fairlead.ports.faults import PermanentFault

DEFAULT_PERIOD_US = 100_000
PERIOD_MAX_US = 1_000_000  # the kernel's own bounds
QUOTA_MIN_US = 1_000
CONTAINERS_MAX = 64
"""Of one pod. Each is open in several files and read each second, and a container that may make
cgroups below its own makes as many as it likes."""
_MARK = "cgroup.procs"
"""In every cgroup."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _agent_may_hold(descriptor: int) -> bool:
    """Whether a lock of this directory may be that of another agent: of a living process with the
    rights to set limits there, or of one that is not seen from here, as in another container."""
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with open("/proc/locks", encoding="ascii") as file:
        rows = [line.split() for line in file]
    holders = {int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == place}
    may_write = {0, found.st_uid, os.geteuid()}
    return not holders or any(_has_open(pid, found, may_write) for pid in holders)


def _has_open(pid: int, found: os.stat_result, uids: set[int]) -> bool:
    """Whether a process of these users has it open. One that has ended left its lock, or its
    number, to another."""
    try:
        if os.stat(f"/proc/{pid}").st_uid not in uids:
            return False
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), found):
                    return True
    except PermissionError:
        return True  # root's, and we are not
    except FileNotFoundError:
        return False
    return False


class CgroupTree:
    """One hierarchy below one root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._claims: list[int] = []
        try:
            self._fd = os.open(root, _DIRECTORY)
        except OSError as error:
            text = f"{root}: cannot be opened as a cgroup ({error.strerror})"
            raise PermanentFault(text) from error

    def close(self) -> None:
        os.close(self._fd)
        while self._claims:
            os.close(self._claims.pop())

    def claim(self) -> None:
        """Be the only one that sets limits here, above or below, until `close`.

        Whatever the state directory of another agent is: the lock is on the cgroups themselves,
        this one's for us alone, those above it shared with agents of other branches. Every user
        of the machine can open a cgroup and lock it; a lock of one that can set no limits there is
        not an agent's and keeps none away.
        """
        above = [self.root, *self.root.parents]
        for path, how in zip(above, [fcntl.LOCK_EX, *[fcntl.LOCK_SH] * len(above)], strict=False):
            if not (path / _MARK).exists() and path != self.root:
                break  # above the mount, or no cgroup
            descriptor = os.open(path, _DIRECTORY)
            self._claims.append(descriptor)
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if not _agent_may_hold(descriptor):
                    continue
                raise PermanentFault(
                    f"another node agent sets the limits of {path}, or of a cgroup below it; "
                    "stop it, or give this one another --root"
                ) from None

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
        """Names of the cgroups directly below `path`, sorted; symlinks are not cgroups.

        A name that is not UTF-8 is left out: it could be neither recorded nor shown.
        """
        return [name for name in self._names(path) if is_text(name)]

    def containers(self, path: str) -> list[str]:
        """The same, or none where one had to be left out, or there are too many: a limit on the
        others would not hold for it, one on the cgroup above does."""
        names = self._names(path, CONTAINERS_MAX + 1)
        return names if len(names) <= CONTAINERS_MAX and all(map(is_text, names)) else []

    def _names(self, path: str, most: int | None = None) -> list[str]:
        with self.directory(path) as fd, os.scandir(fd) as entries:
            names = (e.name for e in entries if e.is_dir(follow_symlinks=False))
            return sorted(islice(names, most))

    def matching(self, pattern: str) -> list[str]:
        """Paths below the root that match `pattern` component by component, sorted."""
        paths = [""]
        for glob in components(pattern):
            below: list[str] = []
            for path in paths:
                with suppress(OSError):  # it went away while we looked
                    names = [name for name in self.children(path) if fnmatchcase(name, glob)]
                    below += [f"{path}/{name}" if path else name for name in names]
            paths = below
        return sorted(paths)

    def open_file(self, path: str, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a kernel file in the cgroup at `path`; links are refused."""
        with self.directory(path) as fd:
            opened = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise OSError(errno.EINVAL, "not a regular file", f"{path}/{name}")
        return opened


def is_text(name: str) -> bool:
    """Whether the bytes of a file's name are UTF-8."""
    return not any("\udc80" <= char <= "\udcff" for char in name)


def components(path: str) -> list[str]:
    """The parts of a relative path; anything that could lead elsewhere is refused."""
    parts = path.split("/") if path else []
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise PermanentFault(f"{path!r} is not a path below the root")
    return parts


def read_file(descriptor: int) -> bytes:
    return os.pread(descriptor, FILE_BYTES_MAX + 1, 0)


def quota_for(millicores: int, period_us: int, *, burst: bool) -> Quota:
    """The quota for a grant in the period in force; a tiny grant needs a longer period.

    With `burst` a cgroup may use in one period what it saved in earlier ones, up to one more quota:
    a service that idles between requests is not throttled in the middle of one, and on average
    no cgroup gets more than its grant.
    """
    if millicores * period_us < QUOTA_MIN_US * 1000:
        period_us = PERIOD_MAX_US
    quota_us = max(QUOTA_MIN_US, millicores * period_us // 1000)
    return Quota(quota_us, period_us, quota_us if burst else 0)


class ContainerFiles:
    """Kept descriptors of one container: its counters and its limit.

    v1: cpu.stat, cpuacct.usage, cpu.cfs_quota_us, cpu.cfs_period_us. v2: cpu.stat, cpu.max. Where
    weights are governed, then the file of its weight, and a meter of its waits.
    """

    def __init__(self, version: int, descriptors: list[int]) -> None:
        self._version, self.descriptors = version, descriptors
        self.waits: WaitMeter | None = None

    def counters(self) -> Counters | None:
        """The counters now; None when any of it is missing or rubbish."""
        try:
            data = read_file(self.descriptors[0])
            if self._version == 2:
                stat = kernel_files.cpu_stat_v2(data)
                usage_us = None if stat is None else stat.usage_us
            else:
                stat = kernel_files.cpu_stat_v1(data)
                usage_ns = kernel_files.counter(read_file(self.descriptors[1]))
                usage_us = None if usage_ns is None else usage_ns // 1000
        except OSError:
            return None  # the container went away
        if stat is None or usage_us is None:
            return None
        waits = Waits(None, None) if self.waits is None else self.waits.read()
        counters = Counters(time.monotonic_ns() // 1000, usage_us, *stat[:3], *waits)
        # Counters are recorded, and a record holds no larger integers. (It would take 285 years.)
        return counters if max(counters[:5]) <= INTEGER_MAX else None

    def quota(self) -> Quota | None:
        """The limit in force; None when it cannot be read as the kernel writes it."""
        try:
            if self._version == 2:
                return kernel_files.quota_v2(read_file(self.descriptors[1]))
            quota, period = (read_file(descriptor) for descriptor in self.descriptors[2:4])
        except OSError:
            return None
        return kernel_files.quota_v1(quota, period)

    def weight(self) -> int | None:
        """The weight in force; None when it cannot be read as the kernel writes it."""
        try:
            return WEIGHTS[self._version].read(read_file(self.descriptors[-1]))
        except OSError:
            return None

    def close(self) -> None:
        if self.waits is not None:
            self.waits.close()
        while self.descriptors:
            os.close(self.descriptors.pop())


class CgroupFiles:
    """The files of one cgroup version below the agent's root. Raises OSError as the kernel does."""

    def __init__(
        self,
        version: int,
        cpu: CgroupTree,
        cpuacct: CgroupTree,
        *,
        with_weights: bool = False,
        with_waits: bool = False,
    ) -> None:
        """`cpuacct` is `cpu` itself where one hierarchy has both. `with_weights`, `with_waits`:
        containers are opened with these, too."""
        self.with_weights, self._with_waits = with_weights, with_waits
        self.cpu, self._cpuacct = cpu, cpuacct
        self.version, self.weights = version, WEIGHTS[version]
        self._tasks_file = "tasks" if version == 1 else "cgroup.threads"
        self._burst_file = "cpu.cfs_burst_us" if version == 1 else "cpu.max.burst"

    def container(self, path: str) -> ContainerFiles:
        """Open the files of the container at `path`, to be read again and again: all or none."""
        files = [(self.cpu, "cpu.stat"), (self.cpu, "cpu.max")]
        if self.version == 1:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            files = [files[0], (self._cpuacct, "cpuacct.usage"), *((self.cpu, n) for n in names)]
        if self.with_weights:
            files.append((self.cpu, self.weights.name))
        opened = ContainerFiles(self.version, [])
        try:
            for tree, name in files:
                opened.descriptors.append(tree.open_file(path, name))
            if self._with_waits:
                opened.waits = self._waits(path)
        except OSError:
            opened.close()
            raise
        return opened

    def _waits(self, path: str) -> WaitMeter:
        pressure = None
        if self.version == 2:
            with suppress(OSError):  # PSI is off
                pressure = self.cpu.open_file(path, "cpu.pressure")
        return WaitMeter(self.cpu.open_file(path, self._tasks_file), pressure)

    def weight(self, path: str) -> int | None:
        """The weight in force, as the kernel has it; None where it cannot be read."""
        with open(self.cpu.open_file(path, self.weights.name), "rb", buffering=0) as file:
            return self.weights.read(file.read(FILE_BYTES_MAX + 1))

    def set_weight(self, path: str, weight: int) -> None:
        self._write(path, self.weights.name, str(weight))

    def quota(self, path: str) -> Quota | None:
        with closing(self.container(path)) as files:
            quota = files.quota()
        return None if quota is None else quota._replace(burst_us=self._burst(path) or 0)

    def set_quota(self, path: str, quota: Quota) -> None:
        """Put a limit in force. The kernel refuses a burst above the quota: shrink it first."""
        burst = self._burst(path)
        if burst and quota.quota_us is not None and burst > quota.quota_us:
            self._write(path, self._burst_file, "0")
            burst = 0
        self._set_bandwidth(path, quota)
        if burst is not None and burst != quota.burst_us:
            self._write(path, self._burst_file, str(quota.burst_us))

    def _set_bandwidth(self, path: str, quota: Quota) -> None:
        """v2: in one write. v1: the period before the quota when it grows, after when it shrinks,
        so that the limit is never above both the old and the new one.
        """
        if self.version == 2:
            amount = "max" if quota.quota_us is None else str(quota.quota_us)
            self._write(path, "cpu.max", f"{amount} {quota.period_us}")
            return
        before = self.quota(path)
        period = DEFAULT_PERIOD_US if before is None else before.period_us
        quota_us = -1 if quota.quota_us is None else quota.quota_us
        writes = [("cpu.cfs_period_us", quota.period_us), ("cpu.cfs_quota_us", quota_us)]
        if quota.period_us == period:
            del writes[0]
        for name, value in writes if quota.period_us > period else reversed(writes):
            self._write(path, name, str(value))

    def _burst(self, path: str) -> int | None:
        """The burst in force; None where the kernel has none (before 5.14)."""
        try:
            with open(self.cpu.open_file(path, self._burst_file), "rb", buffering=0) as file:
                return kernel_files.counter(file.read(FILE_BYTES_MAX + 1))
        except FileNotFoundError:
            return None

    def _write(self, path: str, name: str, text: str) -> None:
        # Truncating means nothing to the kernel's files, and everything to a recorded tree's.
        descriptor = self.cpu.open_file(path, name, os.O_WRONLY | os.O_TRUNC)
        with open(descriptor, "wb", buffering=0) as file:
            file.write(text.encode() + b"\n")

    def close(self) -> None:
        for tree in {self.cpu, self._cpuacct}:
            tree.close()


def open_files(
    version: int,
    cpu_root: Path,
    cpuacct_root: Path | None,
    *,
    with_weights: bool = False,
    with_waits: bool = False,
) -> CgroupFiles:
    cpu = CgroupTree(cpu_root)
    apart = version == 1 and cpuacct_root is not None and cpuacct_root != cpu_root
    cpuacct = CgroupTree(cpuacct_root) if apart and cpuacct_root else cpu
    waits = with_weights or with_waits
    return CgroupFiles(version, cpu, cpuacct, with_weights=with_weights, with_waits=waits)
