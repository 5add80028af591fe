"""Worlds for the conformance suite: a plane, backends that answer their id, and clients.

The world of a plane subclasses `RealWorld`: it opens its plane, says how far its splits may be off,
makes the heartbeat old, and says what is left after `remove`.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from fairlead.core.invariant import known
from fairlead.core.traffic.admission import FALLBACK_AFTER_MS, HOLD_AFTER_MS
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.host.process import free_port
from fairlead.ports.dataplane import Backend, Dataplane, Proto, RouteGroup, Table
from tests.dataplane.backends import HOST, Backends
from tests.dataplane.clients import Load, Sent, ThreadLoad, request
from tests.dataplane.tables import NORMAL, table

AGES = {Liveness.HOLD: HOLD_AFTER_MS + 500, Liveness.FALLBACK: FALLBACK_AFTER_MS + 500}


class Held(Protocol):
    """Requests to a group of which some backends keep what they get."""

    def add(self) -> str | None:
        """One more request: its word, or None if it stays inside."""
        ...


class World(ABC):
    """A plane with something behind it and somebody in front of it."""

    plane: Dataplane
    split_error_max = 0
    """How many requests a backend may be off its slots, in any Σ slots requests in a row."""
    tables: Mapping[str, Table] = {}
    """What was applied last, by group."""
    alone = False
    """Whether the agent is to be thought dead: then nobody beats for it."""

    def apply(
        self,
        group: str,
        slots: Mapping[str, int],
        admission: Admission = NORMAL,
        *,
        epoch: int,
        inside_max: int | None = None,
        stored: tuple[float, float] | None = None,
    ) -> None:
        """What an agent does in a tick that changes something."""
        self.alone = False
        self.plane.heartbeat()
        held = self._held(group)
        made = table(group, epoch, slots, admission, inside_max, stored=stored, **held)
        self.plane.apply(made, decision=epoch)
        self.tables = {**self.tables, group: made}

    def tick(self) -> None:
        """What an agent does in a tick that changes nothing."""
        self.plane.heartbeat()
        for name, made in self.tables.items():
            bound = made.limits.concurrency
            if bound is not None:
                now = table(
                    name, made.epoch, made.slots, inside_max=bound.inside_max, **self._held(name)
                )
                renewed = known(now.limits.concurrency, "a bounded group")
                self.plane.limit(name, renewed, decision=made.epoch)

    def _held(self, group: str) -> dict[str, Any]:
        """What `plan_limits` asks of what is seen."""
        seen = self.plane.read().get(group)
        backends = {} if seen is None else seen.backends
        return {
            "open": {id: backend.open for id, backend in backends.items()},
            "inside": {id: backend.inside for id, backend in backends.items()},
        }

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for it, long enough for a machine that does other things too."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.01)

    @abstractmethod
    def group(self, name: str, ids: Sequence[str]) -> RouteGroup:
        """A group with a backend for each id. Nothing is configured by this."""

    def send(self, group: RouteGroup, count: int) -> list[str]:
        """One request after the other, each a flow of its own; the agent, if any, lives on."""
        words = []
        for number in range(count):
            if number % 32 == 31 and not self.alone:
                self.plane.heartbeat()  # a slow machine may need longer than a heartbeat lasts
            words.append(self.one(group))
        return words

    @abstractmethod
    def one(self, group: RouteGroup) -> str:
        """One request, a flow of its own."""

    @abstractmethod
    def holding(
        self, group: RouteGroup, ids: Collection[str]
    ) -> contextlib.AbstractContextManager["Held"]:
        """These backends keep what they get, until the end of the block."""

    @abstractmethod
    def flow(self, group: RouteGroup, number: int) -> str:
        """One request of a flow; the same number is the same flow."""

    @abstractmethod
    def load(
        self, group: RouteGroup, clients: int, *, pause_s: float = 0.0
    ) -> contextlib.AbstractContextManager[Load]:
        """Requests that go on meanwhile."""

    def abandon(self, liveness: Liveness) -> None:
        """The agent dies, and has been dead so long that the plane must think this of it."""
        self.alone = True
        self.age(liveness)

    @abstractmethod
    def age(self, liveness: Liveness) -> None:
        """Make the last heartbeat that old."""

    @abstractmethod
    def reopen(self) -> None:
        """The agent went away and another comes: `plane` is its plane, nothing was called yet."""

    @abstractmethod
    def left(self) -> list[str]:
        """What of the plane is still on the machine."""

    @abstractmethod
    def close(self) -> None:
        """Take everything down."""


class MemoryWorld(World):
    """The plane without a network; its clock is ours."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.memory = MemoryDataplane(lambda: self.now_ms)
        self.plane: Dataplane = self.memory
        self._port = 1

    def group(self, name: str, ids: Sequence[str]) -> RouteGroup:
        backends = tuple(Backend(id, HOST, self._next()) for id in ids)
        return RouteGroup(name, HOST, self._next(), Proto.TCP, backends)

    def one(self, group: RouteGroup) -> str:
        return self._one(group, None)

    @contextlib.contextmanager
    def holding(self, group: RouteGroup, ids: Collection[str]) -> Iterator[Held]:
        memory, kept = self.memory, list[str]()

        class Kept:
            """What is kept is simply never done."""

            def add(self) -> str | None:
                verdict = memory.route(group.name)
                if verdict.backend is None:
                    return str(verdict.refused)
                if verdict.backend in ids:
                    kept.append(verdict.backend)
                    return None
                memory.done(group.name, verdict.backend, latency_ms=1.0, ok=True)
                return verdict.backend

        yield Kept()
        for id in kept:
            memory.done(group.name, id, latency_ms=1.0, ok=True)

    def flow(self, group: RouteGroup, number: int) -> str:
        return self._one(group, b"flow %d" % number)

    @contextlib.contextmanager
    def load(self, group: RouteGroup, clients: int, *, pause_s: float = 0.0) -> Iterator[Load]:
        world = self

        class Steps:
            """Nothing goes on by itself here: waiting sends."""

            def __init__(self) -> None:
                self.sent: list[Sent] = []

            def wait(self, more: int) -> None:
                for _ in range(more):
                    began = time.monotonic()
                    word = world._one(group, None)
                    self.sent.append(Sent(began, time.monotonic(), word))

        yield Steps()

    def age(self, liveness: Liveness) -> None:
        self.now_ms += AGES[liveness]

    def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(1_000):
            if condition():
                return
            self.now_ms += 100
        raise AssertionError(what)

    def reopen(self) -> None:
        self.plane.detach()  # a plane in a process's memory cannot outlive it otherwise

    def left(self) -> list[str]:
        return list(self.plane.read())

    def close(self) -> None:
        """Nothing to give back."""

    def _next(self) -> int:
        self._port += 1
        return self._port

    def _one(self, group: RouteGroup, flow: bytes | None) -> str:
        if group.name not in self.plane.read():
            return "failed: nobody listens"
        verdict = self.memory.route(group.name, flow)
        if verdict.backend is None:
            return str(verdict.refused)
        self.memory.done(group.name, verdict.backend, latency_ms=1.0, ok=True)
        return verdict.backend


