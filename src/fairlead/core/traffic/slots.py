"""Pressure to shares to slots (sections 4, 5 and 8), moved a few at a time.

    w_b = (1/P_b) / sum_i (1/P_i)      over the backends that are not isolated

Clipping each backend's change alone would break the sum (of 100 slots 94 are left). So both sides
are clipped, the smaller side decides how much moves, and the other side shares that out.
"""

from math import floor
from typing import Final, NamedTuple, cast

from fairlead.core.apportion import largest_remainder
from fairlead.core.invariant import require
from fairlead.core.rough import rough_shares
from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Backend, Pressure
from fairlead.core.traffic.pressure import left_sum
from fairlead.core.traffic.state import HALVINGS_MAX, BackendMemory, Guard, State, StepGate
from fairlead.core.units import INTEGER_MAX, quotient


def inverse_weights(backends: list[Backend], pressures: list[Pressure]) -> list[float]:
    """w of every backend; all 0 when no backend is routable."""
    inverse = [
        0.0 if backend.isolated else 1.0 / pressures[index].total
        for index, backend in enumerate(backends)
    ]
    return normalised(inverse)


def held_weights(
    backends: list[Backend], memories: list[BackendMemory], fallback: list[float]
) -> list[float]:
    """The weights as they were, for a group that has gone blind.

    Only where a backend with a weight has left are the others scaled up. One that came since then
    has no weight to hold, and gets none; if all are new, the blind guess is all there is.
    """
    pairs = zip(backends, memories, strict=True)
    kept = [0.0 if backend.isolated else memory.weight for backend, memory in pairs]
    total = left_sum(kept)
    if not total:
        return fallback
    return kept if abs(total - 1) < 1e-9 else normalised(kept)


def warm_shares(weights: list[float], backends: list[Backend], warmup_ms: int) -> list[float]:
    """Shares for the target: w times age/T_warmup for newborns, renormalised.

    Where none is new, or all are, nothing is scaled.
    """
    if not any(b.age_ms is not None and b.age_ms < warmup_ms for b in backends):
        return list(weights)
    factors = [
        1.0 if b.age_ms is None or b.age_ms >= warmup_ms else quotient(b.age_ms, warmup_ms)
        for b in backends
    ]
    routable = [f for f, b in zip(factors, backends, strict=True) if not b.isolated]
    if max(routable, default=1.0) < 1.0 or min(routable, default=1.0) == 1.0:
        return list(weights)
    scaled = [w * f for w, f in zip(weights, factors, strict=True)]
    # Held weights may all lie with newborns of age 0.
    return normalised(scaled) if any(scaled) else list(weights)


def normalised(shares: list[float]) -> list[float]:
    total = left_sum(shares)
    return [share / total for share in shares] if total else list(shares)


# A double in (0, 1] times this is a whole number, unless it is below 2^-53 and no slot anyway.
_UNIT: Final = 2.0**106


def target_slots(s_total: int, shares: list[float]) -> list[int]:
    """round(w*S) with Σ = S exactly: largest remainder, ties in the order of the ids."""
    found = rough_shares(s_total, shares)
    return found or largest_remainder(s_total, [int(share * _UNIT) for share in shares])


def step_limit(config: Config, *, crisis: bool, halvings: int) -> int:
    """Δmax of this tick: ×4 in crisis, halved by the guard, then floored; at least 1."""
    factor = config.crisis_factor if crisis else 1.0
    return max(1, floor(config.step * factor * 0.5**halvings))


def slew(slots: list[int], target: list[int], limit: int) -> list[int]:
    """One step towards the target: Σ stays, none moves more than `limit` or past its target."""
    takes: list[int] = []
    gives: list[int] = []
    for index, slot in enumerate(slots):
        change = target[index] - slot
        takes.append(min(max(change, 0), limit))
        gives.append(min(max(-change, 0), limit))
    moved = min(sum(takes), sum(gives))
    takes, gives = largest_remainder(moved, takes), largest_remainder(moved, gives)
    return [slot + takes[index] - gives[index] for index, slot in enumerate(slots)]


def hand_over(slots: list[int], target: list[int], freed: list[bool]) -> list[int]:
    """Free the slots of some at once: theirs, and only theirs, go to those below their targets.

    `freed` have a target of 0, so the gaps of the others together are at least what is freed.
    """
    loose = sum(slot for slot, free in zip(slots, freed, strict=True) if free)
    gaps = [0 if free else max(t - s, 0) for s, t, free in zip(slots, target, freed, strict=True)]
    require(loose <= sum(gaps), "freed slots find backends below their targets")
    more = largest_remainder(loose, gaps)
    return [0 if free else s + m for s, m, free in zip(slots, more, freed, strict=True)]


class Placed(NamedTuple):
    """Slots in the order of the backends; `bypass` lists whom it was for."""

    slots: list[int]
    bypass: tuple[str, ...]


