"""Starting and ending the processes of one run: workloads, generator, agent. Ended by pid only."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cpu.scenarios import NODE_MILLICORES, Scenario
from bench.cpu.tree import BenchTree

GENERATOR_CPU = 0
CHECKOUT = Path(__file__).resolve().parents[2]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Running:
    """What a run has started."""

    workloads: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    counters: dict[str, Path] = field(default_factory=dict)
    generator: subprocess.Popen[str] | None = None
    generator_result: Path | None = None
    agent: subprocess.Popen[bytes] | None = None

    def go(self, start: float) -> None:
        """Start the workloads and the generator at the same moment."""
        for process in [*self.workloads.values(), self.generator]:
            if process is not None and process.stdin is not None:
                process.stdin.write(f"go {start!r}\n")
                process.stdin.flush()

    def end(self) -> None:
        """Stop all of it, by pid, and wait."""
        if self.agent is not None:
            self.agent.send_signal(signal.SIGTERM)
        for process in self.workloads.values():
            process.kill()
        if self.generator is not None and self.generator.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.generator.wait(5)
            self.generator.kill()
        for process in [*self.workloads.values(), self.generator, self.agent]:
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)


@contextlib.contextmanager
def start_pods(
    tree: BenchTree, scenario: Scenario, directory: Path, *, seed: int, until_s: float
) -> Iterator[Running]:
    """Workloads in their cgroups and the generator outside, all waiting for `go`."""
    running = Running()
    try:
        for pod in scenario.pods:
            for name, path in pod.paths().items():
                where = f"{scenario.name}/{path}"
                spec = {"kind": pod.containers[name].kind, "seed": f"{seed}/{where}"}
                spec |= pod.containers[name].spec
                _start_workload(running, tree, where, spec, directory)
                if "rate" in spec:
                    _start_generator(running, spec, directory, seed=seed, until_s=until_s)
        for process in [*running.workloads.values(), running.generator]:
            _wait_ready(process)
        yield running
    finally:
        running.end()


def _start_workload(
    running: Running, tree: BenchTree, path: str, spec: dict[str, Any], directory: Path
) -> None:
    counter = directory / f"{path.replace('/', '.')}.count"
    counter.write_bytes(bytes(8))
    spec["counter"] = str(counter)
    ends: tuple[socket.socket, ...] = ()
    if spec["kind"] == "service":
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        spec["socket"] = ends[0].fileno()
    process = _python("bench.cpu.workloads", spec, [end.fileno() for end in ends[:1]])
    tree.enter(path, process.pid)
    running.workloads[path], running.counters[path] = process, counter
    if ends:
        ends[0].close()
        spec["peer"] = ends[1]


def _start_generator(
    running: Running, spec: dict[str, Any], directory: Path, *, seed: int, until_s: float
) -> None:
    peer: socket.socket = spec.pop("peer")
    result = directory / "latencies.json"
    told = {key: spec[key] for key in ("rate", "cpu_s", "sigma")}
    told |= {"socket": peer.fileno(), "result": str(result), "seed": seed, "until_s": until_s}
    told["cpu"] = GENERATOR_CPU
    running.generator = _python("bench.cpu.generator", told, [peer.fileno()])
    running.generator_result = result
    peer.close()


def _python(module: str, spec: dict[str, Any], keep: list[int]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=keep,
        cwd=CHECKOUT,
        start_new_session=True,
    )


def _wait_ready(process: subprocess.Popen[str] | None) -> None:
    if process is None or process.stdout is None:
        return
    line = process.stdout.readline()
    if line != "ready\n":
        raise RuntimeError(f"{process.args}: did not start ({line!r})")


def start_agent(
    tree: BenchTree,
    scenario: Scenario,
    directory: Path,
    policy: str,
    settings: dict[str, Any] | None = None,
) -> subprocess.Popen[bytes]:
    """`fairlead node run` as a user would: root, policy, capacity, requests, no start-up grace."""
    config = directory / "node.json"
    rules = [
        {"match": pod.name, "request_millicores": pod.request_millicores} for pod in scenario.pods
    ]
    told: dict[str, Any] = {**(settings or {}), "pods": rules}
    # The pods only look new because every run starts them again.
    told["guardrails"] = {"grace_ms": 0, **told.get("guardrails", {})}
    config.write_text(json.dumps(told))
    with (directory / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fairlead",
                "node",
                "run",
                "--config",
                str(config),
                "--root",
                str(tree.root / scenario.name),
                "--state-dir",
                str(directory / "state"),
                "--policy",
                policy,
                "--capacity",
                str(NODE_MILLICORES),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=CHECKOUT,
        )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def machine_cpu_seconds() -> tuple[float, float]:
    """(busy, stolen) CPU seconds of the whole machine since boot."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S


def now() -> float:
    return time.monotonic()
