"""One run of one arm on one scenario: start everything, say go, watch the clock, collect."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.cpu.processes import cpu_seconds, machine_cpu_seconds
from bench.traffic.arms import GROUP, STATE, Started, Variant, started
from bench.traffic.place import ARM, BACKENDS, BACKENDS_CPU, CLIENTS, PROXY_CPU, Place
from bench.traffic.scenarios import MEAN_S, PATIENCE_S, SIGMA, WORKERS, Scenario
from fairlead.recorder import read
from fairlead.schema.traffic_govern import KIND

START_IN_S = 0.5


class Row(NamedTuple):
    """One request as its client saw it."""

    at_s: float
    lag_s: float
    took_s: float
    outcome: str
    backend: str
    tries: int = 1


class Tick(NamedTuple):
    """One decision of our agent."""

    at_s: float
    slots: dict[str, int]
    mode: str
    reasons: list[str]


@dataclass(slots=True)
class Run:
    """Everything seen of one run."""

    scenario: Scenario
    arm: str
    rows: list[Row] = field(default_factory=list)
    arrivals: dict[str, list[float]] = field(default_factory=dict)
    """By backend: when requests came to it."""
    ticks: list[Tick] = field(default_factory=list)
    arm_cpu_s: float = 0.0
    agent_cpu_s: float = 0.0
    """Of that: our agent's. The rest is its proxy's."""
    lasted_s: float = 0.0
    outside_cores: float = 0.0
    stolen_cores: float = 0.0


def run_arm(
    place: Place, scenario: Scenario, arm: str, *, seed: int, variant: Variant | None = None
) -> Run:
    """Run one arm; `variant` for our agent."""
    run = Run(scenario, arm)
    with tempfile.TemporaryDirectory(prefix="flb-", dir=_memory()) as name:
        folder = Path(name)
        with contextlib.ExitStack() as stack:
            ports, backends = stack.enter_context(_backends(place, scenario, folder))
            running = stack.enter_context(started(place, arm, variant, folder, ports))
            generator = _generator(place, scenario, running, folder, seed)
            stack.callback(generator.kill)
            begun_ms = _go(run, place, running, generator, backends)
        rows = json.loads((folder / "requests.json").read_text())
        run.rows = [Row(*row) for row in rows]
        run.arrivals = {
            id: json.loads((folder / f"{id}.json").read_text()) for id in scenario.names
        }
        if variant is not None:
            run.ticks = _ticks(folder / STATE / "record" / GROUP, begun_ms)
    return run


def _memory() -> str | None:
    """A folder in memory, as /run is, where the planes' manuals want theirs; else any."""
    return "/dev/shm" if os.path.ismount("/dev/shm") else None


@contextlib.contextmanager
def _backends(
    place: Place, scenario: Scenario, folder: Path
) -> Iterator[tuple[dict[str, int], list[subprocess.Popen[str]]]]:
    """All of them, waiting for `go`; their ports by name."""
    ports, processes = {}, []
    try:
        for name in scenario.names:
            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            ports[name] = listener.getsockname()[1]
            faults = [list(asdict(fault).values()) for fault in scenario.faults_of(name)]
            spec = {
                "name": name,
                "socket": listener.fileno(),
                "workers": WORKERS,
                "faults": faults,
                "result": str(folder / f"{name}.json"),
            }
            places = {"where": BACKENDS, "cpu": BACKENDS_CPU}
            processes.append(
                _python(place, "bench.traffic.backends", spec, keep=listener, **places)
            )
            listener.close()
        for process in processes:
            _wait_word(process)
        yield ports, processes
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(10)
    finally:
        for process in processes:
            process.kill()
            with process:  # closes the pipes
                process.wait()


def _generator(
    place: Place, scenario: Scenario, running: Started, folder: Path, seed: int
) -> subprocess.Popen[str]:
    spec = {
        "target": running.target,
        "rates": scenario.rates,
        "seed": f"{seed}/{scenario.name}",
        "mean_s": MEAN_S,
        "sigma": SIGMA,
        "failing_share": scenario.failing_share,
        "patience_s": PATIENCE_S,
        "tries": scenario.tries,
        "cpu": PROXY_CPU,
        "result": str(folder / "requests.json"),
    }
    generator = _python(place, "bench.traffic.generator", spec, where=CLIENTS)
    _wait_word(generator)
    return generator


def _python(
    place: Place,
    module: str,
    spec: dict[str, Any],
    *,
    where: str,
    cpu: int | None = None,
    keep: socket.socket | None = None,
) -> subprocess.Popen[str]:
    return place.start(
        [sys.executable, "-m", module, json.dumps(spec)],
        where,
        cpu,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[keep.fileno()] if keep else (),
    )


def _wait_word(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        raise RuntimeError(f"{process.args}: did not start ({line!r})")


def _go(
    run: Run,
    place: Place,
    running: Started,
    generator: subprocess.Popen[str],
    backends: list[subprocess.Popen[str]],
) -> float:
    """Start all processes at the same moment; returns it, by the agent's clock, in ms."""
    scenario = run.scenario
    start = time.monotonic() + START_IN_S
    begun_ms = (time.time() + START_IN_S) * 1000
    for process in (*backends, generator):
        assert process.stdin is not None
        process.stdin.write(f"go {start!r}\n")
        process.stdin.flush()
    time.sleep(max(0.0, start - time.monotonic()))
    before = _meters(place, running)
    if scenario.kill_agent_s is not None and running.agent is not None:
        time.sleep(max(0.0, start + scenario.kill_agent_s - time.monotonic()))
        running.agent.kill()
        running.agent.wait()
        if scenario.restart_agent_s is not None:
            # Until the scenario says that it is restarted.
            time.sleep(max(0.0, start + scenario.restart_agent_s - time.monotonic()))
            running.restart()
    if generator.wait(scenario.until_s + PATIENCE_S + 30.0) != 0:
        raise RuntimeError(f"the generator ended with {generator.returncode}")
    if running.agent is not None and scenario.kill_agent_s is None and running.agent.poll():
        assert running.log is not None
        raise RuntimeError(f"the agent ended:\n{running.log.read_text()[-2000:]}")
    after = _meters(place, running)
    grown = {name: value - before[name] for name, value in after.items()}
    run.arm_cpu_s, run.agent_cpu_s, run.lasted_s = grown["arm"], grown["agent"], grown["at"]
    run.outside_cores = max(0.0, grown["busy"] - grown["ours"]) / grown["at"]
    run.stolen_cores = grown["stolen"] / grown["at"]
    return begun_ms


def _meters(place: Place, running: Started) -> dict[str, float]:
    busy, stolen = machine_cpu_seconds()
    return {
        "at": time.monotonic(),
        "busy": busy,
        "stolen": stolen,
        "arm": place.cpu_seconds(ARM),
        "agent": 0.0 if running.agent is None else cpu_seconds(running.agent.pid),
        "ours": place.cpu_seconds(),
    }


def _ticks(record: Path, begun_ms: float) -> list[Tick]:
    """What our agent decided, from its flight recorder."""
    return [
        Tick(
            (entry.time_ms - begun_ms) / 1000,
            dict(entry.output["slots"]),
            entry.output["admission"]["mode"],
            list(entry.output["reasons"]),
        )
        for entry in read(record)
        if entry.kind == KIND
    ]
