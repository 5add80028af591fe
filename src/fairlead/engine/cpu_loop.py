"""One turn of the CPU governor: snapshot → decide → record → apply → mark applied.

The loop owns the order and nothing else: what is seen, written, recorded and kept comes through
ports, so the agent on a machine and the simulated one run this same code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.core.cpu import Plan, Snapshot
from fairlead.engine.cpu import CpuGovernor
from fairlead.engine.cpu_state import Change
from fairlead.ports.cpu import CpuActuator, CpuSensor, Gone
from fairlead.ports.faults import Fault
from fairlead.ports.recorder import Recorder, Status
from fairlead.schema.cpu import from_plan, from_snapshot

KIND, VERSION = "cpu.clear", 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A limit that could not be written, and why."""

    change: Change
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one clear decided and what became of it."""

    time_ms: int
    sequence: int | None
    snapshot: Snapshot
    plan: Plan
    free: Plan
    """The same without guardrails: how scarce the node really is."""
    written: tuple[Change, ...]
    failures: tuple[Failure, ...]
    observed_only: bool


class CpuLoop:
    """Drives a governor through its ports."""

    def __init__(
        self,
        governor: CpuGovernor,
        *,
        sensor: CpuSensor,
        actuator: CpuActuator | None,
        recorder: Recorder | None,
        keep: Callable[[dict[str, Any]], None],
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.governor = governor
        self._sensor, self._actuator, self._recorder = sensor, actuator, recorder
        self._keep, self._paused = keep, paused

    def heal(self, now_ms: int) -> int:
        """Void plans that were recorded but not applied: their snapshots are old.

        Limits are safe whatever was cut off, because decreases come before increases; the next
        clear decides afresh from what is really in force.
        """
        left = self._recorder.unapplied() if self._recorder else []
        for entry in left:
            assert self._recorder is not None
            self._recorder.mark(entry.seq, "voided", time_ms=now_ms, note="agent restarted")
        return len(left)

    def sample(self, now_ms: int) -> None:
        """Look at the node once."""
        self.governor.observe(now_ms, self._sensor.sample(now_ms))

    def clear(self, now_ms: int) -> Turn:
        """Decide, record durably, keep the state, and only then touch anything."""
        snapshot, plan, free = self.governor.decide(now_ms)
        sequence = None
        if self._recorder is not None:
            sequence = self._recorder.append(
                KIND,
                version=VERSION,
                time_ms=now_ms,
                input=from_snapshot(snapshot),
                output=from_plan(plan),
            )
        # Kept before the first write: a limit of ours must never be taken for the user's own.
        self._keep(self.governor.export())
        if self._actuator is None or self._paused():
            self._mark(sequence, "voided", now_ms, "observe-only")
            return Turn(now_ms, sequence, snapshot, plan, free, (), (), observed_only=True)
        written, failures = self._apply(now_ms, plan, self._actuator)
        note = f"{len(failures)} writes failed" if failures else ""
        self._mark(sequence, "applied", now_ms, note)
        if written:
            self._keep(self.governor.export())
        return Turn(now_ms, sequence, snapshot, plan, free, written, failures, observed_only=False)

    def _mark(self, sequence: int | None, status: Status, now_ms: int, note: str) -> None:
        if self._recorder is not None and sequence is not None:
            self._recorder.mark(sequence, status, time_ms=now_ms, note=note)

    def _apply(
        self, now_ms: int, plan: Plan, actuator: CpuActuator
    ) -> tuple[tuple[Change, ...], tuple[Failure, ...]]:
        """Decreases first; a decrease that failed keeps every increase waiting."""
        changes = self.governor.changes(plan)
        written: list[Change] = []
        failures: list[Failure] = []
        for change in changes.decreases:
            self._write(now_ms, change, actuator, written, failures)
        if failures:
            return tuple(written), tuple(failures)
        for change in changes.increases:
            room = plan.capacity_millicores - self.governor.adopted_millicores
            if self.governor.adds(change) > room:
                failures.append(Failure(change, "the limits in force leave no room for it"))
                continue
            self._write(now_ms, change, actuator, written, failures)
        return tuple(written), tuple(failures)

    def _write(
        self,
        now_ms: int,
        change: Change,
        actuator: CpuActuator,
        written: list[Change],
        failures: list[Failure],
    ) -> None:
        try:
            limit = actuator.write(change.uid, change.container, change.after)
        except Gone:
            return  # its limit went with it
        except Fault as fault:
            failures.append(Failure(change, str(fault)))
            return
        self.governor.applied(now_ms, change, limit)
        written.append(change)
