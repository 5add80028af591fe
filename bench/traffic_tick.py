"""`python -m bench.traffic_tick [--quick]`: what a tick of one group costs.

1 000 groups of 50 backends, one node each, ticked one after the other as an agent does: steady,
slewing after a backend turned fast, mixed (slewing, isolated and warming up).

Prints a table, writes bench/results/traffic_tick.json (with --quick: into out/bench).
"""

import argparse
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.timing import Spread, interleave, machine, write_results
from fairlead.core.canonical import canonical
from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot, State, tick
from fairlead.schema.kinds import KINDS
from fairlead.schema.traffic import from_snapshot

CONFIG = Config()
BUDGET_MS = 2.0
"""Per group and tick: one hundredth of the 200 ms between two ticks."""
SCENES = ("steady", "slewing", "mixed")


def group(rng: random.Random, name: str, backends: int, scene: str, turn: int) -> Snapshot:
    """One group at its turn-th tick. In a slewing one a backend becomes ten times as fast at the
    second: a single slow one of 50 is too small a share to move slots.
    """
    slewing = scene == "slewing" or (scene == "mixed" and int(name) % 3 == 0)
    members = []
    for index in range(backends):
        fast = slewing and index == 0 and turn > 0
        members.append(
            Backend(
                f"b{index:03d}",
                queue=0.0 if fast else float(rng.randint(0, 20)),
                p95_ms=10.0 if fast else rng.uniform(95, 105),
                error_rate=0.0 if fast else rng.choice((0.0, 0.0, 0.001)),
                requests=rng.randint(20, 400),
                isolated=scene == "mixed" and index == 7,
                age_ms=turn * 200 if scene == "mixed" and index == 9 else None,
            )
        )
    psi = Psi(rng.uniform(0, 0.3), 0.0, 0.0, 0.1, 0.0)
    memory = Resource("memory", 8e9, 2e9 + rng.uniform(0, 1e6))
    node = Node("n1", psi, (memory, Resource("fds", 65_536.0, 900.0)))
    return Snapshot(now_ms=turn * 200, group=name, backends=tuple(members), nodes=(node,))


def snapshots_of(scene: str, groups: int, backends: int) -> list[Snapshot]:
    """The groups of a scene after twelve ticks: in the middle of it."""
    rng = random.Random(scene)
    states: list[State | None] = [None] * groups
    snapshots: list[Snapshot] = []
    for turn in range(12):
        snapshots = [
            replace(group(rng, str(i), backends, scene, turn), config=CONFIG, state=state)
            for i, state in enumerate(states)
        ]
        states = [tick(snapshot).state for snapshot in snapshots]
    return snapshots


def measure(scene: str, *, groups: int, backends: int, repetitions: int) -> dict[str, Any]:
    """One line: milliseconds of one core per call over all groups."""
    snapshots = snapshots_of(scene, groups, backends)
    timed = interleave({"scalar": lambda: [tick(s) for s in snapshots]}, repetitions=repetitions)
    return {
        "scene": scene,
        "groups": groups,
        "backends": backends,
        "milliseconds": _milliseconds(timed),
        "groups_that_moved": sum(tick(snapshot).applied for snapshot in snapshots),
    }


def one_document(backends: int, *, repetitions: int) -> dict[str, Any]:
    """One group through `fairlead decide`'s function: JSON in, canonical JSON out."""
    (snapshot,) = snapshots_of("mixed", 1, backends)
    data = canonical(from_snapshot(snapshot))
    kind = KINDS["traffic.tick"]
    calls: dict[str, Callable[[], object]] = {
        "tick": lambda: tick(snapshot),
        "json_to_json": lambda: canonical(kind.run(data).result),
    }
    timed = interleave(calls, repetitions=repetitions)
    return {"backends": backends, "milliseconds": _milliseconds(timed)}


def _milliseconds(timed: dict[str, list[float]]) -> dict[str, Any]:
    return {name: Spread.of([1e3 * t for t in taken]).as_json() for name, taken in timed.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller and rougher, in seconds")
    quick = parser.parse_args().quick
    groups, repetitions = (100, 3) if quick else (1_000, 9)
    print(f"{'scene':9}{'groups':>7}{'all ms':>9}{'per group ms':>14}{'moved':>7}")
    lines = []
    for scene in SCENES:
        line = measure(scene, groups=groups, backends=50, repetitions=repetitions)
        lines.append(line)
        whole_ms = line["milliseconds"]["scalar"]["median"]
        each_ms = whole_ms / groups
        moved = line["groups_that_moved"]
        print(f"{scene:9}{groups:>7}{whole_ms:>9.0f}{each_ms:>14.2f}{moved:>7}", flush=True)
    single = one_document(50, repetitions=3 * repetitions)
    worst = max(line["milliseconds"]["scalar"]["median"] for line in lines) / groups
    print(f"one group of 50: {single['milliseconds']}")
    print(f"a tick of one group of 50: {worst:.2f} ms at worst, budget {BUDGET_MS:g} ms")
    report = {
        **machine(),
        "quick": quick,
        "lines": lines,
        "one_document": single,
        "budget_ms_per_group": BUDGET_MS,
        "worst_ms_per_group": worst,
    }
    write_results("traffic_tick", report, quick=quick)


if __name__ == "__main__":
    main()
