"""An agent that is killed at twice the capacity and comes back at half of it, beside a static peer.

    python -m tests.e2e.death_drill '{"plane": {"kind": "haproxy", "folder": ...}, "target": [...]}'

Both get the same requests at the same time, on backends of their own: ours through `fairlead
traffic run`, the peer through an HAProxy whose limits are set by hand. Prints what clients saw. A
process of its own, for clients of the eBPF dataplane are those in its cgroup.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from fairlead.host.process import free_port
from fairlead.sim.traffic.backend import HOST, FakeService, HttpServer
from fairlead.sim.traffic.generator import Attempt, LoadGenerator, PlannedRequest, arrivals
from fairlead.sim.traffic.result import AnswerKind

NAMES, WORKERS, WORK_S, SLO_S, PATIENCE_S = ("b1", "b2"), 8, 0.2, 0.8, 6.0
CAPACITY_PER_S = len(NAMES) * WORKERS / WORK_S
RISES_S, KILLED_S, CALM_S, END_S = 4.0, 9.0, 49.0, 72.0
RATES = (
    (RISES_S, 0.7 * CAPACITY_PER_S),
    (CALM_S, 2 * CAPACITY_PER_S),
    (END_S, 0.5 * CAPACITY_PER_S),
)
WINDOW_S = (KILLED_S + 30.0, CALM_S)
SPAN_S, FINE = 2.0, 0.9
"""The service is back with the first 2 s that have so many of the good requests that the proxy with
limits set by hand has in them: on a busy machine neither has all of them."""


class Services:
    """Backends in a thread of their own."""

    def __init__(self, names: list[str]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.servers = asyncio.run_coroutine_threadsafe(self._open(names), self._loop).result(30)

    async def _open(self, names: list[str]) -> dict[str, HttpServer]:
        servers = {}
        for name in names:
            service = FakeService(WORKERS, draw=lambda: (WORK_S * 1000, False))
            servers[name] = HttpServer(name, service.answer)
            await servers[name].open()
        return servers


def static_peer(folder: Path, port: int, backends: dict[str, int]) -> subprocess.Popen[bytes]:
    """HAProxy as an expert sets it: one more than a server has workers, a short queue."""
    listed = "\n".join(
        f"    server {name} {HOST}:{at} maxconn {WORKERS + 1}" for name, at in backends.items()
    )
    (folder / "peer.cfg").write_text(
        f"""global
    nbthread 1
defaults
    mode http
    option abortonclose
    option redispatch
    retries 2
    retry-on conn-failure empty-response
    timeout connect 1s
    timeout client 30s
    timeout server 30s
    timeout queue {round(SLO_S * 3 / 8 * 1000)}ms
frontend web
    bind {HOST}:{port}
    default_backend servers
backend servers
    balance leastconn
{listed}
"""
    )
    return subprocess.Popen(["haproxy", "-db", "-q", "-f", str(folder / "peer.cfg")])


class Agent:
    """Our agent."""

    def __init__(self, folder: Path, spec: dict[str, Any], backends: dict[str, int]) -> None:
        host, port = spec["target"]
        group: dict[str, Any] = {
            "name": "web",
            "vip": host,
            "port": port,
            "backends": [{"id": id, "host": HOST, "port": at} for id, at in backends.items()],
            "config": {"l_ref_ms": SLO_S * 1000},
        }
        if spec["plane"]["kind"] == "ebpf":
            group["scrape"] = {
                "every_ms": 200,
                "requests": "requests_total",
                "errors": "errors_total",
                "queue": "inside",
                "latency": "latency_seconds",
            }
        config = {
            "plane": spec["plane"],
            "state_dir": str(folder / "state"),
            "node": {"watch": False},
            "groups": [group],
        }
        self.file, self.log, self.status = (
            folder / name for name in ("traffic.json", "agent.log", "state/status.json")
        )
        self.file.write_text(json.dumps(config))
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command("run"), stderr=log)

    def command(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "fairlead", "traffic", verb, str(self.file)]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while not self.status.exists():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        subprocess.run(self.command("remove"), check=True, capture_output=True, timeout=60)


def good(attempts: list[Attempt], begin_s: float, end_s: float) -> int:
    """Requests of that time that were answered well and soon enough."""
    meant = (one for one in attempts if begin_s <= one.due_s < end_s)
    return sum(one.kind is AnswerKind.OK and one.took_s <= SLO_S for one in meant)


def figures(attempts: list[Attempt], peer: list[Attempt]) -> dict[str, Any]:
    """What clients saw: good requests per second without an agent, and when all was well again."""
    spans = [CALM_S + step / 5 for step in range(int((END_S - SPAN_S - CALM_S) * 5) + 1)]
    counts = (
        (at_s, *(good(side, at_s, at_s + SPAN_S) for side in (attempts, peer))) for at_s in spans
    )
    back_s = next((at_s for at_s, kept, theirs in counts if kept >= max(1, FINE * theirs)), None)
    return {
        "held_per_s": good(attempts, KILLED_S, KILLED_S + 15.0) / 15.0,
        "alone_per_s": good(attempts, *WINDOW_S) / (WINDOW_S[1] - WINDOW_S[0]),
        "recovered_after_s": None if back_s is None else back_s - CALM_S,
    }


def main(spec: dict[str, Any]) -> None:
    services = Services([f"{side}-{name}" for side in ("ours", "peer") for name in NAMES])
    ports = {
        side: {name: services.servers[f"{side}-{name}"].port for name in NAMES}
        for side in ("ours", "peer")
    }
    with tempfile.TemporaryDirectory(prefix="fairlead-") as made:
        folder, peer_port = Path(made), free_port()
        peer = static_peer(folder, peer_port, ports["peer"])
        agent = Agent(folder, spec, ports["ours"])
        try:
            agent.wait_ready()
            chance = random.Random(7)
            requests = [PlannedRequest(at_s) for at_s in arrivals(chance.expovariate, RATES)]
            loads = {
                "ours": LoadGenerator(tuple(spec["target"]), requests, timeout_s=PATIENCE_S),
                "peer": LoadGenerator((HOST, peer_port), requests, timeout_s=PATIENCE_S),
            }
            begun_s = time.monotonic() + 0.5
            threads = [
                threading.Thread(target=load.run, args=(begun_s,)) for load in loads.values()
            ]
            for thread in threads:
                thread.start()
            time.sleep(begun_s + KILLED_S - time.monotonic())
            agent.kill()
            time.sleep(begun_s + CALM_S - time.monotonic())
            agent.start()
            for thread in threads:
                thread.join()
        finally:
            agent.close()
            peer.kill()
            peer.wait()
    peers = loads["peer"].attempts
    print(json.dumps({side: figures(load.attempts, peers) for side, load in loads.items()}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
