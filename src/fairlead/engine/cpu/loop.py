"""One turn of the CPU governor: snapshot → decide → record → apply → mark applied.

The loop owns the order and nothing else: what is seen, written, recorded and kept comes through
ports, so the agent on a machine and the simulated one run this same code.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fairlead.core.cpu import Containment, LimitWrite, NodePlan, NodeSnapshot, WriteResult
from fairlead.core.invariant import known, require
from fairlead.engine.cpu.governor import CpuGovernor, GovernorState
from fairlead.ports.cpu import CpuActuator, CpuSensor, Gone, LimitActuator
from fairlead.ports.faults import Fault
from fairlead.ports.recorder import Recorder, Status

WHY = {
    WriteResult.DECREASE_FAILED: "waits for a decrease that failed",
    WriteResult.NO_ROOM: "the limits in force leave no room for it",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A limit that could not be written, and why."""

    write: LimitWrite | Containment
    reason: str


@dataclass(frozen=True, slots=True)
class CpuTurn:
    """What one turn decided and what became of it. `sequence` is None without a recorder."""

    sequence: int | None
    snapshot: NodeSnapshot
    plan: NodePlan
    written: tuple[LimitWrite, ...] = ()
    failures: tuple[Failure, ...] = ()
    observed_only: bool = False
    contain: tuple[Containment, ...] = ()
    """The limits beside the guarantees that were to be written."""
    unread: tuple[str, ...] = ()
    """Pods that are not governed, because they were never read whole."""


class CpuLoop:
    """Drives a governor through its ports. Only recorded decisions reach the actuator."""

    def __init__(
        self,
        governor: CpuGovernor,
        *,
        sensor: CpuSensor,
        actuator: CpuActuator | None,
        recorder: Recorder | None,
        limits: LimitActuator | None = None,
        keep: Callable[[GovernorState], None],
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        require(actuator is None or recorder is not None, "an actuator comes with a recorder")
        self.governor = governor
        self._sensor, self._actuator, self._recorder = sensor, actuator, recorder
        self._keep, self._paused, self._limits = keep, paused, limits
        self._sighted: list[str] = []
        """Pods of the last sample that are to be governed."""

    def heal(self, now_ms: int) -> int:
        """Void plans that were recorded but not applied: their snapshots are old.

        Limits are safe wherever the agent was stopped, because decreases come before increases;
        the next clear decides afresh from what is really in force.
        """
        left = self._recorder.unapplied() if self._recorder else []
        for entry in left:
            self._mark(entry.seq, "voided", now_ms, "agent restarted")
        return len(left)

    def sample(self, now_ms: int) -> None:
        sample = self._sensor.sample(now_ms)
        self._sighted = [pod.uid for pod in sample if not pod.opted_out]
        self.governor.observe(now_ms, sample)

    def clear(self, now_ms: int) -> CpuTurn:
        """Decide, record durably, keep the state, and only then touch anything."""
        unread = tuple(uid for uid in self._sighted if uid not in self.governor.pods)
        snapshot, plan, contain = self.governor.decide(now_ms)
        sequence = None
        if self._recorder is not None:
            sequence = self.governor.record(self._recorder, now_ms, plan, contain)
        self.governor.settle(now_ms, plan)
        # Kept before the first write: a limit of ours must never be taken for the user's own.
        self._keep(self.governor.export())
        if self._actuator is None or self._paused():
            self._mark(sequence, "voided", now_ms, "observe-only")
            return CpuTurn(
                sequence, snapshot, plan, observed_only=True, contain=contain, unread=unread
            )
        decision = known(sequence, "what is applied was recorded")
        written, failures = self._apply(decision, plan, self._actuator)
        failures += self._contain(decision, contain)
        # The mark of a plan that came into force in part says which limits did not, and why.
        named = "; ".join(f"{f.write.uid}/{f.write.container}: {f.reason}" for f in failures)
        note = f"{len(failures)} writes failed: {named}" if failures else ""
        self._mark(sequence, "applied", now_ms, note)
        if written or contain:
            self._keep(self.governor.export())
        return CpuTurn(
            sequence,
            snapshot,
            plan,
            tuple(written),
            tuple(failures),
            contain=contain,
            unread=unread,
        )

    def _mark(self, sequence: int | None, status: Status, now_ms: int, note: str) -> None:
        if self._recorder is not None and sequence is not None:
            self._recorder.mark(sequence, status, time_ms=now_ms, note=note)

    def _apply(
        self, decision: int, plan: NodePlan, actuator: CpuActuator
    ) -> tuple[list[LimitWrite], list[Failure]]:
        """Write in the plan's order what core does not leave out."""
        written: list[LimitWrite] = []
        failures: list[Failure] = []
        for write in plan.writes:
            result = self.governor.left_out(plan, write)
            if result is not None:
                failures.append(Failure(write, WHY[result]))
                self.governor.not_applied(write, result)
                continue
            try:
                limit = actuator.write(decision, write.uid, write.container, write.after)
            except Gone:
                self.governor.not_applied(write, WriteResult.GONE)  # its limit went with it
                continue
            except Fault as fault:
                failures.append(Failure(write, str(fault)))
                self.governor.not_applied(write, WriteResult.FAILED)
                continue
            self.governor.applied(write, limit)
            written.append(write)
        return written, failures

    def _contain(self, decision: int, contain: tuple[Containment, ...]) -> list[Failure]:
        """Put the limits beside the guarantees in force; one that fails is decided again."""
        failures: list[Failure] = []
        for limit in contain:
            limits = known(self._limits, "who governs weights can contain")
            try:
                limits.contain(decision, limit.uid, limit.container, limit.limit_millicores)
            except Gone:
                self.governor.contained(limit, WriteResult.GONE)
            except Fault as fault:
                failures.append(Failure(limit, str(fault)))
                self.governor.contained(limit, WriteResult.FAILED)
            else:
                self.governor.contained(limit)
        return failures
