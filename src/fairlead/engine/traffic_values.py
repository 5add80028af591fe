"""The values of the traffic governor: its rules, what it is shown, and how that becomes a snapshot.

Called by `engine.traffic`. Everything here is plain data in, plain data out; what no sensor can
have meant becomes None, a missing signal.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from fairlead.core.traffic import Backend, Cause, Config, Health, HealthRules, Node, State
from fairlead.core.units import FLOAT_MAX, SIZE_MAX
from fairlead.engine.traffic_signals import WINDOW_MS, Seen
from fairlead.ports.dataplane import BackendSeen, GroupSeen
from fairlead.ports.traffic import Probed, Reading


class BadTrafficState(ValueError):
    """A stored state that is not one of ours: refused whole rather than half believed."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """How a group is governed."""

    config: Config = field(default_factory=Config)
    health: HealthRules = field(default_factory=HealthRules)
    window_ms: int = WINDOW_MS
    own_budget: bool = False
    """The operator set no `bucket_rate`: the soft door's budget follows what is served."""
    own_reference: bool = False
    """The operator set no `q_ref`: it follows the usual queue."""
    own_latency: bool = False
    """The operator set no `l_ref_ms`: it follows the usual latency."""
    own_bound: bool = False
    """The operator set no `inside_max`: it follows what is served."""


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


def health_of(stored: Mapping[str, Any]) -> Health:
    """A stored health; ValueError for what is none."""
    health = Health(**stored)
    times = (health.high_since_ms, health.probed_ms, health.born_ms)
    whole = type(health.streak) is int and all(type(each) in (int, type(None)) for each in times)
    if type(health.id) is not str or not whole:
        raise ValueError(f"not a backend's health: {stored!r}")
    return replace(health, cause=None if health.cause is None else Cause(health.cause))


def unmoved(after: State, before: State | None) -> State | None:
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
        after, backends=tuple(replace(memory, slots=slots[memory.id]) for memory in after.backends)
    )


def outcomes(
    seen: BackendSeen | None, reading: Reading, covered: Collection[str]
) -> tuple[int | None, int | None]:
    """Successes and errors of a backend so far, from whoever is to tell."""
    if {"requests", "errors"} <= set(covered):
        if reading.requests is None or reading.errors is None:
            return None, None
        return max(0, reading.requests - reading.errors), reading.errors
    return (None, None) if seen is None else (seen.successes, seen.errors)


def served(sighted: Sighted) -> int | None:
    """Successes of the group so far; where nobody sees them, what the plane let in."""
    seen = sighted.seen
    if seen is None:
        return None
    known = [
        outcomes(seen.backends.get(id), sighted.readings.get(id, Reading()), sighted.covered)[0]
        for id in sighted.members
    ]
    found = [each for each in known if each is not None]
    return sum(found) if found else seen.admitted


def inside(sighted: Sighted) -> tuple[int | None, int]:
    """What is being worked on in the group, and what the plane counts as inside besides.

    Connections of a plane that cannot see requests may be idle ones: then the application has to
    tell, and what it does not tell of is idle.
    """
    if sighted.seen is None:
        return None, 0
    here = [sighted.seen.backends.get(id) for id in sighted.members]
    opened = [each.open for each in here if each is not None and each.open is not None]
    if len(opened) < len(here) or not here:
        return None, 0
    counted = sum(max(0, each) for each in opened)
    if "queue" not in sighted.covered:
        blind = any(each is None or each.queue is None for each in here)
        return (None, 0) if blind else (counted, 0)
    told = [sighted.readings.get(id, Reading()).queue for id in sighted.members]
    known = [each for each in told if each is not None and isfinite(each)]
    if len(known) < len(told):
        return None, 0
    busy = round(sum(known))
    return busy, max(0, counted - busy)


def connect_failures(seen: GroupSeen | None, name: str) -> int:
    """Of one backend, so far; 0 where nobody can tell."""
    backend = None if seen is None else seen.backends.get(name)
    return 0 if backend is None else backend.connect_failures or 0


def backend_of(
    name: str, seen: Seen, node: str | None, *, isolated: bool, age_ms: int | None
) -> Backend:
    """A backend as the tick wants it."""
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
        jitter_ms=_measure(seen.jitter_ms),
        node=node,
        debt=_measure(seen.queue),
        drain_per_s=_measure(seen.drain_per_s),
    )


def _measure(value: float | None) -> float | None:
    """A measurement, or None for what no sensor can have meant."""
    if value is None or not isfinite(value) or not 0 <= value <= FLOAT_MAX:
        return None
    return float(value)


def honest(seen: BackendSeen | None) -> BackendSeen | None:
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
