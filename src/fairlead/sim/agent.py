"""The node agent of a simulation: the real loop and governor between faulty simulated ports.

They fail where the scenario's fault rules say so; a crash is `AgentDied`, which nothing in the loop
catches. The agent keeps the stored state, dies, and starts again from it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fairlead.core.canonical import canonical
from fairlead.core.cpu import (
    Actuation,
    ContainerSighting,
    Counters,
    CpuConfig,
    NodePlan,
    PodSighting,
)
from fairlead.core.invariant import require
from fairlead.engine.cpu import CpuGovernor, CpuLoop, CpuTurn, GovernorState
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.recorder import RecordEntry, RecordHead, Status
from fairlead.schema.border import read_document
from fairlead.schema.cpu_govern import CpuGovernDocument, CpuLife, follow, output_of
from fairlead.schema.scenario import FaultDocument, FaultPoint
from fairlead.sim.clock import Entropy, Stream, Turn, VirtualClock
from fairlead.sim.node import SimNode, SimPod
from fairlead.sim.record import RunRecord, SimDecision


class Faults:
    """The scenario's fault rules by point, and what has fired already.

    A rule fires with a probability per opportunity (each rule and subject has its own stream), at
    given times, or both. With `duration_s` 0 a given time fires once per subject, at the first
    opportunity; otherwise for as long as it lasts.
    """

    def __init__(self, rules: Sequence[FaultDocument], entropy: Entropy) -> None:
        self._rules: dict[FaultPoint, list[tuple[int, FaultDocument]]] = {}
        for place, rule in enumerate(rules):
            self._rules.setdefault(rule.point, []).append((place, rule))
        self._entropy = entropy
        self._streams: dict[tuple[int, str], Stream] = {}
        self._spent: set[tuple[int, str, int]] = set()
        self.fired: dict[str, int] = {}
        """How often each point fired, for the report."""

    def fires(self, point: FaultPoint, subject: str, now_ms: int) -> FaultDocument | None:
        """The rule that fires for `subject` (a pod, or the agent) now, if any does."""
        for place, rule in self._rules.get(point, ()):
            if rule.pods and subject not in rule.pods:
                continue
            # Both are evaluated, so that a given time does not shift later draws.
            drawn = self._drawn(place, rule, subject, now_ms)
            due = self._due(place, rule, subject, now_ms)
            if drawn or due:
                self.fired[point.value] = self.fired.get(point.value, 0) + 1
                return rule
        return None

    def _drawn(self, place: int, rule: FaultDocument, subject: str, now_ms: int) -> bool:
        if not rule.probability or now_ms < rule.from_s * 1000:
            return False
        if rule.until_s is not None and now_ms >= rule.until_s * 1000:
            return False
        key = (place, subject)
        if key not in self._streams:
            self._streams[key] = self._entropy.stream("fault", str(place), subject)
        return self._streams[key].chance(rule.probability)

    def _due(self, place: int, rule: FaultDocument, subject: str, now_ms: int) -> bool:
        for at_s in rule.at_s:
            start_ms = at_s * 1000
            if now_ms < start_ms:
                continue
            if rule.duration_s == 0 or rule.point is FaultPoint.AGENT_CRASH:
                # A crash happens once; its duration is how long the agent is away.
                if (place, subject, at_s) not in self._spent:
                    self._spent.add((place, subject, at_s))
                    return True
            elif now_ms < start_ms + rule.duration_s * 1000:
                return True
        return False


AGENT = "agent"
"""The subject of faults that hit the agent and no pod."""
_GARBAGE_US = 10**15


class AgentDied(Exception):
    """The agent's process is gone, in the middle of what it did."""

    def __init__(self, when: str, away_ms: int) -> None:
        super().__init__(when)
        self.away_ms = away_ms


