"""One tick of a group: signals to pressure, pressure to shares, shares to slots, and admission.

    signals -> pressure -> weights -> target -> placement -> gate -> guarded step -> slots
    nodes   -> stall, ttf ---------------------------------> admission (with conductance)

Pure: the same snapshot gives the same plan, whatever the order of its lists. The agent calls it
every 200 ms per group, `fairlead decide traffic.tick` by hand.
"""

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
    ids: list[str]
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


def _confirmed_flow(scene: Scene, slots: list[int]) -> bool:
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
    backends = list(snapshot.backends)
    ids = [backend.id for backend in backends]
    in_order = sorted(ids)
    if ids != in_order:
        backends.sort(key=attrgetter("id"))
        ids = in_order
    advanced = before is not None and clock_ms > before.clock_ms
    watch = watch_nodes(snapshot.nodes, before, clock_ms=clock_ms, advanced=advanced, config=config)
    memories = _remembered(ids, before)
    counted = [
        count_errors(backend, memories[index], clock_ms, config)
        for index, backend in enumerate(backends)
    ]
    nodes = {node.id: node for node in snapshot.nodes}
    pressures = measure_pressure(backends, [rate for rate, _, _ in counted], nodes, config)
    weights = steps.inverse_weights(backends, pressures.values)
    if pressures.blind:
        weights = steps.held_weights(backends, memories, weights)
    shares = steps.warm_shares(weights, backends, config.warmup_ms)
    routable = len([backend for backend in backends if not backend.isolated])
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
    seen = (snapshot, clock_ms, ids, backends, counted, pressures, watch)
    return Scene(*seen, weights, shares, target, routable, skew, level)


def _remembered(ids: list[str], before: State | None) -> list[BackendMemory]:
    """What the last tick left of each of these backends."""
    memories = [] if before is None else list(before.backends)
    if [memory.id for memory in memories] == ids:
        return memories
    known = {memory.id: memory for memory in memories}
    return [known.get(name) or BackendMemory(name) for name in ids]


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


def _changes(scene: Scene, slots: list[int]) -> tuple[list[int], bool]:
    """How many slots each backend got or lost, and whether the slots differ from the last tick's.
    An id without slots is as good as no id; the first tick applies its targets, whatever they are,
    and nothing has moved yet.
    """
    before = scene.snapshot.state
    if before is None:
        return [0] * len(slots), True
    held = [memory.slots for memory in before.backends]
    known = [memory.id for memory in before.backends]
    if known == scene.ids:
        return [slot - held[index] for index, slot in enumerate(slots)], held != slots
    old = dict(zip(known, held, strict=True))
    changes = [slots[index] - old.pop(name, 0) for index, name in enumerate(scene.ids)]
    return changes, any(changes) or any(old.values())


def _plan(scene: Scene, moved: Moved, admission: AdmissionState, flow: float) -> TickPlan:
    config, ids = scene.snapshot.config, scene.ids
    require(sum(moved.slots) == (config.s_total if ids else 0), "the slots add up to S_total")
    requests = sum([backend.requests or 0 for backend in scene.backends])
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
        reasons=top_reasons(scene, flow, changes, held=moved.held),
    )


