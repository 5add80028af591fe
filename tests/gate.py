"""`make check`: format, lint, language, types, imports, tests; runs all, names what failed.

The gates run in lanes, side by side. Tests with processes, proxies and clusters mostly wait; the
static gates and the tests of the core compute. What computes runs at a lower priority: it fills the
pauses of the others and does not disturb what keeps time. A lane prints when it ends.

A gate that does not end is stopped after 70 minutes, and each of its processes writes where it
hangs. CI stops the run after 90, and would leave no word about it.

Tests of processes and clusters that failed are run once more when the machine is quiet, alone. What
passes then is named at the end: it depends on the load, and is to be mended (docs/decisions/0102).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q"]
COVERAGE = ["--cov=fairlead.core", "--cov-branch", "--cov-report=term", "--cov-fail-under=100"]
STATIC = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "language": [sys.executable, "-m", "tests.language"],
    "types": ["mypy"],
    "imports": ["lint-imports", "--no-cache"],
}
CORE = ["tests/core", "tests/golden", "tests/schema", "tests/engine"]
# The others reach every branch of the core; tracing more than doubles the time of a test.
MANY_CASES = {
    "cpu": ("market_props", "oracle"),
    "gpu": (
        *("cover_props", "oracle", "resolve_chance", "resolve_oracle", "resolve_props"),
        "resolve_scale",
    ),
    "traffic": ("oracle", "tick_props"),
}
UNTRACED = [
    "tests/engine/gpu",
    "tests/engine/test_acts.py",
    "tests/engine/test_traffic_life.py",
    *(f"tests/core/{area}/test_{name}.py" for area, names in MANY_CASES.items() for name in names),
]
TRACED = [*COVERAGE, *CORE, *(f"--ignore={path}" for path in UNTRACED)]
# There is one real node per machine. A worker that tests clusters keeps its own from file to file.
REAL_NODES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/kube/test_real_*.py"))
CLUSTERS = ["tests/kube", *(f"--ignore={path}" for path in REAL_NODES)]
# It makes the user of the control plane, and `up` as root runs as that user while there is one.
PACKAGE = "tests/e2e/test_package.py"
REST = ["tests", *(f"--ignore={path}" for path in [*CORE, "tests/kube", PACKAGE])]
LANES = {
    # One after the other: side by side they starve each other's leases and certificates of CPU.
    "kubernetes": {
        "tests on real nodes": [*PYTEST, *REAL_NODES],
        "tests on clusters": [*PYTEST, "-n", "2", "--dist", "loadfile", *CLUSTERS],
    },
    "rest": {
        "test of the package": [*PYTEST, PACKAGE],
        # Three: these tests wait for three quarters of their time.
        "other tests": [*PYTEST, "-n", "3", "--dist", "worksteal", *REST],
    },
    "static": STATIC,
    # Two: when the other lanes have ended, both cores are there for what is left.
    "core": {
        "tests of the core": [*PYTEST, "-n", "2", "--dist", "worksteal", *TRACED],
        "tests without tracing": [*PYTEST, "-n", "2", "--dist", "worksteal", *UNTRACED],
        "tests of the compiled core": [sys.executable, "-m", "tests.compiled"],
    },
}
NICE = {"static": 10, "core": 10}
# The other gates compute: what fails there fails again.
AGAIN = {"tests on real nodes", "tests on clusters", "test of the package", "other tests"}
AGAIN_MAX = 5
CACHE = ROOT / ".pytest_cache"
GATE_SECONDS_MAX = 70 * 60


def main() -> int:
    """Run the lanes that are named, or all; exit 1 if a gate failed."""
    lanes = sys.argv[1:] or list(LANES)
    print(f"running side by side: {', '.join(lanes)}", flush=True)
    with ThreadPoolExecutor(len(lanes)) as pool:
        failed = [name for lane in pool.map(run_lane, lanes) for name in lane]
    depend_on_load = {name: passed for name in failed if (passed := run_alone(name))}
    for name, tests in depend_on_load.items():
        print(f"PASSED ONLY ALONE ({name}; mend what depends on the load): {', '.join(tests)}")
    failed = [name for name in failed if name not in depend_on_load]
    print("all gates passed" if not failed else f"FAILED gates: {', '.join(failed)}")
    return 1 if failed else 0


def run_lane(lane: str) -> list[str]:
    """Run a lane's gates one after the other; the names of those that failed."""
    nice = ["nice", "-n", str(NICE.get(lane, 0))]
    return [
        name
        for name, command in LANES[lane].items()
        if not passes(name, [*nice, *command, *remembering(name)])
    ]


def remembering(name: str) -> list[str]:
    """Make pytest write down what fails, in a place of the gate's own."""
    if name not in AGAIN:
        return []
    shutil.rmtree(CACHE / cached(name), ignore_errors=True)
    return ["-o", f"cache_dir={CACHE / cached(name)}"]


def run_alone(name: str) -> list[str]:
    """Run the failed tests of a gate once more; those tests if all pass, else none."""
    written = CACHE / cached(name) / "v" / "cache" / "lastfailed"
    tests = sorted(json.loads(written.read_text())) if written.exists() else []
    # A file that cannot be collected is no test, and many failures have another cause than load.
    if not 0 < len(tests) <= AGAIN_MAX or not all("::" in test for test in tests):
        return []
    return tests if passes(f"{name}, once more and alone", [*PYTEST, *tests]) else []


def cached(name: str) -> str:
    """The folder of a gate's cache."""
    return name.replace(" ", "-")


def passes(name: str, command: list[str], seconds_max: float = GATE_SECONDS_MAX) -> bool:
    """Run one gate and print in one piece what it said."""
    began = time.monotonic()
    print(f"--- {name}: begins at {time.strftime('%H:%M:%S')}", flush=True)
    gate = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        text=True,
        errors="replace",
    )
    hung = False
    try:
        output, _ = gate.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        hung = True
        stop_hanging(gate.pid)  # its shell may end well when its child has been aborted
        output, _ = gate.communicate()
    passed = gate.returncode == 0 and not hung
    verdict = "ok" if passed else "FAILED"
    took = time.monotonic() - began
    print(f"{output}--- {name}: {verdict} in {took:.1f} s", flush=True)
    return passed


def stop_hanging(pid: int) -> None:
    """Abort a gate's process and what it started, the youngest first: Python writes its stacks."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        for child in reversed(children.read_text().split()):
            stop_hanging(int(child))
        os.kill(pid, signal.SIGABRT)
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended by itself


if __name__ == "__main__":
    sys.exit(main())
