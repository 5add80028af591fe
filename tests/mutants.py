"""`make mutants`: change one thing of `core` at a time, and see whether a test notices.

mutmut makes the mutants and runs the tests. This runs it module by module, in a copy of the tree,
with the module's own tests (`tests/core/<area>/test_<module>*.py`, and those of `TESTS`); a module
without any is run with all tests of its area. `bench/results/mutants.json` keeps what was counted,
each module with the digest of what it depends on; a module that has not changed is not run again.

    python -m tests.mutants                     # all that changed, the smallest modules first
    python -m tests.mutants gpu/clock audit     # these modules, or all of these areas

FAIRLEAD_SOAK_S: after so many seconds no further module begins. Survivors that no test should kill
are explained by a rule (`rule_of`) or in `tests/mutants.toml`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORE = Path("src/fairlead/core")
REPORT = ROOT / "bench" / "results" / "mutants.json"
EXPLAINED = ROOT / "tests" / "mutants.toml"
COPIED = ("src", "tests", "verify", "scenarios")
KILLED, TIMEOUT = (1, 3), (36, 24, -24, 152, 255)
"""Exit codes of mutmut's workers. A mutant that never ends is found, too; it is counted apart."""
CONFIG = """
[tool.mutmut]
source_paths = ["src/fairlead"]
only_mutate = ["{module}"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
also_copy = ["verify", "scenarios"]
use_git_change_detection = false
track_dependencies = false
timeout_constant = 30.0
"""
TESTS = {
    "audit/head": ("test_proofs",),
    "audit/tree": ("test_proofs",),
    "lottery/beacon": ("test_bls",),
    "lottery/isogeny": ("test_bls",),
    "lottery/owner": ("test_turns",),
    "lottery/protocol": ("test_turns",),
    "lottery/seed": ("test_turns", "test_vectors"),
    "gpu/conflict": ("test_deficit", "test_resolve", "test_resolve_border"),
    "gpu/holdings": ("test_resolve", "test_odds"),
    "cpu/market": ("test_allocate",),
}
"""Tests of a module that have another name, beside `test_<module>*.py`."""
Row = dict[str, Any]


def modules(wanted: Iterable[str]) -> list[Path]:
    """Those of core that were named, or all; the smallest first. `__init__` has no function."""
    found = [path for path in (ROOT / CORE).rglob("*.py") if path.name != "__init__.py"]
    names = [name.removesuffix(".py") for name in wanted]
    paths = [path.relative_to(ROOT / CORE) for path in found]
    chosen = [
        path
        for path in paths
        if not names or str(path.with_suffix("")) in names or str(path.parent) in names
    ]
    return sorted(chosen, key=lambda path: ((ROOT / CORE / path).stat().st_size, path))


def tests_of(module: Path) -> list[Path]:
    folder = ROOT / "tests" / "core" / module.parent
    more = (folder / f"{name}.py" for name in TESTS.get(str(module.with_suffix("")), ()))
    return sorted({*folder.glob(f"test_{module.stem}*.py"), *more}) or [folder]


def digest(module: Path) -> str:
    """Of the module and its tests: what a count depends on."""
    whole = sha256((ROOT / CORE / module).read_bytes())
    for path in tests_of(module):
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


class MutantFolder:
    """A copy of the tree that mutmut works in."""

    def __init__(self, folder: Path, module: Path) -> None:
        self._folder, self._module = folder, CORE / module
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True)

    def run(self, tests: Iterable[Path]) -> None:
        """Play the mutants against these tests."""
        project = (ROOT / "pyproject.toml").read_text()
        chosen = json.dumps([str(path.relative_to(ROOT)) for path in tests])
        config = CONFIG.format(module=self._module, tests=chosen)
        (self._folder / "pyproject.toml").write_text(project + config)
        done = self._mutmut("run", "--max-children", "1")
        if done.returncode and _UNTESTED not in done.stdout:
            raise RuntimeError(f"mutmut failed on {self._module}: {done.stdout[-2000:]}")

    def results(self) -> dict[str, int | None]:
        """Mutants and the exit codes of their tests; None: not run."""
        kept = self._folder / "mutants" / f"{self._module}.meta"
        found: dict[str, int | None] = json.loads(kept.read_text())["exit_code_by_key"]
        return found

    def change(self, name: str) -> str:
        """What a mutant changes: lines with - and +."""
        shown = self._mutmut("show", name).stdout.splitlines()
        marked = [line for line in shown if line[:1] in ("-", "+") and line[:3] not in _FILES]
        return "\n".join(f"{line[0]} {line[1:].strip()}" for line in marked)

    def _mutmut(self, *given: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "mutmut", *given]
        return subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, check=False
        )


