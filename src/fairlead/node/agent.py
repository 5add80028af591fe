"""The node agent: wires sensor, governor, recorder and actuator, and keeps time.

Started by `fairlead node run`. It ends on SIGINT and SIGTERM between two steps; limits stay as last
applied. Killed at any instant, it finds its state, its originals and its record when it returns.
"""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fairlead.core.cpu import Actuation, CpuConfig, PodMemory
from fairlead.core.cpu.allocate import GovernedPod
from fairlead.engine.cpu import BadState, CpuGovernor, CpuLoop, CpuTurn
from fairlead.host.clock import steady_now_ms
from fairlead.host.process import on_signals
from fairlead.node.state import RECORD, STATE, STATUS, StateDirectory, fields
from fairlead.ports.cpu import CpuActuator, CpuSensor, LimitActuator
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.recorder import Recorder
from fairlead.schema.node import NodeAgentDocument


class AgentSensor(CpuSensor, Protocol):
    """A sensor that is given back when the agent ends."""

    def close(self) -> None: ...


class Actuators(NamedTuple):
    """What writes limits or guarantees, and what contains pods beside guarantees."""

    writes: CpuActuator
    contains: LimitActuator | None = None


MakeActuators = Callable[[StateDirectory], Actuators]
"""Given the agent's directory, once it is locked."""


class Agent:
    """One agent on one cgroup root."""

    def __init__(
        self,
        document: NodeAgentDocument,
        *,
        cpu: CpuConfig,
        sensor: AgentSensor,
        make_actuators: MakeActuators,
        directory: Path,
        dry_run: bool,
        open_recorder: Callable[[Path], Recorder],
        report: Callable[[CpuTurn, "Agent"], None],
        fault: Callable[[TemporaryFault], None] = lambda _: None,
    ) -> None:
        self.cpu, self.dry_run = cpu, dry_run
        self._observe_only = document.observe_only
        self.last_turn: CpuTurn | None = None
        self.clears = self.writes = self.write_failures = 0
        self.missed_samples = self.faults = 0
        self._report, self._report_fault = report, fault
        self._stop = threading.Event()
        self.directory = StateDirectory(directory)
        self._sensor, self._make_actuators = sensor, make_actuators
        self._open_recorder = open_recorder
        self._recorder: Recorder | None = None
        self.loop: CpuLoop

    # --- life

    def start(self) -> None:
        """Take the directory, read what a predecessor left, void what it did not apply."""
        if self.dry_run:
            governor = CpuGovernor(self.cpu)
            self.loop = CpuLoop(
                governor, sensor=self._sensor, actuator=None, recorder=None, keep=lambda _: None
            )
            return
        self.directory.create()
        self.directory.lock()
        self._recorder = self._open_recorder(self.directory.path / RECORD)
        governor = self._restore()
        actuators = self._make_actuators(self.directory)
        self.loop = CpuLoop(
            governor,
            sensor=self._sensor,
            actuator=actuators.writes,
            limits=actuators.contains,
            recorder=self._recorder,
            keep=lambda state: self.directory.replace(STATE, state),
            paused=lambda: self._observe_only or self.directory.observe_only,
        )
        self.loop.heal(steady_now_ms())

    def _restore(self) -> CpuGovernor:
        stored = self.directory.read(STATE)
        if stored is None:
            return CpuGovernor(self.cpu)
        try:
            return CpuGovernor.restore(self.cpu, stored, now_ms=steady_now_ms())
        except BadState as error:
            path = self.directory.path / STATE
            raise PermanentFault(f"{path}: {error}; move it away to start afresh") from error

    def run(self, *, clears_max: int | None = None) -> None:
        cpu, clears = self.cpu, 0
        next_sample = next_clear = time.monotonic()
        next_clear += cpu.clear_ms / 1000
        while not self._stop.is_set() and (clears_max is None or clears < clears_max):
            try:
                self.loop.sample(steady_now_ms())
                if time.monotonic() >= next_clear:
                    turn = self.loop.clear(steady_now_ms())
                    clears += 1
                    next_clear = max(next_clear + cpu.clear_ms / 1000, time.monotonic())
                    self._publish(turn)
            except TemporaryFault as fault:
                # Disk full or the like: limits stay, the next sample tries again.
                self.faults += 1
                self._report_fault(fault)
                self._stop.wait(fault.retry_after_ms / 1000)
            next_sample += cpu.sample_ms / 1000
            late = time.monotonic() - next_sample
            if late > 0:
                self.missed_samples += int(late * 1000 // cpu.sample_ms) + 1
                next_sample = time.monotonic()
            self._stop.wait(max(0.0, next_sample - time.monotonic()))

    def _publish(self, turn: CpuTurn) -> None:
        self.last_turn = turn
        self.clears += 1
        self.writes += len(turn.written)
        self.write_failures += len(turn.failures)
        if not self.dry_run:
            document = status_document(turn, self.loop.governor)
            document |= {"missed_samples": self.missed_samples, "faults": self.faults}
            self.directory.replace(STATUS, document, durable=False)
        self._report(turn, self)

    def stop(self) -> None:
        self._stop.set()

    def handle_signals(self) -> None:
        """SIGINT and SIGTERM end the loop; limits stay as last applied."""
        on_signals((signal.SIGINT, signal.SIGTERM), self.stop)

    def close(self) -> None:
        self._sensor.close()
        if self._recorder is not None:
            self._recorder.close()
        self.directory.unlock()


def status_document(turn: CpuTurn, governor: CpuGovernor) -> dict[str, Any]:
    """The last turn with what is known of every pod; plain data."""
    plan = turn.plan
    return {
        "version": 1,
        "time_ms": turn.snapshot.now_ms,
        "sequence": turn.sequence,
        "policy": turn.snapshot.policy.value,
        "actuate": governor.config.actuate.value,
        "mode": plan.mode.value,
        **fields(governor.config, "node_millicores", "clear_ms"),
        **fields(plan, "capacity_millicores", "total_min", "total_need", "shadow_price"),
        "limits_millicores": governor.adopted_millicores,
        "observed_only": turn.observed_only,
        "written": len(turn.written),
        "failures": [
            {"pod": f.write.uid, "container": f.write.container, "reason": f.reason}
            for f in turn.failures
        ],
        "unread": list(turn.unread),
        "pods": [_pod(turn, governor, pod) for pod in turn.snapshot.pods],
    }


def _in_force(pod: PodMemory, actuate: Actuation) -> dict[str, Any]:
    guaranteed = None if actuate is Actuation.LIMITS else pod.current_millicores
    return {"limit_millicores": pod.limit_in_force(actuate), "guarantee_millicores": guaranteed}


def _pod(turn: CpuTurn, governor: CpuGovernor, seen: GovernedPod) -> dict[str, Any]:
    uid, plan, state = seen.uid, turn.plan, governor.pods[seen.uid]
    bound = plan.bounds[uid]
    return {
        "pod": uid,
        "need_millicores": plan.needs[uid],
        "grant_millicores": plan.allocations[uid],
        **_in_force(state, governor.config.actuate),
        **fields(seen, "usage_millicores", "demand", "min_millicores", "max_millicores"),
        **fields(seen, "weight", "signal_ok"),
        **fields(state, "throttling", "original_limit_millicores"),
        **fields(bound, "lower_millicores", "upper_millicores"),
        "bound_reasons": list(bound.reasons),
        "headroom_misses": plan.memory[uid].headroom_misses,
        "reduction_ratio": plan.reduction_ratio[uid],
        "reasons": list(plan.reasons[uid]),
        "containers": {
            name: container.current_millicores
            for name, container in sorted(state.containers.items())
        },
    }
