"""One tick of a group's life: what was seen becomes a snapshot, the snapshot a plan.

    memory, seen = observe(memory, sighting, rules)      # health, learned parameters, snapshot
    plan = tick(seen.snapshot)
    memory = settle(memory, plan, applied=True)          # what became of the plan

Pure: the same memory, sighting and rules give the same bytes, so a life replays from its record.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.counters import (
    QUEUE_MS,
    Signals,
    Streak,
    TrafficCounters,
    add,
    counted,
    find_broken,
    outcomes,
    read_counters,
)
from fairlead.core.traffic.health import Cause, Evidence, Tracked, median, track
from fairlead.core.traffic.learn import (
    AdmissionBudget,
    InsideBound,
    failing_flow,
    is_buried,
    latency_reference,
    queue_reference,
)
from fairlead.core.traffic.limits import is_fresh, may_be_starting
from fairlead.core.traffic.memory import BackendHistory, Backoff, GroupMemory, GroupRules
from fairlead.core.traffic.model import Backend, Snapshot, TickPlan
from fairlead.core.traffic.nodes import observe_nodes
from fairlead.core.traffic.pressure import left_sum
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Probed, Reading, Sighting
from fairlead.core.traffic.state import AdmissionMode
from fairlead.core.units import SIZE_MAX

NORMS = 300
CHANCE = 2.0
"""By how much one request's latency may differ by chance from what is usual, in parts of it; that
of n requests by its part of the root of n."""
FEW, ENOUGH = 50, 150
"""Up to so many requests chance counts in full, from so many on not at all."""
BACKOFF_BASE_MS, BACKOFF_MOST_MS = 1_000, 60_000
LASTED_MS = 60_000
"""A return that lasts this long is forgiven."""
_NO_READING = Reading()
Histories = dict[str, BackendHistory]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a sighting came to."""

    snapshot: Snapshot
    isolated: Mapping[str, Cause]
    probes: tuple[str, ...]
    """Isolated backends to probe now."""
    full: bool
    """Open admission has rejected requests since the last tick: too many were inside."""


def observe(
    memory: GroupMemory, sighting: Sighting, rules: GroupRules, *, group: str
) -> tuple[GroupMemory, Observed]:
    """Judge the backends' health and draw up what the tick looks at."""
    sighting, clock_ms = _current(sighting, rules), memory.clock_ms
    if memory.now_ms is not None:
        clock_ms += max(0, sighting.now_ms - memory.now_ms)
    judged, seen = _judge(memory, sighting, rules, clock_ms), sighting.seen
    histories, signals, tracked = judged.histories, judged.signals, judged.tracked
    before, soft = memory.refused_soft, None if seen is None else seen.refused_soft
    more = soft is not None and before is not None and soft > before
    full = more and seen is not None and seen.mode is AdmissionMode.NORMAL
    refused = None if seen is None else seen.refused_soft + seen.refused_hard
    windows, nodes = observe_nodes(memory.nodes, sighting.nodes)
    memory = replace(
        memory,
        now_ms=sighting.now_ms,
        clock_ms=clock_ms,
        healths=tracked.healths,
        backends=tuple(histories.values()),
        norms=judged.norms,
        refused=add(memory.refused, clock_ms, refused, rules.window_ms),
        refused_soft=soft,
        nodes=windows,
    )
    memory, config = _learn(memory, sighting, signals, tracked.isolated, rules)
    if rules.firm:
        signals = _beyond_common(signals, tracked.isolated, config)
    if rules.proven:
        signals = _beyond_chance(signals, tracked.isolated)
    snapshot = Snapshot(
        now_ms=sighting.now_ms,
        group=group,
        backends=tuple(
            _backend(node, signals[name], histories[name], tracked)
            for name, node in sorted(sighting.members.items())
        ),
        nodes=nodes,
        retry_index=_retry_index(memory, [*signals.values()], confirm=rules.confirm),
        config=config,
        state=memory.state,
        confirm=rules.confirm,
    )
    probes = tuple(name for name in tracked.probes if _may_probe(histories[name], clock_ms))
    return memory, Observed(snapshot, tracked.isolated, probes, full)


