"""The node agent of the virtual world: the real governor between simulated sensors and actuators.

It does what the agent on a machine does: sample, clear, record, apply decreases before increases,
store its state, die, and come back. Only the world it touches is simulated.
"""

import json
from collections import deque
from collections.abc import Callable

from fairlead.core.canonical import canonical
from fairlead.core.cpu import Counters, Plan
from fairlead.engine import Change, Changes, CpuConfig, CpuGovernor
from fairlead.ports.cpu import ContainerSighting, Sighting
from fairlead.schema.scenario import FaultDocument, FaultPoint
from fairlead.sim.clock import Turn, VirtualClock
from fairlead.sim.faults import Faults
from fairlead.sim.node import SimNode, SimPod
from fairlead.sim.record import Decision, Recorder

AGENT = "agent"
"""The subject of faults that hit the agent and no pod."""
_GARBAGE_US = 10**15


class Apply:
    """One plan on its way into force."""

    def __init__(self, plan: Plan, changes: Changes) -> None:
        self.plan = plan
        self.decreases = deque(changes.decreases)
        self.increases = deque(changes.increases)
        self.failed = False


class SimAgent:
    """Drives a `CpuGovernor` in virtual time. `judge` runs the checkers after every write."""

    def __init__(
        self, config: CpuConfig, *, node: SimNode, clock: VirtualClock, faults: Faults,
        record: Recorder, judge: Callable[[], None], decided: Callable[[Decision], None],
    ) -> None:  # fmt: skip
        self.config = config
        self.governor: CpuGovernor | None = CpuGovernor(config)
        self.adopted: set[str] = set()
        self.capacity_millicores: int | None = None
        """What the limits must fit into; None until a plan was applied completely."""
        self.settled: Plan | None = None
        self._node, self._clock, self._faults, self._record = node, clock, faults, record
        self._judge, self._decided = judge, decided
        self._stored: bytes | None = None
        self._apply: Apply | None = None

    def reconfigure(self, config: CpuConfig) -> None:
        """Another policy from the next clear on."""
        self.config = config
        if self.governor is not None:
            self.governor.reconfigure(config)

    def forget(self, name: str) -> None:
        """A pod left the node, and its limit with it."""
        self.adopted.discard(name)

    # --- sensing and deciding

    def sample(self) -> None:
        """Read every pod's counters and hand them to the governor."""
        if self.governor is None or self._crashes("while sampling"):
            return
        sightings = [self._sight(pod) for pod in self._node.present()]
        self._record.observation(self._clock.now_ms, sightings)
        self.governor.observe(self._clock.now_ms, sightings)

    def _sight(self, pod: SimPod) -> Sighting:
        now_ms, name = self._clock.now_ms, pod.spec.name
        if self._faults.fires(FaultPoint.SENSOR_RESET, name, now_ms):
            pod.reset_counters()
            self._record.happening(now_ms, "fault", f"the counters of {name} start again at zero")
        counters: Counters | None = pod.counters(now_ms)
        if self._faults.fires(FaultPoint.SENSOR_GARBAGE, name, now_ms):
            counters = Counters(now_ms * 1000, _GARBAGE_US, 0, 0, 0)
        if self._faults.fires(FaultPoint.SENSOR_MISSING, name, now_ms):
            counters = None
        return Sighting(
            uid=name,
            request_millicores=pod.spec.request_millicores,
            containers=(ContainerSighting("", pod.limit_millicores, counters),),
            priority=pod.spec.priority,
            opted_out=pod.spec.opted_out,
            started_ms=pod.started_ms,
        )

    def clear(self) -> None:
        """Decide, record, store, then apply. A plan still on its way blocks the next one."""
        if self.governor is None or self._apply is not None:
            return
        now_ms = self._clock.now_ms
        snapshot, plan = self.governor.decide(now_ms)
        self._decided(self._record.decision(now_ms, snapshot, plan))
        self._store()
        if self._crashes("between the record and the apply"):
            return
        self._apply = Apply(plan, self.governor.changes(plan))
        self.settled = None
        if self.capacity_millicores is not None:
            self.capacity_millicores = max(self.capacity_millicores, plan.capacity_millicores)
        self._write(self._apply)

    # --- applying

    def _write(self, apply: Apply) -> None:
        """Write limit after limit; a slow one is waited for, a failed decrease stops the rest."""
        while apply is self._apply:
            queue = apply.decreases
            if not queue:
                if apply.failed or not apply.increases:
                    self._finish(apply)
                    return
                if self._crashes("between decreases and increases"):
                    return
                queue = apply.increases
            change = queue.popleft()
            slow = self._fault(FaultPoint.ACTUATOR_SLOW, change)
            if slow is not None and slow.delay_ms:
                self._later(slow.delay_ms, apply, change)
                return
            self._land(apply, change)

    def _later(self, delay_ms: int, apply: Apply, change: Change) -> None:
        def arrive() -> None:
            if apply is self._apply:
                self._land(apply, change)
                self._write(apply)

        self._clock.at(self._clock.now_ms + delay_ms, Turn.WRITE, arrive)

    def _land(self, apply: Apply, change: Change) -> None:
        pod = self._node.pods.get(change.uid)
        if pod is None or self.governor is None:
            return
        if self._fault(FaultPoint.ACTUATOR_FAIL, change) is not None:
            apply.failed = True
            text = f"the limit of {change.uid} could not be written; increases wait"
            self._record.happening(self._clock.now_ms, "fault", text)
            return
        wrong = self._fault(FaultPoint.ACTUATOR_WRONG, change)
        pod.limit_millicores = change.after * (1 if wrong is None else wrong.factor)
        self.adopted.add(change.uid)
        self.governor.applied(self._clock.now_ms, change, change.after)
        self._store()
        self._judge()

    def _finish(self, apply: Apply) -> None:
        self._apply = None
        if not apply.failed:
            self.settled = apply.plan
            self.capacity_millicores = apply.plan.capacity_millicores
        self._judge()

    def _fault(self, point: FaultPoint, change: Change) -> FaultDocument | None:
        return self._faults.fires(point, change.uid, self._clock.now_ms)

    # --- dying and coming back

    def _crashes(self, when: str) -> bool:
        rule = self._faults.fires(FaultPoint.AGENT_CRASH, AGENT, self._clock.now_ms)
        if rule is None:
            return False
        now_ms = self._clock.now_ms
        # Limits stay as they are: the actuators keep the last safe state.
        self.governor, self._apply = None, None
        text = f"the agent dies {when}; limits stay as they are"
        self._record.happening(now_ms, "fault", text)
        self._clock.at(now_ms + max(1, rule.duration_s) * 1000, Turn.WORLD, self._restart)
        return True

    def _restart(self) -> None:
        # Through bytes, as from a disk. The plan that was not applied is void: its snapshot is old.
        if self._stored is None:
            self.governor = CpuGovernor(self.config)
        else:
            self.governor = CpuGovernor.restore(self.config, json.loads(self._stored))
        self._record.happening(self._clock.now_ms, "fault", "the agent is back with its state")

    def _store(self) -> None:
        if self.governor is not None:
            self._stored = canonical(self.governor.export())
