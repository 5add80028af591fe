"""One scenario under one seed: a simulated node, its pods, the real governor, faults, checkers.

Everything that happens is an event on the virtual clock. `play` runs a scenario to its end, once
per policy; `Simulation.advance` a step at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from fairlead.core.canonical import digest
from fairlead.core.cpu import Actuation, Policy, pod_bounds
from fairlead.core.invariant import InvariantBroken
from fairlead.schema.cpu import cpu_config
from fairlead.schema.scenario import ActDocument, ScenarioDocument, SimPodDocument
from fairlead.sim import record as records
from fairlead.sim.agent import Faults, SimAgent, SimPorts
from fairlead.sim.checkers import DECISION_CHECKS, STATE_CHECKS, Broken, NodeState
from fairlead.sim.clock import Entropy, Turn, VirtualClock
from fairlead.sim.node import PERIOD_MS, NodeMeter, SimNode, SimPod
from fairlead.sim.record import PodFrame, RunRecord, SimDecision

FRAME_MS = STEP_MS = 1_000


class Simulation:
    """A scenario under one seed and one policy; None: the scenario's own, changed by its acts."""

    def __init__(self, scenario: ScenarioDocument, *, seed: int, policy: Policy | None) -> None:
        self.scenario, self.seed = scenario, seed
        self.act: ActDocument | None = None
        self.gone: dict[str, SimPod] = {}
        """Pods that have left, for the summary."""
        self.over_capacity_ms = 0
        """How long Σ limits did not fit; the checkers see to it that it is 0."""
        self.clock, self.record = VirtualClock(), RunRecord()
        self.node = SimNode(scenario.node.millicores)
        self._entropy = Entropy(seed)
        self.faults = Faults(scenario.faults, self._entropy)
        self.agent = SimAgent(
            cpu_config(scenario.governor, scenario.node.millicores, policy or scenario.policies[0]),
            SimPorts(self.node, self.clock, self.faults, self.record),
            check=self.check,
            on_decision=self._on_decision,
        )
        self._forced = policy is not None
        self._bounds: dict[str, tuple[int, int]] = {}
        self._before: dict[str, NodeMeter] = {}
        self._due_ms = 0
        self._schedule()

    def advance(self, step_ms: int) -> None:
        """Let `step_ms` of virtual time pass; raises `Broken` when a promise does not hold."""
        try:
            # Counted here: an agent stuck in a slow write may have carried the clock further.
            self._due_ms += step_ms
            self.clock.run_until(self._due_ms)
        except InvariantBroken as error:
            seconds = self.clock.now_ms / 1000
            raise InvariantBroken(f"{error} (seed {self.seed}, at {seconds:g} s)") from error

    # --- the schedule

    def _schedule(self) -> None:
        config, at = self.agent.config, self.clock.at
        for act in self.scenario.acts:
            at(act.at_s * 1000, Turn.SCENARIO, partial(self._begin, act))
        for spec in sorted(self.scenario.pods, key=lambda spec: spec.name):
            at(spec.arrive_s * 1000, Turn.SCENARIO, partial(self.arrive, spec))
            if spec.leave_s is not None:
                at(spec.leave_s * 1000, Turn.SCENARIO, partial(self.leave, spec))
        self.clock.every(PERIOD_MS, Turn.KERNEL, self._tick)
        self.clock.every(config.sample_ms, Turn.SAMPLE, self.agent.sample)
        # Not at time 0: nothing has been measured yet.
        clearing = partial(self.clock.every, config.clear_ms, Turn.CLEAR, self.agent.clear)
        at(config.clear_ms, Turn.CLEAR, clearing)
        self.clock.every(FRAME_MS, Turn.FRAME, self._frame)

    def _tick(self) -> None:
        if self.clock.now_ms:
            self.node.tick(self.clock.now_ms)
            capacity = self.agent.capacity_millicores
            if capacity is not None and self._limits_total() > capacity:
                self.over_capacity_ms += PERIOD_MS
            self.check()

    def _begin(self, act: ActDocument) -> None:
        self.act = act
        self.record.event(self.clock.now_ms, "act", act.title)
        if act.policy is not None and not self._forced:
            self.agent.reconfigure(replace(self.agent.config, policy=act.policy))

    def arrive(self, spec: SimPodDocument) -> None:
        """A pod comes now, the scenario's or another."""
        self.node.pods[spec.name] = SimPod.arriving(spec, self._entropy)
        capacity = self.agent.config.capacity_millicores
        low, high = pod_bounds(
            spec.request_millicores, spec.limit_millicores, capacity_millicores=capacity
        )
        self._bounds[spec.name] = (min(low, high), high)
        if self.clock.now_ms:
            self.record.event(self.clock.now_ms, "arrive", f"{spec.name} arrives")

    def leave(self, spec: SimPodDocument) -> None:
        self.gone[spec.name] = self.node.pods.pop(spec.name)
        self.agent.adopted.discard(spec.name)  # its limit left with it
        self.record.event(self.clock.now_ms, "leave", f"{spec.name} leaves")

    # --- checks

    def check(self) -> None:
        """Run the state checks on the node as it is now."""
        agent, actuate = self.agent, self.agent.config.actuate
        adopted = {name: self.node.pods[name] for name in sorted(agent.adopted)}
        beside = {name: pod.limit_millicores for name, pod in adopted.items()}
        now = NodeState(
            limits={name: pod.in_force(actuate) for name, pod in adopted.items()},
            bounds=self._bounds,
            capacity_millicores=agent.capacity_millicores,
            settled=agent.settled,
            beside=None if actuate is Actuation.LIMITS else beside,
        )
        for name, check in STATE_CHECKS.items():
            self._demand(name, check(now))

    def _on_decision(self, decision: SimDecision) -> None:
        for name, check in DECISION_CHECKS.items():
            self._demand(name, check(decision))
        earlier = self.record.decisions[:-1][-1:]
        for kind, text in records.describe_changes(earlier[0] if earlier else None, decision):
            self.record.event(self.clock.now_ms, kind, text)

    def _demand(self, check: str, message: str | None) -> None:
        if message is not None:
            raise Broken(check=check, message=message, seed=self.seed, time_ms=self.clock.now_ms)

    # --- a frame per second

    def _frame(self) -> None:
        if not self.clock.now_ms:
            return
        decisions, config = self.record.decisions, self.agent.config
        plan = decisions[-1].plan if decisions else None
        self.record.frames.append(
            records.Frame(
                time_ms=self.clock.now_ms,
                policy=config.policy,
                mode=plan.mode if plan else None,
                shadow_price=plan.shadow_price if plan else None,
                capacity=plan.capacity_millicores if plan else config.capacity_millicores,
                limits_total=self._limits_total(),
                pods=tuple(self._pod_frame(pod) for pod in self.node.present()),
            )
        )

    def _limits_total(self) -> int:
        actuate = self.agent.config.actuate
        return sum(self.node.pods[name].in_force(actuate) or 0 for name in self.agent.adopted)

    def _pod_frame(self, pod: SimPod) -> PodFrame:
        name = pod.spec.name
        second = pod.meter.since(self._before.get(name, NodeMeter()))
        self._before[name] = replace(pod.meter)
        return PodFrame(
            uid=name,
            want=second.want_us // FRAME_MS,
            limit=pod.limit_millicores,
            used=second.used_us // FRAME_MS,
            unserved=second.unserved_us // FRAME_MS,
            throttled=second.throttled_periods / second.periods if second.periods else 0.0,
            opted_out=pod.spec.opted_out,
        )


