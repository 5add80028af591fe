"""A synthetic load in the shape of Microsoft's published Philly trace, and three ways to preempt.

Not the trace: its published shape, seeded. Fourteen owners whose loads follow Zipf's law; gangs of
1 to 128 GPUs in powers of two, most of them single, most GPUs in the large ones; ages log-normal,
with a median of a quarter of an hour and a mean of hours. Added here, because Philly had neither:
a third of the gangs of 16 GPUs and more can shrink to half by steps of 8, and a quarter of those of
8 and more keep a spare GPU per group. Entitlements are the owners' shares of the load, blurred by
up to a third either way, as budgets never quite fit.

The three: `fairlead` (spares, steps, then gangs by lottery, owners equal; also with tokens equal),
`youngest` (kill the youngest gang until it is enough), `lottery` (kill any gang, all equally
likely, until it is enough).

Chance that treats owners alike takes as often from a small owner as from a large one, so measured
against entitlements it is less even than chance that treats gangs alike; that is the choice between
the two weightings, and why it is configurable.

GPU-hours lost: the work of a stopped gang since its last hourly checkpoint, and for every GPU that
is removed an hour, which is how long such a conflict lasts here.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fairlead.core.gpu import Conflict, ConflictLease, ConflictRun, Malleable, Role, Scope, resolve
from fairlead.core.lottery import OwnerWeighting

OWNERS = 14
NODE_GPUS = 8
SIZES = {1: 0.62, 2: 0.11, 4: 0.09, 8: 0.11, 16: 0.045, 32: 0.015, 64: 0.007, 128: 0.003}
DEFICITS = (8, 16, 32, 64, 128, 256, 512)
AGE_MEDIAN_H, AGE_SIGMA = 0.25, 2.0
CONFLICT_H = CHECKPOINT_H = 1.0


@dataclass(frozen=True)
class World:
    """What runs at one moment: the conflict, and how old each run is, in hours."""

    conflict: Conflict
    ages_h: dict[str, float]


@dataclass(frozen=True)
class Removal:
    """GPUs that a contestant takes away, by run, and the runs that it stops."""

    gpus: Counter[str]
    stopped: frozenset[str]


def entitlements(rng: random.Random) -> dict[str, float]:
    """Shares of the load by Zipf's law, blurred; they add up to 1."""
    raw = {f"owner-{i:02}": rng.uniform(2 / 3, 4 / 3) / (i + 1) for i in range(OWNERS)}
    return {owner: share / sum(raw.values()) for owner, share in raw.items()}


def world(rng: random.Random, gpus: int, deficit: int) -> World:
    """Gangs until the cluster's GPUs are in use."""
    runs: list[ConflictRun] = []
    leases: list[ConflictLease] = []
    ages: dict[str, float] = {}
    used = 0
    while used < gpus:
        owner = rng.choices(range(OWNERS), [1 / (i + 1) for i in range(OWNERS)])[0]
        size = rng.choices(list(SIZES), list(SIZES.values()))[0]
        name = f"run-{len(runs):05}"
        steps = Malleable(size // 2, NODE_GPUS) if size >= 16 and rng.random() < 1 / 3 else None
        spares = size >= NODE_GPUS and rng.random() < 1 / 4
        runs.append(ConflictRun(name, f"owner-{owner:02}", steps))
        leases += _gang(name, size, spares=spares)
        ages[name] = rng.lognormvariate(0, AGE_SIGMA) * AGE_MEDIAN_H
        used += size
    return World(Conflict(Scope("H100"), deficit, tuple(runs), tuple(leases)), ages)


def _gang(name: str, size: int, *, spares: bool) -> list[ConflictLease]:
    made = []
    for group, begun in enumerate(range(0, size, NODE_GPUS)):
        parts = [(Role.ACTIVE, min(NODE_GPUS, size - begun))] + [(Role.SPARE, 1)] * spares
        made += [
            ConflictLease(
                f"{name}/{group}/{role}", name, role, group, gpus, "H100", {}, True, "b", "e"
            )
            for role, gpus in parts
        ]
    return made


def by_fairlead(weighting: OwnerWeighting) -> Callable[[World, bytes], Removal]:

    def remove(seen: World, seed: bytes) -> Removal:
        done = resolve(seen.conflict, seed, owner_weighting=weighting)
        taken: Counter[str] = Counter()
        for action in done.actions:
            taken[action.run] += action.gpus
        return Removal(taken, frozenset(draw.token for _, draw in done.draws()))

    return remove


def _kill(seen: World, order: list[str]) -> Removal:
    sizes: Counter[str] = Counter()
    for lease in seen.conflict.leases:
        sizes[lease.run] += lease.gpus
    taken: Counter[str] = Counter()
    for name in order:
        if taken.total() >= seen.conflict.deficit_gpus:
            break
        taken[name] = sizes[name]
    return Removal(taken, frozenset(taken))


def youngest(seen: World, seed: bytes) -> Removal:
    """The gang that has run for the shortest time, until it is enough."""
    return _kill(seen, sorted(seen.ages_h, key=lambda name: (seen.ages_h[name], name)))


def lottery(seen: World, seed: bytes) -> Removal:
    """Any gang, until it is enough."""
    order = sorted(seen.ages_h)
    random.Random(seed).shuffle(order)
    return _kill(seen, order)


CONTESTANTS: dict[str, Callable[[World, bytes], Removal]] = {
    "fairlead": by_fairlead(OwnerWeighting.OWNERS),
    "fairlead, tokens equal": by_fairlead(OwnerWeighting.TOKENS),
    "youngest": youngest,
    "lottery": lottery,
}


def jain(values: list[float]) -> float:
    """1 when all are equal, 1/n when one has it all."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def measure(conflicts: int, gpus: int) -> dict[str, Any]:
    """The same conflicts for each contestant; what each removed, stopped and cost whom."""
    rng = random.Random("philly")
    share = entitlements(rng)
    lost = {name: dict.fromkeys(share, 0.0) for name in CONTESTANTS}
    totals: dict[str, Counter[str]] = {name: Counter() for name in CONTESTANTS}
    worst = dict.fromkeys(CONTESTANTS, 0.0)
    for number in range(conflicts):
        seen = world(rng, gpus, DEFICITS[number % len(DEFICITS)])
        seed = sha256(f"philly {number}".encode()).digest()
        owners = {run.id: run.owner for run in seen.conflict.runs}
        for name, remove in CONTESTANTS.items():
            removal, deficit = remove(seen, seed), seen.conflict.deficit_gpus
            totals[name] += Counter(
                removed=removal.gpus.total(), deficit=deficit, stopped=len(removal.stopped)
            )
            worst[name] = max(worst[name], removal.gpus.total() / deficit)
            for run, taken in removal.gpus.items():
                redone_h = seen.ages_h[run] % CHECKPOINT_H if run in removal.stopped else 0
                lost[name][owners[run]] += taken * (CONFLICT_H + redone_h)
    return {
        "conflicts": conflicts,
        "gpus": gpus,
        "deficits": list(DEFICITS),
        "contestants": {
            name: {
                "overshoot": round(totals[name]["removed"] / totals[name]["deficit"], 3),
                "overshoot_worst": round(worst[name], 2),
                "gangs_stopped": totals[name]["stopped"],
                "gpu_hours_lost": round(sum(lost[name].values())),
                "jain": round(jain([lost[name][owner] / share[owner] for owner in share]), 3),
            }
            for name in CONTESTANTS
        },
    }
