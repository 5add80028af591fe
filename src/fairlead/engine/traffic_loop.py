"""One tick of the traffic governor over all groups: see → decide → record → beat → apply → mark.

    loop = TrafficLoop(plane, groups, ports)
    loop.start(now_ms)                  # versions agree, what a predecessor left behind is voided
    round = loop.tick(now_ms)           # every 200 ms

The loop owns the order and nothing else: the agent on a machine and the harness in virtual time run
this same code. The heartbeat comes after the record and before the flip, so that an agent that can
no longer record stops beating: then the plane holds, falls back, and no door stays closed on the
word of somebody who cannot act any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import Mode, Node, Snapshot, TickPlan
from fairlead.engine.traffic import Sighted
from fairlead.engine.traffic_nodes import NodeWatch
from fairlead.engine.traffic_round import Group, GroupRound, Orders, Ports, Round, Sights
from fairlead.engine.traffic_story import Standing, transitions
from fairlead.ports.dataplane import (
    HOLD_AFTER_MS,
    SCHEMA_VERSION,
    Dataplane,
    GroupSeen,
    Liveness,
    Stale,
    Table,
)
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.recorder import Head, Status
from fairlead.ports.traffic import Transition
from fairlead.schema.traffic import from_plan, from_snapshot, version_of

__all__ = ["Group", "GroupRound", "Orders", "Ports", "Round", "TrafficLoop"]

KIND = "traffic.tick"
ANCHOR_EVERY_MS = 10_000
_ANCHOR_AHEAD_MS = 1_000  # so that a late tick still makes the 10 s
_TOP = 2


class TrafficLoop:
    """Drives the governors of all groups through their ports. One thread."""

    def __init__(self, plane: Dataplane, groups: Sequence[Group], ports: Ports) -> None:
        self.plane, self.ports = plane, ports
        self.groups = {group.route.name: group for group in groups}
        self.beat_ms: int | None = None
        """When the plane last heard of us."""
        self._stale = Liveness.NORMAL
        self._watch = NodeWatch()
        self._tables: dict[str, Table] = {}
        self._standing: dict[str, Standing] = {}
        self._drained: set[tuple[str, str]] = set()
        self._refused: dict[str, int | None] = {}
        self._anchored_ms: int | None = None

    def start(self, now_ms: int) -> int:
        """Agree on versions, take the plane over, void what was recorded and never applied."""
        found = self.plane.schema_version()
        if found != SCHEMA_VERSION:
            raise PermanentFault(
                f"the {self.plane.name} plane is of schema version {found}, this agent of "
                f"{SCHEMA_VERSION}: remove the plane and start again"
            )
        self.plane.configure([group.route for group in self.groups.values()])
        # What a predecessor left standing is not news.
        for name, group in self.groups.items():
            state = group.governor.state
            mode = Mode.NORMAL if state is None else state.door.mode
            self._standing[name] = Standing(mode, Liveness.NORMAL, dict(group.governor.isolated))
        return sum(self._heal(name, now_ms) for name in self.groups)

    def found_stale(self, liveness: Liveness) -> None:
        """What the plane thought of our predecessor before we came: the next tick says it."""
        self._stale = liveness

    def reconfigure(self, groups: Sequence[Group]) -> None:
        """Other groups, or other backends. Governors of groups that stay are to be the same."""
        self.plane.configure([group.route for group in groups])
        self.groups = {group.route.name: group for group in groups}
        for known in (self._tables, self._standing, self._refused):
            for name in known.keys() - self.groups.keys():
                del known[name]

    def tick(self, now_ms: int) -> Round:
        """See, decide and record every group; beat; apply. A fault in one leaves the others be."""
        faults: list[str] = []
        seen = self._read(faults)
        alive = self._liveness(seen, now_ms)
        sighted = self._look(now_ms, seen, faults)
        orders = self.ports.orders()
        made: dict[str, GroupRound] = {}
        changed: list[Transition] = []
        for name in sorted(self.groups):
            group = self.groups[name]
            snapshot = group.governor.observe(self._sighting(group, sighted, orders))
            plan = group.governor.decide(snapshot)
            made[name] = self._recorded(snapshot, plan, alive, (seen or {}).get(name))
            changed += self._tell(name, now_ms, made[name], alive)
        self._beat(now_ms, made, faults)
        done = {name: self._apply(name, now_ms, each) for name, each in made.items()}
        for name, each in done.items():
            self._drain(name, each, orders, faults)
        self._probe()
        self._anchor(now_ms, faults)
        return Round(now_ms, done, tuple(changed), tuple(faults))

    # --- see

    def _read(self, faults: list[str]) -> Mapping[str, GroupSeen] | None:
        try:
            return self.plane.read()
        except Fault as fault:
            faults.append(f"plane: {fault}")
            return None

    def _liveness(self, seen: Mapping[str, GroupSeen] | None, now_ms: int) -> Liveness:
        """What the plane thought of us until now; by our own watch where it cannot be asked."""
        stale, self._stale = self._stale, Liveness.NORMAL
        if stale != Liveness.NORMAL:
            return stale
        for group in (seen or {}).values():
            return group.liveness
        late = self.beat_ms is not None and now_ms - self.beat_ms >= HOLD_AFTER_MS
        return Liveness.HOLD if late else Liveness.NORMAL

    def _look(self, now_ms: int, seen: Mapping[str, GroupSeen] | None, faults: list[str]) -> Sights:
        signals, prober, nodes = self.ports.signals, self.ports.prober, self.ports.nodes
        machines: tuple[Node, ...] = ()
        if nodes is not None:
            try:
                machines = self._watch.observe(nodes.read(now_ms))
            except Fault as fault:
                faults.append(f"nodes: {fault}")
        return Sights(
            now_ms,
            seen or {},
            {} if signals is None else signals.read(now_ms),
            () if prober is None else prober.results(),
            machines,
        )

    def _sighting(self, group: Group, sights: Sights, orders: Orders) -> Sighted:
        name, prober, signals = group.route.name, self.ports.prober, self.ports.signals
        members = [backend.id for backend in group.route.backends]
        return Sighted(
            now_ms=sights.now_ms,
            members={id: group.nodes.get(id) for id in members},
            seen=sights.seen.get(name),
            readings={
                id: sights.readings[name, id] for id in members if (name, id) in sights.readings
            },
            covered=() if signals is None else signals.covers(name),
            nodes=sights.nodes,
            probed=[each for each in sights.probed if each.group == name],
            checks={} if prober is None else {id: prober.check_ok(name, id) for id in members},
            ordered=orders.get(name, {}).keys(),
        )

    # --- record

    def _recorded(
        self, snapshot: Snapshot, plan: TickPlan, alive: Liveness, seen: GroupSeen | None
    ) -> GroupRound:
        recorder, sequence, problem = self.ports.record(snapshot.group), None, ""
        if recorder is not None:
            try:
                sequence = recorder.append(
                    KIND,
                    version=version_of(snapshot),
                    time_ms=snapshot.now_ms,
                    input=from_snapshot(snapshot),
                    output=from_plan(plan),
                )
            except Fault as fault:
                problem = f"not recorded: {fault}"
        reasons = plan.reasons
        if self._full(snapshot.group, plan, seen):
            busy = (reason for reason in reasons if reason is not TrafficReason.STEADY)
            reasons = (TrafficReason.FULL, *busy)
        if alive != Liveness.NORMAL:
            reasons = (TrafficReason.FAILSAFE, *reasons)
        said = tuple(reason.value for reason in reasons[:_TOP])
        return GroupRound(snapshot, plan, said, seen, sequence, flipped=False, fault=problem)

    def _full(self, name: str, plan: TickPlan, seen: GroupSeen | None) -> bool:
        """Did an open door refuse somebody since the last tick? Then too many were inside."""
        before, now = self._refused.get(name), None if seen is None else seen.refused_soft
        self._refused[name] = now
        more = before is not None and now is not None and now > before
        door = None if seen is None else seen.mode
        return more and plan.admission.mode is Mode.NORMAL and door is Mode.NORMAL

    def _heal(self, name: str, now_ms: int) -> int:
        """A plan of a dead agent is about a world that is gone: void it, the next tick decides."""
        recorder = self.ports.record(name)
        left = recorder.unapplied() if recorder else []
        for entry in left:
            assert recorder is not None
            recorder.mark(entry.seq, "voided", time_ms=now_ms, note="agent restarted")
        return len(left)

    def _tell(
        self, name: str, now_ms: int, made: GroupRound, alive: Liveness
    ) -> Sequence[Transition]:
        """The changes that this tick brought, into the chronicle once they are recorded."""
        if made.fault:
            return ()
        now = Standing(made.plan.admission.mode, alive, dict(self.groups[name].governor.isolated))
        before = self._standing.get(name, Standing(Mode.NORMAL, Liveness.NORMAL, {}))
        recorder = self.ports.record(name)
        found = transitions(
            before,
            now,
            time_ms=now_ms,
            group=name,
            reasons=made.reasons,
            record=recorder.head() if recorder and made.sequence is not None else None,
        )
        self._standing[name] = now
        if self.ports.chronicle is not None:
            for each in found:
                self.ports.chronicle.transition(each)
        return found

    # --- act

    def _beat(self, now_ms: int, made: Mapping[str, GroupRound], faults: list[str]) -> None:
        """We are alive as long as something of what we decide can be recorded."""
        if made and all(each.fault for each in made.values()):
            return
        try:
            self.plane.heartbeat()
        except Fault as fault:
            faults.append(f"heartbeat: {fault}")
            return
        self.beat_ms = now_ms

    def _apply(self, name: str, now_ms: int, made: GroupRound) -> GroupRound:
        governor = self.groups[name].governor
        if made.fault:
            governor.settle(made.plan, applied=False)
            return made
        flipped, problem = False, ""
        if made.seen is None:
            problem = "not applied: the plane cannot be read"
        else:
            table = governor.table(made.snapshot, made.plan, made.seen, made.seen.epoch)
            try:
                flipped = self._enforce(table, decision=made.sequence)
            except (Fault, Stale) as fault:
                problem = f"not applied: {fault}"
        governor.settle(made.plan, applied=not problem)
        problem = self._mark(name, made.sequence, now_ms, problem) or problem
        return replace(made, flipped=flipped, fault=problem)

    def _enforce(self, table: Table, *, decision: int | None) -> bool:
        """Flip to a table that differs from the active one, which may be another than our last;
        else renew what backends may hold."""
        if table != self._tables.get(table.group):
            table = replace(table, epoch=table.epoch + 1)
            self.plane.apply(table, decision=decision)
            self._tables[table.group] = table
            return True
        if table.limits.concurrency is not None:
            self.plane.limit(table.group, table.limits.concurrency.room, decision=decision)
        return False

    def _mark(self, name: str, sequence: int | None, now_ms: int, problem: str) -> str:
        recorder = self.ports.record(name)
        if recorder is None or sequence is None:
            return ""
        status: Status = "voided" if problem else "applied"
        try:
            recorder.mark(sequence, status, time_ms=now_ms, note=problem)
        except Fault as fault:
            return f"not marked: {fault}"
        return ""

    def _drain(self, name: str, made: GroupRound, orders: Orders, faults: list[str]) -> None:
        """Ask kept connections to end, once, when nothing new can come any more."""
        wanted = {id for id, order in orders.get(name, {}).items() if order == "drain"}
        self._drained = {(g, id) for g, id in self._drained if g != name or id in wanted}
        table = self._tables.get(name)
        for id in sorted(wanted):
            if (name, id) in self._drained or made.fault or table is None or table.slots.get(id, 1):
                continue
            try:
                self.plane.drain(name, id, decision=made.sequence)
                self._drained.add((name, id))
            except Fault as fault:
                faults.append(f"drain {name}/{id}: {fault}")

    def _probe(self) -> None:
        prober = self.ports.prober
        if prober is None:
            return
        for name, group in self.groups.items():
            if due := group.governor.probes:
                prober.probe(name, due)

    def _anchor(self, now_ms: int, faults: list[str]) -> None:
        """The ends of the records into the chronicle, in time for one every 10 s."""
        chronicle = self.ports.chronicle
        due = self._anchored_ms is None or (
            now_ms - self._anchored_ms >= ANCHOR_EVERY_MS - _ANCHOR_AHEAD_MS
        )
        if chronicle is None or not due:
            return
        heads: dict[str, Head] = {}
        for name in self.groups:
            recorder = self.ports.record(name)
            if recorder is not None:
                try:
                    recorder.sync()
                    heads[name] = recorder.head()
                except Fault as fault:
                    faults.append(f"anchor {name}: {fault}")
        chronicle.anchor(now_ms, heads)
        self._anchored_ms = now_ms
