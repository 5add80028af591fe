"""Worlds with cgroups for tests: the real ones of this machine, and plain trees of either version.

Real cgroups are created below one own root and removed afterwards; processes are ended by id.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.node.cgroup_mounts import read_cgroup_host
from fairlead.node.cgroups import CgroupFiles, open_files
from fairlead.ports.faults import Fault

BUSY = "while True: pass"
V1_FILES = {
    "cpu.stat": "nr_periods 100\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0\n",
    "cpu.cfs_quota_us": "-1\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.cfs_burst_us": "0\n",
    "cpuacct.usage": "1000000000\n",
}
V2_FILES = {
    "cpu.stat": (
        "usage_usec 1000000\nuser_usec 900000\nsystem_usec 100000\n"
        "nr_periods 100\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n"
    ),
    "cpu.max": "max 100000\n",
    "cpu.max.burst": "0\n",
}


class PlainTree:
    """A recorded tree: ordinary files laid out as the kernel lays them out."""

    def __init__(self, version: int, root: Path) -> None:
        self.version, self.root = version, root
        root.mkdir(parents=True, exist_ok=True)

    def create(self, path: str) -> None:
        folder = self.root / path
        folder.mkdir(parents=True)
        for name, text in (V1_FILES if self.version == 1 else V2_FILES).items():
            (folder / name).write_text(text)

    def remove(self, path: str) -> None:
        shutil.rmtree(self.root / path)

    def files(self) -> CgroupFiles:
        return open_files(self.version, self.root, self.root)

    def close(self) -> None:
        """Nothing to give back: pytest removes the folder."""


class RealTree:
    """This machine's own cgroups below a root that is ours alone."""

    def __init__(self) -> None:
        host = read_cgroup_host()
        self.version = host.version
        name = f"fairlead-test-{os.getpid()}-{time.monotonic_ns()}"
        mounts = {host.cpu_mount, host.cpuacct_mount or host.cpu_mount}
        self.roots = [mount / name for mount in mounts]
        self.root, self.cpuacct = (
            host.cpu_mount / name,
            (host.cpuacct_mount or host.cpu_mount) / name,
        )
        self._processes: list[subprocess.Popen[bytes]] = []
        for root in self.roots:
            root.mkdir()
        if self.version == 2:
            (self.root / "cgroup.subtree_control").write_text("+cpu")

    def create(self, path: str) -> None:
        for root in self.roots:
            (root / path).mkdir(parents=True)

    def remove(self, path: str) -> None:
        for root in self.roots:
            _remove_cgroup(root / path)

    def files(self) -> CgroupFiles:
        return open_files(self.version, self.root, self.cpuacct)

    def run(self, path: str, code: str = BUSY) -> subprocess.Popen[bytes]:
        """A process inside the cgroup, from its first instruction on."""
        process = subprocess.Popen([sys.executable, "-c", code])
        self._processes.append(process)
        for root in self.roots:
            (root / path / "cgroup.procs").write_text(str(process.pid))
        return process

    def limit(self, path: str) -> int | None:
        files = self.files()
        try:
            quota = files.quota(path)
        finally:
            files.close()
        assert quota is not None
        return quota.millicores

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._processes.remove(process)

    def close(self) -> None:
        for process in list(self._processes):
            self.end(process)
        for root in self.roots:
            _remove_cgroup(root)


def _remove_cgroup(folder: Path) -> None:
    """rmdir from the leaves up; a cgroup whose last process is just ending is tried again."""
    if not folder.exists():
        return
    for child in [entry for entry in folder.iterdir() if entry.is_dir()]:
        _remove_cgroup(child)
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)
    folder.rmdir()


def missing_cgroups() -> str | None:
    """Why real cgroups cannot be used here; None when they can."""
    try:
        tree = RealTree()
    except (Fault, OSError) as error:
        return f"no writable cpu cgroups: {error}"
    tree.close()
    return None


@contextmanager
def real_tree() -> Iterator[RealTree]:
    tree = RealTree()
    try:
        yield tree
    finally:
        tree.close()