def _state(scene: Scene, moved: Moved, admission: AdmissionState) -> State:
    memories: list[BackendMemory] = []
    for index, name in enumerate(scene.ids):
        _, error_rate, error_ms = scene.counted[index]
        slots, weight = moved.slots[index], scene.weights[index]
        memories.append(BackendMemory(name, slots, weight, error_rate, error_ms))
    return State(
        now_ms=scene.snapshot.now_ms,
        clock_ms=scene.clock_ms,
        samples=scene.watch.samples,
        s_total=scene.snapshot.config.s_total,
        parked=not scene.routable,
        backends=tuple(memories),
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


def top_reasons(
    scene: Scene, flow: float, changes: list[int], *, held: bool
) -> tuple[TrafficReason, ...]:
    """The first two conditions that hold now, by priority; `steady` where none does, or beside a
    mere monopoly. Without latency and errors of any backend there is one reason for it, not two
    that hide it.
    """
    config, pressures, skew = scene.snapshot.config, scene.pressures, scene.skew
    ttf_s, retries, blind = scene.watch.ttf_s, scene.snapshot.retry_index, pressures.blind
    routable, total = scene.routable, len(scene.backends)
    conditions = (
        (not total, TrafficReason.NO_BACKENDS),
        (total > 0 and not routable, TrafficReason.ALL_ISOLATED),
        (scene.watch.stall, TrafficReason.PSI_STALL),
        (ttf_s is not None and ttf_s < config.t_safe_s, TrafficReason.TTF),
        (retries is not None and retries >= config.retry_soft, TrafficReason.RETRY_STORM),
        (_is_failing(scene), TrafficReason.ERRORS),
        (flow < config.g_min, TrafficReason.CONDUCTANCE),
        (skew is not None and skew > config.skew_max, TrafficReason.SKEW),
        (pressures.missing_latency and not blind, TrafficReason.SIGNAL_MISSING_LATENCY),
        (pressures.missing_errors and not blind, TrafficReason.SIGNAL_MISSING_ERRORS),
        (pressures.missing_queue, TrafficReason.SIGNAL_MISSING_QUEUE),
        (blind, TrafficReason.SIGNAL_MISSING_BOTH),
        (routable < total, TrafficReason.ISOLATION),
        (held, TrafficReason.GUARD_HOLD),
    )
    holding = [reason for holds, reason in conditions if holds]
    if any(changes):
        holding.append(moving_term(pressures.values, changes))
    steady = not holding
    if total == routable == 1:
        holding.append(TrafficReason.MONOPOLY)
    if steady:
        holding.append(TrafficReason.STEADY)
    return tuple(holding[:TOP])


def _is_failing(scene: Scene) -> bool:
    """Does a routable backend carry the absolute penalty?"""
    errors, eta = scene.pressures.errors, scene.snapshot.config.eta
    return errors is not None and any(
        errors[index] > eta and not backend.isolated for index, backend in enumerate(scene.backends)
    )


def agent_reasons(plan: TickPlan, *, full: bool, stale: bool) -> tuple[TrafficReason, ...]:
    """The plan's reasons after what the agent alone knows: its heartbeat was found stale, or open
    admission rejected requests because too many were inside.
    """
    reasons = plan.reasons
    if full and plan.admission.mode is AdmissionMode.NORMAL:
        busy = (reason for reason in reasons if reason is not TrafficReason.STEADY)
        reasons = (TrafficReason.FULL, *busy)
    return ((TrafficReason.FAILSAFE, *reasons) if stale else reasons)[:TOP]


def moving_term(pressures: list[Pressure], changes: list[int]) -> TrafficReason:
    """The term that moved the slots most.

    Each changed slot counts as much as its backend's term differs from the group's mean: what is
    the same everywhere moves nothing. Where no term differs (a newborn joins its equals, a backend
    leaves), the largest term of the group is named.
    """
    moved = {
        TrafficReason.PRESSURE_ERRORS: _moved([p.error + p.penalty for p in pressures], changes),
        TrafficReason.PRESSURE_LATENCY: _moved([p.latency for p in pressures], changes),
        TrafficReason.PRESSURE_QUEUE: _moved([p.queue for p in pressures], changes),
    }
    return max(moved, key=moved.__getitem__)


def _moved(values: list[float], changes: list[int]) -> tuple[float, float]:
    """How much a term moved the slots, and its sum."""
    total = left_sum(values)
    if min(values) == max(values):  # the mean of equals may round away from them
        return 0.0, total
    mean, moved = total / float(len(values)), 0.0
    for index, value in enumerate(values):
        moved += float(abs(changes[index])) * abs(value - mean)
    return moved, total
