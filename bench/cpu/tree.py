"""The benchmark's own cgroups: created below one root, removed afterwards whatever happens."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.node.cgroup_mounts import CgroupHost, read_cgroup_host
from fairlead.node.cgroups import CgroupFiles, open_files

SHARES_PER_CORE = 1024
# Other work on the machine runs beside this tree with some 1024 per service; this keeps it from
# deciding the result, and leaves it what the tree does not use. What it used is in every run.
ROOT_SHARES = 32 * 1024
# The watcher, the rules and the agent stand outside the tree and must not starve because of that:
# a node reserves CPU for its daemons too.
CONTROL_SHARES = 128 * 1024


class BenchTree:
    """One root with pods below it, on cgroup v1 or v2."""

    def __init__(self, name: str) -> None:
        self.host: CgroupHost = read_cgroup_host()
        self.name = name
        mounts = [self.host.cpu_mount]
        if self.host.cpuacct_mount is not None and self.host.cpuacct_mount not in mounts:
            mounts.append(self.host.cpuacct_mount)
        self._roots = [mount / name for mount in mounts]
        self._paths: list[str] = []
        self._shares: dict[str, int] = {}
        self._make("")
        self._share("", ROOT_SHARES)
        self._home = Path(f"{self.host.cpu_mount}{_own_cgroup()}")
        self._control = self.host.cpu_mount / f"{name}-control"
        self._control.mkdir()
        _write_shares(self._control, self.host.version, CONTROL_SHARES)
        real_time = self._control / "cpu.rt_runtime_us"
        if real_time.exists():  # the generator is real-time; v1 grants that per cgroup
            real_time.write_text("400000")
        (self._control / "cgroup.procs").write_text(str(os.getpid()))
        cpuacct = self.host.cpuacct_mount
        self.files: CgroupFiles = open_files(
            self.host.version, self.host.cpu_mount / name, cpuacct / name if cpuacct else None
        )

    @property
    def root(self) -> Path:
        """The root as `fairlead node run --root` takes it."""
        return self.host.cpu_mount / self.name

    def add(self, path: str, *, request_millicores: int) -> None:
        """A pod or a container, with the CPU weight that Kubernetes gives for its request."""
        self._make(path)
        self._shares[path] = max(2, request_millicores * SHARES_PER_CORE // 1000)

    def share(self, scenario: str, *, by_request: bool) -> None:
        """Give all pods of a scenario the weights of their requests, or the kernel's default."""
        for path, shares in self._shares.items():
            if path == scenario or by_request:
                self._share(path, shares)
            elif path.startswith(f"{scenario}/"):
                self._share(path, SHARES_PER_CORE)

    def enter(self, path: str, pid: int) -> None:
        for root in self._roots:
            (root / path / "cgroup.procs").write_text(str(pid))

    def unlimit(self) -> None:
        for path in self._paths:
            if path:
                self.burst(path, 0)
                self.limit(path, None)

    def limit(self, path: str, millicores: int | None) -> None:
        """Write one limit with the kernel's usual period; never below the 1 ms it accepts."""
        quota = -1 if millicores is None else max(1000, millicores * 100)
        if self.host.version == 1:
            (self.root / path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            amount = "max" if quota < 0 else str(quota)
            (self.root / path / "cpu.max").write_text(f"{amount} 100000")

    def burst(self, path: str, millicores: int) -> None:
        """Let a container save up unused quota, up to one period's worth (Linux 5.14)."""
        name = "cpu.cfs_burst_us" if self.host.version == 1 else "cpu.max.burst"
        (self.root / path / name).write_text(str(max(0, millicores * 100)))

    def remove(self) -> None:
        """End what is left inside (all of it was started here) and remove everything."""
        self.files.close()
        (self._home / "cgroup.procs").write_text(str(os.getpid()))
        _remove(self._control)
        for root in self._roots:
            for path in sorted(self._paths, key=len, reverse=True):
                _remove(root / path)

    def _make(self, path: str) -> None:
        for root in self._roots:
            (root / path).mkdir()
            if self.host.version == 2 and path:
                parent = (root / path).parent / "cgroup.subtree_control"
                parent.write_text("+cpu")
        self._paths.append(path)

    def _share(self, path: str, shares: int) -> None:
        _write_shares(self.root / path, self.host.version, shares)


def _write_shares(cgroup: Path, version: int, shares: int) -> None:
    if version == 1:
        (cgroup / "cpu.shares").write_text(str(shares))
    else:
        weight = 1 + (shares - 2) * 9999 // 262142  # as kubelet converts them
        (cgroup / "cpu.weight").write_text(str(weight))


def _own_cgroup() -> str:
    """This process's path in the hierarchy that carries `cpu`."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or not controllers:
            return path.rstrip("/")
    return ""


def _remove(path: Path) -> None:
    for _ in range(50):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                for pid in (path / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def bench_tree(prefix: str = "fairlead-bench") -> Iterator[BenchTree]:
    """A tree that is gone when the block ends, whatever ends it."""
    tree = BenchTree(f"{prefix}-{os.getpid()}")
    try:
        yield tree
    finally:
        tree.remove()
