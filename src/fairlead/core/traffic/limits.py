"""The limits that go with a group's slots, and the other numbers that dataplanes and probes obey.

    limits = plan_limits({"a": 200, "b": 56}, plan.admission, inside_max=60, open={"a": 9, "b": 30})
    limits.concurrency.room          # {"a": 47, "b": 13}: how much each backend may hold
    limits.fallback.admission.mode   # how requests are admitted when the agent is dead

Dataplanes translate these numbers, and what they are told once at their start, and decide nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from fairlead.core.apportion import largest_remainder
from fairlead.core.traffic.admission import FALLBACK_AFTER_MS, HOLD_AFTER_MS, fnv1a, scramble
from fairlead.core.traffic.alone import STAY_MS, FallbackBound, bound_alone
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.retries import RetryLimit
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode

UNPLANNED_SLOTS = 256
"""Of a group that has had no table yet."""
ROOM_LEAST = 4
"""A backend of a bounded group may hold this many requests, whatever its share of the total."""
STUCK_STEP = 8
"""What is in isolated backends is rounded up to this: a bound that changes is a flip."""
REQUEST_BIAS = 0.6
"""How strongly requests in a backend count against it where a proxy chooses by least requests. With
1 a backend that fails at once, and so never holds anything, would attract most requests; with 0.5
one that stalls got up to 13 of 100."""
FULL_RETRY_AFTER_S, RETRY_AFTER_S_MAX = 1, 60
LATENCY_WINDOW_MS, LATENCY_QUANTILE = 5_000, 0.95
STALE_ROUNDS = 3
"""A signal that is older than three of its periods is missing."""
AVERAGED, MEAN_REQUESTS_MIN = 512, 5
"""How many requests HAProxy's averages look back over, and of how few a mean says nothing."""
DRIP_EACH = 1
"""What a server may hold while admission is hard, on a proxy that can bound nothing but servers."""
RESTART_PAUSE_MS = 5_000
"""Between attempts to start a proxy that died: a start takes longer than a tick."""


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a proxy that can do so passes over a backend by itself, until the agent has seen it."""

    consecutive_errors: int = 3
    interval_ms: int = 500
    duration_ms: int = 1_000
    """Five ticks: by then the agent has decided."""
    ejected_percent_max: int = 50


@dataclass(frozen=True, slots=True)
class Fallback:
    """How a group is served when its agent is dead."""

    members: tuple[str, ...]
    """The backends that a flow may be hashed to."""
    admission: Admission = field(default_factory=Admission)
    retry_after_s: int = FULL_RETRY_AFTER_S
    bound: FallbackBound = field(default_factory=FallbackBound)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests (connections, in the kernel) may be inside a group at once."""

    inside_max: int
    room_least: int = ROOM_LEAST
    request_bias: float = REQUEST_BIAS
    room: Mapping[str, int] = field(default_factory=dict, compare=False)
    """By backend, until the next tick, for proxies that cannot compare shares on every request. A
    backend that is not listed may hold any number. It follows what is inside, so it differs in
    every tick; a table that differs in nothing else needs no flip."""
    by_server: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    """The same for each server of a backend, where a proxy has several: what is in the others, and
    is not about to leave, is taken off, but one request always fits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All that bounds a group beside its slots."""

    fallback: Fallback
    admission: Admission = field(default_factory=Admission)
    retry_after_s: int = FULL_RETRY_AFTER_S
    concurrency: Concurrency | None = None
    retries: RetryLimit | None = None
    """None: the group asks for none."""


@dataclass(frozen=True, slots=True)
class Split:
    """The slots of a group and the backends that serve it in fallback."""

    slots: Mapping[str, int]
    members: tuple[str, ...]


