"""One group of the traffic governor as a state machine: sightings in, plans out. No I/O, no clock.

    governor = GroupGovernor("web", GroupRules())
    snapshot = governor.observe(sighted)          # each tick: what was seen of the group
    plan = governor.decide(snapshot)              # record it, then apply it
    governor.settle(plan, applied=True)           # what became of it

Two decisions of core meet here: the health tracker says who is isolated, the tick obeys it. The
loop and the harness drive it; `export`, `restore` and `resume` carry it across a restart.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any

from fairlead.core.traffic import (
    Backend,
    Cause,
    Config,
    Health,
    HealthRules,
    Node,
    Sighting,
    Snapshot,
    State,
    TickPlan,
    Tracked,
    tick,
    track,
)
from fairlead.core.units import FLOAT_MAX, SIZE_MAX
from fairlead.engine.traffic_backoff import Backoff
from fairlead.engine.traffic_signals import WINDOW_MS, BackendMeters, Seen
from fairlead.ports.dataplane import Admission, BackendSeen, GroupSeen, Mode, Table
from fairlead.ports.traffic import Probed, Reading
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.traffic_state import StateDocument, to_state


class BadTrafficState(ValueError):  # noqa: N818 - named as the documents name things
    """A stored state that is not one of ours: refused whole rather than half believed."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """How a group is governed."""

    config: Config = field(default_factory=Config)
    health: HealthRules = field(default_factory=HealthRules)
    window_ms: int = WINDOW_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighted:
    """All that was seen of a group for one tick."""

    now_ms: int
    members: Mapping[str, str | None]
    """Backends that the group has now, and the machine each is on where that is known."""
    seen: GroupSeen | None = None
    """None: the plane could not be read."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    covered: Collection[str] = ()
    nodes: tuple[Node, ...] = ()
    probed: Sequence[Probed] = ()
    checks: Mapping[str, bool | None] = field(default_factory=dict)
    ordered: Collection[str] = ()
    """Backends that the operator isolated or drains."""


