"""`python -m tests.compiled [--all]`: the compiled core passes the tests of the interpreted one.

Builds it unless it is built (`deploy/compiled`), compares decisions of both forms byte for byte
(`tests.forms`), and runs pytest with it first on the path. `make test` takes the sample, `make
soak` all. What replaces a part of core is left out: the parts of the compiled form call each other
directly.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "deploy" / "compiled"))

import compile_core  # noqa: E402 - a script, found by its path

FORMS_SAMPLE, FORMS_ALL = 50, 2_000
ALL = ("tests/core", "tests/golden", "tests/schema", "tests/engine", "tests/fleet")
SAMPLE = (
    "tests/golden",
    "tests/core/test_apportion.py",
    "tests/core/test_compiled.py",
    "tests/core/cpu",
    "tests/core/gpu/test_resolve.py",
    "tests/core/gpu/test_resolve_oracle.py",
    "tests/core/lottery/test_draw.py",
    "tests/core/lottery/test_vectors.py",
    "tests/core/traffic/test_oracle.py",
    "tests/core/traffic/test_values.py",
    "tests/schema/test_traffic_govern.py",
)


def environment() -> dict[str, str]:
    """For a process that decides with the compiled core."""
    path = os.pathsep.join(filter(None, (str(compile_core.build()), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "FAIRLEAD_TEST_FORM": "compiled"}


def differing(count: int, seed: int) -> list[str]:
    """The kinds of decisions that the two forms do not decide alike."""
    both = []
    for env in ({**os.environ}, environment()):
        command = [sys.executable, "-m", "tests.forms", str(count), str(seed)]
        done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
        both.append(json.loads(done.stdout))
    interpreted, compiled = both
    return [kind for kind, digest in interpreted.items() if compiled[kind] != digest]


def run_tests(paths: Sequence[str], *options: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not interpreted", *options, *paths]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


def main(arguments: list[str]) -> int:
    missing = compile_core.why_not()
    if missing is not None:
        print(f"SKIPPED: the core is not compiled: {missing}")
        return 1 if os.environ.get("FAIRLEAD_STRICT") == "1" else 0
    whole = arguments == ["--all"]
    different = differing(FORMS_ALL if whole else FORMS_SAMPLE, seed=1)
    if different:
        print(f"the compiled core decides otherwise: {', '.join(different)}")
        return 1
    return run_tests(ALL if whole else arguments or SAMPLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