def settle(memory: GroupMemory, plan: TickPlan, *, applied: bool) -> GroupMemory:
    """Go on from this plan. One that was not applied left the slots as they were. A backend that
    joined or left since then makes them unknown: the whole table will be sent again anyway.
    """
    state, before = plan.state, memory.state
    pressures = {name: pressure.total for name, pressure in plan.pressure.items()}
    if not applied and before is not None and before.s_total == state.s_total:
        slots = {backend.id: backend.slots for backend in before.backends}
        if slots.keys() == {backend.id for backend in state.backends}:
            kept = (replace(backend, slots=slots[backend.id]) for backend in state.backends)
            state = replace(state, backends=tuple(kept))
    return replace(
        memory, pressures=pressures, state=None if before is None and not applied else state
    )


def rested(memory: GroupMemory) -> GroupMemory:
    """What is left of a memory after an absence in which the dataplane fell back: the clock, the
    backends' health, and what was learned of the group. Without the bound of before, an agent that
    comes back to a group at twice its capacity has none until it has seen the group serve, and a
    buried one serves nothing.
    """
    budget, bound = memory.budget, memory.bound
    return GroupMemory(
        now_ms=memory.now_ms,
        clock_ms=memory.clock_ms,
        healths=memory.healths,
        budget=AdmissionBudget(rate=budget.rate, long=budget.long, before=budget.before),
        queue=memory.queue,
        q_ref=memory.q_ref,
        latency=memory.latency,
        l_ref_ms=memory.l_ref_ms,
        bound=InsideBound(bound.value, bound.inside, bound.per_s, busy=bound.busy),
    )


# --- probes and signals


def _current(sighting: Sighting, rules: GroupRules) -> Sighting:
    """The sighting without reports that are too old. Applications of which none has answered yet
    may not have had the time: until then they count as not asked, and the group is not blind.
    """
    now_ms, asked_ms, readings = sighting.now_ms, sighting.asked_ms, sighting.readings
    starting = not readings and asked_ms is not None
    if starting and may_be_starting(asked_ms or 0, rules.scrape_every_ms, rules.scrape_timeout_ms):
        sighting = replace(sighting, covered=())
    fresh = {
        name: reading
        for name, reading in readings.items()
        if reading.at_ms is None or is_fresh(now_ms - reading.at_ms, rules.scrape_every_ms)
    }
    if len(fresh) < len(readings):
        sighting = replace(sighting, readings=fresh)
    nodes = tuple(
        node
        for node in sighting.nodes or ()
        if node.at_ms is None or is_fresh(now_ms - node.at_ms, rules.node_every_ms.get(node.id, 0))
    )
    return sighting if len(nodes) == len(sighting.nodes or ()) else replace(sighting, nodes=nodes)


def _take_probes(memory: GroupMemory, sighting: Sighting) -> Histories:
    known = {history.id: history for history in memory.backends if history.id in sighting.members}
    isolated = memory.isolated
    histories = {name: known.get(name) or BackendHistory(name) for name in sorted(sighting.members)}
    for probed in sighting.probed:
        if probed.backend in known and probed.backend in isolated:  # else it is back, or left
            histories[probed.backend] = _probed(histories[probed.backend], probed)
    for checked in sighting.checked:
        if history := histories.get(checked.backend):
            failures = 0 if checked.ok else (history.check_failures or 0) + 1
            histories[checked.backend] = replace(history, check_failures=failures)
    return histories


def _probed(history: BackendHistory, probed: Probed) -> BackendHistory:
    """The last answer counts: the tracker wants several in a row that are all fast enough. With the
    first of them the errors before it are forgotten, or it would have to wait until none is left in
    the window.
    """
    if probed.latency_ms is None:
        return replace(history, answers=False, probe_failures=history.probe_failures + 1)
    if not probed.ok:
        return replace(history, answers=False, probe_failures=0)
    counters = history.counters if history.answers else history.counters.begin_again()
    answered = replace(history, answers=True, probe_failures=0, counters=counters)
    return replace(answered, probe_ms=probed.latency_ms)


