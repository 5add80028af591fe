"""One tick of a group: signals to pressure, pressure to shares, shares to slots, and admission.

    signals -> pressure -> weights -> target -> placement -> gate -> guarded step -> slots
    nodes   -> stall, ttf ---------------------------------> admission (with conductance)

Pure: the same snapshot gives the same plan, whatever the order of its lists. The agent calls it
every 200 ms per group, `fairlead decide traffic.tick` by hand.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.invariant import require
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import admission as admissions
from fairlead.core.traffic import slots as steps
from fairlead.core.traffic.model import Backend, Pressure, Snapshot, TickPlan
from fairlead.core.traffic.nodes import Trouble, Watch, watch_nodes
from fairlead.core.traffic.pressure import (
    Counted,
    Pressures,
    conductance,
    count_errors,
    left_sum,
    measure_pressure,
)
from fairlead.core.traffic.state import (
    MODES,
    AdmissionMode,
    AdmissionState,
    BackendMemory,
    Guard,
    State,
    StepGate,
)
from fairlead.core.units import INTEGER_MAX

TOP = 2


class Scene(NamedTuple):
    """What a tick knows before it moves anything; lists are in the order of the backends' ids."""

    snapshot: Snapshot
    clock_ms: int
    backends: list[Backend]
    counted: list[Counted]
    pressures: Pressures
    watch: Watch
    weights: list[float]
    shares: list[float]
    """Weights scaled by warm-up: what the gate and the target go by."""
    target: list[int]
    routable: int
    skew: float | None
    level: AdmissionMode
    """What the triggers ask for, conductance apart."""

    @property
    def admission(self) -> AdmissionState:
        before = self.snapshot.state
        return AdmissionState() if before is None else before.admission


class Moved(NamedTuple):
    """What became of the slots."""

    slots: list[int]
    guard: Guard
    held: bool
    gate: StepGate
    bypass: tuple[str, ...]
    stepped: bool


def tick(snapshot: Snapshot) -> TickPlan:
    scene, config, before = _look(snapshot), snapshot.config, snapshot.state
    moved = _move(scene)
    flow = conductance(moved.slots, scene.pressures.values, config)
    level = scene.level
    if flow < config.g_min and _confirmed_flow(scene, moved.slots):
        level = MODES[max(level.level, AdmissionMode.SOFT.level)]
    last_ms = 0 if before is None else before.clock_ms
    admission = admissions.advance_admission(
        scene.admission, level, scene.clock_ms, config, last_ms=last_ms
    )
    relaxed = admission.mode.level < scene.admission.mode.level
    require(not (relaxed and moved.stepped), "slots and admission never reopen in the same tick")
    return _plan(scene, moved, admission, flow)


def _confirmed_flow(scene: Scene, slots: Sequence[int]) -> bool:
    """Is conductance below G_min whichever backend is disregarded? What one backend reports costs
    its own share, by its weight. One that has all slots has no other to be compared with.
    """
    snapshot, backends, total = scene.snapshot, scene.backends, len(scene.backends)
    if not snapshot.confirm or total == 1:
        return True
    config, nodes = snapshot.config, {node.id: node for node in snapshot.nodes}
    seen = scene.pressures
    imputed = seen.missing_latency or seen.missing_errors or seen.missing_queue or config.layered
    for left_out in range(total):
        kept = [index for index in range(total) if index != left_out]
        held = sum(slots[index] for index in kept)
        values = [seen.values[index] for index in kept]
        if imputed:  # what is missing of the others must not be taken from it
            rates = [scene.counted[index][0] for index in kept]
            listed = [backends[index] for index in kept]
            values = measure_pressure(listed, rates, nodes, config).values
        flow = conductance([slots[index] for index in kept], values, config)
        if held and flow * config.s_total >= config.g_min * held:
            return False
    return True