class RealWorld(World):
    """A plane on this machine, with real backends, connections and processes."""

    def __init__(self) -> None:
        # Not pytest's folder: the path of a socket has 107 bytes and no more.
        self._home = tempfile.TemporaryDirectory(prefix="fairlead-")
        self.folder = Path(self._home.name) / "plane"
        self.backends = Backends()
        self.agents: list[subprocess.Popen[bytes]] = []
        self.groups: list[RouteGroup] = []
        self.plane = self.open()

    @abstractmethod
    def open(self) -> Dataplane:
        """The plane, as an agent opens it."""

    @abstractmethod
    def opener(self) -> tuple[str, Mapping[str, Any]]:
        """`module:function` and its keyword arguments, which open the same plane elsewhere."""

    def group(self, name: str, ids: Sequence[str]) -> RouteGroup:
        backends = tuple(self.backends.start(id) for id in ids)
        made = RouteGroup(name, HOST, free_port(), Proto.TCP, backends)
        self.groups.append(made)
        return made

    def one(self, group: RouteGroup) -> str:
        return request(group.vip, group.port)

    @contextlib.contextmanager
    def holding(self, group: RouteGroup, ids: Collection[str]) -> Iterator[Held]:
        held = ThreadHeld(lambda: request(group.vip, group.port), self.backends)
        for id in ids:
            self.backends.behaviour[id].held = True
        try:
            yield held
        finally:
            for id in ids:
                self.backends.behaviour[id].held = False
            held.join()

    def flow(self, group: RouteGroup, number: int) -> str:
        return request(group.vip, group.port, source=flow_source(number))

    @contextlib.contextmanager
    def load(self, group: RouteGroup, clients: int, *, pause_s: float = 0.0) -> Iterator[Load]:
        load = ThreadLoad(lambda: request(group.vip, group.port), pause_s)
        with load.running(clients):
            yield load

    def reopen(self) -> None:
        self.plane.detach()
        self.plane = self.open()

    def agent(self, tables: Sequence[Table]) -> subprocess.Popen[bytes]:
        """A process that configures the groups, applies the tables and beats until it dies."""
        self.alone = True  # it beats for itself
        opener, arguments = self.opener()
        task = {
            "opener": opener,
            "arguments": arguments,
            "groups": [asdict(group) for group in self.groups],
            "tables": [_task(table) for table in tables],
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.dataplane.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.agents.append(process)
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(task).encode())
        process.stdin.close()
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "the agent did not begin"
        assert process.stdout.readline() == b"ready\n", "the agent died"
        return process

    def close(self) -> None:
        for process in self.agents:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout:
                process.stdout.close()
        self.plane.remove()
        self.backends.close()
        self._home.cleanup()

    def _listening(self) -> list[str]:
        """Groups whose address still answers."""
        found = []
        for group in self.groups:
            with socket.socket() as probe:
                if probe.connect_ex((group.vip, group.port)) == 0:
                    found.append(f"{group.name} listens")
        return found

    def _processes(self) -> list[str]:
        """Processes that were started for our folder."""
        wanted, found = str(self.folder).encode(), []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and wanted in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(f"process {name}")
        return found