class _Read(NamedTuple):
    """One backend's part of a sighting, read with its history."""

    counters: TrafficCounters
    queues: tuple[tuple[int, float], ...]
    streak: Streak
    signals: Signals
    held: int | None


def _read(history: BackendHistory, sighting: Sighting, clock_ms: int, window_ms: int) -> _Read:
    seen = None if sighting.seen is None else sighting.seen.backends.get(history.id)
    reading, covered = sighting.readings.get(history.id, _NO_READING), sighting.covered
    counters, signals = read_counters(
        history.counters, clock_ms, seen, reading, covered, window_ms=window_ms
    )
    queues: tuple[tuple[int, float], ...] = ()
    queue = signals.queue
    if queue is not None:
        # The mean of the last two looks: one is mostly noise, and five come too late (harness).
        reach_ms = clock_ms - QUEUE_MS
        queues = (*(past for past in history.queues if past[0] > reach_ms), (clock_ms, queue))
        queue = left_sum([count for _, count in queues]) / len(queues)
    p95_ms = signals.p95_ms if history.probe_ms is None else history.probe_ms
    successes, errors = outcomes(seen, reading, covered)
    opened, admitted = (None, None) if seen is None else (seen.open, seen.admitted)
    streak = history.streak.advance(clock_ms, successes, errors, opened, admitted)
    if reading.looks:
        streak = replace(streak, looks=reading.looks)
    signals = signals._replace(queue=queue, p95_ms=p95_ms)
    return _Read(counters, queues, streak, signals, _held(seen, reading, covered))


# --- health


class _Judged(NamedTuple):
    """The backends' health, and what it was judged by; histories are in the order of the ids."""

    histories: Histories
    signals: dict[str, Signals]
    tracked: Tracked
    norms: tuple[float, ...]


def _judge(memory: GroupMemory, sighting: Sighting, rules: GroupRules, clock_ms: int) -> _Judged:
    isolated, histories = memory.isolated, _take_probes(memory, sighting)
    reads = {
        name: _read(history, sighting, clock_ms, rules.window_ms)
        for name, history in histories.items()
    }
    norms, pressures = _judged_pressures(memory, histories, rules)
    streaks, broken = find_broken(
        {name: read.streak for name, read in reads.items()},
        {name: read.held for name, read in reads.items() if name not in isolated},
    )
    probed = Counter((result.backend, result.ok) for result in sighting.probed)
    evidence = []
    for name, history in histories.items():
        read = reads[name]
        histories[name] = replace(
            history, counters=read.counters, queues=read.queues, streak=streaks[name]
        )
        evidence.append(
            Evidence(
                name,
                pressure=pressures.get(name),
                successes=probed[name, True],
                failures=probed[name, False],
                connect_failures_in_a_row=history.probe_failures
                if name in isolated  # its counter stands still and would never let it back
                else _failures_in_a_row(sighting.seen, history, read.signals),
                check_ok=_check_ok(history, rules),
                operator_isolated=name in sighting.commands,
                failing=name in broken,
            )
        )
    tracked = track(memory.healths, evidence, now_ms=clock_ms, rules=rules.health)
    _follow_isolation(
        histories,
        isolated,
        tracked.isolated,
        sighting.seen,
        clock_ms=clock_ms,
        warmup_ms=rules.config.warmup_ms,
    )
    return _Judged(histories, {name: read.signals for name, read in reads.items()}, tracked, norms)