def _look(snapshot: Snapshot) -> Scene:
    config, before = snapshot.config, snapshot.state
    elapsed_ms = 0 if before is None else max(0, snapshot.now_ms - before.now_ms)
    clock_ms = 0 if before is None else min(before.clock_ms + elapsed_ms, INTEGER_MAX)
    backends = sorted(snapshot.backends, key=attrgetter("id"))
    advanced = before is not None and clock_ms > before.clock_ms
    watch = watch_nodes(snapshot.nodes, before, clock_ms=clock_ms, advanced=advanced, config=config)
    known = {} if before is None else {memory.id: memory for memory in before.backends}
    memories = [known.get(backend.id) or BackendMemory(backend.id) for backend in backends]
    counted = [
        count_errors(backend, memory, clock_ms, config)
        for backend, memory in zip(backends, memories, strict=True)
    ]
    nodes = {node.id: node for node in snapshot.nodes}
    pressures = measure_pressure(backends, [rate for rate, _, _ in counted], nodes, config)
    weights = steps.inverse_weights(backends, pressures.values)
    if pressures.blind:
        weights = steps.held_weights(backends, memories, weights)
    shares = steps.warm_shares(weights, backends, config.warmup_ms)
    routable = sum(not backend.isolated for backend in backends)
    target = steps.target_slots(config.s_total, shares) if routable else []
    if backends and not routable:
        target = steps.parked_slots(pressures.values, config.s_total)
    skew = steps.observed_skew(backends, weights, config)
    trouble = Trouble(watch.stall, watch.ttf_s)
    if snapshot.confirm and len(backends) > 1:
        trouble = watch.confirmed([backend.node for backend in backends])
    level = admissions.triggered_level(
        config,
        unroutable=not routable,
        stall=trouble.stall,
        ttf_s=trouble.ttf_s,
        retry_index=snapshot.retry_index,
        blind=pressures.blind,
    )
    seen = (snapshot, clock_ms, backends, counted, pressures, watch)
    return Scene(*seen, weights, shares, target, routable, skew, level)


def _move(scene: Scene) -> Moved:
    """Placement, then the gate, then one guarded step, unless something forbids it."""
    config, before, clock_ms = scene.snapshot.config, scene.snapshot.state, scene.clock_ms
    placed = steps.place(scene.backends, scene.target, before, config)
    gate, guard = (StepGate(), Guard()) if before is None else (before.gate, before.guard)
    guard = steps.regrow(guard, clock_ms, config)
    off = steps.deviation(scene.shares, placed.slots, config.s_total) if scene.routable else 0.0
    gate = steps.advance_gate(gate, off, clock_ms, config)
    # In the tick of a bypass only the freed slots move; blind, nothing does; and a tick that would
    # relax admission leaves the slots alone, whether conductance then confirms it or not.
    asked = (scene.admission, scene.level, clock_ms, config)
    still = (
        before is None or bool(placed.bypass) or scene.pressures.blind or admissions.relaxes(*asked)
    )
    step = steps.Step(placed.slots, guard, held=False)
    if gate.stepping and not still:
        step = steps.guarded_step(
            placed.slots,
            scene.target,
            weights=scene.weights,
            skew=scene.skew,
            guard=guard,
            crisis=admissions.crisis_ahead(*asked),
            clock_ms=clock_ms,
            config=config,
        )
    return Moved(*step, gate, placed.bypass, stepped=step.slots != placed.slots)


def _changes(scene: Scene, slots: Sequence[int]) -> tuple[list[int], bool]:
    """How many slots each backend got or lost, and whether the slots differ from the last tick's.
    An id without slots is as good as no id; the first tick applies its targets, whatever they are,
    and nothing has moved yet.
    """
    before = scene.snapshot.state
    if before is None:
        return [0] * len(slots), True
    old = {memory.id: memory.slots for memory in before.backends}
    changes = [s - old.pop(b.id, 0) for b, s in zip(scene.backends, slots, strict=True)]
    return changes, any(changes) or any(old.values())


def _plan(scene: Scene, moved: Moved, admission: AdmissionState, flow: float) -> TickPlan:
    config, ids = scene.snapshot.config, [backend.id for backend in scene.backends]
    require(sum(moved.slots) == (config.s_total if ids else 0), "the slots add up to S_total")
    requests = sum(backend.requests or 0 for backend in scene.backends)
    changes, applied = _changes(scene, moved.slots)
    return TickPlan(
        state=_state(scene, moved, admission),
        slots=dict(zip(ids, moved.slots, strict=True)),
        weights=dict(zip(ids, scene.weights, strict=True)),
        target=dict(zip(ids, scene.target, strict=True)),
        pressure=dict(zip(ids, scene.pressures.values, strict=True)),
        admission=admissions.admission_of(admission, requests, scene.clock_ms, config),
        regime=admission.regime,
        ttf_s=scene.watch.ttf_s,
        stall=scene.watch.stall,
        skew=scene.skew,
        conductance=flow,
        applied=applied,
        scale_hint=len(ids) == 1 and scene.routable == 1,
        bypass=moved.bypass,
        reasons=top_reasons(_holding(scene, flow, changes, held=moved.held)),
    )


