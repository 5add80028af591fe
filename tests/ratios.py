"""The regression gate of `make soak`: a stored ratio must not get worse by more than its spread.

A benchmark that stores ratios is run again, in its short form. A ratio is a median with a range
under a name that says which way is better: `times_faster_than`, `times_better_than`, or
`times_slower_than`, `times_worse_than`, `times_costlier_than`. Both sides of it met the same
neighbours, so another machine or a busy one changes it little. Sizes that only the full run has are
not compared.
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
_NAME = re.compile(r"times_(?:(?P<more>faster|better)|slower|worse|costlier)_than_")
# What tells the lines of a report apart.
_LABELS = ("contest", "policy", "nodes_per_call", "pods_per_node", "scene", "leases", "shape")
# Pages whose short form has other options than --quick: a page is compared with its own form.
_ONCE_MORE = ("--short", "--repetitions", "1", "--results", str(FRESH))
PAGES = {
    "cpu_weights": ("bench.cpu", "--name", "cpu_weights", *_ONCE_MORE),
    "traffic-experts": ("bench.traffic", "--experts", *_ONCE_MORE),
}

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
    """The ratios whose better end is now beyond the stored range by more than its spread."""
    now, found = dict(ratios_of(fresh)), []
    for path, before in ratios_of(stored):
        after = now.get(path)
        if after is None:
            continue
        spread, name = before["high"] - before["low"], _NAME.search(path)
        if name is not None and name["more"]:
            lost = after["high"] < before["low"] - spread
        else:
            lost = after["low"] > before["high"] + spread
        if lost:
            found.append(f"{path}: {before['median']:g} stored, {after['median']:g} now")
    return found


def repeatable() -> dict[str, tuple[str, ...]]:
    """The pages that store ratios, with the command that measures them again."""
    found = {}
    for path in sorted(STORED.glob("*.json")):
        known = path.stem in PAGES or (ROOT / "bench" / f"{path.stem}.py").exists()
        if known and any(True for _ in ratios_of(json.loads(path.read_text()))):
            found[path.stem] = PAGES.get(path.stem, (f"bench.{path.stem}", "--quick"))
    return found


def judge() -> dict[str, object]:
    """Run them again; raises with every ratio that got worse."""
    counted: dict[str, object] = {}
    lost: list[str] = []
    for name, command in repeatable().items():
        again = [sys.executable, "-m", *command]
        subprocess.run(again, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        stored = json.loads((STORED / f"{name}.json").read_text())
        fresh = json.loads((FRESH / f"{name}.json").read_text())
        paths = dict(ratios_of(fresh))
        counted[name] = sum(path in paths for path, _ in ratios_of(stored))
        lost += [f"{name}: {sentence}" for sentence in worse(stored, fresh)]
    if lost:
        raise AssertionError("ratios got worse: " + "; ".join(lost))
    return counted
