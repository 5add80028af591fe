"""The virtual world behind the governor's ports: a sensor, an actuator, a recorder.

The loop that drives them is `engine.cpu.loop`, the same that runs on a machine. Where the scenario
says so they misbehave; a crash is `AgentDied`, which nothing in the loop catches.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fairlead.core.cpu import Counters
from fairlead.core.invariant import require
from fairlead.ports.cpu import ContainerSighting, Gone, Sighting
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.recorder import Entry, Head, Status
from fairlead.schema.scenario import FaultPoint
from fairlead.sim.clock import VirtualClock
from fairlead.sim.faults import Faults
from fairlead.sim.node import SimNode, SimPod
from fairlead.sim.record import Decision, Recorder

AGENT = "agent"
"""The subject of faults that hit the agent and no pod."""
_GARBAGE_US = 10**15


class AgentDied(Exception):
    """The agent's process is gone, in the middle of whatever it did."""

    def __init__(self, when: str, away_ms: int) -> None:
        super().__init__(when)
        self.when = when
        self.away_ms = away_ms


class Surroundings:
    """What all adapters share: the node, the time, and what goes wrong."""

    def __init__(
        self, node: SimNode, clock: VirtualClock, faults: Faults, record: Recorder
    ) -> None:
        self.node, self.clock, self.faults, self.record = node, clock, faults, record

    def may_die(self, when: str) -> None:
        """One opportunity for the agent to crash."""
        rule = self.faults.fires(FaultPoint.AGENT_CRASH, AGENT, self.clock.now_ms)
        if rule is not None:
            raise AgentDied(when, max(1, rule.duration_s) * 1000)

    def tell(self, text: str) -> None:
        """A fault as a line of the story."""
        self.record.happening(self.clock.now_ms, "fault", text)


class SimSensor:
    """A `CpuSensor` over the simulated node."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def sample(self, now_ms: int) -> Sequence[Sighting]:
        """Read every pod, or fail to."""
        self._around.may_die("while sampling")
        sightings = [self._sight(pod, now_ms) for pod in self._around.node.present()]
        self._around.record.observation(now_ms, sightings)
        return sightings

    def _sight(self, pod: SimPod, now_ms: int) -> Sighting:
        name, faults = pod.spec.name, self._around.faults
        if faults.fires(FaultPoint.SENSOR_RESET, name, now_ms):
            pod.reset_counters()
            self._around.tell(f"the counters of {name} start again at zero")
        counters: Counters | None = pod.counters(now_ms)
        if faults.fires(FaultPoint.SENSOR_GARBAGE, name, now_ms):
            counters = Counters(now_ms * 1000, _GARBAGE_US, 0, 0, 0)
        if faults.fires(FaultPoint.SENSOR_MISSING, name, now_ms):
            counters = None
        return Sighting(
            uid=name,
            request_millicores=pod.spec.request_millicores,
            containers=(ContainerSighting("", pod.limit_millicores, counters),),
            priority=pod.spec.priority,
            opted_out=pod.spec.opted_out,
            started_ms=pod.started_ms,
        )


class SimActuator:
    """A `CpuActuator` on the simulated node. `written` is told of every limit that landed."""

    def __init__(self, around: Surroundings, written: Callable[[str], None]) -> None:
        self._around, self._written = around, written

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Set a pod's limit; slow, failing or wrong where the scenario says so."""
        around, clock, faults = self._around, self._around.clock, self._around.faults
        require(0 < decision <= len(around.record.decisions), "a write is of a recorded decision")
        around.may_die("between two writes")
        slow = faults.fires(FaultPoint.ACTUATOR_SLOW, uid, clock.now_ms)
        if slow is not None:
            # The agent blocks in the write, as it would on a machine, while the world goes on.
            clock.run_until(clock.now_ms + slow.delay_ms)
        pod = around.node.pods.get(uid)
        if pod is None:
            raise Gone(f"{uid} left the node")
        if faults.fires(FaultPoint.ACTUATOR_FAIL, uid, clock.now_ms) is not None:
            around.tell(f"the limit of {uid} could not be written")
            raise TemporaryFault(f"{uid}{container}: cannot be written", retry_after_ms=1_000)
        wrong = faults.fires(FaultPoint.ACTUATOR_WRONG, uid, clock.now_ms)
        pod.limit_millicores = millicores * (1 if wrong is None else wrong.factor)
        self._written(uid)
        return millicores


class Decided(Protocol):
    """Told of each decision, after it is recorded and before anything is applied."""

    def __call__(self, decision: Decision) -> None:
        """Judge it, tell it."""


class SimRecorder:
    """The governor's flight recorder, in memory; what the run leaves behind is `sim.record`."""

    def __init__(self, around: Surroundings, decided: Decided) -> None:
        self._around, self._decided = around, decided
        self._open: dict[int, Entry] = {}

    def append(
        self,
        kind: str,
        *,
        version: int,
        time_ms: int,
        input: dict[str, Any],
        output: dict[str, Any],
    ) -> int:
        """Record a decision."""
        record = self._around.record
        decision = record.decision(time_ms, input, output)
        seq = len(record.decisions)
        self._open[seq] = Entry(seq, time_ms, kind, version, input, output, record.digest)
        self._decided(decision)
        self._around.may_die("between the record and the apply")
        return seq

    def mark(self, seq: int, status: Status, *, time_ms: int, note: str = "") -> None:
        """Close an entry."""
        del self._open[seq]
        if status == "voided":
            self._around.record.happening(time_ms, "fault", f"decision {seq} is void: {note}")

    def unapplied(self) -> list[Entry]:
        """Entries without a mark."""
        return [self._open[seq] for seq in sorted(self._open)]

    def head(self) -> Head:
        """The end of the record."""
        record = self._around.record
        return Head(len(record.decisions), record.digest)

    def close(self) -> None:
        """Nothing to close."""
