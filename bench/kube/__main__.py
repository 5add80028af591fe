"""`python -m bench.kube`: Kueue's published baseline, Kueue and Fairlead in turns."""

import argparse
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kube import arms, scale
from bench.kube.load import Load
from bench.kube.report import write_report
from bench.kube.server import before_others
from bench.timing import machine, results_folder

FULL = 15_000
ARMS: dict[str, Callable[[Load], arms.Line]] = {
    "kueue-limited": lambda load: arms.kueue(load, limited=True),
    "fairlead-limited": lambda load: arms.fairlead(load, limited=True),
    "kueue": lambda load: arms.kueue(load, limited=False),
    "fairlead": lambda load: arms.fairlead(load, limited=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kube", description=__doc__)
    parser.add_argument("--workloads", type=int, action="append", help="how many; repeatable")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--arms", default=",".join(ARMS), help="only these, with commas")
    parser.add_argument("--pods", type=int, help="also so many runs with pods on simulated nodes")
    parser.add_argument("--scale", action="store_true", help="only 1 000 nodes and 10 000 runs")
    parser.add_argument("--nodes", type=int, default=1000, help="of --scale")
    parser.add_argument("--runs", type=int, default=10_000, help="of --scale")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for --scale, --pods")
    parser.add_argument("--results", type=Path, help="where to write")
    parser.add_argument("--note", action="append", default=[], help="what a reader has to know")
    parser.add_argument("--add", action="store_true", help="add to the stored results")
    options = parser.parse_args()
    with alone():
        _measure(options)


@contextmanager
def alone() -> Iterator[None]:
    """Two of these at once would measure each other."""
    with open(Path(tempfile.gettempdir()) / "fairlead-bench-kube.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waits for another one that runs on this machine", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _measure(options: argparse.Namespace) -> None:
    before_others(os.getpid())
    sizes = options.workloads or [FULL]
    where = options.results or results_folder(quick=FULL not in sizes)
    document = _stored(where) if options.add or options.scale else _empty()
    document.setdefault("notes", []).extend(options.note)
    if options.scale:
        document["scale"] = scale.measure(options.nodes, options.runs, options.limit)
        write_report(document, where)
        return
    for size in sizes:
        load = Load.of(size)
        scenario = f"{load.workloads} workloads"
        if scenario not in document["scenarios"] and options.arms:
            document["scenarios"].append(scenario)
        for repetition in range(options.repetitions):
            for arm in filter(None, options.arms.split(",")):
                print(f"{scenario}, {arm}, repetition {repetition + 1}", flush=True)
                line = _measured(arm, load)
                curve = line.pop("curve")
                document["runs"].append({"scenario": scenario, "arm": arm, **line})
                document["series"].setdefault(f"{scenario}/{arm}", curve)
                write_report(document, where)
    write_report(document, where)
    if options.pods:
        document["pods"] = scale.measure(16, options.pods, options.limit)
        write_report(document, where)


def _measured(arm: str, load: Load) -> arms.Line:
    began, busy = time.monotonic(), os.getloadavg()[0]
    line = ARMS[arm](load)
    line["load_average"] = [busy, os.getloadavg()[0]]
    print(f"  {line['per_s']:.1f} workloads/s; took {time.monotonic() - began:.0f} s", flush=True)
    return line


def _empty() -> arms.Line:
    return {"machine": machine(), "scenarios": [], "runs": [], "series": {}}


def _stored(where: Path) -> arms.Line:
    path = where / "kube.json"
    return json.loads(path.read_text()) if path.exists() else _empty()


if __name__ == "__main__":
    main()
