"""One group of the traffic governor as a state machine: sightings in, plans out. No I/O, no clock.

    governor = GroupGovernor("web", GroupRules())
    snapshot = governor.observe(sighted)          # each tick: what was seen of the group
    plan = governor.decide(snapshot)              # record it, then apply it
    governor.settle(plan, applied=True)           # what became of it

Two decisions of core meet here: the health tracker says who is isolated, the tick obeys it. The
loop and the harness drive it; `export`, `restore` and `resume` carry it across a restart.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fairlead.core.traffic import (
    Cause,
    Config,
    Mode,
    Sighting,
    Snapshot,
    State,
    TickPlan,
    Tracked,
    tick,
    track,
)
from fairlead.core.traffic.health import median
from fairlead.core.traffic.limits import plan_limits
from fairlead.core.units import SIZE_MAX
from fairlead.engine.traffic_backoff import Backoff
from fairlead.engine.traffic_bound import InsideBound
from fairlead.engine.traffic_budget import Budget
from fairlead.engine.traffic_reference import LatencyReference, QueueReference
from fairlead.engine.traffic_signals import BackendMeters, Meter, Seen
from fairlead.engine.traffic_streak import Streak, broken
from fairlead.engine.traffic_values import (
    BadTrafficState,
    GroupRules,
    Sighted,
    backend_of,
    connect_failures,
    health_of,
    honest,
    inside,
    outcomes,
    served,
    unmoved,
)
from fairlead.ports.dataplane import Admission, BackendSeen, GroupSeen, Table
from fairlead.ports.traffic import Probed, Reading
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.traffic_config import AgentConfigDocument, to_config
from fairlead.schema.traffic_state import StateDocument, to_state

USUAL_TICKS = 300
__all__ = ["BadTrafficState", "GroupGovernor", "GroupRules", "Sighted"]


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
        self._still_warm_ms: dict[str, int] = {}
        """Of those who came back: how much of the warm-up a short absence spares them."""
        self._budget = Budget(rules.config, window_ms=rules.window_ms)
        self._reference = QueueReference(rules.config)
        self._usual_latency = LatencyReference(rules.config)
        self._bound = InsideBound()
        self._streaks: dict[str, Streak] = {}
        self._norms: deque[float] = deque(maxlen=USUAL_TICKS)
        self._refused = Meter(rules.window_ms)

    # --- one tick

    def observe(self, sighted: Sighted) -> Snapshot:
        """Judge everybody's health and draw up what the tick looks at."""
        self._advance(sighted.now_ms)
        signals = self._see(sighted)
        self._track(sighted, signals)
        isolated = self.isolated
        return Snapshot(
            now_ms=sighted.now_ms,
            group=self.name,
            backends=tuple(
                backend_of(
                    name, signals[name], node, isolated=name in isolated, age_ms=self._age(name)
                )
                for name, node in sorted(sighted.members.items())
            ),
            nodes=sighted.nodes,
            retry_index=self._retry_index(signals.values(), sighted.seen),
            config=self._config(sighted, signals),
            state=self.state,
        )

    def decide(self, snapshot: Snapshot) -> TickPlan:
        """The tick. Nothing is remembered of it before `settle`."""
        return tick(snapshot)

    def settle(self, plan: TickPlan, *, applied: bool) -> None:
        """Go on from this plan. One that was not applied left the slots as they were."""
        self._pressure = {name: each.total for name, each in plan.pressure.items()}
        self.state = plan.state if applied else unmoved(plan.state, self.state)

    @property
    def isolated(self) -> Mapping[str, Cause]:
        """Who gets nothing now, and why."""
        return self.tracked.isolated if self.tracked else {}

    @property
    def probes(self) -> tuple[str, ...]:
        """Who is to be knocked at now."""
        due = self.tracked.probes if self.tracked else ()
        return tuple(name for name in due if self._backoff.may_probe(name, self.clock_ms))

    def table(self, snapshot: Snapshot, plan: TickPlan, seen: GroupSeen, epoch: int) -> Table:
        """The plan as a dataplane takes it, with the limits that go with its slots."""
        config = snapshot.config
        limits = plan_limits(
            plan.slots,
            plan.admission,
            stored=Admission(Mode.SOFT, config.bucket_rate, config.bucket_burst),
            inside_max=config.inside_max,
            open={id: backend.open for id, backend in seen.backends.items()},
        )
        return Table(self.name, epoch, dict(plan.slots), limits)

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
            for known in (
                self._failures_before,
                self._probe_failures,
                self._streaks,
                self._still_warm_ms,
            ):
                known.pop(name, None)
        self._take_probes(sighted.probed)
        seen = sighted.seen.backends if sighted.seen else {}
        found = {}
        for name in sighted.members:
            meters = self._meters.setdefault(name, BackendMeters(self.rules.window_ms))
            reading = sighted.readings.get(name, Reading())
            found[name] = meters.see(
                self.clock_ms, honest(seen.get(name)), reading, sighted.covered
            )
        return found

    def _take_probes(self, probed: Sequence[Probed]) -> None:
        for each in probed:
            if each.backend not in self.isolated or each.backend not in self._meters:
                continue  # it came back, or left, while the answer was on its way
            answered = each.latency_ms is not None
            failures = 0 if answered else self._probe_failures.get(each.backend, 0) + 1
            self._probe_failures[each.backend] = failures
            self._meters[each.backend].probed(each.latency_ms if each.ok else None)

    def _track(self, sighted: Sighted, signals: Mapping[str, Seen]) -> None:
        before = self.isolated
        answers: dict[str, list[Probed]] = {}
        for each in sighted.probed:
            answers.setdefault(each.backend, []).append(each)
        judged, failing = self._judged(sighted.members), self._failing(sighted)
        sightings = [
            Sighting(
                name,
                pressure=judged.get(name),
                successes=sum(each.ok for each in answers.get(name, ())),
                failures=sum(not each.ok for each in answers.get(name, ())),
                connect_failures_in_a_row=self._in_a_row(name, sighted.seen, signals[name]),
                check_ok=sighted.checks.get(name),
                operator_isolated=name in sighted.ordered,
                failing=name in failing,
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
            self._still_warm_ms[name] = self._spared(name, before[name])
            self._backoff.returned(name, self.clock_ms)
            self._failures_before[name] = connect_failures(sighted.seen, name)

    def _spared(self, name: str, cause: Cause) -> int:
        """Who was too slow, or failed, for a moment is still warm. Who could not be reached may be
        another process.
        """
        away_ms = self._backoff.away_ms(name, self.clock_ms)
        if cause is not Cause.OUTLIER or away_ms is None:
            return 0
        return max(0, self.rules.config.warmup_ms - away_ms)

    def _age(self, name: str) -> int | None:
        age_ms = self.tracked.age_ms.get(name) if self.tracked else None
        return None if age_ms is None else age_ms + self._still_warm_ms.get(name, 0)

    def _judged(self, members: Collection[str]) -> dict[str, float]:
        """P of everybody, as far as it tells the sick from the busy.

        Who carries more than an equal share is under pressure because of it, and loses slots for
        it; and while the door is not open, capacity is what is missing. Isolating the busy makes
        the next ones busy: in the harness two pairs of healthy backends took turns at it. So their
        P counts as no more than what is just not an outlier's. Who is isolated is measured by what
        is usual in the group when nobody is.
        """
        known = {name: self._pressure[name] for name in members if name in self._pressure}
        norm = median([each for name, each in known.items() if name not in self.isolated])
        if norm is None or self.state is None:
            return known
        slots = {memory.id: memory.slots for memory in self.state.backends}
        restricted = self.state.door.mode is not Mode.NORMAL
        most = self.rules.health.outlier_ratio * norm
        if not self.isolated and not restricted:
            self._norms.append(norm)
        for name in known.keys() & self.isolated.keys():
            # The others are under pressure because it is missing; that makes it no better.
            known[name] *= max(1.0, norm / (median(list(self._norms)) or norm))
        for name in known.keys() - self.isolated.keys():
            if restricted or slots.get(name, 0) * len(slots) > self.state.s_total:
                known[name] = min(known[name], most)
        return known

    def _failing(self, sighted: Sighted) -> Collection[str]:
        """Who is broken altogether, just now."""
        seen = sighted.seen.backends if sighted.seen else {}
        held: dict[str, int | None] = {}
        for name in sighted.members:
            backend, reading = honest(seen.get(name)), sighted.readings.get(name, Reading())
            counted = outcomes(backend, reading, sighted.covered)
            streak = self._streaks.setdefault(name, Streak())
            streak.advance(self.clock_ms, *counted, None if backend is None else backend.open)
            streak.send(self.clock_ms, None if backend is None else backend.admitted)
            if reading.looks:
                streak.adopt(reading.looks)
            if name not in self.isolated:
                held[name] = self._held(backend, reading, sighted.covered)
        return broken(self._streaks, held)

    @staticmethod
    def _held(
        backend: BackendSeen | None, reading: Reading, covered: Collection[str]
    ) -> int | None:
        """What is in it, by whoever counts what leaves it: two counts of different age would make
        the healthy stall.
        """
        if {"requests", "errors"} & set(covered):
            known = reading.looks and "queue" in covered
            return reading.looks[-1].inside if known else None
        return None if backend is None else backend.open

    def _in_a_row(self, name: str, seen: GroupSeen | None, signals: Seen) -> int:
        """Connects that failed in a row: of probes while it is isolated, for its counter stands
        still then and would never let it back; of traffic since it came back otherwise.
        """
        if name in self.isolated:
            return self._probe_failures.get(name, 0)
        since = connect_failures(seen, name) - self._failures_before.get(name, 0)
        return min(signals.connect_failures_in_a_row, max(0, since))

    def _config(self, sighted: Sighted, signals: Mapping[str, Seen]) -> Config:
        """The parameters, with what follows the group where the operator left it to us."""
        config, door = self.rules.config, None if self.state is None else self.state.door
        mode = Mode.NORMAL if door is None else door.mode
        serving = [each for name, each in signals.items() if name not in self.isolated]
        if self.rules.own_reference:
            queues = [each.queue for each in serving if each.queue is not None]
            config = replace(config, q_ref=self._reference.advance(self.clock_ms, queues, mode))
        if self.rules.own_latency:
            latencies = [each.p95_ms for each in serving if each.p95_ms is not None]
            usual_ms = self._usual_latency.advance(self.clock_ms, latencies, mode)
            # Unknown yet: latency alone closes no door.
            config = (
                replace(config, g_min=0.0)
                if usual_ms is None
                else replace(config, l_ref_ms=usual_ms)
            )
        triggered = door is not None and door.calm_since_ms is None
        self._budget.advance(self.clock_ms, served(sighted), mode=mode, triggered=triggered)
        if self.rules.own_budget:
            config = self._budget.laid_over(config)
        if self.rules.own_bound:
            busy, idle = inside(sighted)
            most = self._bound.advance(
                self.clock_ms,
                inside=busy,
                idle=idle,
                best=self._budget.best(),
                per_s=self._budget.now(),
                l_ref_ms=config.l_ref_ms,
                serving=len(serving),
            )
            config = replace(config, inside_max=most)
        if config.inside_max is not None:
            # Who is full is passed over, so requests do not show where slots send them, and a
            # guard that compares the two would hold every step: one that is back got none.
            config = replace(config, skew_requests_min=SIZE_MAX)
        return config

    def _retry_index(self, signals: Collection[Seen], seen: GroupSeen | None) -> float | None:
        """Retries per success; None where nobody counts them.

        Refusals of our own door are repeated too. Counted as a storm they would keep the door shut
        for ever, so only retries beyond them count.
        """
        total = None if seen is None else seen.refused_soft + seen.refused_hard
        refused = self._refused.add(self.clock_ms, total) or 0
        retries = [each.retries for each in signals if each.retries is not None]
        if not retries:
            return None
        successes = sum(each.successes or 0 for each in signals)
        return max(0, sum(retries) - refused) / max(1, successes)

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
            healths = tuple(health_of(each) for each in stored["healths"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadTrafficState(f"group {self.name!r}: {error!r}") from error
        self._now_ms, self.clock_ms = now_ms, clock_ms
        isolated = {health.id: health.cause for health in healths if health.cause is not None}
        ages: dict[str, int | None] = {health.id: None for health in healths}
        self.tracked = Tracked(healths, isolated, (), ages)

    def resume(self, state: Mapping[str, Any] | None, config: Mapping[str, Any]) -> None:
        """Go on from the state of a recorded tick, and from what had been learnt by then."""
        try:
            self.state = None if state is None else to_state(check_shape(state, StateDocument))
            learnt = to_config(check_shape(dict(config), AgentConfigDocument))
        except BadInput as error:
            raise BadTrafficState(f"group {self.name!r}: {error}") from error
        self._budget.rate, self._reference.value = learnt.bucket_rate, learnt.q_ref
        self._bound.value = learnt.inside_max
        if learnt.g_min:  # else it was not known yet
            self._usual_latency.value = learnt.l_ref_ms