def _state(scene: Scene, moved: Moved, admission: AdmissionState) -> State:
    return State(
        now_ms=scene.snapshot.now_ms,
        clock_ms=scene.clock_ms,
        samples=scene.watch.samples,
        s_total=scene.snapshot.config.s_total,
        parked=not scene.routable,
        backends=tuple(
            [
                BackendMemory(backend.id, slots, weight, error_rate, error_ms)
                for backend, slots, weight, (_, error_rate, error_ms) in zip(
                    scene.backends, moved.slots, scene.weights, scene.counted, strict=True
                )
            ]
        ),
        nodes=scene.watch.nodes,
        gate=moved.gate,
        guard=moved.guard,
        admission=admission,
    )


# --- reasons (section 13): the two most urgent conditions that hold now
#
# Reasons are conditions, not memories: admission that is still restricted after a past crisis is
# steady once it is calm. A tick that moves slots is never steady; it names the term of the pressure
# that moved them most.


def _holding(scene: Scene, flow: float, changes: list[int], *, held: bool) -> set[TrafficReason]:
    """Every condition that holds now. Without latency and errors of any backend there is one reason
    for it, not two that hide it.
    """
    config, pressures, skew = scene.snapshot.config, scene.pressures, scene.skew
    ttf_s, retries, blind = scene.watch.ttf_s, scene.snapshot.retry_index, pressures.blind
    backends, routable, total = scene.backends, scene.routable, len(scene.backends)
    failing = (
        rate > config.eta and not backend.isolated
        for backend, rate in zip(backends, pressures.errors or [0.0] * total, strict=True)
    )
    conditions = {
        TrafficReason.NO_BACKENDS: not backends,
        TrafficReason.ALL_ISOLATED: total > 0 and not routable,
        TrafficReason.PSI_STALL: scene.watch.stall,
        TrafficReason.TTF: ttf_s is not None and ttf_s < config.t_safe_s,
        TrafficReason.RETRY_STORM: retries is not None and retries >= config.retry_soft,
        TrafficReason.ERRORS: any(failing),
        TrafficReason.CONDUCTANCE: flow < config.g_min,
        TrafficReason.SKEW: skew is not None and skew > config.skew_max,
        TrafficReason.ISOLATION: routable < total,
        TrafficReason.GUARD_HOLD: held,
        TrafficReason.MONOPOLY: total == routable == 1,
        TrafficReason.SIGNAL_MISSING_QUEUE: pressures.missing_queue,
        TrafficReason.SIGNAL_MISSING_BOTH: blind,
        TrafficReason.SIGNAL_MISSING_LATENCY: pressures.missing_latency and not blind,
        TrafficReason.SIGNAL_MISSING_ERRORS: pressures.missing_errors and not blind,
    }
    holding = {reason for reason, holds in conditions.items() if holds}
    return holding | {moving_term(pressures.values, changes)} if any(changes) else holding


def top_reasons(holding: set[TrafficReason]) -> tuple[TrafficReason, ...]:
    """The first two by priority; `steady` where nothing holds, or beside a mere monopoly."""
    if holding <= {TrafficReason.MONOPOLY}:
        holding = holding | {TrafficReason.STEADY}
    return tuple(reason for reason in TrafficReason if reason in holding)[:TOP]


def agent_reasons(plan: TickPlan, *, full: bool, stale: bool) -> tuple[TrafficReason, ...]:
    """The plan's reasons after what the agent alone knows: its heartbeat was found stale, or open
    admission rejected requests because too many were inside.
    """
    reasons = plan.reasons
    if full and plan.admission.mode is AdmissionMode.NORMAL:
        busy = (reason for reason in reasons if reason is not TrafficReason.STEADY)
        reasons = (TrafficReason.FULL, *busy)
    return ((TrafficReason.FAILSAFE, *reasons) if stale else reasons)[:TOP]


def moving_term(pressures: Sequence[Pressure], changes: Sequence[int]) -> TrafficReason:
    """The term that moved the slots most.

    Each changed slot counts as much as its backend's term differs from the group's mean: what is
    the same everywhere moves nothing. Where no term differs (a newborn joins its equals, a backend
    leaves), the largest term of the group is named.
    """
    terms = {
        TrafficReason.PRESSURE_ERRORS: [p.error + p.penalty for p in pressures],
        TrafficReason.PRESSURE_LATENCY: [p.latency for p in pressures],
        TrafficReason.PRESSURE_QUEUE: [p.queue for p in pressures],
    }

    def moved(values: Sequence[float]) -> tuple[float, float]:
        total = left_sum(values)
        mean = total / max(len(values), 1)
        if len(set(values)) < 2:  # the mean of equals may round away from them
            return 0.0, total
        pairs = zip(changes, values, strict=True)
        return left_sum(abs(change) * abs(value - mean) for change, value in pairs), total

    return max(terms, key=lambda reason: moved(terms[reason]))
