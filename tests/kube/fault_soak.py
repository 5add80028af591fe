"""Many schedules of faults, played in parts: each that ends is written down, and not played again.

`python -m tests.kube.fault_soak 8 101` plays these seeds. With FAIRLEAD_SOAK_RECORD=FILE each
result is a line of that file, with its commit and the digest of its source, and
`python -m tests.soak "faults of a cluster"` plays only what did not pass there yet, on the source
as it is: 200 schedules take an hour or more, and a machine has other work.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path

from fairlead.kube.dev.assets import find
from tests.kube.schedules import Failed, Played, arena

RECORD = "FAIRLEAD_SOAK_RECORD"
Row = dict[str, object]


def play_all(
    seeds: Iterable[int], end_s: float = inf, *, commit: str = "", digest: str = ""
) -> list[Row]:
    """One after the other in one cluster; a failure is told, and the next one begins. `end_s`: from
    when on none does."""
    programs, rows = find(frozenset()), list[Row]()
    assert programs is not None, "make kube-assets"
    with tempfile.TemporaryDirectory() as folder, arena(programs, Path(folder)) as made:
        for seed in seeds:
            began = time.monotonic()
            if began > end_s:
                break
            row: Row = {"seed": seed, "commit": commit, "digest": digest}
            try:
                row["played"] = asdict(made.play(seed))
            except Failed as failure:
                row["failed"] = str(failure)
            rows.append(row)
            _write_down(row)
            said = row.get("failed", "passed")
            print(f"seed {seed}: {said} in {time.monotonic() - began:.1f} s", flush=True)
    return rows


def _write_down(row: Row) -> None:
    if RECORD in os.environ:
        with open(os.environ[RECORD], "a") as file:
            file.write(json.dumps(row) + "\n")


def passed_before(record: Path, digest: str) -> dict[int, Row]:
    """What passed on this source by the record, the newest of each seed."""
    rows = map(json.loads, record.read_text().splitlines()) if record.is_file() else ()
    newest = {row["seed"]: row for row in rows if row.get("digest") == digest}
    return {seed: row for seed, row in newest.items() if "played" in row}


def soak(
    count: int, *, commit: str, digest: str, within_s: float = inf, lanes: int = 2
) -> dict[str, object]:
    """In clusters beside each other: a schedule waits more than it works."""
    known = passed_before(Path(os.environ.get(RECORD, "")), digest)
    left = [seed for seed in range(count) if seed not in known]
    # Neighbours have a ledger of each kind: a lane has both.
    parts = [[seed for seed in left if seed // 2 % lanes == lane] for lane in range(lanes)]
    play = partial(play_all, end_s=time.monotonic() + within_s, commit=commit, digest=digest)
    rows = [row for seed, row in known.items() if seed < count]
    # Servers end with the thread that started them: each lane is a process.
    with ProcessPoolExecutor(lanes, mp_context=get_context("spawn")) as pool:
        rows += [row for found in pool.map(play, filter(None, parts)) for row in found]
    return counted(rows)


def counted(rows: Iterable[Row]) -> dict[str, object]:
    """Raises `AssertionError` with what failed."""
    rows = sorted(rows, key=lambda row: int(str(row["seed"])))
    failed = [str(row["failed"]) for row in rows if "failed" in row]
    passed = [Played(**row["played"]) for row in rows if "played" in row]  # type: ignore[arg-type]
    struck = Counter(name for played in passed for name in played.struck)
    found: dict[str, object] = {
        "schedules": len(rows),
        "passed": len(passed),
        "commits": dict(sorted(Counter(str(row["commit"]) for row in rows).items())),
        "faults of the network": sum(played.faults for played in passed),
        "events at which no device was used twice": sum(played.events for played in passed),
        "struck": dict(sorted(struck.items())),
    }
    if failed:
        raise AssertionError(f"{found}\n" + "\n".join(failed))
    return found


if __name__ == "__main__":
    wrong = [row["seed"] for row in play_all(map(int, sys.argv[1:])) if "failed" in row]
    sys.exit(f"failed: {wrong}" if wrong else 0)
