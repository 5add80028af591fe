"""The health tracker: which backends are isolated, probed or warming up. `observe` calls `track`.

Four causes isolate a backend: the operator, a failing health check, 5 connect failures in a row, or
being an outlier: P above 4 times the group's median for 3 s, or plainly broken in the last moments,
though never more than half the group. w ~ 1/P alone would leave a backend that is 10 times slower
3 % of the flow, and p99 *is* that backend.

The way back is the same for all: a drip of probes, 5 successes in a row with P below twice the
median, then warm-up (its age starts anew).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter


class Cause(StrEnum):
    """Why a backend is isolated."""

    OPERATOR = "operator"
    CHECK = "health-check"
    CONNECT = "connect-failures"
    OUTLIER = "outlier"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The numbers of isolation and re-entry."""

    outlier_ratio: float = 4.0
    outlier_ms: int = 3_000
    connect_failures: int = 5
    return_successes: int = 5
    return_ratio: float = 2.0
    probe_every_ms: int = 500
    """Five successes take 2 s at this pace: a drip, not a load."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of a backend since the last tick."""

    id: str
    pressure: float | None = None
    """P of the last tick; None: unknown."""
    successes: int = 0
    """While it is isolated: of probes. What was still under way proves nothing."""
    failures: int = 0
    connect_failures_in_a_row: int = 0
    check_ok: bool | None = None
    """None: it has no health check."""
    operator_isolated: bool = False
    failing: bool = False
    """It is plainly broken just now (nothing but errors, or stalled): an outlier at once."""


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """What is remembered of a backend."""

    id: str
    cause: Cause | None = None
    high_since_ms: int | None = None
    """Since when P is an outlier's."""
    streak: int = 0
    """Successes in a row while isolated."""
    probed_ms: int | None = None
    born_ms: int | None = None
    """When it joined or came back; None: it was there when we started, and counts as warm."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The verdict: flags and ages for the next snapshot, and which backends are due for a probe."""

    healths: tuple[BackendHealth, ...]
    isolated: Mapping[str, Cause]
    probes: tuple[str, ...]
    age_ms: Mapping[str, int | None]


def track(
    before: Sequence[BackendHealth] | None,
    evidence: Sequence[Evidence],
    *,
    now_ms: int,
    rules: HealthRules | None = None,
) -> Tracked:
    """One tick of the tracker. `before` is None at the very first, when no backend is new."""
    rules = rules or HealthRules()
    known = {health.id: health for health in before or ()}
    born_ms = None if before is None else now_ms
    seen = sorted(evidence, key=attrgetter("id"))
    last = [known.get(s.id) or BackendHealth(s.id, born_ms=born_ms) for s in seen]
    # The median is of those in service: what an isolated backend measures is not the group's norm.
    serving = [s.pressure for h, s in zip(last, seen, strict=True) if h.cause is None]
    norm = median([pressure for pressure in serving if pressure is not None])
    healths = [_judge(h, s, norm, now_ms, rules) for h, s in zip(last, seen, strict=True)]
    healths = _isolate_outliers(healths, seen, now_ms, rules)
    probes = {h.id for h, s in zip(healths, seen, strict=True) if _due(h, s, now_ms, rules)}
    return Tracked(
        healths=tuple(replace(h, probed_ms=now_ms) if h.id in probes else h for h in healths),
        isolated={h.id: h.cause for h in healths if h.cause is not None},
        probes=tuple(sorted(probes)),
        age_ms={h.id: None if h.born_ms is None else max(0, now_ms - h.born_ms) for h in healths},
    )


def median(values: Sequence[float]) -> float | None:
    """The middle value, of an even number the lower of the two; None of nothing.

    The mean of the two would make a sick backend of a pair a part of its own norm: P above
    4*(P + p)/2 never holds, and no pair could ever send one of its two away.
    """
    return sorted(values)[(len(values) - 1) // 2] if values else None


def _judge(
    health: BackendHealth, seen: Evidence, norm: float | None, now_ms: int, rules: HealthRules
) -> BackendHealth:
    """Everything but outliers, which the group decides together."""
    cause = _cause(seen, rules)
    if cause is not None:
        # The cause that is seen now replaces an older one: it is the one to look into.
        return replace(health, cause=cause, streak=0, high_since_ms=None)
    pressure = seen.pressure
    if health.cause is None:
        high = pressure is not None and norm is not None and pressure > rules.outlier_ratio * norm
        if high is (health.high_since_ms is not None):
            return health
        return replace(health, high_since_ms=now_ms if high else None)
    # Successes in a row while P is low enough: enough of them, and it is back, newborn.
    calm = pressure is not None and (norm is None or pressure < rules.return_ratio * norm)
    streak = 0 if seen.failures or not calm else health.streak + seen.successes
    if streak < rules.return_successes:
        return replace(health, streak=streak)
    return BackendHealth(health.id, born_ms=now_ms)


def _cause(seen: Evidence, rules: HealthRules) -> Cause | None:
    if seen.operator_isolated:
        return Cause.OPERATOR
    if seen.check_ok is False:
        return Cause.CHECK
    return Cause.CONNECT if seen.connect_failures_in_a_row >= rules.connect_failures else None


def _isolate_outliers(
    healths: list[BackendHealth], seen: Sequence[Evidence], now_ms: int, rules: HealthRules
) -> list[BackendHealth]:
    """The worst first, and never so many that more than half the group is out."""
    room = len(healths) // 2 - sum(health.cause is not None for health in healths)
    due = []
    for health, evidence in zip(healths, seen, strict=True):
        since_ms = health.high_since_ms
        lasts = since_ms is not None and now_ms - since_ms >= rules.outlier_ms
        if health.cause is None and (evidence.failing or lasts):
            due.append((not evidence.failing, -(evidence.pressure or 0.0), health.id))
    chosen = {id for *_, id in sorted(due)[: max(0, room)]}
    return [
        replace(health, cause=Cause.OUTLIER, streak=0, high_since_ms=None, probed_ms=now_ms)
        if health.id in chosen
        else health
        for health in healths
    ]


def _due(health: BackendHealth, seen: Evidence, now_ms: int, rules: HealthRules) -> bool:
    """Isolated backends are probed now and then; the operator's are left alone."""
    if health.cause is None or seen.operator_isolated:
        return False
    return health.probed_ms is None or now_ms - health.probed_ms >= rules.probe_every_ms