def _task(made: Table) -> dict[str, Any]:
    """A table for `tests.dataplane.agent`."""
    admission, alone = made.limits.admission, made.limits.fallback.admission
    return {
        "group": made.group,
        "epoch": made.epoch,
        "slots": made.slots,
        "admission": [admission.mode, admission.rate_per_s, admission.burst],
        "stored": [alone.rate_per_s, alone.burst] if alone != admission else None,
    }


class ThreadHeld:
    """Each request in a thread of its own."""

    def __init__(self, send: Callable[[], str], backends: Backends) -> None:
        self._send, self._backends = send, backends
        self._threads: list[threading.Thread] = []

    def add(self) -> str | None:
        words, before = list[str](), self._backends.held
        thread = threading.Thread(target=lambda: words.append(self._send()))
        self._threads.append(thread)
        thread.start()
        deadline = time.monotonic() + 60
        while not words and self._backends.held == before:
            assert time.monotonic() < deadline, "the request is nowhere"
            time.sleep(0.001)
        if words:
            thread.join()  # gone from every counter, too
        return words[0] if words else None

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def flow_source(number: int) -> tuple[str, int]:
    """The client's address and port of a flow: loopback has addresses for every process."""
    pid = os.getpid()
    return f"127.{1 + pid // 250 % 250}.{1 + pid % 250}.{1 + number % 250}", 20_000 + number
