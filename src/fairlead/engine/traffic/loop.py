"""One tick of the traffic governor over all groups: see → decide → record → beat → apply → mark.

    loop = TrafficLoop(plane, groups, ports)
    loop.start(now_ms)                  # versions agree, what a predecessor left behind is voided
    round = loop.tick(now_ms)           # every 200 ms

The loop owns the order and nothing else: the agent on a machine and the harness in virtual time run
this same code. The heartbeat comes after the record and before the flip, so that an agent that can
no longer record a group stops beating: then the dataplane holds, falls back, and no admission stays
closed on the decision of an agent that cannot act any more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairlead.core.invariant import known, require
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import (
    AdmissionMode,
    Cause,
    GroupDecision,
    OperatorCommand,
    Sighting,
    Snapshot,
    TickPlan,
    liveness,
)
from fairlead.core.traffic.scale import scale_hint
from fairlead.core.traffic.sighting import GroupSeen, Liveness, NodeReading
from fairlead.core.traffic.tick import agent_reasons
from fairlead.engine.traffic.governor import GroupGovernor
from fairlead.ports.dataplane import SCHEMA_VERSION, Dataplane, Glancing, RouteGroup, Stale, Table
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.recorder import FlightRecorder, RecordHead, Status
from fairlead.ports.traffic import EventLog, NodeSensor, Prober, SignalSource, Transition

ANCHOR_EVERY_MS = 10_000
_ANCHOR_AHEAD_MS = 1_000  # so that a late tick still makes the 10 s
Orders = Mapping[str, Mapping[str, str]]
"""By group and backend: `isolate` or `drain`, until the operator restores it."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as the loop drives it."""

    route: RouteGroup
    governor: GroupGovernor
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The machines of its backends, where they are known."""
    own_nodes: bool = False
    """Whether only these machines count; else every machine that is seen."""

    @property
    def members(self) -> dict[str, str | None]:
        """Its backends in order, with their machines."""
        ids = sorted(backend.id for backend in self.route.backends)
        return {id: self.nodes.get(id) for id in ids}


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything but the dataplane."""

    record: Callable[[str], FlightRecorder]
    """The flight recorder of a group; each has its own."""
    signals: SignalSource
    nodes: NodeSensor
    prober: Prober
    events: EventLog | None = None
    orders: Callable[[], Orders] = dict


@dataclass(frozen=True, slots=True)
class GroupRound:
    """What one tick decided for one group, and what became of it."""

    decision: GroupDecision
    seen: GroupSeen | None
    """What the dataplane had counted."""
    reasons: tuple[str, ...]
    """The plan's, after what the agent alone knows: `failsafe` where the heartbeat was found stale,
    `full` where open admission rejected requests."""
    sequence: int | None
    """Of the recorded decision; None: it could not be recorded, and nothing of it is done."""
    flipped: bool = False
    fault: str = ""
    """Why the plan was not applied; empty when it was, or when nothing had to change."""

    @property
    def snapshot(self) -> Snapshot:
        return self.decision.snapshot

    @property
    def plan(self) -> TickPlan:
        return self.decision.plan

    @property
    def scale_hint(self) -> TrafficReason | None:
        """Why the group should be scaled; None: it need not."""
        return scale_hint(self.plan, self.snapshot.config)


@dataclass(frozen=True, slots=True)
class TickRound:
    """One tick over all groups."""

    time_ms: int
    groups: Mapping[str, GroupRound]
    transitions: tuple[Transition, ...]
    faults: tuple[str, ...]
    """What went wrong outside of any single group."""
    rested: Mapping[str, GroupRound] = field(default_factory=dict)
    """The last decision of the groups that were not decided on in this tick, because they are
    calm."""

    @property
    def latest(self) -> dict[str, GroupRound]:
        """The last decision of every group."""
        return {**self.rested, **self.groups}


class GroupStatus(NamedTuple):
    """What people ask about later: admission, isolation, and whether the dataplane trusts us."""

    mode: AdmissionMode = AdmissionMode.NORMAL
    liveness: Liveness = Liveness.NORMAL
    isolated: Mapping[str, Cause] = {}


def _counting(
    nodes: tuple[NodeReading, ...] | None, group: Group
) -> tuple[NodeReading, ...] | None:
    if nodes is None or not group.own_nodes:
        return nodes
    return tuple(node for node in nodes if node.id in group.nodes.values())


