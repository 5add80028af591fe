"""`python -m bench.cpu_clear [--quick]`: how fast and how right nodes are cleared, side by side.

Three contestants on the same pods, in the same run: a straightforward allocator in floats
(`bench.float_reference`), core's scalar path, and the vectorised fleet path. One node of 10 to
10 000 pods, and a fleet of 5 000 nodes of 110 pods, a third each uncongested, congested and
overloaded. Also counted: how often each breaks the promise about the sum of its grants.

Prints a table, writes bench/results/cpu_clear.json and .png (with --quick: into out/bench).
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.cpu_clear_plot import draw
from bench.float_reference import FLOATS
from bench.timing import Spread, interleave, machine, ratios, write_results
from fairlead.core.cpu import Plan, Pod, Policy, Snapshot, clear
from fairlead.fleet import FleetSnapshot, clear_fleet
from fairlead.fleet.snapshot import MODES

CONTESTANTS = ("floats", "scalar", "fleet")
# Capacity over Σ minimums: overloaded, congested, uncongested for the demands drawn below. The
# last still lies below Σ maximums, so that the market has something to decide.
LOADS = (0.8, 2.5, 4.2)
# So little that the minimums, scaled down, fall below the 10m a pod needs to survive.
STARVED = 0.03
PODS = (10, 110, 1_000, 10_000)

Line = dict[str, Any]  # one object of the JSON report


def node(rng: random.Random, pods: int, load: float) -> Snapshot:
    """One node: default weights times a priority factor, any demand, maxima of 2 to 8 minimums."""
    members = tuple(_pod(rng, index) for index in range(pods))
    return Snapshot(int(load * sum(pod.min_millicores for pod in members)), members)


def _pod(rng: random.Random, index: int) -> Pod:
    low = rng.randint(50, 500)
    return Pod(
        f"pod-{index:05d}",
        min_millicores=low,
        max_millicores=low * rng.randint(2, 8),
        demand=rng.random(),
        weight=low * rng.choice((1.0, 1.0, 1.0, 1.1, 1.5)),
    )


def fleet_of(
    nodes: int, *, pods: int, seed: str, loads: tuple[float, ...] = LOADS
) -> list[Snapshot]:
    rng = random.Random(seed)
    return [node(rng, pods, loads[index % len(loads)]) for index in range(nodes)]


def contest(batches: Sequence[Sequence[Snapshot]]) -> dict[str, Callable[[], object]]:
    """The same nodes, cleared in three ways; the fleet path takes a batch at a time.

    Columns are built beforehand, as the pods are.
    """
    nodes = [one for batch in batches for one in batch]
    reference = FLOATS[nodes[0].policy]
    columns = [FleetSnapshot.from_snapshots(batch) for batch in batches]
    return {
        "floats": lambda: [reference(one.capacity_millicores, one.pods) for one in nodes],
        "scalar": lambda: [clear(one) for one in nodes],
        "fleet": lambda: [clear_fleet(batch) for batch in columns],
    }


def measure(batches: Sequence[Sequence[Snapshot]], *, repetitions: int) -> Line:
    nodes = sum(map(len, batches))
    timed = interleave(contest(batches), repetitions=repetitions)
    plans = [clear_fleet(FleetSnapshot.from_snapshots(batch)) for batch in batches]
    modes = [MODES[code].value for plan in plans for code in plan.mode]
    return {
        "policy": batches[0][0].policy.value,
        "nodes_per_call": len(batches[0]),
        "pods_per_node": len(batches[0][0].pods),
        "repetitions": repetitions,
        "seconds_per_node": _per(nodes, timed),
        "fleet_times_faster_than_scalar": ratios(timed["scalar"], timed["fleet"]).as_json(),
        "fleet_times_faster_than_floats": ratios(timed["floats"], timed["fleet"]).as_json(),
        "scalar_times_slower_than_floats": ratios(timed["scalar"], timed["floats"]).as_json(),
        "modes": {mode.value: modes.count(mode.value) for mode in MODES},
        "fallback_share": sum(plan.fallbacks for plan in plans) / nodes,
    }


def _per(nodes: int, timed: dict[str, list[float]]) -> Line:
    return {name: Spread.of([t / nodes for t in taken]).as_json() for name, taken in timed.items()}


def promises(snapshots: Sequence[Snapshot]) -> Line:
    """How often a sum of grants passes the capacity, or misses it where all of it is claimed.

    On the way every plan of the fleet path is compared with core's, to the last bit.
    """
    fleet = clear_fleet(FleetSnapshot.from_snapshots(snapshots))
    sums: dict[str, list[int]] = {name: [] for name in CONTESTANTS}
    differ, scarce = 0, []
    for index, one in enumerate(snapshots):
        scalar, vector = clear(one), fleet.node(index)
        differ += repr(scalar) != repr(vector)
        scarce.append(_claims(one, scalar) >= one.capacity_millicores)
        sums["floats"].append(sum(FLOATS[one.policy](one.capacity_millicores, one.pods)))
        sums["scalar"].append(sum(scalar.allocations.values()))
        sums["fleet"].append(sum(vector.allocations.values()))
    capacities = [one.capacity_millicores for one in snapshots]
    return {
        "policy": snapshots[0].policy.value,
        "nodes": len(snapshots),
        "scarce_nodes": sum(scarce),
        "fleet_plans_that_differ_from_scalar": differ,
        **{name: _broken(totals, capacities, scarce) for name, totals in sums.items()},
    }


def _claims(snapshot: Snapshot, plan: Plan) -> int:
    """What the pods together may be given. If that reaches the capacity, all of it must be."""
    if snapshot.policy is Policy.MARKET:
        return sum(pod.max_millicores for pod in snapshot.pods)
    return plan.total_need


def _broken(totals: list[int], capacities: list[int], scarce: list[bool]) -> dict[str, int]:
    over = [total - capacity for total, capacity in zip(totals, capacities, strict=True)]
    return {
        "over_capacity": sum(excess > 0 for excess in over),
        "not_handed_out_whole": sum(
            map(bool, (e for e, full in zip(over, scarce, strict=True) if full))
        ),
        "most_millicores_over": max(0, *over),
    }


def conversion(snapshots: Sequence[Snapshot], *, repetitions: int) -> Line:
    """What it costs to come from core's values and to go back to them, per node."""
    columns = FleetSnapshot.from_snapshots(snapshots)
    plan = clear_fleet(columns)
    timed = interleave(
        {
            "from_snapshots": lambda: FleetSnapshot.from_snapshots(snapshots),
            "to_plans": plan.to_plans,
        },
        repetitions=repetitions,
    )
    return _per(len(snapshots), timed)


