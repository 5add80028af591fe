"""The regression gate of `make soak`: a stored ratio must not get worse by more than its spread.

A benchmark that stores ratios in `bench/results/NAME.json` is run again with `--quick`. A ratio is
a median with quartiles under a name that says which way is better: `..._times_faster_than_...` or
`..._times_slower_than_...`; both sides of it met the same neighbours, so another machine or a busy
one changes it little. Sizes that only the full run has are not compared.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED, FRESH = ROOT / "bench" / "results", ROOT / "out" / "bench"
_NAME = re.compile(r"times_(faster|slower)_than_")
# What tells the lines of a report apart.
_LABELS = ("contest", "policy", "nodes_per_call", "pods_per_node", "scene", "leases", "shape")

Ratio = dict[str, float]


def ratios_of(value: Any, path: str = "") -> Iterator[tuple[str, Ratio]]:
    """Every ratio of a report with its path."""
    if isinstance(value, list):
        for item in value:
            yield from ratios_of(item, path)
    if isinstance(value, dict):
        labels = [str(value[label]) for label in _LABELS if label in value]
        here = " ".join([path, *labels]).strip()
        for key, item in value.items():
            ratio = _NAME.search(key) and isinstance(item, dict) and {"low", "high"} <= item.keys()
            if ratio:
                yield f"{here} {key}".strip(), item
            else:
                yield from ratios_of(item, here)


def worse(stored: Any, fresh: Any) -> list[str]:
    """The ratios whose better quartile is now beyond the stored range by more than its spread."""
    now, found = dict(ratios_of(fresh)), []
    for path, before in ratios_of(stored):
        after = now.get(path)
        if after is None:
            continue
        spread = before["high"] - before["low"]
        if "_faster_" in path:
            lost = after["high"] < before["low"] - spread
        else:
            lost = after["low"] > before["high"] + spread
        if lost:
            found.append(f"{path}: {before['median']:g} stored, {after['median']:g} now")
    return found


def repeatable() -> list[str]:
    """The benchmarks that store ratios and can be run again."""
    return [
        path.stem
        for path in sorted(STORED.glob("*.json"))
        if (ROOT / "bench" / f"{path.stem}.py").exists()
        and any(True for _ in ratios_of(json.loads(path.read_text())))
    ]


def judge() -> dict[str, object]:
    """Run them again; raises with every ratio that got worse."""
    counted: dict[str, object] = {}
    lost: list[str] = []
    for name in repeatable():
        command = [sys.executable, "-m", f"bench.{name}", "--quick"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        stored = json.loads((STORED / f"{name}.json").read_text())
        fresh = json.loads((FRESH / f"{name}.json").read_text())
        paths = dict(ratios_of(fresh))
        counted[name] = sum(path in paths for path, _ in ratios_of(stored))
        lost += [f"{name}: {sentence}" for sentence in worse(stored, fresh)]
    if lost:
        raise AssertionError("ratios got worse: " + "; ".join(lost))
    return counted