class TrafficLoop:
    """Drives the governors of all groups through their ports. One thread."""

    def __init__(
        self, plane: Dataplane, groups: Sequence[Group], ports: Ports, *, paced: bool = False
    ) -> None:
        """`paced`: a group whose last decision rests waits for the next (`core.traffic.pace`)."""
        self.plane, self.ports, self._paced = plane, ports, paced
        self.groups = self._recorded(groups)
        self._members = {name: group.members for name, group in self.groups.items()}
        self.beat_ms: int | None = None
        """When the dataplane last heard of us."""
        self._stale = Liveness.NORMAL
        self._tables: dict[str, Table] = {}
        self._status: dict[str, GroupStatus] = {}
        self._drained: set[tuple[str, str]] = set()
        self._anchored_ms: int | None = None
        self._latest: dict[str, GroupRound] = {}

    def start(self, now_ms: int) -> int:
        """Agree on versions, take the dataplane over, void what was recorded and never applied."""
        version = self.plane.schema_version()
        if version != SCHEMA_VERSION:
            raise PermanentFault(
                f"the {self.plane.name} plane is of schema version {version}, this agent of "
                f"{SCHEMA_VERSION}: remove the dataplane and start again"
            )
        self._configure(self.groups, now_ms)
        voided = 0
        for name, group in self.groups.items():
            # What a predecessor left in force is not news.
            state = group.governor.state
            mode = AdmissionMode.NORMAL if state is None else state.admission.mode
            self._status[name] = GroupStatus(mode, isolated=group.governor.isolated)
            # A plan of a dead agent is about a state that is gone: the next tick decides.
            for entry in self.ports.record(name).unapplied():
                self.ports.record(name).mark(
                    entry.seq, "voided", time_ms=now_ms, note="agent restarted"
                )
                voided += 1
        return voided

    def found_stale(self, liveness: Liveness) -> None:
        """What the dataplane thought of our predecessor; the next tick reports it."""
        self._stale = liveness

    def reconfigure(self, groups: Sequence[Group], now_ms: int) -> None:
        """Other groups, or other backends. Governors of groups that stay are to be the same."""
        by_name = self._recorded(groups)
        self._configure(by_name, now_ms)
        self.groups = by_name
        self._members = {name: group.members for name, group in by_name.items()}
        for kept in (self._tables, self._status, self._latest):
            for name in kept.keys() - self.groups.keys():
                del kept[name]

    def _configure(self, groups: Mapping[str, Group], now_ms: int) -> None:
        """Each group with slots that are recorded before the dataplane goes by them."""
        routes: dict[str, RouteGroup] = {}
        try:
            for name, group in groups.items():
                recorder = self.ports.record(name)
                routes[name] = group.governor.configure(group.route, recorder, now_ms)
            self.plane.configure([*routes.values()])
        except Fault as fault:
            for name, route in routes.items():
                self._mark(name, route.decision, now_ms, f"not applied: {fault}")
            raise
        for name, route in routes.items():
            self._mark(name, route.decision, now_ms, "")

    def _recorded(self, groups: Sequence[Group]) -> dict[str, Group]:
        """By name. This loop acts, and only what is recorded may be acted upon."""
        by_name = {group.route.name: group for group in groups}
        for name in by_name:
            require(self.ports.record(name) is not None, "a governed group comes with a recorder")
        return by_name

    def tick(self, now_ms: int, *, early: bool = False) -> TickRound:
        """See, decide and record every group; beat; apply. A fault in one leaves the others be.

        `early`: a report brought it forward.
        """
        faults: list[str] = []
        sightings = self._look(now_ms, faults, early=early)
        liveness = self._liveness(sightings.values(), now_ms)
        made: dict[str, GroupRound] = {}
        changed: list[Transition] = []
        for name, sighting in self._due(sightings, faults).items():
            made[name] = self._decide(name, sighting, liveness)
            changed += self._changes(name, now_ms, made[name], liveness)
        self._beat(now_ms, made, faults)
        done = {name: self._apply(name, now_ms, group) for name, group in made.items()}
        for name, group in done.items():
            self._drain(name, group, faults)
        self._probe(done)
        self._anchor(now_ms, faults)
        rested = {name: self._latest[name] for name in sightings if name not in done}
        self._latest |= done
        return TickRound(now_ms, done, tuple(changed), tuple(faults), rested)

    # --- see

    def _look(self, now_ms: int, faults: list[str], *, early: bool) -> dict[str, Sighting]:
        """What was seen of each group; everything is read once."""
        ports, seen = self.ports, dict[str, GroupSeen]()
        nodes: tuple[NodeReading, ...] | None = None
        try:
            seen = dict(self._glance())
        except Fault as fault:
            faults.append(f"plane: {fault}")
        try:
            nodes = tuple(ports.nodes.read(now_ms))
        except Fault as fault:
            faults.append(f"nodes: {fault}")
        readings, orders = ports.signals.read(now_ms), ports.orders()
        probed, checked = ports.prober.results(), ports.prober.checked()
        members = self._members
        return {
            name: Sighting(
                now_ms=now_ms,
                members=members[name],
                seen=seen.get(name),
                readings={id: readings[name, id] for id in members[name] if (name, id) in readings}
                if readings
                else {},
                covered=tuple(sorted(ports.signals.covers(name))),
                asked_ms=ports.signals.asked_ms(name, now_ms),
                nodes=_counting(nodes, group),
                probed=tuple(result for result in probed if result.group == name),
                checked=tuple(result for result in checked if result.group == name),
                commands={
                    id: OperatorCommand(command)
                    for id, command in sorted(orders.get(name, {}).items())
                },
                early=early,
            )
            for name, group in sorted(self.groups.items())
        }

    def _glance(self) -> Mapping[str, GroupSeen]:
        """Single backends only where it takes them to tell whether the group may wait."""
        if not (self._paced and isinstance(self.plane, Glancing)):
            return self.plane.read()
        return self.plane.glance({n for n, group in self.groups.items() if group.governor.resting})

    def _due(self, sightings: Mapping[str, Sighting], faults: list[str]) -> dict[str, Sighting]:
        """Of the groups that do not wait, with every backend as it is now."""
        if not self._paced:
            return {**sightings}
        due = {n: seen for n, seen in sightings.items() if not self.groups[n].governor.waits(seen)}
        if not isinstance(self.plane, Glancing):
            return due
        whole: Mapping[str, GroupSeen | None] = {}
        try:
            whole = self.plane.look_closer(due)
        except Fault as fault:
            faults.append(f"plane: {fault}")
            whole = dict.fromkeys(due)
        return due | {name: replace(due[name], seen=seen) for name, seen in whole.items()}

    def _liveness(self, sightings: Iterable[Sighting], now_ms: int) -> Liveness:
        """What the dataplane thought of us until now; by our own clock where it cannot be read."""
        stale, self._stale = self._stale, Liveness.NORMAL
        if stale is not Liveness.NORMAL:
            return stale
        for sighting in sightings:
            if sighting.seen is not None:
                return sighting.seen.liveness
        return Liveness.NORMAL if self.beat_ms is None else liveness(max(0, now_ms - self.beat_ms))

    # --- decide and record

    def _decide(self, name: str, sighting: Sighting, liveness: Liveness) -> GroupRound:
        governor = self.groups[name].governor
        decision = governor.decide(sighting)
        sequence, problem = None, ""
        try:
            sequence = governor.record(self.ports.record(name))
        except Fault as fault:
            problem = f"not recorded: {fault}"
        stale = liveness is not Liveness.NORMAL
        reasons = agent_reasons(decision.plan, full=decision.observed.full, stale=stale)
        said = tuple(reason.value for reason in reasons)
        return GroupRound(decision, sighting.seen, said, sequence, fault=problem)

    def _changes(
        self, name: str, now_ms: int, made: GroupRound, liveness: Liveness
    ) -> Sequence[Transition]:
        """The changes that this tick brought, into the event log once they are recorded, in a fixed
        order: the dataplane's trust, admission, then backends by id."""
        if made.sequence is None:
            return ()
        now = GroupStatus(made.plan.admission.mode, liveness, made.decision.observed.isolated)
        before, self._status[name] = self._status.get(name, GroupStatus()), now
        news: list[tuple[str, str | None, str | None, str | None]] = [
            ("failsafe", before.liveness, now.liveness, None),
            ("mode", before.mode, now.mode, None),
        ]
        for id in sorted(before.isolated.keys() | now.isolated.keys()):
            news.append(("isolation", before.isolated.get(id), now.isolated.get(id), id))
        changes = [
            Transition(
                time_ms=now_ms,
                group=name,
                what=what,
                before=None if old is None else str(old),
                after=None if new is None else str(new),
                reasons=made.reasons,
                backend=id,
                record=self.ports.record(name).head(),
            )
            for what, old, new, id in news
            if old != new
        ]
        if self.ports.events is not None:
            for change in changes:
                self.ports.events.transition(change)
        return changes

    # --- act

    def _beat(self, now_ms: int, made: Mapping[str, GroupRound], faults: list[str]) -> None:
        """We are alive as long as all that we decide can be recorded: there is one heartbeat for
        all groups, and a group that cannot be recorded must not keep its last table for good."""
        if any(group.sequence is None for group in made.values()):
            return
        try:
            self.plane.heartbeat()
        except Fault as fault:
            faults.append(f"heartbeat: {fault}")
            return
        self.beat_ms = now_ms

    def _apply(self, name: str, now_ms: int, made: GroupRound) -> GroupRound:
        governor = self.groups[name].governor
        if made.sequence is None:
            governor.settle(applied=False)
            return made
        flipped, problem = False, ""
        if made.seen is None:
            problem = "not applied: the dataplane cannot be read"
        else:
            table = Table(name, made.seen.epoch, dict(made.plan.slots), made.decision.limits)
            try:
                flipped = self._enforce(table, decision=made.sequence)
            except (Fault, Stale) as fault:
                problem = f"not applied: {fault}"
        governor.settle(applied=not problem)
        problem = self._mark(name, made.sequence, now_ms, problem) or problem
        return replace(made, flipped=flipped, fault=problem)

    def _enforce(self, table: Table, *, decision: int) -> bool:
        """Flip to a table that differs from the active one, which may be another than our last;
        else renew what backends may hold."""
        if table != self._tables.get(table.group):
            table = replace(table, epoch=table.epoch + 1)
            self.plane.apply(table, decision=decision)
            self._tables[table.group] = table
            return True
        if table.limits.concurrency is not None:
            self.plane.limit(table.group, table.limits.concurrency, decision=decision)
        return False

    def _mark(self, name: str, sequence: int | None, now_ms: int, problem: str) -> str:
        status: Status = "voided" if problem else "applied"
        decision = known(sequence, "what is marked was recorded")
        try:
            self.ports.record(name).mark(decision, status, time_ms=now_ms, note=problem)
        except Fault as fault:
            return f"not marked: {fault}"
        return ""

    def _drain(self, name: str, made: GroupRound, faults: list[str]) -> None:
        """Ask kept connections to end, once for each drain that is decided and in force."""
        drains = made.decision.drains
        self._drained = {(g, id) for g, id in self._drained if g != name or id in drains}
        for id in drains:
            if (name, id) in self._drained or made.fault:
                continue
            try:
                self.plane.drain(name, id, decision=made.sequence)
                self._drained.add((name, id))
            except Fault as fault:
                faults.append(f"drain {name}/{id}: {fault}")

    def _probe(self, done: Mapping[str, GroupRound]) -> None:
        """Begin the probes of recorded decisions, also of those whose table was not applied."""
        for name, made in done.items():
            if made.decision.observed.probes and made.sequence is not None:
                self.ports.prober.probe(name, made.decision.observed.probes)

    def _anchor(self, now_ms: int, faults: list[str]) -> None:
        """The records to disk, and their ends into the event log if there is one, in time for one
        every 10 s."""
        due = self._anchored_ms is None or (
            now_ms - self._anchored_ms >= ANCHOR_EVERY_MS - _ANCHOR_AHEAD_MS
        )
        if not due:
            return
        heads: dict[str, RecordHead] = {}
        for name in self.groups:
            recorder = self.ports.record(name)
            try:
                recorder.sync()
                heads[name] = recorder.head()
            except Fault as fault:
                faults.append(f"anchor {name}: {fault}")
        if self.ports.events is not None:
            self.ports.events.anchor(now_ms, heads)
        self._anchored_ms = now_ms
