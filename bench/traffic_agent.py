"""What the traffic agent and its proxy cost: the CPU time of each, with a real HAProxy or eBPF.

    python -m bench.traffic_agent [--case NAME]... [--seconds 20] [--repetitions 3]

Backends hold a request for 50 ms; every request is a connection of its own. The agent has its
default settings. A plain HAProxy (`leastconn`, no log) gets the same load in the same round, and
the arms take turns. CPU time is the scheduler's own count over all threads of a process, after a
warm-up; what the eBPF programs use is the client's and is measured by `bench.traffic_ebpf`.

Writes bench/results/traffic_agent.json and .png (with --quick: into out/bench).
"""

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cpu.workloads import die_with_parent
from bench.timing import ROOT, Spread, machine, results_folder, write_results
from bench.traffic.peers import PREPARE
from bench.traffic.place import own_bpffs
from fairlead.dataplane.ebpf import build, uninstall
from fairlead.host.process import free_port
from fairlead.sim.traffic.backend import HttpServer, ServiceMetrics

HOLD_S, WARM_UP_S, LATE_S = 0.05, 8.0, 0.02
PLAIN = "plain HAProxy"


@dataclass(frozen=True, slots=True)
class Case:
    """How many groups of how many backends, the load over all of them, and the dataplane."""

    groups: int
    backends: int
    per_s: int
    plane: str = "haproxy"
    agent_max: float | None = None
    """Cores that the agent may take; None: compared by the request only."""


CASES = {
    "four-idle": Case(1, 4, 0, agent_max=0.01),
    "four-busy": Case(1, 4, 240, agent_max=0.01),
    "fifty-idle": Case(50, 10, 0, agent_max=0.10),
    "fifty-busy": Case(50, 10, 240, agent_max=0.10),
    "ebpf-busy": Case(1, 4, 240, plane="ebpf"),
}
PROXY_MAX = 1.1
"""Of a plain HAProxy's CPU per request."""


# --- backends, a process of their own


class _Backend:
    def __init__(self, name: str) -> None:
        self.metrics = ServiceMetrics()
        self.server = HttpServer(name, self._answer)

    async def _answer(self, target: str, _: str) -> tuple[int, bytes]:
        if target == "/metrics":
            return 200, self.metrics.text()
        self.metrics.inside += 1
        await asyncio.sleep(HOLD_S)
        self.metrics.inside -= 1
        self.metrics.requests += 1
        self.metrics.succeeded(HOLD_S)
        return 200, b"ok"


