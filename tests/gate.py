"""`make check`: format, lint, language, types, imports, tests; runs all, names what failed."""

import os
import subprocess
import sys
import time

PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
GATES = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "language": [sys.executable, "-m", "tests.language"],
    "types": ["mypy"],
    "imports": ["lint-imports", "--no-cache"],
    "tests": [
        *PYTEST,
        *("--cov=fairlead.core", "--cov-branch", "--cov-report=term", "--cov-fail-under=100"),
        "tests",
    ],
}


def main() -> int:
    """Run every gate, the quick ones first; exit 1 if any failed."""
    failed = []
    for name, command in GATES.items():
        print(f"--- {name}: {' '.join(command[:4])} ...", flush=True)
        began = time.monotonic()
        code = subprocess.run(command, check=False, env=os.environ).returncode
        print(f"--- {name}: {'ok' if code == 0 else 'FAILED'} in {time.monotonic() - began:.1f} s")
        if code:
            failed.append(name)
    print("all gates passed" if not failed else f"FAILED gates: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