def _judged_pressures(
    memory: GroupMemory, histories: Histories, rules: GroupRules
) -> tuple[tuple[float, ...], dict[str, float]]:
    """P of every backend, as far as it tells the unhealthy from the busy.

    A backend that carries more than an equal share is under pressure because of it, and loses slots
    for it; and while admission is restricted, capacity is what is missing. Isolating the busy makes
    the next ones busy: in the harness two pairs of healthy backends took turns at it. So their P
    counts as no more than what is just not an outlier's. An isolated backend is measured by what is
    usual in the group when none is isolated.
    """
    known = {name: p for name, p in memory.pressures.items() if name in histories}
    isolated, state, norms = memory.isolated, memory.state, memory.norms
    norm = median([pressure for name, pressure in known.items() if name not in isolated])
    if norm is None or state is None:
        return norms, known
    slots = {backend.id: backend.slots for backend in state.backends}
    restricted = state.admission.mode is not AdmissionMode.NORMAL
    most = rules.health.outlier_ratio * norm
    if not isolated and not restricted:
        norms = (*norms, norm)[-NORMS:]
    # The others are under pressure because it is missing; that makes it no better.
    raised = max(1.0, norm / (median(norms) or norm)) if isolated else 1.0
    for name, pressure in known.items():
        if name in isolated:
            known[name] = pressure * raised
        elif restricted or slots.get(name, 0) * len(slots) > state.s_total:
            known[name] = min(pressure, most)
    return norms, known


def _held(backend: BackendSeen | None, reading: Reading, covered: Collection[str]) -> int | None:
    """What is in it, by the same source that counts what leaves it: two counts of different age
    would make healthy backends look stalled.
    """
    if "requests" in covered or "errors" in covered:
        known = reading.looks and "queue" in covered
        return reading.looks[-1].inside if known else None
    return None if backend is None else backend.open


def _failures_in_a_row(seen: GroupSeen | None, history: BackendHistory, signals: Signals) -> int:
    """Connects of traffic that failed in a row since it came back."""
    since = _connect_failures(seen, history.id) - history.failures_before
    return min(signals.connect_failures_in_a_row, max(0, since))


def _check_ok(history: BackendHistory, rules: GroupRules) -> bool | None:
    if rules.check_failures is None or history.check_failures is None:
        return None
    return history.check_failures < rules.check_failures


def _connect_failures(seen: GroupSeen | None, name: str) -> int:
    backend = None if seen is None else seen.backends.get(name)
    return 0 if backend is None else backend.connect_failures or 0


def _follow_isolation(
    histories: Histories,
    before: Mapping[str, Cause],
    now: Mapping[str, Cause],
    seen: GroupSeen | None,
    *,
    clock_ms: int,
    warmup_ms: int,
) -> None:
    """Begin and end what goes with an isolation: probes, back-off, warm-up, forgiven failures."""
    for name in now.keys() - before.keys():
        history = histories[name]
        if now[name] is not Cause.OPERATOR:
            last = history.backoff or Backoff()
            lasted = last.returned_ms is None or clock_ms - last.returned_ms >= LASTED_MS
            backoff = Backoff(1 if lasted else last.times + 1, clock_ms, last.returned_ms)
            history = replace(history, backoff=backoff)
        histories[name] = replace(history, probe_ms=None, answers=False, probe_failures=0)
    for name in (before.keys() - now.keys()) & histories.keys():
        history = histories[name]
        # A backend that was too slow, or failed, for a moment is still warm. One that could not be
        # reached may be another process.
        warm = before[name] is Cause.OUTLIER and history.backoff is not None
        backoff = history.backoff or Backoff()
        away_ms = max(0, clock_ms - backoff.isolated_ms)
        histories[name] = replace(
            history,
            probe_ms=None,
            answers=False,
            still_warm_ms=max(0, warmup_ms - away_ms) if warm else 0,
            backoff=replace(backoff, returned_ms=clock_ms),
            failures_before=_connect_failures(seen, name),
        )


def _may_probe(history: BackendHistory, clock_ms: int) -> bool:
    backoff = history.backoff
    if backoff is None or backoff.times <= 1:
        return True
    wait_ms = min(BACKOFF_BASE_MS << min(backoff.times - 1, 10), BACKOFF_MOST_MS)
    return clock_ms - backoff.isolated_ms >= wait_ms


