"""`python -m bench.lottery_shares [--quick]`: does it pay to split or merge runs, or to add decoys?

Two owners hold GPUs of one tier. One of them divides its GPUs in several ways, the other has one
run of 16. What each expects to lose is computed under the three weightings: exactly under `stake`,
and over many seeds of `resolve` under `owners` and `tokens`, with the error that 19 of 20 figures
keep.
Prints a table, writes bench/results/lottery_shares.json (with --quick: into out/bench).
"""

import argparse
from hashlib import sha256
from math import sqrt
from typing import Any

from bench.timing import machine, write_results
from fairlead.core.gpu import Conflict, ConflictLease, ConflictRun, Role, Scope, resolve
from fairlead.core.lottery import OwnerWeighting, heaps_of

GAMES = 4_000
WAYS: dict[str, tuple[tuple[int, ...], int]] = {
    "one run of 16, 4 missing": ((16,), 4),
    "16 runs of 1, 4 missing": ((1,) * 16, 4),
    "4 runs of 4, 4 missing": ((4,) * 4, 4),
    "one run of 16, 16 missing": ((16,), 16),
    "16 runs of 1, 16 missing": ((1,) * 16, 16),
    "one run of 16, 1 missing": ((16,), 1),
    "one run of 16 and 15 decoys of 1, 1 missing": ((16,) + (1,) * 15, 1),
}
"""The runs of the first owner, and the deficit; the second owner has one run of 16."""
Line = dict[str, Any]


def conflict_of(sizes: tuple[int, ...], missing: int) -> Conflict:
    runs = {f"a{number:02d}": ("a", size) for number, size in enumerate(sizes)} | {"b": ("b", 16)}
    return Conflict(
        scope=Scope("H100"),
        deficit_gpus=missing,
        runs=tuple(ConflictRun(name, owner) for name, (owner, _) in runs.items()),
        leases=tuple(
            ConflictLease(name, name, Role.ACTIVE, 0, size, "H100", {}, True, owner, "e")
            for name, (owner, size) in runs.items()
        ),
    )


def played(conflict: Conflict, weighting: OwnerWeighting, games: int) -> Line:
    """What each owner loses on average, and how often the first owner's first run is lost."""
    losses: dict[str, list[int]] = {"a": [], "b": []}
    first = 0
    for game in range(games):
        seed = sha256(f"lottery shares {game}".encode()).digest()
        gone = resolve(conflict, seed, owner_weighting=weighting).actions
        for owner, lost in losses.items():
            lost.append(sum(each.gpus for each in gone if each.run[0] == owner))
        first += any(each.run == "a00" for each in gone)
    line: Line = {"odds_of_first_run": first / games}
    for owner, lost in losses.items():
        mean = sum(lost) / games
        spread = sum((each - mean) ** 2 for each in lost) / games
        line[owner] = {"lost": mean, "error": 1.96 * sqrt(spread / games)}
    return line


def exact_stake(sizes: tuple[int, ...], missing: int) -> Line:
    held = {f"a{number:02d}": size for number, size in enumerate(sizes)} | {"b": 16}
    heaps = heaps_of(held, missing)
    chance = {run: 1.0 if run in heaps.needed else float(heaps.chance) for run in held}
    line: Line = {"odds_of_first_run": chance["a00"]}
    for owner in "ab":
        lost = sum(chance[run] * held[run] for run in held if run[0] == owner)
        line[owner] = {"lost": lost, "error": 0.0}
    return line


def measure(games: int) -> list[Line]:
    rows: list[Line] = []
    for way, (sizes, missing) in WAYS.items():
        conflict = conflict_of(sizes, missing)
        row: Line = {"way": way, "held": {"a": sum(sizes), "b": 16}, "missing": missing}
        for weighting in (OwnerWeighting.OWNERS, OwnerWeighting.TOKENS):
            row[weighting.value] = played(conflict, weighting, games)
        row["stake"] = exact_stake(sizes, missing)
        row["stake_played"] = played(conflict, OwnerWeighting.STAKE, games)
        rows.append(row)
    return rows


def verdicts(report: Line) -> dict[str, bool]:
    """What the table is to show."""
    rows = report["rows"]
    return {
        "under stake the loss is the share of the GPUs": all(
            abs(row["stake"]["a"]["lost"] / row["held"]["a"] - row["stake"]["b"]["lost"] / 16)
            < 1e-9
            for row in rows
        ),
        "the lottery plays what is computed": all(
            abs(row["stake"][owner]["lost"] - row["stake_played"][owner]["lost"])
            <= 2.5 * row["stake_played"][owner]["error"] + 1e-9
            for row in rows
            for owner in "ab"
        ),
        "under owners splitting moves the loss": (
            rows[1]["owners"]["a"]["lost"] < 1.2 and rows[1]["owners"]["b"]["lost"] > 14
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    games = GAMES // 10 if quick else GAMES
    rows = measure(games)
    names = "".join(f"{name:>22}" for name in ("owners", "tokens", "stake"))
    print(f"{'first owner':54}{names}")
    for row in rows:
        for owner in "ab":
            cells = "".join(
                f"{row[rule][owner]['lost']:>14.2f} ±{row[rule][owner]['error']:5.2f} "
                for rule in ("owners", "tokens", "stake")
            )
            print(f"{row['way'] if owner == 'a' else '':46}{owner} loses{cells}")
    report = {"machine": machine(), "games": games, "rows": rows}
    report["verdicts"] = verdicts(report)
    print(report["verdicts"])
    write_results("lottery_shares", report, quick=quick)


if __name__ == "__main__":
    main()