_FILES = ("---", "+++")
_UNTESTED = "could not find any test case for any mutant"
"""What mutmut says where a module has no mutants, or no test that reaches one: all survive."""


def play(module: Path) -> Row:
    """All mutants of a module, against its tests."""
    with tempfile.TemporaryDirectory(prefix="fairlead-mutants-") as folder:
        mutants, began_s = MutantFolder(Path(folder), module), time.monotonic()
        mutants.run(tests_of(module))
        results = mutants.results()
        survived = [name for name, code in results.items() if code not in _FOUND]
        counts = Counter(
            "killed" if code in KILLED else "timeouts"
            for code in results.values()
            if code in _FOUND
        )
        return {
            "digest": digest(module),
            "commit": _commit(),
            "mutants": len(results),
            "killed": counts["killed"],
            "timeouts": counts["timeouts"],
            "seconds": round(time.monotonic() - began_s),
            "survived": {name: mutants.change(name) for name in survived},
        }


_FOUND = (*KILLED, *TIMEOUT)


def rule_of(change: str) -> str | None:
    """Why a change decides nothing, where that can be seen from the change alone."""
    before, _, after = change.partition("\n")
    old, new = before.removeprefix("- "), after.removeprefix("+ ")
    if old.startswith("require(") and old.rpartition(", ")[0] == new.rpartition(", ")[0]:
        return "the words of a bug: no caller reads them"
    if old.replace(', "big")', ", )") == new:
        return "to_bytes is big endian by default"
    if old.replace('"sha256")', '"SHA256")') == new:
        return "hashlib knows the name in both cases"
    return None


def explained() -> dict[str, str]:
    """Changes that no test should notice, and why; by module and change."""
    rows = tomllib.loads(EXPLAINED.read_text())["mutant"]
    return {f"{row['module']}\n{row['change'].strip()}": row["why"] for row in rows}


def summary(report: dict[str, Row]) -> Row:
    """What all modules that were run count together."""
    reasons, rows = explained(), report.items()
    open_ = [
        name
        for module, row in rows
        for name, change in row["survived"].items()
        if rule_of(change) is None and f"{module}\n{change}" not in reasons
    ]
    survived = sum(len(row["survived"]) for _, row in rows)
    total = sum(row["mutants"] for _, row in rows)
    found = sum(row["killed"] + row["timeouts"] for _, row in rows)
    return {
        "modules": len(report),
        "modules_not_run": [str(path) for path in modules(()) if str(path) not in report],
        "modules_changed_since": [
            module for module, row in sorted(rows) if row["digest"] != digest(Path(module))
        ],
        "mutants": total,
        "killed": found,
        "survived": survived,
        "explained": survived - len(open_),
        "open": len(open_),
        "killed_percent": round(100 * found / total, 2) if total else None,
    }


def _due(wanted: list[str], report: dict[str, Row]) -> Iterator[Path]:
    for module in modules(wanted):
        if report.get(str(module), {}).get("digest") != digest(module):
            yield module


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> int:
    end_s = time.monotonic() + float(os.environ.get("FAIRLEAD_SOAK_S", inf))
    kept = json.loads(REPORT.read_text()) if REPORT.exists() else {"modules": {}}
    report: dict[str, Row] = kept["modules"]
    for module in list(_due(sys.argv[1:], report)):
        if time.monotonic() > end_s:
            break
        row = report[str(module)] = play(module)
        print(f"{module}: {row['killed']} of {row['mutants']}, {row['seconds']} s", flush=True)
        whole = {"summary": summary(report), "modules": dict(sorted(report.items()))}
        REPORT.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(summary(report), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
