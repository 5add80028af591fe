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
from fairlead.core.traffic.admission import (
    Triggers,
    admission_of,
    advance_admission,
    crisis_ahead,
    relaxes,
)
from fairlead.core.traffic.config import Config
from fairlead.core.traffic.explain import missing_reasons, moving_term, top_reasons
from fairlead.core.traffic.model import Backend, Snapshot, TickPlan
from fairlead.core.traffic.nodes import Watch, watch_nodes
from fairlead.core.traffic.pressure import (
    Counted,
    Pressures,
    conductance,
    count_errors,
    measure_pressure,
)
from fairlead.core.traffic.slots import (
    Step,
    advance_gate,
    deviation,
    guarded_step,
    held_weights,
    inverse_weights,
    observed_skew,
    parked_slots,
    place,
    regrow,
    target_slots,
    warm_shares,
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


class Scene(NamedTuple):
    """What a tick knows before it moves anything; lists are in the order of the backends' ids."""

    config: Config
    before: State | None
    clock_ms: int
    backends: list[Backend]
    counted: list[Counted]
    pressures: Pressures
    watch: Watch
    weights: list[float]
    shares: list[float]
    """Weights scaled by warm-up: what the gate and the target go by."""
    target: list[int]
    skew: float | None
    routable: int
    retry_index: float | None

    @property
    def admission(self) -> AdmissionState:
        """As the last tick left it."""
        return AdmissionState() if self.before is None else self.before.admission

    @property
    def level(self) -> AdmissionMode:
        """What the triggers ask for, conductance apart."""
        return Triggers(
            unroutable=not self.routable,
            stall=self.watch.stall,
            ttf_s=self.watch.ttf_s,
            retry_index=self.retry_index,
            blind=self.pressures.blind,
        ).level(self.config)


class Moved(NamedTuple):
    """What became of the slots."""

    slots: list[int]
    changes: list[int]
    """Against the last tick; at the first one nothing has moved yet."""
    applied: bool
    bypass: tuple[str, ...]
    gate: StepGate
    guard: Guard
    held: bool
    stepped: bool


def tick(snapshot: Snapshot) -> TickPlan:
    """Decide one tick of one group."""
    scene = _look(snapshot)
    moved = _move(scene)
    flow = conductance(moved.slots, scene.pressures.values, scene.config)
    level = scene.level
    if flow < scene.config.g_min:
        level = MODES[max(level.level, AdmissionMode.SOFT.level)]
    last_ms = 0 if scene.before is None else scene.before.clock_ms
    admission = advance_admission(
        scene.admission, level, scene.clock_ms, scene.config, last_ms=last_ms
    )
    relaxed = admission.mode.level < scene.admission.mode.level
    require(not (relaxed and moved.stepped), "slots and admission never reopen in the same tick")
    return _plan(snapshot, scene, moved, admission, flow)


def _look(snapshot: Snapshot) -> Scene:
    config, before = snapshot.config, snapshot.state
    elapsed_ms = 0 if before is None else max(0, snapshot.now_ms - before.now_ms)
    clock_ms = 0 if before is None else min(before.clock_ms + elapsed_ms, INTEGER_MAX)
    backends = sorted(snapshot.backends, key=attrgetter("id"))
    advanced = before is not None and clock_ms > before.clock_ms
    watch = watch_nodes(snapshot.nodes, before, clock_ms=clock_ms, advanced=advanced, config=config)
    known = {} if before is None else {memory.id: memory for memory in before.backends}
    memories = [known.get(backend.id) or BackendMemory(backend.id) for backend in backends]
    counted = count_errors(backends, memories, clock_ms, config)
    nodes = {node.id: node for node in snapshot.nodes}
    pressures = measure_pressure(backends, [rate.rate for rate in counted], nodes, config)
    weights = inverse_weights(backends, pressures.values)
    if pressures.blind:
        weights = held_weights(backends, memories, weights)
    shares = warm_shares(weights, backends, config.warmup_ms)
    routable = sum(not backend.isolated for backend in backends)
    target = target_slots(config.s_total, shares) if routable else []
    if backends and not routable:
        target = parked_slots(pressures.values, config.s_total)
    return Scene(
        config=config,
        before=before,
        clock_ms=clock_ms,
        backends=backends,
        counted=counted,
        pressures=pressures,
        watch=watch,
        weights=weights,
        shares=shares,
        target=target,
        skew=observed_skew(backends, weights, config),
        routable=routable,
        retry_index=snapshot.retry_index,
    )


def _move(scene: Scene) -> Moved:
    """Placement, then the gate, then one guarded step, unless something forbids it."""
    config, clock_ms, before = scene.config, scene.clock_ms, scene.before
    placed = place(scene.backends, scene.target, before, config)
    gate, guard = (StepGate(), Guard()) if before is None else (before.gate, before.guard)
    guard = regrow(guard, clock_ms, config)
    off = deviation(scene.shares, placed.slots, config.s_total) if scene.routable else 0.0
    gate = advance_gate(gate, off, clock_ms, config)
    # In the tick of a bypass only the freed slots move; blind, nothing does; and a tick that would
    # relax admission leaves the slots alone, whether conductance then confirms it or not.
    still = (
        before is None
        or bool(placed.bypass)
        or scene.pressures.blind
        or relaxes(scene.admission, scene.level, clock_ms, config)
    )
    step = Step(placed.slots, guard, held=False)
    if gate.stepping and not still:
        step = guarded_step(
            placed.slots,
            scene.target,
            weights=scene.weights,
            skew=scene.skew,
            guard=guard,
            crisis=crisis_ahead(scene.admission, scene.level, clock_ms, config),
            clock_ms=clock_ms,
            config=config,
        )
    changes, applied = _changes(scene, step.slots)
    return Moved(
        slots=step.slots,
        changes=changes,
        applied=applied,
        bypass=placed.bypass,
        gate=gate,
        guard=step.guard,
        held=step.held,
        stepped=step.slots != placed.slots,
    )


def _changes(scene: Scene, slots: Sequence[int]) -> tuple[list[int], bool]:
    """How many slots each backend got or lost, and whether the slots differ from the last tick's.
    An id without slots is as good as no id; the first tick applies its targets, whatever they are.
    """
    if scene.before is None:
        return [0] * len(slots), True
    old = {memory.id: memory.slots for memory in scene.before.backends}
    changes = [s - old.pop(b.id, 0) for b, s in zip(scene.backends, slots, strict=True)]
    return changes, any(changes) or any(old.values())


def _plan(
    snapshot: Snapshot, scene: Scene, moved: Moved, admission: AdmissionState, flow: float
) -> TickPlan:
    ids = [backend.id for backend in scene.backends]
    require(sum(moved.slots) == (scene.config.s_total if ids else 0), "the slots add up to S_total")
    requests = sum(backend.requests or 0 for backend in scene.backends)
    return TickPlan(
        state=_state(snapshot, scene, moved, admission),
        slots=dict(zip(ids, moved.slots, strict=True)),
        weights=dict(zip(ids, scene.weights, strict=True)),
        target=dict(zip(ids, scene.target, strict=True)),
        pressure=dict(zip(ids, scene.pressures.values, strict=True)),
        admission=admission_of(admission, requests, scene.clock_ms, scene.config),
        regime=admission.regime,
        ttf_s=scene.watch.ttf_s,
        stall=scene.watch.stall,
        skew=scene.skew,
        conductance=flow,
        applied=moved.applied,
        scale_hint=len(ids) == 1 and scene.routable == 1,
        bypass=moved.bypass,
        reasons=top_reasons(_holding(scene, moved, flow)),
    )


def _state(snapshot: Snapshot, scene: Scene, moved: Moved, admission: AdmissionState) -> State:
    return State(
        now_ms=snapshot.now_ms,
        clock_ms=scene.clock_ms,
        samples=scene.watch.samples,
        s_total=scene.config.s_total,
        parked=not scene.routable,
        backends=tuple(
            BackendMemory(backend.id, slots, weight, counted.kept_rate, counted.kept_ms)
            for backend, slots, weight, counted in zip(
                scene.backends, moved.slots, scene.weights, scene.counted, strict=True
            )
        ),
        nodes=scene.watch.nodes,
        gate=moved.gate,
        guard=moved.guard,
        admission=admission,
    )


def _holding(scene: Scene, moved: Moved, flow: float) -> set[TrafficReason]:
    """Every condition that holds now."""
    config, pressures, watch = scene.config, scene.pressures, scene.watch
    ttf_s, retries = watch.ttf_s, scene.retry_index
    rates = pressures.errors or [0.0] * len(scene.backends)
    failing = (
        rate > config.eta and not backend.isolated
        for backend, rate in zip(scene.backends, rates, strict=True)
    )
    conditions = {
        TrafficReason.NO_BACKENDS: not scene.backends,
        TrafficReason.ALL_ISOLATED: bool(scene.backends) and not scene.routable,
        TrafficReason.PSI_STALL: watch.stall,
        TrafficReason.TTF: ttf_s is not None and ttf_s < config.t_safe_s,
        TrafficReason.RETRY_STORM: retries is not None and retries >= config.retry_soft,
        TrafficReason.ERRORS: any(failing),
        TrafficReason.CONDUCTANCE: flow < config.g_min,
        TrafficReason.SKEW: scene.skew is not None and scene.skew > config.skew_max,
        TrafficReason.ISOLATION: scene.routable < len(scene.backends),
        TrafficReason.GUARD_HOLD: moved.held,
        TrafficReason.MONOPOLY: len(scene.backends) == 1 and scene.routable == 1,
    }
    holding = {reason for reason, holds in conditions.items() if holds}
    holding |= missing_reasons(
        latency=pressures.missing_latency,
        errors=pressures.missing_errors,
        queue=pressures.missing_queue,
        blind=pressures.blind,
    )
    if any(moved.changes):
        holding.add(moving_term(pressures.values, moved.changes))
    return holding
