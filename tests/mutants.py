"""`make mutants`: change one thing of `core` at a time, and see whether a test notices.

mutmut makes the mutants, `tests.mutating` plays them, module by module, against the module's own
tests (`tests/core/<area>/test_<module>*.py`, and those of `TESTS`) and the golden decisions of its
area; a module without any is played against all tests of its area. `bench/results/mutants.json`
keeps what was counted, each module with the digest of what it depends on; a module that has not
changed is not played again.

    python -m tests.mutants                     # all that changed, the smallest modules first
    python -m tests.mutants gpu/clock audit     # these modules, or all of these areas
    python -m tests.mutants --survivors gpu     # after tests were added, and nothing else changed:
                                                # what was killed is not played again

FAIRLEAD_SOAK_S: after so many seconds no further module begins. FAIRLEAD_LANES: so many modules are
played at once. Survivors that no test should kill are explained by a rule (`rule_of`) or in
`tests/mutants.toml`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

from tests import sources

ROOT = Path(__file__).resolve().parents[1]
CORE = Path("src/fairlead/core")
REPORT = ROOT / "bench" / "results" / "mutants.json"
LANES = int(os.environ.get("FAIRLEAD_LANES", "1"))
EXPLAINED = ROOT / "tests" / "mutants.toml"
TESTS = {
    "claims": ("test_apportion", "test_rough"),
    "audit/head": ("test_proofs",),
    "audit/tree": ("test_proofs",),
    "lottery/beacon": ("test_bls",),
    "lottery/draw": ("test_pot",),
    "lottery/owner": ("test_turns",),
    "lottery/protocol": ("test_turns",),
    "lottery/seed": ("test_turns", "test_vectors"),
    "gpu/conflict": ("test_deficit", "test_resolve", "test_resolve_border", "test_resolve_outcome"),
    "gpu/deficit": ("test_policy",),
    "gpu/holdings": ("test_deficit", "test_policy"),
    "gpu/model": ("test_faults", "test_cover"),
    "gpu/notice": ("test_resolve_outcome",),
    "gpu/scope": ("test_resolve",),
    "gpu/cover": ("test_claims", "test_recall"),
    "gpu/funding": ("test_accounts", "test_refund"),
    "gpu/refund": ("test_accounts", "test_accounts_props"),
    "gpu/usage": ("test_accounts", "test_cover"),
    "traffic/admission": ("test_contract_admission",),
    "traffic/config": ("test_equations", "test_pace", "test_values"),
    "traffic/counters": ("test_streaks",),
    "traffic/govern": ("test_retries",),
    "traffic/learn": ("test_brown_out", "test_buried", "test_common_errors"),
    "traffic/memory": ("test_brown_out", "test_common_errors", "test_counters", "test_pace"),
    "traffic/model": ("test_pressure", "test_scale", "test_tick", "test_values"),
    "traffic/nodes": ("test_confirm_props", "test_pressure", "test_tick"),
    "traffic/observe": (
        *("test_alone", "test_brown_out", "test_buried", "test_common_errors", "test_counters"),
        *("test_govern", "test_learn", "test_pace", "test_proven_latency", "test_retries"),
        "test_signals",
    ),
    "traffic/pressure": ("test_contract_signals", "test_contract_slots", "test_counters"),
    "traffic/remembered": ("test_values",),
    "traffic/sighting": ("test_counters", "test_nodes"),
    "traffic/slots": ("test_common_errors", "test_contract_slots", "test_tick"),
    "traffic/state": ("test_pace", "test_scale", "test_values"),
    "traffic/tick": ("test_admission", "test_common_errors", "test_contract_slots"),
    "cpu/allocate": ("test_actuate", "test_latency"),
    "cpu/market": ("test_allocate",),
    "cpu/observe": ("test_actuate", "test_latency"),
    "cpu/sighting": ("test_observe", "test_signal"),
    "cpu/signal": ("test_actuate", "test_latency"),
}
"""Tests of a module that have another name, beside `test_<module>*.py`."""
GOLDEN = "tests/golden/test_golden.py"
DECISIONS = {"": "cpu", "cpu": "cpu", "gpu": "gpu", "lottery": "gpu", "traffic": "traffic"}
"""Whose golden decisions an area is played against; "": of what is in no area."""
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
    own = sorted({*folder.glob(f"test_{module.stem}*.py"), *more}) or [folder]
    return [*own, *(path for path in folder.glob("test_faults.py") if path not in own)]


def golden(module: Path) -> list[str]:
    """How pytest is told which golden decisions a module is played against."""
    own = DECISIONS.get(module.parent.name)
    if own is None:
        return []
    others = set(DECISIONS.values()) - {own}
    cases = f"{GOLDEN}::test_the_decision_is_the_recorded_one["
    return [GOLDEN, *(f"--deselect={cases}{other}" for other in sorted(others))]


def digest(module: Path) -> str:
    """Of the module and its tests: what a count depends on. Golden decisions are only added."""
    whole = sha256((ROOT / CORE / module).read_bytes() + repr(golden(module)).encode())
    for path in tests_of(module):
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def play(module: Path, before: Row | None = None) -> Row:
    """All mutants of a module, against its tests; those that survived `before`, if that is given:
    the others are killed by the tests that were there."""
    row: Row = {"digest": digest(module), "commit": sources.commit()}
    if before is not None and not before["survived"]:
        return {**before, **row, "seconds": 0}
    began_s = time.monotonic()
    with tempfile.NamedTemporaryFile(prefix="fairlead-mutants-") as result:
        tests = [str(path.relative_to(ROOT)) for path in tests_of(module)]
        command = [sys.executable, "-m", "tests.mutating", str(CORE / module), result.name]
        command += [*tests, *golden(module)]
        environment = {**os.environ, "FAIRLEAD_HYPOTHESIS": "mutants"}
        environment["FAIRLEAD_MUTANTS"] = "\n".join(before["survived"] if before else ())
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"{module} could not be played: {(done.stdout + done.stderr)[-3000:]}"
            )
        found = json.loads(Path(result.name).read_text())
    counts = Counter(found["outcomes"].values())
    if before:
        counts.update(killed=before["killed"], timeout=before["timeouts"])
    return {
        **row,
        "mutants": counts.total(),
        "killed": counts["killed"],
        "timeouts": counts["timeout"],
        "seconds": round(time.monotonic() - began_s),
        "survived": found["survived"],
    }


_BIG = ', "big")'
_SAME = (
    (r", (strict=\w+)?(?=\))", ", ", "both are of one length; strict says so"),
    (r"(\bknown\(.+), (\"[^\"]*\"|None)\)", r"\1)", "the words of a bug: no caller reads them"),
    (r"\bcast\((\"[^\"]*\"|None), ", "cast(", "a cast is for the type checker"),
)
"""Parts of a line that decide nothing, what is left of them, and why."""


def rule_of(change: str) -> str | None:
    """Why a change decides nothing, where that can be seen from the change alone."""
    before, _, after = change.partition("\n")
    old, new = before.removeprefix("- "), after.removeprefix("+ ")
    if old.startswith("require(") and new.startswith(old.rpartition(', "')[0] + ", "):
        return "the words of a bug: no caller reads them"
    for what, kept, why in _SAME:
        if re.search(what, old) and re.sub(what, kept, old) == re.sub(what, kept, new):
            return why
    if _BIG in old and old.replace(_BIG, ", )") == new.replace(_BIG, ", )"):
        return "to_bytes is big endian by default"
    if old.lower() == new.lower() and re.search(r'(sha256"|\.encode\(|\.decode\()', old):
        return "Python knows digests and encodings in both cases"
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
        "killed_percent": _percent(found, total),
        "killed_percent_unexplained": _percent(found, total - survived + len(open_)),
    }


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 2) if whole else None


def _due(wanted: list[str], report: dict[str, Row]) -> Iterator[Path]:
    for module in modules(wanted):
        if report.get(str(module), {}).get("digest") != digest(module):
            yield module


def _unchanged(module: Path, row: Row | None) -> Row | None:
    """A row of the same module, whatever its tests were."""
    if row is None:
        return None
    command = ["git", "diff", "--quiet", row["commit"], "--", str(CORE / module)]
    same = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    return row if same else None


def _play_until(end_s: float, module: Path, before: Row | None) -> Row | None:
    """A module that cannot be played is said to be so, and stops no other."""
    try:
        return play(module, before) if time.monotonic() < end_s else None
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        return None


def main() -> int:
    end_s = time.monotonic() + float(os.environ.get("FAIRLEAD_SOAK_S", inf))
    kept = json.loads(REPORT.read_text()) if REPORT.exists() else {"modules": {}}
    report: dict[str, Row] = kept["modules"]
    wanted = [name for name in sys.argv[1:] if name != "--survivors"]
    survivors = wanted != sys.argv[1:]
    due = list(_due(wanted, report))
    known = {
        module: _unchanged(module, report.get(str(module))) if survivors else None for module in due
    }
    with ThreadPoolExecutor(LANES) as lanes:
        began = {lanes.submit(_play_until, end_s, module, known[module]): module for module in due}
        for done in as_completed(began):
            module, row = began[done], done.result()
            if row is None:
                continue
            report[str(module)] = row
            found = row["killed"] + row["timeouts"]
            print(f"{module}: {found} of {row['mutants']}, {row['seconds']} s", flush=True)
            whole = {"summary": summary(report), "modules": dict(sorted(report.items()))}
            REPORT.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(summary(report), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
