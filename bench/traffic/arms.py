"""Starting and ending an arm: a proxy as its manual says, or `fairlead traffic run` on a plane.

An arm is all processes in its cgroup. It is started when the backends are there, and counts as
started when a request gets through.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.traffic.peers import PREPARE
from bench.traffic.place import ARM, BACKENDS_CPU, CLIENTS, PROXY_CPU, Place, own_bpffs
from bench.traffic.scenarios import MEAN_S, SLO_S
from fairlead.dataplane.ebpf import build, uninstall
from fairlead.host.process import free_port

GROUP, STATE = "web", "state"
_VIP = "127.99.0.1"
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Variant:
    """Our agent on a plane; `group` and `isolation` are laid over the settings below."""

    plane: str
    config: dict[str, Any] = field(default_factory=dict)
    isolation: dict[str, Any] = field(default_factory=dict)
    scrape: dict[str, Any] = field(default_factory=dict)
    retry: str | None = None


VARIANTS = {f"ours-{plane}": Variant(plane) for plane in ("ebpf", "haproxy", "envoy")}


@dataclass(slots=True)
class Started:
    """An arm that serves."""

    target: tuple[str, int]
    agent: subprocess.Popen[Any] | None = None
    log: Path | None = None
    start_agent: Callable[[], subprocess.Popen[Any]] | None = None

    def restart(self) -> None:
        """Start the agent again, where there is one."""
        if self.start_agent is not None:
            self.agent = self.start_agent()


@contextlib.contextmanager
def started(
    place: Place, arm: str, variant: Variant | None, folder: Path, backends: Mapping[str, int]
) -> Iterator[Started]:
    """The arm while the block runs; nothing of it is left afterwards."""
    opening = _peer(place, arm, folder, backends)
    if variant is not None:
        opening = _ours(place, variant, folder, backends)
    try:
        with opening as running:
            yield running
    finally:
        place.clear(ARM)


@contextlib.contextmanager
def _peer(place: Place, arm: str, folder: Path, backends: Mapping[str, int]) -> Iterator[Started]:
    port = free_port()
    command = PREPARE[arm](folder, port, backends)
    with (folder / "arm.log").open("wb") as log:
        process = place.start(
            command, ARM, PROXY_CPU, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    running = Started(("127.0.0.1", port), log=folder / "arm.log")
    _wait_ready(running, process)
    yield running
    process.kill()
    process.wait()


def settings(
    variant: Variant,
    target: tuple[str, int],
    backends: Mapping[str, int],
    folder: Path,
    plane: Mapping[str, str],
) -> dict[str, Any]:
    """The agent's configuration. What a user has to say is said: where the backends are, what
    latency is still good, how to ask a backend that is isolated. The rest are defaults, but that
    the machine itself is not watched: its stalls are the benchmark's.
    """
    host, port = target
    group: dict[str, Any] = {
        "name": GROUP,
        "vip": host,
        "port": port,
        "backends": [{"id": id, "host": "127.0.0.1", "port": at} for id, at in backends.items()],
        "config": {"l_ref_ms": SLO_S * 1000, **variant.config},
        "isolation": variant.isolation,
        "probe": {
            "kind": "http",
            "path": f"/work?ms={MEAN_S * 1000:g}&probe=1",
            "timeout_ms": round(SLO_S * 1000),
        },
    }
    if variant.retry is not None:
        group["retry"] = variant.retry
    if variant.plane == "ebpf":
        # The kernel sees connections, not answers: the application tells the rest.
        group["scrape"] = {
            "every_ms": 100,
            "requests": "requests_total",
            "errors": "errors_total",
            "queue": "inside",
            "latency": "latency_seconds",
            **variant.scrape,
        }
    return {
        "plane": {"kind": variant.plane, **plane},
        "groups": [group],
        "node": {"watch": False},
        "state_dir": str(folder / STATE),
    }


@contextlib.contextmanager
def _ours(
    place: Place, variant: Variant, folder: Path, backends: Mapping[str, int]
) -> Iterator[Started]:
    with contextlib.ExitStack() as stack:
        plane, target = {"folder": str(folder / "plane")}, ("127.0.0.1", free_port())
        if variant.plane == "ebpf":
            build()
            pins = stack.enter_context(own_bpffs()) / "fairlead"
            stack.callback(uninstall, pins)
            plane = {"cgroup": str(place.cgroup(CLIENTS)), "pins": str(pins)}
            target = (_VIP, 80)
        config, log_file = folder / "traffic.json", folder / "arm.log"
        config.write_text(json.dumps(settings(variant, target, backends, folder, plane)))

        def start() -> subprocess.Popen[Any]:
            command = [sys.executable, "-m", "fairlead", "traffic", "run", str(config)]
            with log_file.open("ab") as log:
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                return place.start(command, ARM, BACKENDS_CPU, **streams)

        agent = start()
        running = Started(target, agent, log_file, start)
        _wait_ready(running, agent)
        _pin_proxies(place, agent.pid)
        yield running
        agent = running.agent or agent
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(20)
        # What the agent started has to be gone before the eBPF file system can be.
        place.clear(ARM)
        agent.wait()


def _pin_proxies(place: Place, agent: int) -> None:
    """The agent's proxy belongs where the others' proxies run."""
    for pid in (place.cgroup(ARM) / "cgroup.procs").read_text().split():
        if int(pid) != agent:
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {PROXY_CPU})


def _wait_ready(running: Started, process: subprocess.Popen[Any]) -> None:
    give_up = time.monotonic() + _START_S
    while not _answers(running.target):
        if process.poll() is not None or time.monotonic() > give_up:
            said = running.log.read_text(errors="replace") if running.log else ""
            raise RuntimeError(f"{process.args}: does not serve\n{said[-2000:]}")
        time.sleep(0.05)


def _answers(target: tuple[str, int]) -> bool:
    """Whether a request gets through to some backend."""
    connection = http.client.HTTPConnection(*target, timeout=2)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
