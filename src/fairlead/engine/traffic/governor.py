"""One group of the traffic governor: holds its memory between two ticks. No I/O, no clock.

    governor = GroupGovernor("web", GroupRules())
    decision = governor.decide(sighting)              # each tick: what was seen of the group
    sequence = governor.record(decision, recorder)    # then apply it
    governor.settle(decision, applied=True)           # what became of it

The loop and the harness drive it; `export`, `restore` and `resume` carry it across a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.core.traffic import (
    Cause,
    GroupMemory,
    GroupRules,
    Observed,
    Sighting,
    Snapshot,
    State,
    TickPlan,
    observe,
    plausible,
    rested,
    settle,
    tick,
)
from fairlead.ports.dataplane import Admission, Table
from fairlead.ports.recorder import FlightRecorder
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.traffic_govern import (
    KIND,
    VERSION,
    from_memory,
    input_of,
    output_of,
    to_memory,
)
from fairlead.schema.traffic_state import StateDocument, to_state


class BadTrafficState(ValueError):
    """A stored state that is not one of ours: refused whole rather than half believed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was seen, and what is to be done about it."""

    sighting: Sighting
    memory: GroupMemory
    """After the sighting was observed."""
    observed: Observed
    plan: TickPlan

    @property
    def snapshot(self) -> Snapshot:
        """What the tick looked at."""
        return self.observed.snapshot


class GroupGovernor:
    """The memory of one group."""

    def __init__(self, name: str, rules: GroupRules) -> None:
        self.name, self.memory = name, GroupMemory()
        self._rules = rules
        self._applied: bool | None = None
        self._linked = False
        """The last decision is in the record, made by these rules: the next one follows from it."""

    @property
    def rules(self) -> GroupRules:
        """How the group is governed."""
        return self._rules

    @rules.setter
    def rules(self, rules: GroupRules) -> None:
        self._rules, self._linked = rules, False

    @property
    def state(self) -> State | None:
        """Of the last tick."""
        return self.memory.state

    @property
    def isolated(self) -> Mapping[str, Cause]:
        """Backends that get nothing now, and why."""
        return self.memory.isolated

    def decide(self, sighting: Sighting) -> Decision:
        """Observe and tick. Nothing is remembered of it before `settle`."""
        sighting = plausible(sighting)
        memory, observed = observe(self.memory, sighting, self._rules, group=self.name)
        return Decision(sighting, memory, observed, tick(observed.snapshot))

    def record(self, decision: Decision, recorder: FlightRecorder) -> int:
        """Record a decision before it is applied; its sequence number."""
        linked, self._linked = self._linked, False
        applied = self._applied if linked else None

        def opening() -> dict[str, Any]:
            return input_of(
                self.name, decision.sighting, applied=applied, memory=self.memory, rules=self._rules
            )

        sequence = recorder.append(
            KIND,
            version=VERSION,
            time_ms=decision.sighting.now_ms,
            input=input_of(self.name, decision.sighting, applied=applied) if linked else opening(),
            output=output_of(decision.memory, decision.snapshot, decision.plan),
            opening=opening,
        )
        self._linked = True
        return sequence

    def settle(self, decision: Decision, *, applied: bool) -> None:
        """Go on from this decision. A plan that was not applied left the slots as they were."""
        self.memory = settle(decision.memory, decision.plan, applied=applied)
        self._applied = applied

    def table(self, decision: Decision, epoch: int, sequence: int | None = None) -> Table:
        """The plan as a dataplane takes it, with the budget that `hard` decays to without us."""
        config, admission = decision.snapshot.config, decision.plan.admission
        return Table(
            self.name,
            epoch,
            dict(decision.plan.slots),
            Admission(
                mode=admission.mode,
                rate_per_s=admission.rate_per_s,
                burst=admission.burst,
                stored_rate_per_s=config.bucket_rate,
                stored_burst=config.bucket_burst,
            ),
            config.inside_max,
            decision=sequence,
        )

    # --- across a restart

    def export(self) -> dict[str, Any]:
        """What the next agent goes on from."""
        return from_memory(self.memory)

    def restore(self, stored: Mapping[str, Any], *, stale: bool = False) -> None:
        """The inverse of `export`; what does not fit is refused. `stale`: the dataplane has fallen
        back since then, and only the backends' health still means something.
        """
        try:
            memory = to_memory(stored)
        except (BadInput, TypeError, ValueError) as error:
            raise BadTrafficState(f"group {self.name!r}: {error}") from error
        self.memory, self._linked = rested(memory) if stale else memory, False

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Go on from the state of the last recorded tick, which is newer than what was kept."""
        try:
            after = None if state is None else to_state(check_shape(state, StateDocument))
        except BadInput as error:
            raise BadTrafficState(f"group {self.name!r}: {error}") from error
        self.memory, self._linked = replace(self.memory, state=after), False