def plan_limits(
    slots: Mapping[str, int],
    admission: Admission,
    *,
    stored: Admission | None = None,
    inside_max: int | None = None,
    open: Mapping[str, int | None] | None = None,
    inside: Mapping[str, tuple[int, ...]] | None = None,
    stay_ms: int = STAY_MS,
    retries: RetryLimit | None = None,
    served: Mapping[str, int] | None = None,
    stuck: int = 0,
    firm: bool = True,
) -> Limits:
    """`stored` is what `hard` relaxes to in fallback, `open` what each backend holds now, `inside`
    what each of its servers does, `served` what each has answered in the last tick, `stuck` what
    is in isolated backends and no load of the others, `stay_ms` how long requests are to stay at
    the most. Not `firm`: rooms add up to more than may be inside, as in former records."""
    alone, members = fallback_admission(admission, stored), fallback_members(slots)
    held = sum(count or 0 for count in (open or {}).values())
    kept = bound_alone(inside_max, members=len(members), open=held, stay_ms=stay_ms)
    fallback = Fallback(members, alone, retry_after_s(alone), kept)
    bound = None
    if inside_max is not None:
        room = rooms(slots, inside_max, open or {}, firm=firm)
        by_server = server_rooms(room, inside or {}, served or {})
        beside = -(-stuck // STUCK_STEP) * STUCK_STEP
        bound = Concurrency(inside_max + beside, room=room, by_server=by_server)
    return Limits(fallback, admission, retry_after_s(admission), bound, retries)


def rooms(
    slots: Mapping[str, int], inside_max: int, open: Mapping[str, int | None], *, firm: bool = True
) -> dict[str, int]:
    """How much each backend may hold until the next tick. More can come than was inside at the last
    one: half more is expected, or three quarters of the bound, but no more than may be inside. With
    half more than that a group at its bound was served unevenly: 57 inside of four backends with
    six workers each, one of them idle and one with fifteen that wait. The only backend is never
    full.
    """
    total = sum(slots.values())
    inside = sum(open.get(id) or 0 for id in slots)
    expected = (3 * min(inside_max, max(inside, inside_max // 2)) + 1) // 2
    expected = min(expected, inside_max) if firm else expected
    return {id: share(count, total, expected) for id, count in slots.items() if 0 < count < total}


def server_rooms(
    room: Mapping[str, int], inside: Mapping[str, tuple[int, ...]], served: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The room of each backend less what its other servers hold, server by server. After a flip
    that is most of it, and leaves while newcomers come: as much as was `served` in the last tick,
    but no more than half of it, is not taken off. Where all of it was, workers of a group at its
    bound were idle for a tick after each flip.
    """
    return {
        id: tuple(_own_room(room[id], sum(held) - own, served.get(id, 0)) for own in held)
        for id, held in inside.items()
        if held and id in room
    }


def _own_room(room: int, others: int, served: int) -> int:
    return max(1, room - others + min(others // 2, served))


def server_bounds(
    slots: Mapping[str, int], limits: Limits, own: Mapping[str, int]
) -> dict[str, int]:
    """What each server may hold at the most on a proxy whose admission is not ours, 0 for any
    number. Together they hold what may be inside; the rest waits in the proxy. A server never gets
    more than its operator allows (`own`), and one without slots keeps that."""
    total, bound = sum(slots.values()), limits.concurrency
    bounds = {}
    for id, count in slots.items():
        most = 0
        if count and limits.admission.mode is AdmissionMode.HARD:
            most = DRIP_EACH
        elif count and bound is not None:
            most = share(count, total, bound.inside_max)
        bounds[id] = min(filter(None, (most, own.get(id, 0))), default=0)
    return bounds


def share(slots: int, total: int, inside: int, least: int = ROOM_LEAST) -> int:
    """How much a backend of a bounded group may hold before it is passed over: one that holds more
    than its share of what is inside serves more slowly than the others. With the newcomer counted
    as inside, one backend always has room.
    """
    return max(least, -(-inside * slots // total)) if slots else 0


def fallback_members(slots: Mapping[str, int]) -> tuple[str, ...]:
    """The backends that had slots. One without was isolated or drained by an agent that knew; only
    when none had any is every backend tried."""
    return tuple(sorted(id for id, count in slots.items() if count > 0) or sorted(slots))


def fallback_admission(admission: Admission, stored: Admission | None) -> Admission:
    """`hard` relaxes to `soft` with the stored budget: its own numbers are a drip, and a dead agent
    must not leave a group closed. Without a stored budget the drip stays."""
    if admission.mode is not AdmissionMode.HARD:
        return admission
    budget = stored or admission
    return Admission(AdmissionMode.SOFT, budget.rate_per_s, budget.burst)


def retry_after_s(admission: Admission) -> int:
    """When a refused client should come back: when the next token is due."""
    if admission.mode is AdmissionMode.NORMAL:
        return FULL_RETRY_AFTER_S
    rate = admission.rate_per_s or 0.0
    return min(RETRY_AFTER_S_MAX, max(1, ceil(1 / rate))) if rate > 0 else RETRY_AFTER_S_MAX


def split(
    ids: Collection[str], before: Mapping[str, int] | None = None, isolated: Collection[str] = ()
) -> Split:
    """The slots of a group whose backends were configured: what remains of the slots before.

    Newcomers wait for the next table. A group in which no backend has slots is split evenly over
    those that are not isolated, to the slot; what does not divide goes to the first ids.
    """
    ordered = sorted(ids)
    slots = {id: (before or {}).get(id, 0) for id in ordered}
    if not any(slots.values()):
        shares = [int(id not in isolated) for id in ordered]
        even = largest_remainder(UNPLANNED_SLOTS, shares if any(shares) else [1] * len(ordered))
        slots = dict(zip(ordered, even, strict=True))
    return Split(slots, fallback_members(slots))


def liveness(age_ms: int) -> Liveness:
    """normal < 3 s <= hold < 15 s <= fallback. A heartbeat from the future predates a reboot."""
    if not may_resume(age_ms):
        return Liveness.FALLBACK
    return Liveness.HOLD if age_ms >= HOLD_AFTER_MS else Liveness.NORMAL


def may_resume(age_ms: int) -> bool:
    """Whether a recorded tick of this age is still in force: then the next agent continues it."""
    return 0 <= age_ms < FALLBACK_AFTER_MS


def restart_wait_ms(since_failure_ms: int) -> int:
    """How long to wait before a proxy whose last start failed is started again."""
    return max(0, RESTART_PAUSE_MS - since_failure_ms)


def tick_delay_us(agent: str, number: int, period_ms: int) -> int:
    """How late tick `number` is on purpose: up to a tenth of the period, by an amount that depends
    only on its number and on the agent's name. A fleet of agents does not tick in step, and a run
    can be repeated."""
    return scramble(fnv1a(agent.encode()) ^ number) % max(1, period_ms * 1000 // 10)


def is_fresh(age_ms: int, every_ms: int) -> bool:
    """Whether a signal that is read every `every_ms` still counts at this age."""
    return age_ms <= STALE_ROUNDS * every_ms


def may_be_starting(waited_ms: int, every_ms: int, timeout_ms: int) -> bool:
    """Whether a source that has never answered may simply not have had the time."""
    return waited_ms <= STALE_ROUNDS * every_ms + timeout_ms


def succeeded(status: int) -> bool:
    """Whether an HTTP status is a success of the backend; a client's errors are not its fault."""
    return status < 500  # from there on HTTP blames the server


def p95(latencies: Sequence[float]) -> float | None:
    """The smallest latency that 95 % of them do not exceed; None without any."""
    if not latencies:
        return None
    return sorted(latencies)[ceil(LATENCY_QUANTILE * len(latencies)) - 1]


def mean_since(before: tuple[int, int], now: tuple[int, int]) -> float | None:
    """The mean of what came since `before`, from a moving average over the last `AVERAGED`: each is
    (how many so far, average). None for too few to say anything.

    The first ones count alike; from then on each newcomer takes its part of the average away.
    """
    (done_before, average_before), (done, average) = before, now
    more = done - done_before
    if more < MEAN_REQUESTS_MIN:
        return None
    if done <= AVERAGED:
        return max(0.0, (done * average - done_before * average_before) / more)
    kept = (1 - 1 / AVERAGED) ** more
    return max(0.0, (average - kept * average_before) / (1 - kept))
