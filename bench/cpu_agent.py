"""What the node agent costs: 110 containers, a sample each second, a clear every five.

    python -m bench.cpu_agent [--containers 110] [--seconds 60]

Creates that many cgroups, gives each a little work by turns, runs the real agent as a subprocess
with its default settings, and reads its CPU time and memory from /proc after ten seconds of
warm-up. Writes bench/results/cpu_agent.json. Promised: under 1 % of a core, under 60 MB resident.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cpu.processes import CHECKOUT, cpu_seconds, resident_bytes
from bench.cpu.tree import BenchTree, bench_tree
from bench.cpu.workloads import burn, die_with_parent
from bench.timing import write_results

CORE_SHARE_MAX, RESIDENT_MB_MAX = 0.01, 60.0
WARM_UP_S = 10.0
NODE_MILLICORES = 32_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_agent", description=__doc__)
    parser.add_argument("--containers", type=int, default=110)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench.cpu_agent writes cgroups: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with bench_tree("fairlead-bench-agent") as tree, tempfile.TemporaryDirectory() as place:
        walker = _populate(tree, options.containers)
        try:
            result = _measure(tree, Path(place), options)
        finally:
            os.kill(walker, signal.SIGKILL)
            os.waitpid(walker, 0)
    result["passed"] = (
        result["core_share"] < CORE_SHARE_MAX and result["resident_mb"] < RESIDENT_MB_MAX
    )
    write_results("cpu_agent", result)
    print(json.dumps(result, indent=1))
    print("PASS" if result["passed"] else "FAIL", "under 1 % of one core and 60 MB")


def _populate(tree: BenchTree, count: int) -> int:
    """The cgroups, and one process that works in each of them by turns; returns its pid."""
    paths = [f"pod-{number:03}" for number in range(count)]
    for path in paths:
        tree.add(path, request_millicores=100)
    pid = os.fork()
    if pid:
        return pid
    die_with_parent()
    while True:  # about 20 % of a core, spread over all of them each two seconds
        for path in paths:
            tree.enter(path, os.getpid())
            burn(0.003)
            time.sleep(max(0.001, 2.0 / count - 0.003))


def _measure(tree: BenchTree, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "node",
        "run",
        "--root",
        str(tree.root),
        "--state-dir",
        str(directory / "state"),
        "--capacity",
        str(NODE_MILLICORES),
    ]
    with (directory / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log, cwd=CHECKOUT)
    try:
        time.sleep(WARM_UP_S)
        began, spent = time.monotonic(), cpu_seconds(agent.pid)
        time.sleep(options.seconds)
        spent, elapsed = cpu_seconds(agent.pid) - spent, time.monotonic() - began
        resident = resident_bytes(agent.pid)
        if agent.poll() is not None:
            sys.exit(f"the agent ended:\n{(directory / 'agent.log').read_text()[-2000:]}")
        status = json.loads((directory / "state" / "status.json").read_text())
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(10)
    return {
        "containers": options.containers,
        "governed": len(status["pods"]),
        "seconds": round(elapsed, 1),
        "cpu_s": round(spent, 3),
        "core_share": round(spent / elapsed, 5),
        "resident_mb": round(resident / 2**20, 1),
        "missed_samples": status["missed_samples"],
        "record_bytes": sum(
            file.stat().st_size for file in (directory / "state" / "record").rglob("*")
        ),
    }


if __name__ == "__main__":
    main()
