"""Invariants checked at every step of a run. Nothing is taken from the governor on trust: limits
are read from the simulated kernel, bounds from the scenario, decisions from their recorded bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlead.core.canonical import canonical
from fairlead.core.cpu import NodePlan
from fairlead.schema.kinds import KINDS
from fairlead.sim.record import SimDecision


class Broken(Exception):
    """A promise did not hold. Carries all that is needed to see it again."""

    def __init__(self, *, check: str, message: str, seed: int, time_ms: int) -> None:
        super().__init__(f"{check}: {message} (seed {seed}, at {time_ms / 1000:g} s)")
        self.check, self.message, self.seed, self.time_ms = check, message, seed, time_ms


@dataclass(frozen=True, slots=True)
class NodeState:
    """The node between two events.

    `limits` are those in force on adopted pods, or their guarantees where weights are governed;
    `beside` are the limits in force beside guarantees. `bounds` are the user's (minimum, maximum).
    `capacity_millicores` is None until a plan was applied completely; while the next one is being
    applied it is the larger of the two. `settled` is the plan in force, None while one is applied.
    """

    limits: Mapping[str, int | None]
    bounds: Mapping[str, tuple[int, int]]
    capacity_millicores: int | None
    settled: NodePlan | None
    beside: Mapping[str, int | None] | None = None


def limits_fit(now: NodeState) -> str | None:
    """Σ limits <= capacity, from the first complete apply on, in every instant; where weights are
    governed, Σ guarantees."""
    total = sum(amount or 0 for amount in now.limits.values())
    if now.capacity_millicores is None or total <= now.capacity_millicores:
        return None
    noun = "limits" if now.beside is None else "guarantees"
    return f"the {noun} add up to {total}m of {now.capacity_millicores}m"


def limits_bounded(now: NodeState) -> str | None:
    """No adopted limit or guarantee is above the user's own limit, or without bound."""
    for uid, limit in now.limits.items():
        high = now.bounds[uid][1]
        if limit is None or not 0 <= limit <= high:
            return f"the limit of {uid} is {limit}m, its maximum {high}m"
    return None


def limits_only_to_contain(now: NodeState) -> str | None:
    """Where weights are governed a limit is the user's own, or (under `both`) contains a pod: it is
    never below what the pod is guaranteed."""
    for uid, limit in now.beside.items() if now.beside and now.settled else ():
        promised = now.limits[uid] or 0
        if limit is not None and limit < promised:
            return f"the limit of {uid} is {limit}m, and it is guaranteed {promised}m"
    return None


def minimums_kept(now: NodeState) -> str | None:
    """No pod is below its minimum on a node whose minimums fit, once the plan is in force."""
    plan = now.settled
    if plan is None or plan.total_min > plan.capacity_millicores:
        return None
    for uid in plan.allocations:
        limit, (low, _) = now.limits.get(uid), now.bounds.get(uid, (0, 0))
        if limit is not None and limit < low:
            return f"the limit of {uid} is {limit}m, its minimum {low}m, and the minimums fit"
    return None


def applied_as_decided(now: NodeState) -> str | None:
    for uid, split in now.settled.split.items() if now.settled else ():
        grant = sum(split.values())
        limit = now.limits.get(uid, grant)  # a pod may have left since
        if limit != grant:
            return f"{uid} was granted {grant}m and has {limit}m"
    return None


def reasons_given(decision: SimDecision) -> str | None:
    """Every grant carries at least one reason."""
    for uid in decision.plan.allocations:
        if not decision.plan.reasons.get(uid):
            return f"the grant of {uid} has no reason"
    return None


def replays(decision: SimDecision) -> str | None:
    """The recorded counters, and the snapshot that they lead to, decided again from their bytes,
    give the recorded bytes."""
    again = canonical(KINDS["cpu.allocate"].run(decision.input).result)
    same = decision.same and again == decision.result
    return None if same else "a replay of the decision differs from the record"


STATE_CHECKS: Mapping[str, Callable[[NodeState], str | None]] = {
    "limits-fit": limits_fit,
    "limits-bounded": limits_bounded,
    "limits-only-to-contain": limits_only_to_contain,
    "minimums-kept": minimums_kept,
    "applied-as-decided": applied_as_decided,
}
DECISION_CHECKS: Mapping[str, Callable[[SimDecision], str | None]] = {
    "reasons-given": reasons_given,
    "replays": replays,
}
