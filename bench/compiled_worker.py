"""One form of the core for `bench.compiled`, in a process of its own.

It reads lines `CONTEST TIMES` from its standard input and answers each with the CPU seconds that so
many calls took.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from bench.cpu_clear import fleet_of
from bench.gpu_resolve import SEED, conflict_document
from bench.traffic_tick import SCENES, snapshots_of
from fairlead.core.cpu import Policy, Snapshot, clear
from fairlead.core.gpu import resolve
from fairlead.core.traffic import tick
from fairlead.fleet import FleetSnapshot, clear_fleet
from fairlead.schema.border import check_shape, parse_json
from fairlead.schema.gpu import ResolveDocument, to_conflict

PODS, GROUPS, BACKENDS, LEASES = 110, 60, 50, 10_000


def nodes_of(policy: Policy, count: int) -> list[Snapshot]:
    return [replace(node, policy=policy) for node in _fleet(count)]


@cache
def _fleet(count: int) -> list[Snapshot]:
    return fleet_of(count, pods=PODS, seed="compiled")


def contests(nodes: int) -> dict[str, Callable[[], object]]:
    """By name, all on the same inputs in every form."""
    found: dict[str, Callable[[], object]] = {}
    for policy in Policy:
        snapshots = nodes_of(policy, nodes)
        found[f"clear {policy.value}"] = lambda snapshots=snapshots: [clear(s) for s in snapshots]
        found[f"fleet {policy.value}"] = partial(
            clear_fleet, FleetSnapshot.from_snapshots(snapshots)
        )
    for scene in SCENES:
        groups = snapshots_of(scene, GROUPS, BACKENDS)
        found[f"tick {scene}"] = lambda groups=groups: [tick(group) for group in groups]
    for shape in ("mixed", "lottery"):
        document = conflict_document(LEASES, by_lottery=shape == "lottery")
        conflict = to_conflict(
            check_shape(parse_json(json.dumps(document).encode()), ResolveDocument)
        )
        found[f"resolve {shape}"] = partial(resolve, conflict, bytes.fromhex(SEED))
    return found


def main() -> None:
    calls = contests(int(sys.argv[1]))
    # What is there before the call is not the call's to collect: a fresh process has none of it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        name, times = line.rsplit(" ", 1)
        began = time.process_time()
        for _ in range(int(times)):
            calls[name]()
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
