"""The life of a group, recorded: faults, restarts, members that come and go; and its replay."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairlead.core.traffic import Config, GroupRules, HealthRules, Resource, StallTotals
from fairlead.core.traffic.sighting import (
    BackendSeen,
    CpuTimes,
    GroupSeen,
    Look,
    NodeReading,
    Probed,
    Reading,
)
from fairlead.engine.traffic import GroupGovernor
from fairlead.ports.faults import TemporaryFault
from fairlead.recorder import FileRecorder, read, replay
from fairlead.schema.traffic_govern import KIND
from tests.engine.traffic_worlds import Behaviour, TrafficWorld

RULES = GroupRules(
    Config(warmup_ms=4_000, t_recover_min_ms=2_000),
    HealthRules(outlier_ms=600),
    own_budget=True,
    own_reference=True,
    own_latency=True,
    own_bound=True,
    retry=True,
)


class EventfulWorld(TrafficWorld):
    """A group to which something happens every few ticks."""

    def __init__(self, recorder: FileRecorder, seed: int) -> None:
        self.rng = random.Random(seed)
        self.next = 4
        super().__init__(names=("a", "b", "c", "d"), per_tick=12, recorder=recorder)
        self.reading = self.plane.read
        self.restart(GroupGovernor("web", RULES))

    def restart(self, governor: GroupGovernor) -> None:
        self.loop = self.make_loop(governor)

    def happen(self) -> None:
        """One of the things that happen to a group."""
        rng, names = self.rng, list(self.backends)
        backend = self.backends[rng.choice(names)]
        match rng.randrange(12):
            case 0:
                backend.latency_ms = rng.choice((15.0, 20.5, 300.25))
            case 1:
                backend.error_every = rng.choice((0, 1, 7))
            case 2:
                backend.reachable = not backend.reachable
            case 3:
                order = {rng.choice(names): rng.choice(("isolate", "drain"))}
                self.orders["web"] = rng.choice(({}, order))
            case 5:
                self._change_members(names)
            case 6:
                self._kill()
            case 7:
                self.plane.read = rng.choice((self.reading, self._broken))  # type: ignore[method-assign]
            case 8:
                self.eyes.covered = rng.choice(((), ("requests", "errors", "queue"), ("p95_ms",)))
            case 9:
                self.governor.rules = rng.choice((RULES, GroupRules(RULES.config, RULES.health)))
            case 10:
                self.now_ms += rng.choice((-5_000, 700, 20_000))
            case _:
                for healthy in self.backends.values():
                    healthy.latency_ms, healthy.error_every, healthy.reachable = 20.0, 0, True
        self._report()

    def _change_members(self, names: Sequence[str]) -> None:
        if len(names) > 2 and self.rng.random() < 0.5:
            del self.backends[self.rng.choice(names)]
        else:
            self.backends[f"n{self.next}"] = Behaviour()
            self.next += 1
        self.eyes.asked = [(group, id) for group, id in self.eyes.asked if id in self.backends]
        self.loop.reconfigure([self.group(self.governor)], self.now_ms)

    def _kill(self) -> None:
        """The next agent goes on from what was kept."""
        stored, fresh = self.governor.export(), GroupGovernor("web", self.governor.rules)
        fresh.restore(stored)
        if self.rng.random() < 0.7:
            tail = self.recorder.tail(KIND)
            applied = bool(tail) and self.recorder.was_applied(tail[-1].seq)
            fresh.resume(tail, applied=applied)
        self.restart(fresh)

    def _broken(self) -> dict[str, GroupSeen]:
        raise TemporaryFault("gone", retry_after_ms=1)

    def _report(self) -> None:
        """What applications report, where they are asked."""
        seen: dict[str, BackendSeen] = dict(self.reading()["web"].backends)
        for name, backend in seen.items():
            good, bad = backend.successes or 0, backend.errors or 0
            look = Look(self.now_ms, good, bad, backend.open or 0)
            at_ms = self.now_ms - (0, 500, 3_500)[good % 3]
            self.eyes.readings["web", name] = Reading(good + bad, bad, 0, 1.5, 25.5, (look,), at_ms)
        ok, name = self.now_ms // 1_400 % 4 > 0, min(self.backends)
        self.eyes.checks = [Probed("web", name, ok, 1.5 if ok else None)] * (1 if ok else 3)
        self.eyes.machines = [self._machine()] if self.next % 3 else []

    def _machine(self) -> NodeReading:
        """Counters as a kernel gives them: whole numbers, in no order."""
        at_ms = self.now_ms - 900_000_000
        totals = StallTotals(self.now_ms * 1000, {"mem_some": at_ms, "cpu_some": 20 * at_ms})
        cpu = CpuTimes(self.now_ms, at_ms // 10, at_ms // 500)
        return NodeReading("n1", totals, (Resource("memory", 2**33, 2**32 + at_ms),), cpu)


def live(folder: Path, ticks: int, *, seed: int = 1, segment_bytes: int = 2**18) -> None:
    """Record so many ticks of a life."""
    with FileRecorder(
        folder, sync_each=False, segment_bytes=segment_bytes, bytes_max=2**40
    ) as recorder:
        world = EventfulWorld(recorder, seed)
        for number in range(ticks):
            if number % 7 == 0:
                world.happen()
            world.tick()


def verdicts(folder: Path) -> Counter[str]:
    """What a replay of the record alone makes of each entry."""
    return Counter(each.verdict.value for each in replay(read(folder)) if each.kind == KIND)