class GroupGovernor:
    """What is remembered of one group, and what is decided for it."""

    def __init__(self, name: str, rules: GroupRules) -> None:
        self.name, self.rules = name, rules
        self.state: State | None = None
        self.tracked: Tracked | None = None
        self.clock_ms = 0
        self._now_ms: int | None = None
        self._meters: dict[str, BackendMeters] = {}
        self._pressure: dict[str, float] = {}
        self._backoff = Backoff()
        self._failures_before: dict[str, int] = {}
        """Failed connects of a backend when it came back: those are forgiven."""
        self._probe_failures: dict[str, int] = {}

    # --- one tick

    def observe(self, sighted: Sighted) -> Snapshot:
        """Judge everybody's health and draw up what the tick looks at."""
        self._advance(sighted.now_ms)
        signals = self._see(sighted)
        self._track(sighted, signals)
        isolated, ages = self.isolated, self.tracked.age_ms if self.tracked else {}
        return Snapshot(
            now_ms=sighted.now_ms,
            group=self.name,
            backends=tuple(
                _backend(name, signals[name], node, isolated=name in isolated, age_ms=ages[name])
                for name, node in sorted(sighted.members.items())
            ),
            nodes=sighted.nodes,
            retry_index=_retry_index(signals.values()),
            config=self.rules.config,
            state=self.state,
        )

    def decide(self, snapshot: Snapshot) -> TickPlan:
        """The tick. Nothing is remembered of it before `settle`."""
        return tick(snapshot)

    def settle(self, plan: TickPlan, *, applied: bool) -> None:
        """Go on from this plan. One that was not applied left the slots as they were."""
        self._pressure = {name: each.total for name, each in plan.pressure.items()}
        self.state = plan.state if applied else _unmoved(plan.state, self.state)

    @property
    def isolated(self) -> Mapping[str, Cause]:
        """Who gets nothing now, and why."""
        return self.tracked.isolated if self.tracked else {}

    @property
    def probes(self) -> tuple[str, ...]:
        """Who is to be knocked at now."""
        due = self.tracked.probes if self.tracked else ()
        return tuple(name for name in due if self._backoff.may_probe(name, self.clock_ms))

    def table(self, plan: TickPlan, epoch: int) -> Table:
        """The plan as a plane takes it, with the budget that `hard` decays to without us."""
        config, door = self.rules.config, plan.admission
        admission = Admission(
            mode=Mode(door.mode.value),
            rate_per_s=door.rate_per_s,
            burst=door.burst,
            stored_rate_per_s=config.bucket_rate,
            stored_burst=config.bucket_burst,
        )
        return Table(self.name, epoch, dict(plan.slots), admission)

    # --- what it consists of

    def _advance(self, now_ms: int) -> None:
        """Our own clock: it never goes back, whatever happens to the machine's."""
        if self._now_ms is not None:
            self.clock_ms += max(0, now_ms - self._now_ms)
        self._now_ms = now_ms

    def _see(self, sighted: Sighted) -> dict[str, Seen]:
        for name in self._meters.keys() - sighted.members.keys():
            del self._meters[name]
            self._backoff.forget(name)
            self._failures_before.pop(name, None)
            self._probe_failures.pop(name, None)
        self._take_probes(sighted.probed)
        seen = sighted.seen.backends if sighted.seen else {}
        found = {}
        for name in sighted.members:
            meters = self._meters.setdefault(name, BackendMeters(self.rules.window_ms))
            reading = sighted.readings.get(name, Reading())
            found[name] = meters.see(
                self.clock_ms, _honest(seen.get(name)), reading, sighted.covered
            )
        return found

    def _take_probes(self, probed: Sequence[Probed]) -> None:
        for each in probed:
            if each.backend not in self.isolated or each.backend not in self._meters:
                continue  # it came back, or left, while the answer was on its way
            failures = 0 if each.ok else self._probe_failures.get(each.backend, 0) + 1
            self._probe_failures[each.backend] = failures
            if each.ok and each.latency_ms is not None:
                self._meters[each.backend].probed(each.latency_ms)

    def _track(self, sighted: Sighted, signals: Mapping[str, Seen]) -> None:
        before = self.isolated
        answers: dict[str, list[Probed]] = {}
        for each in sighted.probed:
            answers.setdefault(each.backend, []).append(each)
        sightings = [
            Sighting(
                name,
                pressure=self._pressure.get(name),
                successes=sum(each.ok for each in answers.get(name, ())),
                failures=sum(not each.ok for each in answers.get(name, ())),
                connect_failures_in_a_row=self._in_a_row(name, sighted.seen, signals[name]),
                check_ok=sighted.checks.get(name),
                operator_isolated=name in sighted.ordered,
            )
            for name in sighted.members
        ]
        healths = self.tracked.healths if self.tracked else None
        self.tracked = track(healths, sightings, now_ms=self.clock_ms, rules=self.rules.health)
        for name in self.isolated.keys() - before.keys():
            self._meters[name].forget_probes()
            self._probe_failures[name] = 0
            if self.isolated[name] is not Cause.OPERATOR:
                self._backoff.isolated(name, self.clock_ms)
        for name in (before.keys() - self.isolated.keys()) & sighted.members.keys():
            self._meters[name].forget_probes()
            self._backoff.returned(name, self.clock_ms)
            self._failures_before[name] = _connect_failures(sighted.seen, name)

    def _in_a_row(self, name: str, seen: GroupSeen | None, signals: Seen) -> int:
        """Connects that failed in a row: of probes while it is isolated, for its counter stands
        still then and would never let it back; of traffic since it came back otherwise.
        """
        if name in self.isolated:
            return self._probe_failures.get(name, 0)
        since = _connect_failures(seen, name) - self._failures_before.get(name, 0)
        return min(signals.connect_failures_in_a_row, max(0, since))

    # --- across a restart

    def export(self) -> dict[str, Any]:
        """What the next agent goes on from, beside the last tick, which is in its record."""
        return {
            "now_ms": self._now_ms,
            "clock_ms": self.clock_ms,
            "healths": [asdict(health) for health in self.tracked.healths] if self.tracked else [],
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """The inverse of `export`; what does not fit is refused."""
        try:
            now_ms, clock_ms = int(stored["now_ms"]), int(stored["clock_ms"])
            healths = tuple(_health(each) for each in stored["healths"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadTrafficState(f"group {self.name!r}: {error!r}") from error
        self._now_ms, self.clock_ms = now_ms, clock_ms
        isolated = {health.id: health.cause for health in healths if health.cause is not None}
        ages: dict[str, int | None] = {health.id: None for health in healths}
        self.tracked = Tracked(healths, isolated, (), ages)

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Go on from the state of a recorded tick."""
        try:
            self.state = None if state is None else to_state(check_shape(state, StateDocument))
        except BadInput as error:
            raise BadTrafficState(f"group {self.name!r}: {error}") from error


def _health(stored: Mapping[str, Any]) -> Health:
    health = Health(**stored)
    times = (health.high_since_ms, health.probed_ms, health.born_ms, health.streak)
    if type(health.id) is not str or not all(type(each) in (int, type(None)) for each in times):
        raise ValueError(f"not a backend's health: {stored!r}")
    return replace(health, cause=None if health.cause is None else Cause(health.cause))


def _unmoved(after: State, before: State | None) -> State | None:
    """The state with the slots that are still in force. Who joined or left since then makes them
    unknown: the plane will be told the whole table again anyway.
    """
    if before is None:
        return None
    slots = {memory.id: memory.slots for memory in before.backends}
    same = slots.keys() == {memory.id for memory in after.backends}
    if not same or before.s_total != after.s_total:
        return after
    return replace(
        after,
        backends=tuple(replace(memory, slots=slots[memory.id]) for memory in after.backends),
    )


def _connect_failures(seen: GroupSeen | None, name: str) -> int:
    backend = None if seen is None else seen.backends.get(name)
    return 0 if backend is None else backend.connect_failures or 0


def _retry_index(signals: Collection[Seen]) -> float | None:
    """Retries per success; None where nobody counts them, or nothing succeeded yet."""
    retries = [each.retries for each in signals if each.retries is not None]
    if not retries:
        return None
    successes = sum(each.successes or 0 for each in signals)
    return sum(retries) / max(1, successes)


def _backend(
    name: str, seen: Seen, node: str | None, *, isolated: bool, age_ms: int | None
) -> Backend:
    return Backend(
        name,
        queue=_measure(seen.queue),
        p95_ms=_measure(seen.p95_ms),
        error_rate=_measure(seen.error_rate),
        requests=seen.requests if seen.requests is None or seen.requests <= SIZE_MAX else None,
        isolated=isolated,
        age_ms=age_ms,
        rtt_ms=_measure(seen.rtt_ms),
        retrans_rate=_measure(seen.retrans_rate),
        node=node,
    )


def _measure(value: float | None) -> float | None:
    """A measurement, or None for what no sensor can have meant."""
    if value is None or not isfinite(value) or not 0 <= value <= FLOAT_MAX:
        return None
    return float(value)


def _honest(seen: BackendSeen | None) -> BackendSeen | None:
    """Without counters that are below zero: a plane that says so knows nothing."""
    if seen is None:
        return None
    return replace(
        seen,
        admitted=max(0, seen.admitted),
        connect_failures=_count(seen.connect_failures),
        successes=_count(seen.successes),
        errors=_count(seen.errors),
        retransmits=_count(seen.retransmits),
        queue=_count(seen.queue),
    )


def _count(value: int | None) -> int | None:
    return None if value is None or value < 0 else value