def _beyond_common(
    signals: Mapping[str, Signals], isolated: Collection[str], config: Config
) -> dict[str, Signals]:
    """Errors that the others show as well are no backend's own: up to `e_ref` their rate is taken
    off. Of half a percent that fail wherever they go one backend always has the most, and lost a
    third of its slots for it.
    """
    serving = {
        name: (one.error_rate * one.requests, one.requests)
        for name, one in sorted(signals.items())
        if name not in isolated and one.error_rate is not None and one.requests
    }
    failed = left_sum([failures for failures, _ in serving.values()])
    sent = sum(requests for _, requests in serving.values())
    found = {}
    for name, one in signals.items():
        failures, requests = serving.get(name, (0.0, 0))
        if one.error_rate is not None and sent > requests:
            common = min(config.e_ref, max(0.0, failed - failures) / (sent - requests))
            one = one._replace(error_rate=max(0.0, one.error_rate - common))  # noqa: PLW2901
        found[name] = one
    return found


def _beyond_chance(signals: Mapping[str, Signals], isolated: Collection[str]) -> dict[str, Signals]:
    """Latencies as far as so many requests prove that they differ from the median of the serving
    backends; what chance explains is no difference.

    The p95 of n requests whose times vary by half (a lognormal of sigma 0.5) is off by 1/sqrt(n) in
    one case of three. Taken as it is, it moves slots of backends that are all alike, in every tick.
    All of them count alike: one that got fewer requests because it is slow is no less slow. Of many
    requests the number counts as it is: what is a seventh slower for long is to get less.
    """
    serving = [one for name, one in sorted(signals.items()) if name not in isolated]
    norm = median([one.p95_ms for one in serving if one.p95_ms is not None])
    counts = [one.requests for one in serving if one.requests is not None]
    if norm is None or not counts:
        return {**signals}
    requests, found = max(1.0, sum(counts) / len(counts)), {}
    doubt = min(1.0, max(0.0, (ENOUGH - requests) / (ENOUGH - FEW)))
    band = 1.0 + doubt * CHANCE / sqrt(requests)
    for name, one in signals.items():
        if one.p95_ms is not None and name not in isolated:
            proven_ms = max(norm, one.p95_ms / band)
            if one.p95_ms < norm:
                proven_ms = min(norm, one.p95_ms * band)
            one = one._replace(p95_ms=proven_ms)  # noqa: PLW2901
        found[name] = one
    return found


def _backend(
    node: str | None, signals: Signals, history: BackendHistory, tracked: Tracked
) -> Backend:
    age_ms = tracked.age_ms[history.id]
    return Backend(
        history.id,
        queue=signals.queue,
        p95_ms=signals.p95_ms,
        error_rate=signals.error_rate,
        requests=signals.requests,
        isolated=history.id in tracked.isolated,
        age_ms=None if age_ms is None else age_ms + history.still_warm_ms,
        rtt_ms=signals.rtt_ms,
        retrans_rate=signals.retrans_rate,
        jitter_ms=signals.jitter_ms,
        node=node,
        debt=signals.queue,
        drain_per_s=signals.drain_per_s,
    )


# --- parameters


