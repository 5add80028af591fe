"""The benchmark's own cgroups and processes: made for it, pinned, counted, and taken away again.

Three cgroups (v2) below one: clients, backends, and the arm that is measured, so that an arm's CPU
is what the kernel counted for all of its processes, agent, proxy and watchers. Clients are where
the eBPF plane is attached. Everything also gets a large CPU weight: other work on the machine is to
wait, not to decide the result.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairlead.dataplane.ebpf import default_cgroup
from fairlead.node.cgroup_mounts import read_cgroup_host

CHECKOUT = Path(__file__).resolve().parents[2]
CLIENTS, BACKENDS, ARM = "clients", "backends", "arm"
# The generator and the proxy share a CPU (one needs little, but at once), the backends and an
# agent the other; on a larger machine too, so that figures compare.
PROXY_CPU, BACKENDS_CPU = 0, 1
_SHARES, _WEIGHT, _REAL_TIME_US = 128 * 1024, 5_000, 400_000


class Place:
    """Cgroups of one benchmark. The process that makes it becomes a client."""

    def __init__(self) -> None:
        mount = default_cgroup()
        if mount is None:
            raise SystemExit("bench.traffic needs cgroup v2 (a hybrid mount is enough)")
        name = f"fairlead-bench-traffic-{os.getpid()}"
        self._root = mount / name
        self._weights: Path | None = None
        self._homes = {mount: _own(mount, "")}
        for folder in (self._root, *(self.cgroup(each) for each in (CLIENTS, BACKENDS, ARM))):
            folder.mkdir()
        host = read_cgroup_host()
        if host.version == 1:
            self._weights = host.cpu_mount / name
            self._weights.mkdir()
            self._homes[host.cpu_mount] = _own(host.cpu_mount, "cpu")
            (self._weights / "cpu.shares").write_text(str(_SHARES))
            if (self._weights / "cpu.rt_runtime_us").exists():
                (self._weights / "cpu.rt_runtime_us").write_text(str(_REAL_TIME_US))
            (self._weights / "cgroup.procs").write_text(str(os.getpid()))
        elif (self._root / "cpu.weight").exists():
            (self._root / "cpu.weight").write_text(str(_WEIGHT))
        (self.cgroup(CLIENTS) / "cgroup.procs").write_text(str(os.getpid()))

    def cgroup(self, name: str) -> Path:
        """One of the three."""
        return self._root / name

    def start(
        self, command: Sequence[str], where: str, cpu: int | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """A process inside a cgroup and on a CPU from its first instruction on."""
        procs = str(self.cgroup(where) / "cgroup.procs")

        def enter() -> None:
            with open(procs, "w") as file:
                file.write(str(os.getpid()))
            if cpu is not None:
                os.sched_setaffinity(0, {cpu % (os.cpu_count() or 1)})

        return subprocess.Popen(
            list(command),
            cwd=CHECKOUT,
            start_new_session=True,
            preexec_fn=enter,  # noqa: PLW1509 - in its cgroup before it runs
            **options,
        )

    def cpu_seconds(self, name: str | None = None) -> float:
        """What a cgroup has used so far; without a name, all of them together."""
        folder = self.cgroup(name) if name else self._root
        used = (folder / "cpu.stat").read_text().split("\n", 1)[0]
        return int(used.removeprefix("usage_usec ")) / 1e6

    def clear(self, name: str) -> None:
        """End whatever is left in a cgroup: all of it was started here."""
        procs = self.cgroup(name) / "cgroup.procs"
        for _ in range(200):
            left = [int(pid) for pid in procs.read_text().split()]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        raise RuntimeError(f"{procs}: processes that do not end")

    def remove(self) -> None:
        """Go home, then take the cgroups away."""
        for home in self._homes.values():
            (home / "cgroup.procs").write_text(str(os.getpid()))
        for name in (ARM, BACKENDS):
            self.clear(name)
        folders = [self.cgroup(each) for each in (CLIENTS, BACKENDS, ARM)]
        for folder in [*folders, self._root, *([self._weights] if self._weights else [])]:
            _remove(folder)


def _own(mount: Path, controller: str) -> Path:
    """Where this process is in a hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return mount / path.lstrip("/")
    return mount


def _remove(folder: Path) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            return folder.rmdir()
        time.sleep(0.02)
    return folder.rmdir()


@contextlib.contextmanager
def own_place() -> Iterator[Place]:
    """A place that is gone when the block ends, whatever ends it."""
    place = Place()
    try:
        yield place
    finally:
        place.remove()


@contextlib.contextmanager
def own_bpffs() -> Iterator[Path]:
    """A bpf file system of our own."""
    point = Path(tempfile.mkdtemp(prefix="fairlead-bench-bpf-"))
    try:
        subprocess.run(["mount", "-t", "bpf", "bpf", str(point)], check=True, capture_output=True)
        try:
            yield point
        finally:
            subprocess.run(["umount", str(point)], check=True, capture_output=True)
    finally:
        point.rmdir()
