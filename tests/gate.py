"""`make check`: format, lint, language, types, imports, tests; runs all, names what failed.

The gates run in lanes, side by side. Tests with processes, proxies and clusters mostly wait; the
static gates and the tests of the core compute. What computes runs at a lower priority: it fills the
pauses of the others and does not disturb what keeps time. A lane prints when it ends.
"""

import os
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
# There is one real node per machine. A worker that tests clusters keeps its own from file to file.
REAL_NODES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/kube/test_real_*.py"))
CLUSTERS = ["tests/kube", *(f"--ignore={path}" for path in REAL_NODES)]
REST = ["tests", *(f"--ignore={path}" for path in [*CORE, "tests/kube"])]
LANES = {
    # One after the other: side by side they starve each other's leases and certificates of CPU.
    "kubernetes": {
        "tests on real nodes": [*PYTEST, *REAL_NODES],
        "tests on clusters": [*PYTEST, "-n", "2", "--dist", "loadfile", *CLUSTERS],
    },
    "rest": {"other tests": [*PYTEST, "-n", "2", "--dist", "worksteal", *REST]},
    "static": STATIC,
    "core": {"tests of the core": [*PYTEST, *COVERAGE, *CORE]},
}
NICE = {"static": 10, "core": 10}


def main() -> int:
    """Run the lanes that are named, or all; exit 1 if a gate failed."""
    lanes = sys.argv[1:] or list(LANES)
    print(f"running side by side: {', '.join(lanes)}", flush=True)
    with ThreadPoolExecutor(len(lanes)) as pool:
        failed = [name for lane in pool.map(run_lane, lanes) for name in lane]
    print("all gates passed" if not failed else f"FAILED gates: {', '.join(failed)}")
    return 1 if failed else 0


def run_lane(lane: str) -> list[str]:
    """Run a lane's gates one after the other; the names of those that failed."""
    nice = ["nice", "-n", str(NICE.get(lane, 0))]
    return [name for name, command in LANES[lane].items() if not passes(name, [*nice, *command])]


def passes(name: str, command: list[str]) -> bool:
    """Run one gate and print in one piece what it said."""
    began = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ,
        text=True,
        errors="replace",
        check=False,
    )
    verdict = "ok" if done.returncode == 0 else "FAILED"
    took = time.monotonic() - began
    print(f"{done.stdout}--- {name}: {verdict} in {took:.1f} s", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
