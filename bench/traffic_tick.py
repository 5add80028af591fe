"""`python -m bench.traffic_tick [--quick]`: what a tick costs, one group and a thousand.

Two contestants on the same groups, in the same run: core's scalar tick, group by group, and the
columnar tick of `fairlead.fleet.traffic`. 1 000 groups of 50 backends, one node each, as they come:
steady, slewing after a backend turned slow, with isolated backends, warming up. Every plan of the
columnar path is compared with core's to the last bit on the way.

Prints a table, writes bench/results/traffic_tick.json (with --quick: into out/bench).
"""

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.timing import Spread, interleave, machine, ratios
from fairlead.core.canonical import canonical
from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot, State, tick
from fairlead.fleet.traffic import TrafficPlan, TrafficSnapshot, tick_fleet
from fairlead.schema.kinds import KINDS
from fairlead.schema.traffic import from_snapshot

ROOT = Path(__file__).resolve().parents[1]
CONFIG = Config()
BUDGET_MS = 100.0
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


class World:
    """The groups of a scene, played forward until they are in the middle of it."""

    def __init__(self, scene: str, groups: int, backends: int) -> None:
        rng = random.Random(scene)
        self.plan: TrafficPlan | None = None
        states: list[State | None] = [None] * groups
        self.differ = 0
        for turn in range(12):
            seen = [group(rng, str(i), backends, scene, turn) for i in range(groups)]
            self.snapshots = [
                replace(one, config=CONFIG, state=state)
                for one, state in zip(seen, states, strict=True)
            ]
            self.columns = self._columns(seen)
            self.plan = tick_fleet(self.columns)
            plans = [tick(one) for one in self.snapshots]
            pairs = zip(plans, self.plan.to_plans(), strict=True)
            self.differ += sum(repr(ours) != repr(theirs) for ours, theirs in pairs)
            states = [one.state for one in plans]
        self.moved = int(self.plan.applied.sum()) if self.plan else 0

    def _columns(self, seen: list[Snapshot]) -> TrafficSnapshot:
        """Rosters are kept from tick to tick, as an agent would."""
        state = None if self.plan is None else self.plan.state
        columns = TrafficSnapshot.from_snapshots(seen, CONFIG, state)
        if state is None:
            return columns
        return replace(
            columns, roster=state.roster, machines=state.machines, resources=state.resources
        )

    def contest(self) -> dict[str, Callable[[], object]]:
        """The same tick in two ways."""
        return {
            "scalar": lambda: [tick(one) for one in self.snapshots],
            "columns": lambda: tick_fleet(self.columns),
        }


def measure(scene: str, *, groups: int, backends: int, repetitions: int) -> dict[str, Any]:
    """One line: milliseconds of one core per call over all groups."""
    world = World(scene, groups, backends)
    timed = interleave(world.contest(), repetitions=repetitions)
    assert world.plan is not None
    return {
        "scene": scene,
        "groups": groups,
        "backends": backends,
        "milliseconds": {
            name: Spread.of([1e3 * t for t in taken]).as_json() for name, taken in timed.items()
        },
        "columns_times_faster": ratios(timed["scalar"], timed["columns"]).as_json(),
        "groups_that_moved": world.moved,
        "groups_core_ticked": world.plan.fallbacks,
        "plans_that_differ": world.differ,
    }


def one_document(backends: int, *, repetitions: int) -> dict[str, Any]:
    """One group through `fairlead decide`'s function: JSON in, canonical JSON out."""
    world = World("mixed", 1, backends)
    data = canonical(from_snapshot(world.snapshots[0]))
    kind = KINDS["traffic.tick"]
    calls: dict[str, Callable[[], object]] = {
        "tick": lambda: tick(world.snapshots[0]),
        "json_to_json": lambda: canonical(kind.run(data).result),
    }
    timed = interleave(calls, repetitions=repetitions)
    return {
        "backends": backends,
        "milliseconds": {
            name: Spread.of([1e3 * t for t in taken]).as_json() for name, taken in timed.items()
        },
    }


HEADER = (
    f"{'scene':9}{'groups':>7}{'scalar ms':>11}{'columns ms':>12}{'faster':>8}{'moved':>7}"
    f"{'by core':>9}{'differ':>8}"
)


def row(line: dict[str, Any]) -> str:
    """A line of the table."""
    ms = {name: spread["median"] for name, spread in line["milliseconds"].items()}
    faster = line["columns_times_faster"]["median"]
    return (
        f"{line['scene']:9}{line['groups']:>7}{ms['scalar']:>11.0f}{ms['columns']:>12.1f}"
        f"{faster:>7.0f}x{line['groups_that_moved']:>7}{line['groups_core_ticked']:>9}"
        f"{line['plans_that_differ']:>8}"
    )


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller and rougher, in seconds")
    quick = parser.parse_args().quick
    groups, repetitions = (100, 3) if quick else (1_000, 9)
    print(HEADER)
    lines = []
    for scene in SCENES:
        line = measure(scene, groups=groups, backends=50, repetitions=repetitions)
        lines.append(line)
        print(row(line), flush=True)
    single = one_document(50, repetitions=3 * repetitions)
    worst = max(line["milliseconds"]["columns"]["median"] for line in lines)
    print(f"one group of 50: {single['milliseconds']}")
    print(f"{groups} groups of 50: {worst:.1f} ms of one core at worst, budget {BUDGET_MS:.0f} ms")
    report = {
        **machine(),
        "numpy": np.__version__,
        "quick": quick,
        "lines": lines,
        "one_document": single,
        "budget_ms": BUDGET_MS,
        "worst_ms": worst,
    }
    folder = ROOT / ("out/bench" if quick else "bench/results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traffic_tick.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: traffic_tick.json in {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
