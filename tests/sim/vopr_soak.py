"""Many schedules of the whole system, played in parts: each part that ends is written down.

`python -m tests.soak "whole system"` plays on towards two million steps. FAIRLEAD_SOAK_S: after so
many seconds no further part begins. Each part is a line of `bench/results/soak-vopr.jsonl`, with
its commit and the digest of what was simulated; a part counts while that source is the same.
"""

import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from fairlead.sim.vopr.command import play_seed, summary

RECORD = Path(__file__).resolve().parents[2] / "bench" / "results" / "soak-vopr.jsonl"
FIRST, STEPS_EACH, PART = 1_000_000, 400, 100
COUNTED = ("seeds", "steps", "faults", "crashes", "entries")
Row = dict[str, Any]


def soak(
    steps: int,
    *,
    commit: str,
    digest: str,
    within_s: float = inf,
    lanes: int | None = None,
    record: Path = RECORD,
) -> Row:
    """Until so many steps were played, or the time is over; raises where a promise was broken."""
    end_s = time.monotonic() + within_s
    rows = played_before(record, digest)
    with ProcessPoolExecutor(lanes) as pool:
        while sum(row["steps"] for row in rows) < steps and time.monotonic() < end_s:
            first = FIRST + PART * len(rows)
            seeds, began_s = range(first, first + PART), time.monotonic()
            found = summary(pool.map(partial(play_seed, STEPS_EACH), seeds))
            if found["failures"]:
                raise AssertionError(found["failures"])
            row = {"first": first, "commit": commit, "digest": digest}
            row |= {"seconds": round(time.monotonic() - began_s, 1)}
            rows.append(row | {name: found[name] for name in COUNTED})
            with record.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return counted(rows)


def counted(rows: list[Row]) -> Row:
    """What all parts have played together, and by which commits."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update({name: row[name] for name in COUNTED})
    commits = dict(Counter(row["commit"] for row in rows))
    return {**totals, "commits": commits}


def played_before(record: Path, digest: str) -> list[Row]:
    """The parts of the source as it is. Of another source they are left out, and dropped from the
    file: they say nothing about this one."""
    if not record.is_file():
        return []
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    kept = [row for row in rows if row["digest"] == digest]
    if len(kept) < len(rows):
        record.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert [row["first"] for row in kept] == [FIRST + PART * i for i in range(len(kept))]
    return kept
