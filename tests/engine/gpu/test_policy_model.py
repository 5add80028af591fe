"""Tenants use every policy at once in a random lab; whatever they do, each decision replays."""

import contextlib
import random
from collections import Counter
from typing import Any

from fairlead.core.gpu import PreemptionPolicy
from fairlead.engine.gpu import Author, Denied
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase
from fairlead.ledger.replay import replay_ledger
from fairlead.schema.border import BadInput
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import HOUR, START, reservation, world_of
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, run, state_of

POLICY = PreemptionPolicy(
    min_notice_ms=60_000, max_reservations=2, min_runtime_ms=30_000, cooldown_ms=60_000
)
DEVICES, NAMES = 6, [f"r{i}" for i in range(12)]
ELASTIC = {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}}
OPTIONS: dict[str, list[Any]] = {
    "command": [["x"]],
    "duration": ["1s", "10m", "9h"],
    "maxRuntime": ["1s", "5m"],
    "restartPolicy": ["Never", "OnFailure", "OnPreemption", "Always"],
    "backoffLimit": [0, 3],
    "priority": [-5, 5],
}
VERBS = ["cancel", "pause", "resume", "nominate"]
EXPECTED = {
    *("gpu.queue", "gpu.backfill", "gpu.reserve", "gpu.recall", "gpu.overdraw", "gpu.refund"),
    *("gpu.limit", "gpu.restart", "gpu.after", "gpu.deficit", "gpu.resolve.applied", "gpu.start"),
}


class Lab:
    """Siblings `a` and `b` share with each other, `c` borrows; hours are few, and may be hard."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"lab {seed}")
        pick = self.chance.choice
        self.world = world = world_of(devices=DEVICES, teams="", preemption=POLICY)
        hours = {"maxGPUHours": pick([1, 3, 50]), "recurrence": "monthly"}
        hours["enforcement"] = pick(["hard", "soft"])
        world.apply(budget("p", "p", envelope(concurrency=2)))
        for owner in "ab":
            world.apply(budget(owner, owner, envelope(concurrency=4, **hours), parents=["p"]))
        lending = {"lending": {"allow": True, "to": ["c"], "maxConcurrency": 3}}
        world.apply(budget("d", "d", envelope(concurrency=4, **lending)))
        world.apply(budget("c", "c", envelope(concurrency=1)))

    def step(self) -> None:
        acts = [self._submit] * 6 + [self._end] * 2
        acts += [self._move, self._remove, self._act, self._serve, self._restart]
        with contextlib.suppress(Denied, BadInput):
            self.chance.choice(acts)()
        self.world.turn(self.chance.choice([0, 1, 1, 5, 15, 40, 400, 2_000]) / 3600)

    def _submit(self) -> None:
        flip, pick = self.chance.random, self.chance.choice
        spec = {name: pick(values) for name, values in OPTIONS.items() if flip() < 0.35}
        spec |= ELASTIC if flip() < 0.3 else {}
        funding: dict[str, Any] = {"allowUnfunded": True} if flip() < 0.3 else {}
        funding |= {"allowBorrow": True, "sponsors": ["d"]} if flip() < 0.3 else {}
        spec |= {"funding": funding} if funding else {}
        if flip() < 0.1:
            spec["after"] = [{"run": pick(NAMES), "condition": pick(["afterOK", "afterAny"])}]
        name, owner = pick(NAMES), pick("abcd")
        manifests = [run(name, owner, self.chance.randint(1, 5), **spec)]
        if flip() < 0.25:
            manifests.append(self._slot(name))
        author = Author(owner, frozenset({owner}))
        self.world.plane.objects.apply_all(manifests, author=author)

    def _slot(self, name: str) -> dict[str, Any]:
        at_ms = self.world.now_ms - START + self.chance.randint(30, 300) * 1000
        return reservation(f"{name}-slot", name, at_ms / HOUR)

    def _end(self) -> None:
        job = self.chance.choice([*sorted(self.world.executor.running()), ""])
        if job:
            run_, code = job.rsplit(".", 2)[0], self.chance.choice([0, 1])
            self.world.executor.end(run_, self.world.now_ms, code=code)

    def _move(self) -> None:
        author = Author("x", frozenset("abcd"))
        self.world.plane.objects.apply(self._slot(self.chance.choice(NAMES)), author=author)

    def _remove(self) -> None:
        for name in NAMES:
            for kind, about in (("Reservation", f"{name}-slot"), ("Run", name)):
                state = self.world.projection.runs.get(name)
                if state is not None and state.phase.ended:
                    try:
                        self.world.plane.objects.delete(kind, about, author=ADMIN)
                    except Denied:
                        continue

    def _act(self) -> None:
        name, verb = self.chance.choice(NAMES), self.chance.choice(VERBS)
        self.world.plane.verbs.act("Run", name, verb, author=ADMIN)

    def _serve(self) -> None:
        verb = self.chance.choice(["drain", "uncordon", "uncordon"])
        self.world.plane.verbs.act("Node", "n1", verb, author=ADMIN)

    def _restart(self) -> None:
        if self.chance.random() < 0.5:
            self.world.plane.committer.checkpoint()
        before = state_of(self.world)
        self.world.plane = self.world.open()
        assert state_of(self.world) == before


def check_step(world: World) -> None:
    """No device twice, no envelope pays for more than it has, nothing is left of what ended."""
    projection, used = world.projection, Counter[str]()
    slots = [slot for lease in projection.leases.values() for slot in lease.slots]
    assert len(slots) == len(set(slots)) <= DEVICES
    for lease in projection.leases.values():
        used[lease.budget] += lease.gpus if projection.is_funded(lease.id) else 0
    assert all(used[name] <= projection.budgets[name].envelopes[0].gpus for name in used), used
    for name, state in projection.runs.items():
        if state.phase is not Phase.RUNNING:
            assert (state.leases, state.reclaim) == ({}, None), name


def check_ledger(world: World) -> None:
    """The projection can be rebuilt, and every decision replays."""
    again = Projection()
    for entry in world.ledger.entries(0, 100_000):
        again.apply(entry)
    live = world.projection
    assert (again.leases, again.runs) == (live.leases, live.runs)
    assert again.resolver == live.resolver
    assert world.ledger.verify().ok
    assert {row.verdict for row in replay_ledger(world.ledger)} == {Verdict.SAME}


def live(seed: int, steps: int) -> set[str]:
    """One lab from its beginning to its end; the kinds of entries that it wrote."""
    lab = Lab(seed)
    for _ in range(steps):
        lab.step()
        check_step(lab.world)
    check_ledger(lab.world)
    return set(lab.world.kinds())


def test_every_decision_of_every_policy_replays() -> None:
    kinds = set[str]()
    for seed in range(4):
        kinds |= live(seed, 120)
    assert kinds >= EXPECTED
