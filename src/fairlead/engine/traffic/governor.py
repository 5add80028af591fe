"""One group of the traffic governor: holds its memory between two ticks. No I/O, no clock.

    governor = GroupGovernor("web", GroupRules())
    decision = governor.decide(sighting)              # each tick: what was seen of the group
    sequence = governor.record(recorder)              # then apply it
    governor.settle(applied=True)                     # what became of it

The loop and the harness drive it; `export`, `restore` and `resume` carry it across a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec.structs import asdict

from fairlead.core.invariant import known
from fairlead.core.traffic import (
    Cause,
    GroupDecision,
    GroupMemory,
    GroupRules,
    Sighting,
    State,
    govern,
    plausible,
    rested,
    settle,
    split,
)
from fairlead.core.traffic.pace import look, may_wait, merge, rests
from fairlead.core.traffic.sighting import Waited
from fairlead.engine.life import LifeRecord
from fairlead.ports.dataplane import RouteGroup
from fairlead.ports.recorder import FlightRecorder, RecordEntry
from fairlead.schema.border import BadInput
from fairlead.schema.traffic import ConfigureDocument, from_split
from fairlead.schema.traffic_govern import (
    KIND,
    VERSION,
    Settled,
    follow,
    from_memory,
    read_input,
    to_memory,
    write_memory,
    written_input,
    written_output,
)

CONFIGURE = "traffic.configure"


class BadTrafficState(ValueError):
    """A stored state that is not one of ours: refused whole rather than half believed."""


class _Made(NamedTuple):
    """The decision that was made last, and the memory that it leaves behind."""

    sighting: Sighting
    memory: GroupMemory
    decision: GroupDecision


class GroupGovernor:
    """The memory of one group."""

    def __init__(self, name: str, rules: GroupRules) -> None:
        self.name, self.memory = name, GroupMemory()
        self._rules = rules
        self._made: _Made | None = None
        self._applied: bool | None = None
        self._resting: Sighting | None = None
        """What was seen at the last decision, where it rests and is in force."""
        self._waited: Waited | None = None
        self._life = LifeRecord(KIND, VERSION)

    @property
    def rules(self) -> GroupRules:
        return self._rules

    @rules.setter
    def rules(self, rules: GroupRules) -> None:
        self._rules = rules
        self._break_off()

    def _break_off(self) -> None:
        """The next tick decides, and its entry does not follow from the last."""
        self._resting = self._waited = None
        self._life.break_off()

    @property
    def state(self) -> State | None:
        return self.memory.state

    @property
    def isolated(self) -> Mapping[str, Cause]:
        return self.memory.isolated

    @property
    def resting(self) -> bool:
        """Whether a tick may go without a decision, if nothing happens."""
        return self._resting is not None

    def waits(self, sighting: Sighting) -> bool:
        """Whether this tick goes without a decision, as the last one allows. What was seen is kept,
        and recorded with the next: a replay shows that the wait was right."""
        if self._resting is None:
            return False
        waited = merge(self._waited, look(self._resting, sighting, self._rules.config.theta))
        if not may_wait(waited):
            return False
        self._waited = waited
        return True

    def decide(self, sighting: Sighting) -> GroupDecision:
        """Observe and tick. What is remembered of it waits for `settle`."""
        sighting = plausible(sighting)
        memory, decision = govern(self.memory, sighting, self._rules, group=self.name)
        self._made = _Made(sighting, memory, decision)
        return decision

    def record(self, recorder: FlightRecorder) -> int:
        """Record the last decision before it is applied; its sequence number."""
        sighting, memory, decision = known(self._made, "a decision was made")
        link = self._life.next(recorder)
        document = written_input(
            self.name,
            sighting,
            applied=self._applied if link.follows else None,
            memory=self.memory if link.whole else None,
            rules=self._rules if link.whole else None,
            waited=self._waited,
        )
        output = written_output(memory, decision)
        return self._life.append(recorder, sighting.now_ms, input=document, output=output)

    def settle(self, *, applied: bool) -> None:
        """Go on from the last decision. One that was not applied left the slots as they were."""
        made, self._made = known(self._made, "a decision was made"), None
        self.memory = settle(made.memory, made.decision.plan, applied=applied)
        self._applied, self._waited = applied, None
        self._resting = made.sighting if applied and rests(made.decision) else None

    def configure(self, route: RouteGroup, recorder: FlightRecorder, now_ms: int) -> RouteGroup:
        """The route with the slots that it begins with, as they are decided and recorded."""
        document = ConfigureDocument(
            self.name,
            sorted(backend.id for backend in route.backends),
            {} if self.state is None else {b.id: b.slots for b in self.state.backends},
            sorted(self.isolated),
        )
        self._resting = None
        decided = split(document.backends, document.slots, document.isolated)
        sequence = recorder.append(
            CONFIGURE, version=1, time_ms=now_ms, input=asdict(document), output=from_split(decided)
        )
        return replace(route, split=decided, decision=sequence)

    # --- across a restart

    def export(self) -> dict[str, Any]:
        """What the next agent starts from where the record is too old to go on from."""
        return from_memory(rested(self.memory))

    def written(self) -> bytes:
        """`export` as JSON."""
        return write_memory(rested(self.memory))

    def restore(self, stored: Mapping[str, Any]) -> None:
        """The inverse of `export`; what does not fit is refused."""
        try:
            memory = to_memory(stored)
        except (BadInput, TypeError, ValueError) as error:
            raise BadTrafficState(f"group {self.name!r}: {error}") from error
        self.memory = memory
        self._break_off()

    def resume(self, entries: Iterable[RecordEntry], *, applied: bool) -> None:
        """Go on from the newest of these recorded decisions; `applied`: was its plan applied?"""
        last: Settled | None = None
        try:
            for entry in entries:
                document = read_input(entry.input, entry.version)
                last = follow(document, last, version=entry.version)
        except BadInput as error:
            raise BadTrafficState(f"group {self.name!r}: {error}") from error
        if last is not None:
            self.memory = settle(last.memory, last.decision.plan, applied=applied)
            self._break_off()
