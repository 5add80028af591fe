"""`python -m bench.compiled [--quick]`: the compiled core, the interpreted one and Go, in turns.

500 nodes of 110 pods are cleared by a straightforward clearing in Go (`bench/go`, doubles), by
`cpu.clear` in both forms of the core (exact), and by the fleet path; groups of 50 backends are
ticked and conflicts of 10 000 leases resolved in both forms. Each arm is a process of its own and
counts its CPU seconds; the order turns every round. Go has one thread (GOMAXPROCS=1).

Needs Go and a C compiler. Prints a table, writes bench/results/compiled.json and .png (with
--quick: fewer rounds, into out/bench).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.compiled import environment

from bench.compiled_plot import draw
from bench.compiled_worker import BACKENDS, GROUPS, LEASES, PODS, nodes_of
from bench.timing import ROOT, Spread, machine, ratios, write_results
from fairlead.core.cpu import Policy, clear

NODES, SLICE_S = 500, 0.05
ROUNDS, ROUNDS_MIN, LIMIT_S = 25, 5, 150
"""On a busy machine fewer rounds than planned: the whole takes less than ten minutes."""
GOALS = {
    "compiled_times_slower_than_go": ("at most", 3.0),
    "fleet_times_faster_than_go": ("at least", 3.0),
    "compiled_times_faster_than_interpreted": ("at least", 2.0),
}
Line = dict[str, Any]


class Arm:
    """A process that answers how long so many calls took."""

    def __init__(self, command: list[str], **env: str) -> None:
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def go_arms(folder: Path) -> dict[Policy, Arm]:
    """One process per policy, with the nodes as documents."""
    subprocess.run(["go", "build", "-o", str(folder / "clear"), "."], cwd="bench/go", check=True)
    arms = {}
    for policy in Policy:
        path = folder / f"{policy.value}.json"
        path.write_text(json.dumps([document(node) for node in nodes_of(policy, NODES)]))
        arms[policy] = Arm([str(folder / "clear"), str(path)], GOMAXPROCS="1")
    return arms


def document(node: Any) -> Line:
    fields = asdict(node)
    del fields["headroom"]  # the defaults are constants there
    return {**fields, "policy": node.policy.value, "previous_mode": ""}


def agreement(policy: Policy, arm: Arm) -> float:
    """The share of nodes where the doubles of Go grant what core does, to the millicore."""
    theirs = json.loads(arm.ask("plans"))
    ours = [dict(clear(node).allocations) for node in nodes_of(policy, NODES)]
    return sum(a == b for a, b in zip(theirs, ours, strict=True)) / NODES


def race(arms: dict[str, tuple[Arm, str]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds per call of every arm, one value per round, the order turning; as many rounds as
    the limit has room for.
    """
    calls = {}
    for name, (arm, prefix) in arms.items():
        arm.ask(f"{prefix}1")  # warms up
        calls[name] = max(1, round(SLICE_S / float(arm.ask(f"{prefix}1"))))
    taken: dict[str, list[float]] = {name: [] for name in arms}
    names, ends_s = list(arms), time.monotonic() + LIMIT_S
    for turn in range(rounds):
        if turn >= ROUNDS_MIN and time.monotonic() > ends_s:
            break
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            arm, prefix = arms[name]
            taken[name].append(float(arm.ask(f"{prefix}{calls[name]}")) / calls[name])
    return taken


