"""A schedule from its first step to the end, with checks after every step; and a shorter one."""

import gc
import traceback
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from fairlead.core.invariant import InvariantBroken
from fairlead.sim.clock import Entropy
from fairlead.sim.vopr.actors import NODES, Actors, VoprStep
from fairlead.sim.vopr.checks import Checker
from fairlead.sim.vopr.disk import Crash
from fairlead.sim.vopr.steps import behaviour, carry_out, draw
from fairlead.sim.vopr.violation import Violation
from fairlead.sim.vopr.world import VoprWorld

STEPS_EACH = 400
OBJECTS_MORE = 100_000
"""Garbage is looked for when there are so many objects more: by default it takes a twelfth of the
time, and hardly anything here is a cycle."""
SETTLE_TURNS = 60


@dataclass(slots=True)
class Played:
    """What became of a schedule."""

    seed: int
    steps: list[VoprStep]
    done: int = 0
    check: str = ""
    """The promise that was broken; empty: none."""
    message: str = ""
    crashes: int = 0
    entries: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.check


def schedule(seed: int, count: int = STEPS_EACH, *, kinds: Container[str] = ()) -> list[VoprStep]:
    """`kinds`: of these only."""
    return draw(Entropy(seed).stream("schedule"), count, kinds=kinds)


def play(
    seed: int,
    steps: Sequence[VoprStep],
    plant: Callable[[VoprWorld], None] = lambda _: None,
    *,
    settle: bool = True,
) -> Played:
    """`plant`: a fault that a test puts into the world; `settle`: see what becomes of waiting runs
    when the faults have stopped."""
    world = VoprWorld(seed, behaviour)
    plant(world)
    checker = Checker(world)
    actors, played = Actors(world, checker), Played(seed, list(steps))
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS_MORE, *before[1:])
    try:
        _guarded(actors, checker, actors.begin)
        for step in steps:
            played.done += 1
            played.counts[step.name] += 1
            _guarded(actors, checker, lambda step=step: carry_out(actors, step))  # type: ignore[misc]
        if settle:
            _settle(actors, checker)
        actors.agents.close()
    except Violation as broken:
        played.check, played.message = broken.check, broken.message
    except Exception as error:  # noqa: BLE001 - whatever ends the control plane is a finding
        played.check = "invariant" if isinstance(error, InvariantBroken) else "exception"
        played.message = "".join(traceback.format_exception(error, limit=-6))
    finally:
        gc.set_threshold(*before)
    played.crashes, played.entries = world.crashes, len(checker.entries)
    world.disk.close()
    return played


def _guarded(actors: Actors, checker: Checker, act: Callable[[], None]) -> None:
    try:
        act()
    except Crash:
        actors.world.down()
    checker.step()


def _settle(actors: Actors, checker: Checker) -> None:
    """The faults stop: every run that can start has started and ended after a while."""
    world = actors.world
    world.points.crash_in, world.executor_faults = None, 0
    world.disk.full = False
    world.set_clocks()
    world.use_beacon(None)
    for place in range(len(NODES)):
        repair = VoprStep("node", place, 1)
        _guarded(actors, checker, lambda repair=repair: carry_out(actors, repair))  # type: ignore[misc]
    for turn in range(SETTLE_TURNS):
        if turn % 10 == 0:
            for act in (actors.judge_clock, actors.end_waiting, actors.release):
                _guarded(actors, checker, act)
        _guarded(actors, checker, lambda: carry_out(actors, VoprStep("wait", 1)))
    checker.check_fold()
    checker.check_progress()
    checker.check_ledger()


def shrink(played: Played, plant: Callable[[VoprWorld], None] = lambda _: None) -> Played:
    """A shorter schedule that breaks the same promise: parts are left out, ever smaller ones."""
    best, size = played, max(1, played.done // 2)
    best.steps = best.steps[: best.done]
    while True:
        place, shorter = 0, False
        while place < len(best.steps):
            fewer = best.steps[:place] + best.steps[place + size :]
            found = play(best.seed, fewer, plant, settle=best.check == "progress")
            if found.check == best.check:
                found.steps = found.steps[: found.done]
                best, shorter = found, True
            else:
                place += size
        if size == 1 and not shorter:
            return best
        size = max(1, size // 2)
