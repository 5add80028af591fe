"""One backend of the group, as a process: `python -m bench.traffic.backends '{...}'`.

The service is `fairlead.sim.traffic.backend`. While it is unhealthy it is ten times as slow, or
answers 500. Says "ready", waits for "go T" on stdin (faults count from T), writes the moments at
which requests came when it gets SIGTERM.
"""

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from bench.cpu.workloads import die_with_parent
from fairlead.schema.traffic_scenario import Blind
from fairlead.sim.traffic.backend import FakeService, HttpServer


class Backend:
    """A service with a plan of faults: [from when, how slow, failing, gone, blind]."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.arrivals: list[float] = []
        self.start: float | None = None
        self.service = FakeService(spec["workers"], arrived=self._arrived)
        self.server = HttpServer(spec["name"], self.service.answer)
        self._faults: list[list[Any]] = spec["faults"]

    def _arrived(self) -> None:
        if self.start is not None:
            self.arrivals.append(time.monotonic() - self.start)

    def begin(self, loop: asyncio.AbstractEventLoop, start: float) -> None:
        """The common start: from here on arrivals are counted and faults happen."""
        self.start = start
        for at_s, *fault in self._faults:
            loop.call_later(start + at_s - time.monotonic(), self._set_fault, loop, *fault)

    def _set_fault(
        self,
        loop: asyncio.AbstractEventLoop,
        slow: float,
        failing: bool,  # noqa: FBT001 - called by the loop
        gone: bool = False,  # noqa: FBT001, FBT002
        blind: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.service.slow, self.service.failing = slow, failing
        self.service.hidden = Blind.LATENCY if blind else Blind.NOTHING
        if gone:
            self.server.close()
        elif not self.server.listening:
            self._opening = loop.create_task(self.server.open())


async def serve(spec: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    backend, ended = Backend(spec), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await backend.server.open(socket.socket(fileno=spec["socket"]))
    loop.add_reader(sys.stdin.fileno(), _take_go, loop, backend)
    print("ready", flush=True)
    await ended.wait()
    backend.server.shut()
    Path(spec["result"]).write_text(json.dumps(backend.arrivals))


def _take_go(loop: asyncio.AbstractEventLoop, backend: Backend) -> None:
    words = sys.stdin.readline().split()
    if words[:1] == ["go"]:
        backend.begin(loop, float(words[1]))
    loop.remove_reader(sys.stdin.fileno())


def allow_many_files() -> None:
    """A connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_files()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
