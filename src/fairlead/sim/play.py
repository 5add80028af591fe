"""Play a scenario: one world per policy, the same seed, a result with figures and a digest."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fairlead.core.canonical import digest
from fairlead.core.cpu import Policy
from fairlead.schema.scenario import ScenarioDocument
from fairlead.sim.checkers import Broken
from fairlead.sim.measure import NodeFigures, PodFigures, measure_node, measure_pod
from fairlead.sim.record import Decision, Frame, Happening
from fairlead.sim.world import World

STEP_MS = 1_000
Progress = Callable[[Policy, int], None]
"""Told after each step: the policy, and how many virtual seconds of its run are done."""


@dataclass(frozen=True, slots=True)
class Run:
    """One world, played to its end or to the first broken promise."""

    policy: Policy
    digest: str
    node: NodeFigures
    pods: tuple[PodFigures, ...]
    frames: list[Frame]
    decisions: list[Decision]
    story: list[Happening]
    faults: dict[str, int]
    broken: Broken | None

    @property
    def name(self) -> str:
        """The policy, or "by-act" where the scenario's acts changed it on the way."""
        used = {frame.policy for frame in self.frames}
        return "by-act" if len(used) > 1 else self.policy.value


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario under one seed: a run per policy."""

    scenario: ScenarioDocument
    seed: int
    runs: tuple[Run, ...]

    @property
    def digest(self) -> str:
        """Of all runs; with one policy, that run's own."""
        if len(self.runs) == 1:
            return self.runs[0].digest
        return digest({run.policy.value: run.digest for run in self.runs})

    @property
    def broken(self) -> Broken | None:
        """The first broken promise, if any."""
        return next((run.broken for run in self.runs if run.broken), None)


def play(
    scenario: ScenarioDocument, *, seed: int | None = None, progress: Progress | None = None
) -> Played:
    """Run the scenario under each of its policies. `seed` None: the scenario's own."""
    used = scenario.seed if seed is None else seed
    # With several policies to compare, acts must not change them halfway.
    alone = len(scenario.policies) == 1
    runs = []
    for policy in scenario.policies:
        world = World(scenario, seed=used, policy=None if alone else policy)
        runs.append(_run(world, policy, partial(progress, policy) if progress else None))
    return Played(scenario, used, tuple(runs))


def _run(world: World, policy: Policy, progress: Callable[[int], None] | None) -> Run:
    broken = None
    try:
        for second in range(1, world.scenario.duration_s + 1):
            world.advance(STEP_MS)
            if progress:
                progress(second)
    except Broken as error:
        broken = error
    record = world.record
    pods = tuple(measure_pod(pod, record.frames) for pod in world.all_pods())
    seconds = world.clock.now_ms / 1000
    return Run(
        policy=policy,
        digest=record.digest,
        node=measure_node(
            record.frames,
            pods,
            decisions=len(record.decisions),
            seconds=seconds,
            over_capacity_ms=world.over_capacity_ms,
        ),
        pods=pods,
        frames=record.frames,
        decisions=record.decisions,
        story=record.story,
        faults=dict(sorted(world.faults.fired.items())),
        broken=broken,
    )