def run(*, quick: bool) -> Line:
    repetitions, nodes = (3, 200) if quick else (15, 5_000)
    fleet = fleet_of(nodes, pods=110, seed="fleet")
    singles = [fleet_of(len(LOADS), pods=pods, seed=f"one node of {pods}") for pods in PODS]
    judged = fleet_of(nodes // 2, pods=110, seed="promises", loads=(*LOADS, STARVED))
    lines: list[Line] = []
    kept: list[Line] = []
    print(HEADER)
    for policy in Policy:
        for trio in singles:
            batches = [[replace(one, policy=policy)] for one in trio]
            lines.append(measure(batches, repetitions=repetitions))
            print(row(lines[-1]), flush=True)
        # The pods are shared between the policies: half a million of them fill 200 MB.
        governed = [replace(one, policy=policy) for one in fleet]
        lines.append(measure([governed], repetitions=min(repetitions, 7)))
        print(row(lines[-1]), flush=True)
        kept.append(promises([replace(one, policy=policy) for one in judged]))
    print("\nbroken promises about the sum of the grants")
    for counted in kept:
        print(promise_row(counted))
    return {
        **machine(),
        "numpy": np.__version__,
        "quick": quick,
        "capacity_over_minimums": {"timed": LOADS, "judged": (*LOADS, STARVED)},
        "lines": lines,
        "promises": kept,
        "conversion_seconds_per_node": conversion(fleet[:500], repetitions=3),
    }


HEADER = (
    "CPU microseconds per node: median (quartiles)\n"
    f"{'policy':14}{'nodes x pods':>13}{'floats':>22}{'scalar':>24}{'fleet':>22}"
    f"{'scalar/fleet':>20}{'floats/fleet':>12}{'fallback':>10}"
)


def row(line: Line) -> str:
    size = f"{line['nodes_per_call']} x {line['pods_per_node']}"
    cells = "".join(
        f"{_cell(line['seconds_per_node'][name]):>{width}}"
        for name, width in zip(CONTESTANTS, (22, 24, 22), strict=True)
    )
    faster, floats = line["fleet_times_faster_than_scalar"], line["fleet_times_faster_than_floats"]
    ratio = f"{faster['median']:.3g}x ({faster['low']:.2g}-{faster['high']:.2g})"
    return (
        f"{line['policy']:14}{size:>13}{cells}{ratio:>20}{floats['median']:>11.3g}x"
        f"{line['fallback_share']:>10.2%}"
    )


def _cell(spread: dict[str, float]) -> str:
    low, middle, high = (spread[key] * 1e6 for key in ("low", "median", "high"))
    digits = 0 if middle >= 100 else 1
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def promise_row(counted: Line) -> str:
    parts = [
        f"{name}: {counted[name]['over_capacity']} over capacity "
        f"(by up to {counted[name]['most_millicores_over']}m), "
        f"{counted[name]['not_handed_out_whole']} not handed out whole"
        for name in CONTESTANTS
    ]
    head = f"{counted['policy']}, {counted['nodes']} nodes, {counted['scarce_nodes']} scarce"
    differ = (
        f"fleet plans that differ from scalar: {counted['fleet_plans_that_differ_from_scalar']}"
    )
    return "\n  ".join([head, *parts, differ])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller and rougher, in a minute")
    quick = parser.parse_args().quick
    report = run(quick=quick)
    write_results("cpu_clear", report, quick=quick, draw=draw)


if __name__ == "__main__":
    main()