def parked_slots(pressures: list[Pressure], s_total: int) -> list[int]:
    """All slots to the lowest P, ties by id: even a drip has to go somewhere."""
    totals = [pressure.total for pressure in pressures]
    best = totals.index(min(totals))
    return [s_total if index == best else 0 for index in range(len(totals))]


def place(
    backends: list[Backend], target: list[int], before: State | None, config: Config
) -> Placed:
    """Slots after everything that does not wait; the slew comes later, if the gate lets it."""
    if before is None:
        return Placed(list(target), ())
    shared = [memory.slots for memory in before.backends]
    if sum(shared) != config.s_total:  # the number of slots was changed: the same shares
        shared = largest_remainder(config.s_total, shared)
    known, ids = [memory.id for memory in before.backends], [backend.id for backend in backends]
    if known == ids and not before.parked and not _freed(backends, shared):
        return Placed(shared, ())
    held = dict(zip(known, shared, strict=True))
    wanted = dict(zip(ids, target, strict=True))
    routable = {backend.id for backend in backends if not backend.isolated}
    if before.parked or not routable:
        losing = {name for name, slots in held.items() if slots > wanted.get(name, 0)}
        returning = {name for name in routable if wanted[name] > held.get(name, 0)}
        return Placed(list(target), tuple(sorted(losing | returning)))
    names = sorted(held.keys() | wanted.keys())
    freed = [name not in routable and held.get(name, 0) > 0 for name in names]
    if not any(freed):
        return Placed([held.get(name, 0) for name in ids], ())
    slots = [held.get(name, 0) for name in names]
    after = hand_over(slots, [wanted.get(name, 0) for name in names], freed)
    by_name = dict(zip(names, after, strict=True))
    leaving = tuple(name for name, free in zip(names, freed, strict=True) if free)
    return Placed([by_name[name] for name in ids], leaving)


def _freed(backends: list[Backend], slots: list[int]) -> bool:
    """Does a backend that may not have slots hold some?"""
    return any(b.isolated and slots[index] > 0 for index, b in enumerate(backends))


def deviation(shares: list[float], slots: list[int], s_total: int) -> float:
    whole, most = float(s_total), 0.0
    for index, share in enumerate(shares):
        off = abs(share - float(slots[index]) / whole)
        most = max(most, off)
    return most


def advance_gate(gate: StepGate, off: float, clock_ms: int, config: Config) -> StepGate:
    if off <= config.delta_w:
        return StepGate()
    since_ms = clock_ms if gate.since_ms is None else gate.since_ms
    held = clock_ms - since_ms >= config.t_hold_ms
    return StepGate(since_ms, stepping=gate.stepping or held)


def observed_skew(backends: list[Backend], weights: list[float], config: Config) -> float | None:
    """max |share - w| by request shares; None (and no guard) where it says nothing.

    It says nothing about a monopoly, where a backend's requests are unknown, and below 50 requests:
    five of ten is a coin, not a share.
    """
    counts = [backend.requests for backend in backends]
    if None in counts:
        return None
    requests = cast("list[int]", counts)
    total = sum(requests)
    if total < config.skew_requests_min:
        return None
    if len(backends) == 1 and any(weights):
        return None
    exact, skew = total <= INTEGER_MAX, 0.0
    for index, count in enumerate(requests):
        share = float(count) / float(total) if exact else quotient(count, total)
        off = abs(share - weights[index])
        skew = max(skew, off)
    return skew


class Step(NamedTuple):
    """Slots after the step, the guard after it, and whether it was held back altogether."""

    slots: list[int]
    guard: Guard
    held: bool


def regrow(guard: Guard, clock_ms: int, config: Config) -> Guard:
    doublings = (clock_ms - guard.since_ms) // config.guard_quiet_ms
    if doublings >= guard.halvings:
        return Guard()
    since_ms = guard.since_ms + doublings * config.guard_quiet_ms
    return Guard(guard.halvings - doublings, since_ms)


def guarded_step(
    slots: list[int],
    target: list[int],
    *,
    weights: list[float],
    skew: float | None,
    guard: Guard,
    crisis: bool,
    clock_ms: int,
    config: Config,
) -> Step:
    """One step towards the target, if it does not make the skew worse by more than epsilon."""
    limit = step_limit(config, crisis=crisis, halvings=guard.halvings)
    after = slew(slots, target, limit)
    if skew is None or after == slots or not _worse(after, weights, skew, config):
        return Step(after, guard, held=False)
    halvings = guard.halvings + (limit > 1 and guard.halvings < HALVINGS_MAX)
    guard = Guard(halvings, clock_ms if halvings else 0)
    after = slew(slots, target, step_limit(config, crisis=crisis, halvings=halvings))
    if _worse(after, weights, skew, config):
        return Step(list(slots), guard, held=True)
    return Step(after, guard, held=False)


def _worse(slots: list[int], weights: list[float], skew: float, config: Config) -> bool:
    """By the skew that is left once the requests follow the slots."""
    return deviation(weights, slots, config.s_total) > skew + config.epsilon_skew