def run(*, quick: bool) -> Line:
    load = os.getloadavg()[0]
    worker = [sys.executable, "-m", "bench.compiled_worker", str(NODES)]
    with tempfile.TemporaryDirectory() as folder:
        go = go_arms(Path(folder))
        forms = {"interpreted": Arm(worker), "compiled": Arm(worker, **environment())}
        agree = {policy.value: agreement(policy, arm) for policy, arm in go.items()}
        arms: dict[str, tuple[Arm, str]] = {}
        for policy in Policy:
            arms[f"go {policy.value}"] = go[policy], ""
            arms[f"fleet {policy.value}"] = forms["interpreted"], f"fleet {policy.value} "
        others = ["tick steady", "tick slewing", "tick mixed", "resolve mixed", "resolve lottery"]
        contests = [*(f"clear {policy.value}" for policy in Policy), *others]
        for form, arm in forms.items():
            arms |= {f"{form} {name}": (arm, f"{name} ") for name in contests}
        taken = race(arms, ROUNDS_MIN if quick else ROUNDS)
        for arm in (*go.values(), *forms.values()):
            arm.close()
    lines = [clearing(policy.value, taken) for policy in Policy]
    lines += [other(name, taken) for name in others]
    return {
        **machine(),
        "clock": "CPU seconds of each process",
        "go": subprocess.run(
            ["go", "env", "GOVERSION"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "load_average_before": round(load, 1),
        "load_average_after": round(os.getloadavg()[0], 1),
        "rounds": len(taken["go nash"]),
        "quick": quick,
        "nodes": NODES,
        "pods_per_node": PODS,
        "groups": GROUPS,
        "backends_per_group": BACKENDS,
        "leases": LEASES,
        "lines": lines,
        "share_of_nodes_where_go_grants_the_same": agree,
        "verdicts": verdicts(lines),
    }


def clearing(policy: str, taken: dict[str, list[float]]) -> Line:
    arms = {
        "go": taken[f"go {policy}"],
        "interpreted": taken[f"interpreted clear {policy}"],
        "compiled": taken[f"compiled clear {policy}"],
        "fleet": taken[f"fleet {policy}"],
    }
    per_pod = {
        arm: Spread.of([1e6 * t / (NODES * PODS) for t in times]).as_json()
        for arm, times in arms.items()
    }
    return {
        "contest": f"clear {policy}",
        "microseconds_per_pod": per_pod,
        "compiled_times_slower_than_go": ratios(arms["compiled"], arms["go"]).as_json(),
        "fleet_times_faster_than_go": ratios(arms["go"], arms["fleet"]).as_json(),
        "compiled_times_faster_than_interpreted": ratios(
            arms["interpreted"], arms["compiled"]
        ).as_json(),
        "fleet_times_faster_than_interpreted": ratios(arms["interpreted"], arms["fleet"]).as_json(),
    }


def other(name: str, taken: dict[str, list[float]]) -> Line:
    interpreted, compiled = taken[f"interpreted {name}"], taken[f"compiled {name}"]
    unit = 1e3 / GROUPS if name.startswith("tick") else 1e3
    per_call = {"interpreted": interpreted, "compiled": compiled}
    return {
        "contest": name,
        "milliseconds": {
            arm: Spread.of([unit * t for t in times]).as_json() for arm, times in per_call.items()
        },
        "compiled_times_faster_than_interpreted": ratios(interpreted, compiled).as_json(),
    }


def verdicts(lines: list[Line]) -> list[Line]:
    """Each goal, for each contest, kept or not. Clearing has the goals against Go."""
    found = []
    for line in lines:
        for ratio, (way, goal) in GOALS.items():
            against_go = line["contest"].startswith("clear")
            if ratio not in line or ratio.endswith("interpreted") is against_go:
                continue
            median = line[ratio]["median"]
            kept = median <= goal if way == "at most" else median >= goal
            found.append(
                {"contest": line["contest"], "ratio": ratio, "goal": f"{way} {goal:g}"}
                | {"median": median, "kept": kept}
            )
    return found


def show(report: Line) -> None:
    for line in report["lines"]:
        times = line.get("microseconds_per_pod") or line["milliseconds"]
        unit = "us per pod" if "microseconds_per_pod" in line else "ms"
        cells = ", ".join(f"{arm} {spread['median']:.3g}" for arm, spread in times.items())
        print(f"{line['contest']:22}{cells} {unit}")
    for verdict in report["verdicts"]:
        words = f"{verdict['ratio'].replace('_', ' ')} {verdict['median']:g}"
        kept = "kept" if verdict["kept"] else "NOT kept"
        print(f"{kept}: {verdict['contest']}, {words}, {verdict['goal']}")
    print(f"nodes where Go grants the same: {report['share_of_nodes_where_go_grants_the_same']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, into out/bench")
    quick = parser.parse_args().quick
    report = run(quick=quick)
    show(report)
    write_results("compiled", report, quick=quick, draw=draw)


if __name__ == "__main__":
    main()
