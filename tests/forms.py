"""The compiled and the interpreted core decide the same, byte for byte.

    python -m tests.forms COUNT SEED     # the digest of each kind's decisions, as JSON

`tests.compiled` calls it once in each form and compares: random and hostile cases, the same that
the oracles judge. The oracle of `traffic.tick` allows doubles their last digits; here none differs.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from hashlib import sha256
from typing import Any

from fairlead.core.apportion import fill_grants, largest_remainder, water_fill
from fairlead.core.canonical import canonical
from fairlead.core.claims import Claim
from fairlead.core.cpu import Policy, allocate, clear
from fairlead.schema.cpu import from_plan
from fairlead.schema.kinds import KINDS
from tests.core.cpu import cases as cpu_cases
from tests.core.gpu import cases as gpu_cases
from tests.core.gpu import resolve_cases
from tests.core.traffic import cases as traffic_cases
from tests.core.traffic.play import by_core

BITS = (1, 3, 8, 30, 52, 53, 54, 61, 62, 63, 64, 106, 130, 1030)


def divisions(rng: random.Random) -> Iterator[bytes]:
    """Numbers of all sizes: around 2^53, where doubles end, and 2^62, where mypyc's integers do."""
    size = lambda: rng.getrandbits(rng.choice(BITS))  # noqa: E731
    shares = [size() for _ in range(rng.randint(0, 9))]
    yield repr(largest_remainder(size(), shares)).encode()
    claims, start = [], 0
    for _ in range(rng.randint(0, 9)):
        low, high = sorted((size(), size()))
        base = rng.choice((low, rng.randint(0, low)))
        claims.append(Claim(base, size(), low, high))
        start += low
    total = start + rng.choice((0, size(), sum(claim.high - claim.low for claim in claims) // 2))
    fill = water_fill(total, claims)
    level = Fraction(fill.numerator, fill.denominator) if fill.denominator else None
    yield repr((list(fill.grants), level)).encode()
    yield repr(fill_grants(total, claims)).encode()


def clearings(rng: random.Random) -> Iterator[bytes]:
    for policy in Policy:
        yield canonical(from_plan(clear(cpu_cases.random_snapshot(rng, policy))))
        yield canonical(from_plan(allocate(cpu_cases.random_node(rng, policy))))


def ticks(rng: random.Random) -> Iterator[bytes]:
    """A life of a group: each tick decides on the state that the one before it left."""
    world = traffic_cases.World(rng)
    state: dict[str, Any] | None = None
    slots: dict[str, int] | None = None
    for _ in range(world.ticks):
        plan = by_core({**world.tick(slots), "state": state})
        state, slots = plan["state"], plan["slots"]
        yield canonical(plan)


def resolves(rng: random.Random) -> Iterator[bytes]:
    yield _decided("gpu.resolve", resolve_cases.random_doc(rng))


def covers(rng: random.Random) -> Iterator[bytes]:
    yield _decided("gpu.cover", gpu_cases.random_doc(rng))


def _decided(kind: str, document: dict[str, Any]) -> bytes:
    return canonical(KINDS[kind].run(json.dumps(document).encode()).result)


# How many cases a unit of COUNT has: a life of a group takes as long as 60 clearings.
CASES: dict[str, tuple[Callable[[random.Random], Iterator[bytes]], int]] = {
    "apportion": (divisions, 60),
    "cpu": (clearings, 10),
    "gpu.cover": (covers, 5),
    "gpu.resolve": (resolves, 10),
    "traffic.tick": (ticks, 1),
}


def digests(count: int, seed: int) -> dict[str, str]:
    """Of all decisions of each kind, in order."""
    found = {}
    for name, (decide, times) in CASES.items():
        whole = sha256()
        for case in range(count * times):
            for line in decide(random.Random(f"{seed}/{name}/{case}")):
                whole.update(line + b"\n")
        found[name] = whole.hexdigest()
    return found


if __name__ == "__main__":
    print(json.dumps(digests(int(sys.argv[1]), int(sys.argv[2]))))