async def _serve(count: int) -> None:
    backends = [_Backend(f"b{number}") for number in range(count)]
    for backend in backends:
        await backend.server.open()
    print(json.dumps([backend.server.port for backend in backends]), flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def _backends(count: int) -> Iterator[list[int]]:
    command = [sys.executable, "-m", "bench.traffic_agent", "--serve", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


# --- load, in this process


@dataclass(slots=True)
class Load:
    """What became of the requests, and of the generator."""

    sent: int = 0
    answered: int = 0
    """With 200."""
    refused: int = 0
    """With an explicit rejection: by a status, or by the errors that the eBPF plane gives."""
    slipped_s: float = 0.0
    """How long the generator was held up, all together. It sends later then, and not all at once:
    more requests in a moment than usually come in a second are no load that was asked for, and a
    dataplane that bounds what is inside refuses some of them."""

    async def request(self, target: tuple[str, int]) -> None:
        try:
            reader, writer = await asyncio.open_connection(*target)
            writer.write(b"GET /work HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
            head = (await reader.read())[:12]
            writer.close()
        except OSError as error:
            # asyncio takes EAGAIN of a connect for "in progress", and then writes to no peer.
            self.refused += error.errno in (errno.EAGAIN, errno.EPIPE, errno.ECONNREFUSED)
            return
        self.answered += head == b"HTTP/1.1 200"
        self.refused += head in (b"HTTP/1.1 429", b"HTTP/1.1 503")

    async def run(self, targets: Sequence[tuple[str, int]], per_s: int, seconds: float) -> "Load":
        """Open loop, evenly."""
        begun, tasks = time.monotonic(), set[asyncio.Task[None]]()
        for number in range(round(per_s * seconds)):
            due = begun + self.slipped_s + number / per_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late_s = time.monotonic() - due
            if late_s > LATE_S:
                self.slipped_s += late_s
            if time.monotonic() - begun > seconds:
                break
            self.sent += 1
            task = asyncio.create_task(self.request(targets[number % len(targets)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
        await asyncio.gather(*tasks)
        return self


# --- arms


def cpu_s(pid: int) -> float:
    """What the scheduler has counted for all threads of a process."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def _children(folder: Path) -> list[int]:
    """HAProxy's master and workers, by the configuration that they were started with."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"haproxy") and str(folder / "haproxy.cfg").encode() in words:
                    found.append(int(entry.name))
    return found


def _document(case: Case, ports: list[int], folder: Path, plane: dict[str, str]) -> dict[str, Any]:
    groups = []
    for number in range(case.groups):
        mine = ports[number * case.backends : (number + 1) * case.backends]
        group: dict[str, Any] = {
            "name": f"g{number:02}",
            "vip": "127.99.0.1" if case.plane == "ebpf" else "127.0.0.1",
            "port": 80 if case.plane == "ebpf" else free_port(),
            "backends": [
                {"id": f"b{i}", "host": "127.0.0.1", "port": at} for i, at in enumerate(mine)
            ],
            # The machine is watched, but its stalls are the benchmark's.
            "config": {"theta": {"cpu_some": 1.0, "io_full": 1.0, "mem_some": 1.0}},
        }
        if case.plane == "ebpf":
            group["scrape"] = {
                "requests": "requests_total",
                "errors": "errors_total",
                "queue": "inside",
                "latency": "latency_seconds",
            }
        groups.append(group)
    return {
        "plane": {"kind": case.plane, **plane},
        "groups": groups,
        "state_dir": str(folder / "state"),
    }


@contextlib.contextmanager
def _ours(case: Case, ports: list[int], folder: Path) -> Iterator[tuple[Any, dict[str, list[int]]]]:
    """The agent as a process; where it serves, and the processes by what they are."""
    with contextlib.ExitStack() as stack:
        plane = {"folder": str(folder / "plane")}
        if case.plane == "ebpf":
            build()
            pins = stack.enter_context(own_bpffs()) / "fairlead"
            stack.callback(uninstall, pins)
            plane = {"cgroup": str(_own_cgroup()), "pins": str(pins)}
        document = _document(case, ports, folder, plane)
        config = folder / "traffic.json"
        config.write_text(json.dumps(document))
        command = [sys.executable, "-m", "fairlead", "traffic", "run", str(config)]
        log = stack.enter_context((folder / "agent.log").open("wb"))
        agent = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            time.sleep(WARM_UP_S)  # its imports and first ticks are not measured
            if agent.poll() is not None:
                sys.exit(f"the agent ended:\n{(folder / 'agent.log').read_text()[-2000:]}")
            targets = [(group["vip"], group["port"]) for group in document["groups"]]
            yield targets, {"agent": [agent.pid], "proxy": _children(folder / "plane")}
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
            for pid in _children(folder / "plane"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def _own_cgroup() -> Path:
    """The cgroup (v2) of this process: its connects are the load."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next(line.split(":", 2)[2] for line in lines if line.startswith("0:"))
    mounts = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    return next(m for m in mounts if (m / "cgroup.procs").exists()) / path.lstrip("/")


@contextlib.contextmanager
def _plain(ports: list[int], folder: Path) -> Iterator[tuple[Any, dict[str, list[int]]]]:
    port = free_port()
    command = PREPARE["haproxy-leastconn"](folder, port, {f"b{p}": p for p in ports})
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(1.0)  # until it listens; its start is not measured
            yield [("127.0.0.1", port)], {"proxy": [process.pid]}
        finally:
            process.kill()


def _measure(case: Case, running: Any, seconds: float) -> dict[str, float]:
    """Cores of each process, and microseconds of all of them per answered request."""
    targets, processes = running
    if case.per_s:
        asyncio.run(Load().run(targets, case.per_s, WARM_UP_S / 2))
    before = {name: sum(map(cpu_s, pids)) for name, pids in processes.items()}
    begun = time.monotonic()
    load = asyncio.run(Load().run(targets, case.per_s, seconds))
    spent_s = time.monotonic() - begun
    used = {name: sum(map(cpu_s, pids)) - before[name] for name, pids in processes.items()}
    line = {f"{name}_cores": value / spent_s for name, value in used.items()}
    if case.per_s:
        answered = max(1, load.answered)
        line |= {f"{name}_us_per_request": 1e6 * value / answered for name, value in used.items()}
        line["answered_share"] = load.answered / load.sent
        line["refused_share"] = load.refused / load.sent
        line["generator_slipped_s"] = load.slipped_s
    return line


def measure(case: Case, *, seconds: float, repetitions: int) -> dict[str, Any]:
    arms: dict[str, list[dict[str, float]]] = {"fairlead": []}
    if case.per_s:
        arms[PLAIN] = []
    with _backends(case.groups * case.backends) as ports:
        for turn in range(repetitions):
            for arm in sorted(arms, reverse=bool(turn % 2)):
                with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                    opening = _plain(ports, Path(folder))
                    if arm != PLAIN:
                        opening = _ours(case, ports, Path(folder))
                    with opening as running:
                        arms[arm].append(_measure(case, running, seconds))
    figures: dict[str, Any] = {
        arm: {name: Spread.of([line[name] for line in lines]).as_json() for name in lines[0]}
        for arm, lines in arms.items()
    }
    return {**figures, **_ratios(arms)}


def _ratios(arms: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Ours to plain, round by round: of the proxies, and of all processes."""
    if PLAIN not in arms:
        return {}
    pairs = list(zip(arms["fairlead"], arms[PLAIN], strict=True))
    name = "proxy_us_per_request"
    whole = [(ours["agent_us_per_request"] + ours[name]) / plain[name] for ours, plain in pairs]
    found = {"all_times_costlier_than_plain": Spread.of(whole).as_json()}
    if any(ours[name] for ours, _ in pairs):
        found["proxy_times_costlier_than_plain"] = Spread.of(
            [o[name] / p[name] for o, p in pairs]
        ).as_json()
    return found


def verdicts(cases: dict[str, Any]) -> dict[str, bool]:
    """Every promise that the measured cases speak of."""
    kept = {}
    for name, line in cases.items():
        case = CASES[name]
        if case.agent_max is not None:
            share = line["fairlead"]["agent_cores"]["median"]
            kept[f"{name}: agent below {case.agent_max:.0%} of a core"] = share < case.agent_max
        if "proxy_times_costlier_than_plain" in line:
            ratio = line["proxy_times_costlier_than_plain"]["median"]
            kept[f"{name}: proxy at most {PROXY_MAX} times plain"] = ratio <= PROXY_MAX
        if case.per_s and "refused_share" in line["fairlead"]:
            share = line["fairlead"]["answered_share"]["low"]
            kept[f"{name}: every request is answered"] = share == 1.0
        if case.plane == "ebpf":
            kept[f"{name}: below plain HAProxy"] = (
                line["all_times_costlier_than_plain"]["median"] < 1.0
            )
    return kept


def draw(report: dict[str, Any], path: Path) -> None:
    """Cores of agent and proxy in each case, and CPU per request beside plain HAProxy."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import
    import matplotlib.pyplot as plt  # noqa: PLC0415

    mpl.use("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    cases = report["cases"]
    left.barh(
        list(cases), [case["fairlead"]["agent_cores"]["median"] * 100 for case in cases.values()]
    )
    left.set_xlabel("agent, % of a core")
    busy = {name: case for name, case in cases.items() if PLAIN in case}
    for at, (arm, part) in enumerate(
        ((PLAIN, "proxy"), ("fairlead", "proxy"), ("fairlead", "agent"))
    ):
        values = [case[arm][f"{part}_us_per_request"]["median"] for case in busy.values()]
        places = [place + 0.25 * (at - 1) for place in range(len(busy))]
        right.barh(places, values, height=0.22, label=f"{arm}: {part}")
    right.set_yticks(range(len(busy)), list(busy))
    right.set_xlabel("CPU, µs per request")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.traffic_agent",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only these")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="5 s, once, into out/bench")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        die_with_parent()
        asyncio.run(_serve(options.serve))
        return
    seconds, repetitions = (5.0, 1) if options.quick else (options.seconds, options.repetitions)
    cases = {}
    for name in options.case or CASES:
        cases[name] = {
            "contest": name,
            "seconds": seconds,
            "repetitions": repetitions,
            **measure(CASES[name], seconds=seconds, repetitions=repetitions),
        }
        print(name, json.dumps(cases[name], indent=1), flush=True)
    stored = results_folder(quick=options.quick) / "traffic_agent.json"
    if stored.exists():  # a part that is run alone leaves the others
        cases = {**json.loads(stored.read_text())["cases"], **cases}
    kept = verdicts(cases)
    for promise, passed in kept.items():
        print("PASS" if passed else "FAIL", promise)
    report = {**machine(), "clock": "the scheduler's", "cases": cases, "verdicts": kept}
    write_results("traffic_agent", report, quick=options.quick, draw=draw)


if __name__ == "__main__":
    main()
