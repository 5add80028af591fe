"""A place for the eBPF plane in tests: a cgroup, a bpf file system, servers and clients of our own.

Everything is made for the tests and taken away afterwards; processes end by id.
"""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.traffic.place import own_bpffs

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane, build, default_cgroup, missing, uninstall
from fairlead.dataplane.ebpf.kernel import libbpf
from fairlead.dataplane.ebpf.toolchain import tools_missing
from fairlead.ports.dataplane import Backend, Proto, RouteGroup
from fairlead.ports.faults import Fault

ROOT = Path(__file__).resolve().parents[3]


class Talker:
    """A process of ours that answers a line of JSON with a line of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.hello = self.hear()

    def tell(self, do: str, **arguments: object) -> None:
        """Send an order and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args} ended with {self.process.wait()}"
        return json.loads(line)

    def do(self, do: str, **arguments: object) -> Any:
        """Send an order and wait for the answer."""
        self.tell(do, **arguments)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.process.kill()
        with self.process:  # closes the pipes
            self.process.wait()


@dataclass
class Place:
    """Where planes are opened in tests."""

    cgroup: Path
    pins: Path
    ports: list[int]
    """Of the servers on 127.0.0.1, by their number."""
    ports6: list[int]
    """Of those on ::1."""
    _talkers: list[Talker] = field(default_factory=list)
    _planes: list[EbpfDataplane] = field(default_factory=list)

    def client(self) -> Talker:
        """A process in the cgroup."""
        return self.talker("tests.dataplane.ebpf.client", str(self.cgroup))

    def talker(self, module: str, *arguments: str) -> Talker:
        """Any process of ours; it is ended with the place at the latest."""
        self._talkers.append(Talker(module, *arguments))
        return self._talkers[-1]

    def plane(self, **options: Any) -> EbpfDataplane:
        """A plane, installed or taken over."""
        self._planes.append(EbpfDataplane(self.cgroup, self.pins, **options))
        return self._planes[-1]

    def clear(self) -> None:
        """Whatever a test left open or pinned."""
        while self._planes:
            self._planes.pop().detach()
        uninstall(self.pins)

    def end(self) -> None:
        for talker in self._talkers:
            talker.kill()


def group(
    name: str, vip: str, port: int, to: dict[str, int], proto: Proto = Proto.TCP, *, host: str = ""
) -> RouteGroup:
    """A group whose backends are servers on loopback: id to port."""
    host = host or ("::1" if ":" in vip else "127.0.0.1")
    return RouteGroup(
        name, vip, port, proto, tuple(Backend(id, host, each) for id, each in to.items())
    )


def limited(mode: AdmissionMode, rate: float, burst: float) -> Admission:
    return Admission(mode, rate, burst)


def grow_old(plane: EbpfDataplane, seconds: float) -> None:
    """Set the heartbeat back, in the kernel's map, instead of waiting."""
    maps, _ = plane._open()
    maps.heartbeat[0] = ctypes.c_uint64(time.monotonic_ns() - round(seconds * 1e9))


@contextlib.contextmanager
def own_cgroup() -> Iterator[Path]:
    """A cgroup of our own."""
    mount = default_cgroup()
    assert mount is not None
    folder = mount / f"fairlead-test-ebpf-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove_cgroup(folder)


def remove_cgroup(folder: Path) -> None:
    """A cgroup whose last process is just ending is tried again."""
    for _ in range(500):
        with contextlib.suppress(OSError):
            return folder.rmdir()
        time.sleep(0.01)
    return folder.rmdir()


@contextlib.contextmanager
def own_place() -> Iterator[Place]:
    """A cgroup, a bpf file system and five servers of each family."""
    build()
    with own_bpffs() as bpffs, own_cgroup() as cgroup:
        place = Place(cgroup, bpffs / "fairlead", [], [])
        try:
            for host, ports in (("127.0.0.1", place.ports), ("::1", place.ports6)):
                ports.extend(place.talker("tests.dataplane.ebpf.servers", "5", host).hello)
            yield place
        finally:
            place.end()
            place.clear()


def missing_ebpf_packages() -> str | None:
    """Which programs and libraries are not installed; None when all are."""
    lacking = tools_missing()
    if shutil.which("bpftool") is None:  # an operator looks with it; the agent needs none
        lacking.append("bpftool is not on PATH")
    try:
        libbpf()
    except OSError as error:
        lacking.append(str(error))
    return "; ".join(lacking) or None


def missing_ebpf() -> str | None:
    """Why the eBPF plane cannot be tested here; None when it can."""
    lacking = missing_ebpf_packages()
    if lacking:
        return lacking
    try:
        with socket.socket(socket.AF_INET6) as probe:  # half of the servers are there
            probe.bind(("::1", 0))
        build()
        with own_bpffs() as bpffs:
            return "; ".join(missing(pins=bpffs / "fairlead")) or None
    except (Fault, OSError, subprocess.CalledProcessError) as error:
        return f"no eBPF here: {error}"
