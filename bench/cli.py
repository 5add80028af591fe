"""`python -m bench.cli [--quick]`: how long a person waits for a table, beside kubectl.

The same 100 objects in a control plane and in an API server of this machine, both idle. Commands
take turns and are timed on the wall, from start to exit, as a person waits: an interpreter with its
imports on our side, a compiled program on the other. `fairlead get runs` also reads the ledger's
checkpoint in the reply, and checks its signature where the ledger grew since the last command.

Prints a table, writes bench/results/cli.json (with --quick: into out/bench).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.control_plane import FAIRLEAD, control_plane
from bench.kube.server import started
from bench.timing import Spread, machine, ratios, write_results

OBJECTS = 100
GOAL_MS = 150.0


@contextmanager
def with_runs(folder: Path) -> Iterator[str]:
    """A control plane with runs that wait for devices that no node has."""
    with control_plane(folder / "data") as plane:
        manifests = folder / "runs.json"
        manifests.write_text("\n---\n".join(json.dumps(each) for each in _objects()))
        apply = (*FAIRLEAD, "apply", "-f", str(manifests), "--server", plane.socket)
        subprocess.run(apply, check=True, stdout=subprocess.DEVNULL)
        yield plane.socket


def _objects() -> Iterator[dict[str, object]]:
    version = "fairlead.dev/v1alpha1"
    envelope = {"name": "main", "flavor": "H100", "concurrency": 1}
    yield {
        "apiVersion": version,
        "kind": "Budget",
        "metadata": {"name": "lab"},
        "spec": {"owner": "lab", "envelopes": [envelope]},
    }
    for number in range(OBJECTS):
        yield {
            "apiVersion": version,
            "kind": "Run",
            "metadata": {"name": f"run-{number:03}"},
            "spec": {
                "owner": "lab",
                "flavor": "H100",
                "totalGPUs": 1,
                "duration": "1h",
                "command": ["true"],
            },
        }


def interleave(
    commands: Mapping[str, tuple[str, ...]], rounds: int, environment: Mapping[str, str]
) -> dict[str, list[float]]:
    """Milliseconds on the wall of each command, one value per round; the first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    names = list(commands)
    for turn in range(rounds + 1):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            began = time.perf_counter()
            done = subprocess.run(commands[name], check=False, capture_output=True, env=environment)
            if done.returncode:
                raise RuntimeError(f"{name}: {done.stderr.decode()}")
            if turn:
                taken[name].append((time.perf_counter() - began) * 1000)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cli", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, into out/bench")
    quick = parser.parse_args().quick
    rounds = 5 if quick else 30
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-cli-")))
        socket = stack.enter_context(with_runs(folder))
        server = stack.enter_context(started())
        kubectl = str(server.cluster.programs.path("kubectl"))
        config = f"--kubeconfig={server.harness}"
        maps = [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"map-{number:03}"}}
            for number in range(OBJECTS)
        ]
        made = json.dumps({"apiVersion": "v1", "kind": "List", "items": maps}).encode()
        create = (kubectl, config, "create", "-f", "-")
        subprocess.run(create, input=made, check=True, stdout=subprocess.DEVNULL)
        environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "FAIRLEAD_HEADS": str(folder / "heads.json"),
        }
        commands = {
            "fairlead get runs": (*FAIRLEAD, "get", "runs", "--server", socket),
            "fairlead budgets": (*FAIRLEAD, "budgets", "--server", socket),
            "fairlead --version": (*FAIRLEAD, "--version"),
            "kubectl get configmaps": (kubectl, config, "get", "configmaps"),
            "python -c pass": (sys.executable, "-c", "pass"),
        }
        taken = interleave(commands, rounds, environment)
    report = {
        "machine": {**machine(), "clock": "milliseconds on the wall"},
        "objects": OBJECTS,
        "rounds": rounds,
        "goal_ms": GOAL_MS,
        "milliseconds": {name: Spread.of(values).as_json() for name, values in taken.items()},
        "get_runs_times_slower_than_kubectl": ratios(
            taken["fairlead get runs"], taken["kubectl get configmaps"]
        ).as_json(),
    }
    for name, values in taken.items():
        spread = Spread.of(values)
        print(f"{name:<24} {spread.median:6.0f} ms  ({spread.low:.0f} to {spread.high:.0f})")
    write_results("cli", report, quick=quick)


if __name__ == "__main__":
    main()
