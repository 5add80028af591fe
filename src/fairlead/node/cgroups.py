"""Reading and limiting one container's cgroup, v1 or v2, behind one interface.

`CgroupFiles` is what differs between the versions: file names, units, order of writes. The sensor
keeps one `ContainerFiles` per container, because an `open()` per reading costs seven `pread`s.
"""

import os
import time
from abc import ABC, abstractmethod
from pathlib import Path

from fairlead.core.cpu import Counters
from fairlead.node import kernel_files
from fairlead.node.kernel_files import FILE_BYTES_MAX, Quota
from fairlead.node.tree import CgroupTree

DEFAULT_PERIOD_US = 100_000
PERIOD_MAX_US = 1_000_000  # the kernel's own bounds
QUOTA_MIN_US = 1_000


def read_file(descriptor: int) -> bytes:
    """The whole of a small kernel file through a kept descriptor."""
    return os.pread(descriptor, FILE_BYTES_MAX + 1, 0)


def quota_for(millicores: int, period_us: int, *, burst: bool) -> Quota:
    """The quota for a grant in the period in force; a tiny grant needs a longer period.

    With `burst` a cgroup may use in one period what it saved in earlier ones, up to one more quota:
    a service that idles between requests is not throttled in the middle of one, and on average
    nobody gets more than its grant.
    """
    if millicores * period_us < QUOTA_MIN_US * 1000:
        period_us = PERIOD_MAX_US
    quota_us = max(QUOTA_MIN_US, millicores * period_us // 1000)
    return Quota(quota_us, period_us, quota_us if burst else 0)


class ContainerFiles(ABC):
    """Kept descriptors of one container: its counters and its limit."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors

    @abstractmethod
    def counters(self) -> Counters | None:
        """The counters now; None when any of it is missing or rubbish."""

    @abstractmethod
    def quota(self) -> Quota | None:
        """The limit in force; None when it cannot be read as the kernel writes it."""

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


class CgroupFiles(ABC):
    """The files of one cgroup version below the agent's root. Raises OSError as the kernel does."""

    version: int

    def __init__(self, cpu: CgroupTree) -> None:
        self.cpu = cpu

    @abstractmethod
    def container(self, path: str) -> ContainerFiles:
        """Open the files of the container at `path`, to be read again and again."""

    burst_file: str

    def quota(self, path: str) -> Quota | None:
        """The limit in force; None when it cannot be read as the kernel writes it."""
        files = self.container(path)
        try:
            quota = files.quota()
        finally:
            files.close()
        return None if quota is None else quota._replace(burst_us=self._burst(path) or 0)

    def set_quota(self, path: str, quota: Quota) -> None:
        """Put a limit in force. The kernel refuses a burst above the quota: shrink it first."""
        burst = self._burst(path)
        if burst and quota.quota_us is not None and burst > quota.quota_us:
            self._write(path, self.burst_file, "0")
            burst = 0
        self._set_bandwidth(path, quota)
        if burst is not None and burst != quota.burst_us:
            self._write(path, self.burst_file, str(quota.burst_us))

    @abstractmethod
    def _set_bandwidth(self, path: str, quota: Quota) -> None:
        """Write quota and period."""

    def _burst(self, path: str) -> int | None:
        """The burst in force; None where the kernel has none (before 5.14)."""
        try:
            descriptor = self.cpu.open_file(path, self.burst_file)
        except FileNotFoundError:
            return None
        try:
            return kernel_files.counter(read_file(descriptor))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Give the roots' descriptors back."""
        self.cpu.close()

    def _write(self, path: str, name: str, text: str) -> None:
        # Truncating means nothing to the kernel's files, and everything to a recorded tree's.
        descriptor = self.cpu.open_file(path, name, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode() + b"\n")
        finally:
            os.close(descriptor)


class _ContainerV1(ContainerFiles):
    """cpu.stat, cpuacct.usage, cpu.cfs_quota_us, cpu.cfs_period_us."""

    def counters(self) -> Counters | None:
        try:
            stat = kernel_files.cpu_stat_v1(read_file(self.descriptors[0]))
            usage_ns = kernel_files.counter(read_file(self.descriptors[1]))
        except OSError:
            return None  # the container went away
        if stat is None or usage_ns is None:
            return None
        return _counters(stat, usage_ns // 1000)

    def quota(self) -> Quota | None:
        try:
            quota, period = (read_file(descriptor) for descriptor in self.descriptors[2:])
        except OSError:
            return None
        return kernel_files.quota_v1(quota, period)


class _ContainerV2(ContainerFiles):
    """cpu.stat, cpu.max."""

    def counters(self) -> Counters | None:
        try:
            stat = kernel_files.cpu_stat_v2(read_file(self.descriptors[0]))
        except OSError:
            return None
        if stat is None or stat.usage_us is None:
            return None
        return _counters(stat, stat.usage_us)

    def quota(self) -> Quota | None:
        try:
            return kernel_files.quota_v2(read_file(self.descriptors[1]))
        except OSError:
            return None


def _counters(stat: kernel_files.CpuStat, usage_us: int) -> Counters:
    return Counters(
        time_us=time.monotonic_ns() // 1000,
        usage_us=usage_us,
        periods=stat.periods,
        throttled_periods=stat.throttled_periods,
        throttled_us=stat.throttled_us,
    )


class CgroupFilesV1(CgroupFiles):
    """`cpu` and `cpuacct` hierarchies, mounted together or apart."""

    version = 1
    burst_file = "cpu.cfs_burst_us"

    def __init__(self, cpu: CgroupTree, cpuacct: CgroupTree) -> None:
        super().__init__(cpu)
        self.cpuacct = cpuacct

    def close(self) -> None:
        """Give the roots' descriptors back."""
        super().close()
        self.cpuacct.close()

    def container(self, path: str) -> ContainerFiles:
        """cpu.stat for throttling, cpuacct.usage for use, two files for the limit."""
        return _ContainerV1(
            _open_all(
                (self.cpu, path, "cpu.stat"),
                (self.cpuacct, path, "cpuacct.usage"),
                (self.cpu, path, "cpu.cfs_quota_us"),
                (self.cpu, path, "cpu.cfs_period_us"),
            )
        )

    def _set_bandwidth(self, path: str, quota: Quota) -> None:
        """Period before quota when it grows, after when it shrinks: never above either limit."""
        amount = "-1" if quota.quota_us is None else str(quota.quota_us)
        before = self.quota(path)
        period = DEFAULT_PERIOD_US if before is None else before.period_us
        if quota.period_us > period:
            self._write(path, "cpu.cfs_period_us", str(quota.period_us))
        self._write(path, "cpu.cfs_quota_us", amount)
        if quota.period_us < period:
            self._write(path, "cpu.cfs_period_us", str(quota.period_us))


class CgroupFilesV2(CgroupFiles):
    """The unified hierarchy: one file for the limit, one for the counters."""

    version = 2
    burst_file = "cpu.max.burst"

    def container(self, path: str) -> ContainerFiles:
        """cpu.stat carries use and throttling, cpu.max the limit."""
        return _ContainerV2(_open_all((self.cpu, path, "cpu.stat"), (self.cpu, path, "cpu.max")))

    def _set_bandwidth(self, path: str, quota: Quota) -> None:
        """Quota and period in one write."""
        amount = "max" if quota.quota_us is None else str(quota.quota_us)
        self._write(path, "cpu.max", f"{amount} {quota.period_us}")


def _open_all(*files: tuple[CgroupTree, str, str]) -> tuple[int, ...]:
    """Open all of them or none."""
    opened: list[int] = []
    try:
        for tree, path, name in files:
            opened.append(tree.open_file(path, name))
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return tuple(opened)


def open_files(version: int, cpu_root: Path, cpuacct_root: Path | None) -> CgroupFiles:
    """The files of a host's version below the given roots."""
    if version == 1:
        return CgroupFilesV1(CgroupTree(cpu_root), CgroupTree(cpuacct_root or cpu_root))
    return CgroupFilesV2(CgroupTree(cpu_root))
