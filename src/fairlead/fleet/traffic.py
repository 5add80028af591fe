"""Tick thousands of groups in one call, bit-equal to `fairlead.core.traffic.tick` on each.

    from fairlead.fleet.traffic import TrafficSnapshot, tick_fleet

    plan = tick_fleet(TrafficSnapshot(...))      # columns in, columns out
    plan = tick_fleet(replace(snapshot, now_ms=..., p95_ms=..., state=plan.state))

The steps and their names are those of `fairlead.core.traffic.tick`; read that first. Steady and
slewing groups, isolated backends, warm-up, few requests and any door are decided in columns. What
is rare is ticked by core and counted in `TrafficPlan.fallback`: missing signals, members that came,
left or were isolated in this tick, nobody routable, and remainders too close to call.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairlead.core.traffic.admission import admission_of, advance_door
from fairlead.core.traffic.model import TickPlan
from fairlead.core.traffic.modes import Mode
from fairlead.core.traffic.tick import tick
from fairlead.core.units import INTEGER_MAX
from fairlead.fleet.columns import UNKNOWN, Bools, Floats, Ints
from fairlead.fleet.traffic_explain import Conditions, reason_codes
from fairlead.fleet.traffic_machines import MachineWatch, watch_machines
from fairlead.fleet.traffic_plan import TrafficPlan
from fairlead.fleet.traffic_signals import Signals, read_signals, skews, warm, weigh
from fairlead.fleet.traffic_slots import Steps, guarded_steps, left_sums, target_rows
from fairlead.fleet.traffic_snapshot import TrafficSnapshot
from fairlead.fleet.traffic_state import MODE_CODE, MODES, TrafficState
from fairlead.fleet.traffic_table import GroupTable, cut

__all__ = ["TrafficPlan", "TrafficSnapshot", "TrafficState", "tick_fleet"]

_SOFT, _HARD = MODE_CODE[Mode.SOFT], MODE_CODE[Mode.HARD]


class Groups(NamedTuple):
    """What is known of every group before its backends are looked at."""

    snapshot: TrafficSnapshot
    before: TrafficState
    first: bool
    same: Bools
    """Groups with the members they had, and a state in columns."""
    clock_ms: Ints
    watch: MachineWatch
    level: Ints
    """What the triggers ask for, conductance apart."""
    relaxes: Bools
    crisis: Bools
    halvings: Ints
    guard_since_ms: Ints


def tick_fleet(snapshot: TrafficSnapshot) -> TrafficPlan:
    """Decide one tick of every group."""
    groups = _look(snapshot)
    plan = TrafficPlan.blank(_carry(groups))
    for table in cut(snapshot.roster):
        _tick_table(table, groups, plan)
    return _fall_back(snapshot, plan)


def _look(snapshot: TrafficSnapshot) -> Groups:
    config, rosters = snapshot.config, (snapshot.roster, snapshot.machines, snapshot.resources)
    first = snapshot.state is None
    if snapshot.state is None:
        before, same = TrafficState.blank(*rosters, config), np.ones(rosters[0].nodes, np.bool_)
    else:
        before, same = snapshot.state.onto(*rosters, config)
        same[list(before.odd)] = False
    elapsed_ms = np.zeros_like(before.now_ms)
    if not first:
        elapsed_ms = np.maximum(0, snapshot.now_ms - before.now_ms)
    clock_ms = np.minimum(before.clock_ms + elapsed_ms, INTEGER_MAX)
    advanced = clock_ms > before.clock_ms
    watch = watch_machines(snapshot, before, clock_ms=clock_ms, advanced=advanced, first=first)
    level = _levels(snapshot, watch)
    calm_ms = clock_ms - np.where(before.calm_since_ms == UNKNOWN, clock_ms, before.calm_since_ms)
    relaxes = (level < before.mode) & (calm_ms >= config.t_recover_min_ms)
    doublings = (clock_ms - before.guard_since_ms) // config.guard_quiet_ms
    grown = doublings >= before.halvings
    since_ms = before.guard_since_ms + doublings * config.guard_quiet_ms
    return Groups(
        snapshot=snapshot,
        before=before,
        first=first,
        same=same,
        clock_ms=clock_ms,
        watch=watch,
        level=level,
        relaxes=relaxes,
        crisis=(level == _HARD) | ((before.mode == _HARD) & ~relaxes),
        halvings=np.where(grown, 0, before.halvings - doublings),
        guard_since_ms=np.where(grown, 0, since_ms),
    )


def _levels(snapshot: TrafficSnapshot, watch: MachineWatch) -> Ints:
    config, ttf_s, retries = snapshot.config, watch.ttf_s, snapshot.retry_index
    # Comparisons with NaN, the unknown, are false.
    hard = watch.stall | (ttf_s < config.t_hard_s) | (ttf_s == 0) | (retries >= config.retry_hard)
    soft = (ttf_s < config.t_safe_s) | (retries >= config.retry_soft)
    return np.where(hard, _HARD, np.where(soft, _SOFT, 0))


def _carry(groups: Groups) -> TrafficState:
    """The state after this tick, to write into; what the tables do not decide is filled in."""
    before, watch, snapshot = groups.before, groups.watch, groups.snapshot
    advanced = groups.clock_ms > before.clock_ms
    samples = np.minimum(before.samples + (advanced | groups.first), INTEGER_MAX)
    return TrafficState(
        roster=snapshot.roster,
        machines=snapshot.machines,
        resources=snapshot.resources,
        now_ms=snapshot.now_ms.copy(),
        clock_ms=groups.clock_ms,
        samples=samples,
        s_total=np.full(len(samples), snapshot.config.s_total),
        parked=np.zeros(len(samples), dtype=np.bool_),
        gate_since_ms=before.gate_since_ms.copy(),
        stepping=before.stepping.copy(),
        halvings=groups.halvings,
        guard_since_ms=groups.guard_since_ms,
        mode=before.mode.copy(),
        regime=before.regime.copy(),
        calm_since_ms=before.calm_since_ms.copy(),
        rate_base=before.rate_base.copy(),
        slots=np.zeros(snapshot.roster.pods, dtype=np.int64),
        weight=np.zeros(snapshot.roster.pods),
        error_rate=np.full(snapshot.roster.pods, np.nan),
        error_ms=np.full(snapshot.roster.pods, UNKNOWN),
        stalled=watch.stalled,
        ewma=watch.ewma,
        history_ms=watch.history_ms,
        history=watch.history,
        odd={},
    )


class Shares(NamedTuple):
    """What the slots of a table should be, and which rows this path may decide."""

    weights: Floats
    shares: Floats
    target: Ints
    sure: Bools


def _shares(table: GroupTable, groups: Groups, signals: Signals) -> Shares:
    before, config, rows = groups.before, groups.snapshot.config, table.groups
    weights = weigh(signals)
    ages_ms = table.cells(groups.snapshot.age_ms, UNKNOWN)
    shares, warmed = warm(weights, ages_ms, signals.isolated, config.warmup_ms)
    usable: Bools = signals.known & warmed & (~signals.isolated).any(axis=1)
    shares = np.where(usable[:, None], shares, 0.0)
    target, settled = target_rows(config.s_total, shares)
    leaving = signals.isolated & (table.cells(before.slots, 0) > 0)
    kept = ~before.parked[rows] & (before.s_total[rows] == config.s_total)
    sure = usable & settled & kept & ~leaving.any(axis=1)
    return Shares(weights, shares, target, sure & groups.same[rows])


def _tick_table(table: GroupTable, groups: Groups, plan: TrafficPlan) -> None:
    rows, config, before = table.groups, groups.snapshot.config, groups.before
    signals = read_signals(table, groups.snapshot, before, groups.clock_ms[rows])
    wanted = _shares(table, groups, signals)
    old = wanted.target if groups.first else table.cells(before.slots, 0)
    counts = table.live.sum(axis=1)
    skew = skews(signals, wanted.weights, counts, config)
    gate = _gate(table, groups, wanted, old)
    moving = wanted.sure & gate.stepping & ~groups.relaxes[rows] & (not groups.first)
    steps = _steps(table, groups, wanted, old, skew=skew, moving=moving)
    flow = config.p_ref * left_sums(steps.slots / config.s_total / signals.total)
    conditions = Conditions(
        signals=signals,
        live=table.live,
        changes=steps.slots - old,
        held=steps.held,
        skew=skew,
        flow=flow,
        stall=groups.watch.stall[rows],
        ttf_s=groups.watch.ttf_s[rows],
        retry_index=groups.snapshot.retry_index[rows],
    )
    _store(table, plan, wanted=wanted, signals=signals, gate=gate, steps=steps)
    sure, chosen = wanted.sure, rows[wanted.sure]
    plan.reasons[chosen] = reason_codes(conditions, config)[sure]
    plan.skew[chosen], plan.conductance[chosen] = skew[sure], flow[sure]
    moved = (conditions.changes != 0).any(axis=1)
    plan.applied[chosen] = moved[sure] | groups.first
    plan.scale_hint[chosen] = (counts == 1)[sure]
    plan.stall[chosen] = groups.watch.stall[chosen]
    plan.ttf_s[chosen] = groups.watch.ttf_s[chosen]
    plan.fallback[chosen] = False
    _doors(groups, plan, chosen, flow[sure], signals.requests[sure].sum(axis=1))


class Gates(NamedTuple):
    """The gates of a table after this tick."""

    since_ms: Ints
    stepping: Bools


def _gate(table: GroupTable, groups: Groups, wanted: Shares, slots: Ints) -> Gates:
    rows, config = table.groups, groups.snapshot.config
    off = np.abs(wanted.shares - slots / config.s_total).max(axis=1) > config.delta_w
    clock_ms, since_ms = groups.clock_ms[rows], groups.before.gate_since_ms[rows]
    since_ms = np.where(since_ms == UNKNOWN, clock_ms, since_ms)
    held = clock_ms - since_ms >= config.t_hold_ms
    stepping = off & (groups.before.stepping[rows] | held)
    return Gates(np.where(off, since_ms, UNKNOWN), stepping)


def _steps(
    table: GroupTable, groups: Groups, wanted: Shares, old: Ints, *, skew: Floats, moving: Bools
) -> Steps:
    rows = table.groups
    slots, held = old.copy(), np.zeros(len(rows), dtype=np.bool_)
    halvings, since_ms = groups.halvings[rows], groups.guard_since_ms[rows]
    if moving.any():
        steps = guarded_steps(
            old[moving],
            wanted.target[moving],
            weights=wanted.weights[moving],
            skew=skew[moving],
            halvings=halvings[moving],
            since_ms=since_ms[moving],
            crisis=groups.crisis[rows][moving],
            clock_ms=groups.clock_ms[rows][moving],
            config=groups.snapshot.config,
        )
        slots[moving], halvings[moving], since_ms[moving], held[moving] = steps
    return Steps(slots, halvings, since_ms, held)


def _store(
    table: GroupTable,
    plan: TrafficPlan,
    *,
    wanted: Shares,
    signals: Signals,
    gate: Gates,
    steps: Steps,
) -> None:
    sure, state = wanted.sure, plan.state
    for cells, column in (
        (steps.slots, plan.slots),
        (wanted.weights, plan.weights),
        (wanted.target, plan.target),
        (signals.total, plan.pressure),
        (signals.queue, plan.queue),
        (signals.latency, plan.latency),
        (signals.error, plan.error),
        (signals.penalty, plan.penalty),
        (steps.slots, state.slots),
        (wanted.weights, state.weight),
        (signals.kept_rate, state.error_rate),
        (signals.kept_ms, state.error_ms),
    ):
        table.scatter(cells, sure, column)
    chosen = table.groups[sure]
    state.gate_since_ms[chosen], state.stepping[chosen] = gate.since_ms[sure], gate.stepping[sure]
    state.halvings[chosen] = steps.halvings[sure]
    state.guard_since_ms[chosen] = steps.since_ms[sure]


def _doors(groups: Groups, plan: TrafficPlan, chosen: Ints, flow: Floats, requests: Ints) -> None:
    """Doors that are open and stay open are as they were; core moves the others."""
    config, before = groups.snapshot.config, groups.before
    level = np.where(
        flow < config.g_min, np.maximum(groups.level[chosen], _SOFT), groups.level[chosen]
    )
    plan.mode[chosen], plan.regime[chosen] = before.mode[chosen], before.regime[chosen]
    for place in np.flatnonzero((level > 0) | (before.mode[chosen] > 0)).tolist():
        group, clock_ms = int(chosen[place]), int(groups.clock_ms[chosen[place]])
        last_ms, mode = int(before.clock_ms[group]), MODES[level[place]]
        door = advance_door(before.door(group), mode, clock_ms, config, last_ms=last_ms)
        plan.state.put_door(group, door)
        plan.put_admission(group, admission_of(door, int(requests[place]), clock_ms, config))
        plan.regime[group] = plan.state.regime[group]


def _fall_back(snapshot: TrafficSnapshot, plan: TrafficPlan) -> TrafficPlan:
    """Core ticks what the tables did not decide."""
    plans: dict[int, TickPlan] = {
        index: tick(snapshot.group(index)) for index in np.flatnonzero(plan.fallback).tolist()
    }
    plan = _widen(plan, plans)
    odd = dict(plan.state.odd)
    for index, one in plans.items():
        plan.put(index, one)
        if plan.state.fits(index, one.state):
            plan.state.put(index, one.state)
        else:
            odd[index] = one.state
    return replace(plan, state=replace(plan.state, odd=odd))


def _widen(plan: TrafficPlan, plans: dict[int, TickPlan]) -> TrafficPlan:
    """Columns of history enough for the trails that core left behind."""
    state = plan.state
    wanted = max(
        (
            len(trail.history)
            for one in plans.values()
            for node in one.state.nodes
            for trail in node.trails
        ),
        default=0,
    )
    more = wanted - state.history_ms.shape[1]
    if more <= 0:
        return plan
    rows = state.history_ms.shape[0]
    history_ms = np.concatenate([np.full((rows, more), UNKNOWN), state.history_ms], axis=1)
    history = np.concatenate([np.zeros((rows, more)), state.history], axis=1)
    return replace(plan, state=replace(state, history_ms=history_ms, history=history))