class SimPorts:
    """Sensor, actuator and recorder of the agent: the simulated node, with the scenario's faults.

    `written` is called for every limit in force, `decided` before a decision is applied.
    """

    def __init__(
        self, node: SimNode, clock: VirtualClock, faults: Faults, record: RunRecord
    ) -> None:
        self.node, self.clock, self.faults, self.record = node, clock, faults, record
        self.actuate = Actuation.LIMITS
        self.written: Callable[[str], None] = lambda _: None
        self.decided: Callable[[SimDecision], None] = lambda _: None
        self._open: dict[int, RecordEntry] = {}
        self._life: CpuLife | None = None
        """Followed from the recorded bytes alone: what a replay of this record knows."""

    def log(self, text: str) -> None:
        self.record.event(self.clock.now_ms, "fault", text)

    def _may_crash(self, when: str) -> None:
        rule = self.faults.fires(FaultPoint.AGENT_CRASH, AGENT, self.clock.now_ms)
        if rule is not None:
            raise AgentDied(when, max(1, rule.duration_s) * 1000)

    def sample(self, now_ms: int) -> Sequence[PodSighting]:
        self._may_crash("while sampling")
        sightings = [self._sight(pod, now_ms) for pod in self.node.present()]
        self.record.observation(now_ms, sightings)
        return sightings

    def _sight(self, pod: SimPod, now_ms: int) -> PodSighting:
        name, fires = pod.spec.name, self.faults.fires
        if fires(FaultPoint.SENSOR_RESET, name, now_ms):
            pod.reset_counters()
            self.log(f"the counters of {name} start again at zero")
        weights = self.actuate is not Actuation.LIMITS
        counters: Counters | None = pod.counters(now_ms, waits=weights)
        if fires(FaultPoint.SENSOR_GARBAGE, name, now_ms):
            counters = Counters(now_ms * 1000, _GARBAGE_US, 0, 0, 0)
        if fires(FaultPoint.SENSOR_MISSING, name, now_ms):
            counters = None
        return PodSighting(
            uid=name,
            request_millicores=pod.spec.request_millicores,
            containers=(
                ContainerSighting(
                    "",
                    pod.limit_millicores,
                    counters,
                    pod.guarantee_millicores if weights else None,
                ),
            ),
            originals={"": pod.spec.limit_millicores} if weights else {},
            priority=pod.spec.priority,
            opted_out=pod.spec.opted_out,
            started_ms=pod.started_ms,
        )

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Set a pod's limit; slow, failing or wrong where the scenario says so."""
        clock, fires = self.clock, self.faults.fires
        require(0 < decision <= len(self.record.decisions), "a write is of a recorded decision")
        self._may_crash("between two writes")
        slow = fires(FaultPoint.ACTUATOR_SLOW, uid, clock.now_ms)
        if slow is not None:
            # The agent blocks in the write, as it would on a machine, while virtual time goes on.
            clock.run_until(clock.now_ms + slow.delay_ms)
        pod = self._reach(uid)
        wrong = fires(FaultPoint.ACTUATOR_WRONG, uid, clock.now_ms)
        in_force = millicores * (1 if wrong is None else wrong.factor)
        if self.actuate is Actuation.LIMITS:
            pod.limit_millicores = in_force
        else:
            pod.guarantee_millicores = in_force
        self.written(uid)
        return millicores

    def contain(
        self, decision: int, uid: str, container: str, limit_millicores: int | None
    ) -> None:
        """Limit a pod beside its guarantee, or put its user's own limit back."""
        require(0 < decision <= len(self.record.decisions), "a limit is of a recorded decision")
        self._may_crash("between two limits")
        pod = self._reach(uid)
        own = pod.spec.limit_millicores
        pod.limit_millicores = own if limit_millicores is None else limit_millicores

    def _reach(self, uid: str) -> SimPod:
        """The pod to write to, where it is there and can be written to."""
        pod = self.node.pods.get(uid)
        if pod is None:
            raise Gone(f"{uid} left the node")
        if self.faults.fires(FaultPoint.ACTUATOR_FAIL, uid, self.clock.now_ms) is not None:
            self.log(f"{uid} could not be written to")
            raise TemporaryFault(f"{uid}: cannot be written", retry_after_ms=1_000)
        return pod

    def begins_segment(self, kind: str) -> bool:
        return self._life is None

    def append(
        self,
        kind: str,
        *,
        version: int,
        time_ms: int,
        input: dict[str, Any],
        output: dict[str, Any],
    ) -> int:
        record = self.record
        followed = follow(read_document(canonical(input), CpuGovernDocument), self._life)
        plan, contain = followed.decide()
        self._life = followed.settle(plan.mode, plan.memory, plan, contain)
        same = canonical(output_of(followed.memory, plan, contain)) == canonical(output)
        decision = record.decision(time_ms, followed.snapshot, plan, output, same=same)
        seq = len(record.decisions)
        self._open[seq] = RecordEntry(seq, time_ms, kind, version, input, output, record.digest)
        self.decided(decision)
        self._may_crash("between the record and the apply")
        return seq

    def mark(self, seq: int, status: Status, *, time_ms: int, note: str = "") -> None:
        del self._open[seq]
        if status == "voided":
            self.record.event(time_ms, "fault", f"decision {seq} is void: {note}")

    def unapplied(self) -> list[RecordEntry]:
        return [self._open[seq] for seq in sorted(self._open)]

    def head(self) -> RecordHead:
        return RecordHead(len(self.record.decisions), self.record.digest)

    def close(self) -> None:
        """Nothing to close."""