Progress = Callable[[int], None]
"""Called after each step with how many virtual seconds of a policy's run are done."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """A scenario under one policy, to its end or to the first broken promise."""

    policy: Policy
    digest: str
    node: records.NodeFigures
    pods: tuple[records.PodFigures, ...]
    frames: list[records.Frame]
    decisions: list[SimDecision]
    events: list[records.SimEvent]
    faults: dict[str, int]
    broken: Broken | None

    @property
    def name(self) -> str:
        """The policy, or "by-act" where the scenario's acts changed it on the way."""
        used = {frame.policy for frame in self.frames}
        return "by-act" if len(used) > 1 else self.policy.value


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """A scenario under one seed: a run per policy."""

    scenario: ScenarioDocument
    seed: int
    runs: tuple[PolicyRun, ...]

    @property
    def digest(self) -> str:
        """Of all runs; with one policy, that run's own."""
        if len(self.runs) == 1:
            return self.runs[0].digest
        return digest({run.policy.value: run.digest for run in self.runs})

    @property
    def broken(self) -> Broken | None:
        return next((run.broken for run in self.runs if run.broken), None)


def play(
    scenario: ScenarioDocument, *, seed: int | None = None, progress: Progress | None = None
) -> ScenarioResult:
    """Run the scenario under each of its policies. `seed` None: the scenario's own."""
    used = scenario.seed if seed is None else seed
    # With several policies to compare, acts must not change them halfway.
    alone = len(scenario.policies) == 1
    runs = []
    for policy in scenario.policies:
        simulation = Simulation(scenario, seed=used, policy=None if alone else policy)
        runs.append(_run(simulation, policy, progress))
    return ScenarioResult(scenario, used, tuple(runs))


def _run(simulation: Simulation, policy: Policy, progress: Progress | None) -> PolicyRun:
    broken = None
    try:
        for second in range(1, simulation.scenario.duration_s + 1):
            simulation.advance(STEP_MS)
            if progress:
                progress(second)
    except Broken as error:
        broken = error
    record = simulation.record
    seen = {**simulation.gone, **simulation.node.pods}
    pods = tuple(records.measure_pod(seen[name], record.frames) for name in sorted(seen))
    seconds = simulation.clock.now_ms / 1000
    return PolicyRun(
        policy=policy,
        digest=record.digest,
        node=records.measure_node(record, pods, seconds, simulation.over_capacity_ms),
        pods=pods,
        frames=record.frames,
        decisions=record.decisions,
        events=record.events,
        faults=dict(sorted(simulation.faults.fired.items())),
        broken=broken,
    )