def _learn(
    memory: GroupMemory,
    sighting: Sighting,
    signals: Mapping[str, Signals],
    isolated: Collection[str],
    rules: GroupRules,
) -> tuple[GroupMemory, Config]:
    """The parameters, with what follows the group where the operator set none."""
    config, clock_ms = rules.config, memory.clock_ms
    admission = None if memory.state is None else memory.state.admission
    mode = AdmissionMode.NORMAL if admission is None else admission.mode
    serving = [backend for name, backend in signals.items() if name not in isolated]
    changes: dict[str, Any] = {}
    if rules.own_reference:
        queues = [backend.queue for backend in serving if backend.queue is not None]
        queue, usual = memory.queue.advance(clock_ms, queues, mode)
        q_ref = memory.q_ref if usual is None else queue_reference(usual, config)
        memory = replace(memory, queue=queue, q_ref=q_ref)
        changes["q_ref"] = config.q_ref if q_ref is None else q_ref
    if rules.own_latency:
        latencies = [backend.p95_ms for backend in serving if backend.p95_ms is not None]
        latency, usual = memory.latency.advance(clock_ms, latencies, mode)
        l_ref_ms = memory.l_ref_ms if usual is None else latency_reference(usual, config)
        memory = replace(memory, latency=latency, l_ref_ms=l_ref_ms)
        # Unknown yet: latency alone restricts no admission.
        changes |= {"g_min": 0.0} if l_ref_ms is None else {"l_ref_ms": l_ref_ms}
    held = memory.bound.value if rules.own_bound else config.inside_max
    budget = memory.budget.advance(
        clock_ms,
        served(sighting),
        mode=mode,
        triggered=admission is not None and admission.calm_since_ms is None,
        config=config,
        window_ms=rules.window_ms,
        bounded=rules.own_flow and held is not None,
    )
    if rules.own_budget:
        changes |= budget.changes(config)
    bound = memory.bound
    l_ref_ms = changes.get("l_ref_ms") or config.l_ref_ms
    if rules.own_bound:
        busy, idle = inside(sighting)
        known_ms = None if rules.own_latency and "l_ref_ms" not in changes else l_ref_ms
        sunk = rules.confirm and is_buried(busy, budget.now, known_ms, len(serving))
        bound = bound.advance(
            clock_ms,
            inside=busy,
            idle=idle,
            best=budget.best,
            per_s=budget.now,
            l_ref_ms=l_ref_ms,
            serving=len(serving),
            buried=sunk,
            part=rules.part,
        )
        changes["inside_max"] = bound.value
    if changes.get("inside_max", config.inside_max) is not None:
        # A full backend is passed over, so requests do not show where slots send them, and a guard
        # that compares the two would hold every step: a backend that is back got none.
        changes["skew_requests_min"] = SIZE_MAX
        if rules.own_flow:
            changes["g_min"] = failing_flow(changes.get("g_min", config.g_min), config)
    return replace(memory, budget=budget, bound=bound), _changed(config, tuple(changes.items()))


@lru_cache(maxsize=256)
def _changed(config: Config, changes: tuple[tuple[str, Any], ...]) -> Config:
    """Kept, because learned parameters are mostly the same tick after tick."""
    return replace(config, **dict(changes))


def served(sighting: Sighting) -> int | None:
    """Successes of the group so far; where they are not counted, what the dataplane let in."""
    seen, covered = sighting.seen, sighting.covered
    if seen is None:
        return None
    counts = [
        outcomes(seen.backends.get(name), sighting.readings.get(name, _NO_READING), covered)[0]
        for name in sighting.members
    ]
    known = [successes for successes in counts if successes is not None]
    return sum(known) if known else seen.admitted


def inside(sighting: Sighting) -> tuple[int | None, int]:
    """What is being worked on in the group, and what the dataplane counts as inside besides.

    Connections of a dataplane that cannot see requests may be idle ones: then the application has
    to report, and what it does not report is idle.
    """
    seen = {} if sighting.seen is None else sighting.seen.backends
    here = [seen[name] for name in sighting.members if name in seen]
    opened = [backend.open for backend in here if backend.open is not None]
    if len(opened) < len(sighting.members) or not here:
        return None, 0
    if "queue" not in sighting.covered:
        blind = any(backend.queue is None for backend in here)
        return (None, 0) if blind else (sum(opened), 0)
    queues = [sighting.readings.get(name, _NO_READING).queue for name in sighting.members]
    known = [queue for queue in queues if queue is not None]
    busy = round(left_sum(known))
    return (busy, max(0, sum(opened) - busy)) if len(known) == len(queues) else (None, 0)


def _retry_index(memory: GroupMemory, signals: Sequence[Signals], *, confirm: bool) -> float | None:
    """Retries per success; None where they are not counted.

    Rejections of our own admission are repeated too. Counted as a storm they would keep admission
    closed for good, so only retries beyond them count. To `confirm` means that the report of any
    one backend can be disregarded: a storm comes to all of them.
    """
    if all(one.retries is None for one in signals):
        return None
    counts = [(one.retries or 0, one.successes or 0) for one in signals]
    retries = sum(count for count, _ in counts) - (counted(memory.refused) or 0)
    successes = sum(count for _, count in counts)
    left_out = counts if confirm and len(counts) > 1 else [(0, 0)]
    return min(max(0, retries - r) / max(1, successes - s) for r, s in left_out)