class SimAgent:
    """Drives a `CpuLoop`. `check` runs after every write, `on_decision` on every decision."""

    def __init__(
        self,
        config: CpuConfig,
        ports: SimPorts,
        *,
        check: Callable[[], None],
        on_decision: Callable[[SimDecision], None],
    ) -> None:
        self.config = config
        self.adopted: set[str] = set()
        """Pods whose limit is ours."""
        self.capacity_millicores: int | None = None
        """What the limits must fit into; None until a plan was applied completely."""
        self.settled: NodePlan | None = None
        """The plan that is in force completely, None while one is being applied."""
        self.turn: CpuTurn | None = None
        """The last one."""
        self._ports, self._check, self._on_decision = ports, check, on_decision
        ports.actuate = config.actuate
        ports.written, ports.decided = self._written, self._begin
        self._stored: bytes | None = None
        self._busy = False
        self.loop: CpuLoop | None = self._new_loop(CpuGovernor(config))
        """None while the agent is dead."""

    def reconfigure(self, config: CpuConfig) -> None:
        self.config = config
        if self.loop is not None:
            self.loop.governor.config = config

    def sample(self) -> None:
        """Look at the node, unless the agent is dead or stuck in a write."""
        if self.loop is None or self._busy:
            return
        try:
            self.loop.sample(self._ports.clock.now_ms)
        except AgentDied as death:
            self._crash(death)

    def clear(self) -> None:
        """One turn of the loop; time may pass in it while limits are slow to be written."""
        if self.loop is None or self._busy:
            return
        self._busy = True
        try:
            turn = self.loop.clear(self._ports.clock.now_ms)
        except AgentDied as death:
            self._crash(death)
            return
        finally:
            self._busy = False
        self.turn = turn
        if not turn.failures:
            self.settled = turn.plan
            self.capacity_millicores = turn.plan.capacity_millicores
        self._check()

    def _begin(self, decision: SimDecision) -> None:
        """A plan is about to be applied: from here on neither it nor the last one is in force."""
        self._on_decision(decision)
        self.settled = None
        if self.capacity_millicores is not None:
            self.capacity_millicores = max(
                self.capacity_millicores, decision.plan.capacity_millicores
            )

    def _written(self, uid: str) -> None:
        self.adopted.add(uid)
        self._check()

    def _crash(self, death: AgentDied) -> None:
        # Limits stay as they are: the actuators keep the last safe state.
        self.loop = None
        self._ports.log(f"the agent dies {death}; limits stay as they are")
        clock = self._ports.clock
        clock.at(clock.now_ms + death.away_ms, Turn.SCENARIO, self._restart)

    def _restart(self) -> None:
        self._ports.log("the agent is back with its state")
        now_ms = self._ports.clock.now_ms
        governor = CpuGovernor(self.config)
        if self._stored is not None:  # through bytes, as from a disk
            stored = json.loads(self._stored)
            governor = CpuGovernor.restore(self.config, stored, now_ms=now_ms)
        self.loop = self._new_loop(governor)

    def _new_loop(self, governor: CpuGovernor) -> CpuLoop:
        def keep(state: GovernorState) -> None:
            self._stored = msgspec.json.encode(state)

        ports = self._ports
        loop = CpuLoop(
            governor, sensor=ports, actuator=ports, limits=ports, recorder=ports, keep=keep
        )
        loop.heal(self._ports.clock.now_ms)
        return loop
