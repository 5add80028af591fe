"""Documents to record: clearings of a busy node, and small ones."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.core.cpu import CpuMode, Headroom, Pod, Policy, Snapshot, clear
from fairlead.recorder import FileRecorder
from fairlead.schema.cpu import from_plan, from_snapshot

Documents = tuple[dict[str, Any], dict[str, Any]]


def clearings(*, pods: int, changed: int, capacity_millicores: int) -> Iterator[Documents]:
    """A node's clearings, one after the other: each time, some pods have another demand."""
    rng = random.Random(f"{pods}/{changed}")
    node = [_pod(rng, index) for index in range(pods)]
    while True:
        snapshot = Snapshot(
            capacity_millicores,
            tuple(node),
            Policy.DEMAND_CAPPED,
            CpuMode.CONGESTED,
            0.05,
            Headroom(),
        )
        yield from_snapshot(snapshot), from_plan(clear(snapshot))
        for index in rng.sample(range(pods), changed):
            usage, demand = rng.randint(0, 900), rng.random()
            node[index] = replace(node[index], demand=demand, usage_millicores=usage)


def _pod(rng: random.Random, index: int) -> Pod:
    uid = f"{index:08x}-7d1c-4a52-9e0f-{rng.getrandbits(48):012x}"
    return Pod(uid, 100, 2000, rng.random(), None, rng.randint(0, 900), rng.randint(100, 2000))


def small(number: int) -> dict[str, Any]:
    """Keyword arguments of an append that is told apart by its number."""
    backends = [{"id": f"b{each}", "queue": number % (each + 2)} for each in range(3)]
    return {
        "kind": "test.small",
        "version": 1,
        "time_ms": 1_000 + number,
        "input": {"number": number, "backends": backends},
        "output": {"slots": {"b0": number % 5, "b1": 256}, "reasons": ["steady"]},
    }


def record(directory: Path, count: int, **limits: int) -> list[int]:
    """Append small entries, mark every second one; returns the sequence numbers."""
    with FileRecorder(directory, **limits) as recorder:
        found = []
        for number in range(count):
            found.append(recorder.append(**small(number)))
            if number % 2:
                recorder.mark(found[-1], "applied", time_ms=number)
    return found
