"""Counters to signals: what was counted of a backend over the last seconds.

Counters only grow; one that falls belongs to a new process, and its window begins again. One that
vanishes is a missing signal, not a zero.

Also here: backends that are broken altogether, noticed within a tick or two. Pressure needs seconds
to make an outlier of them, and meanwhile a quarter of a group of four fails or waits. A backend
that answers with nothing but errors shows it in its first answers; one that stalls shows it by what
piles up in it.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter, lt
from typing import Any, NamedTuple, TypeVar

from fairlead.core.traffic.config import LatencyMs
from fairlead.core.traffic.health import median
from fairlead.core.traffic.sighting import BackendSeen, Look, Reading

WINDOW_MS, QUEUE_MS = 5_000, 350
SPAN_MS, LOOKS = 600, 2
"""How far a streak looks back, and over how many intervals of looks at least: with the whole of one
in between, a late answer leaves it with two looks."""
ERRORS_MIN, ERRORS_MIN_AMONG_ERRORS = 3, 6
HELD_MIN, TIMES_STAY = 4, 6
TICKS_HELD, TICKS_HARMLESS, HARMLESS = 3, 10, 0.05
"""A stalled backend is isolated after so many looks, one a tick where the dataplane counts; one
that gets next to nothing, because its dataplane passes it over, as late as any other outlier."""

Window = tuple[tuple[int, int], ...]
"""(clock_ms, total), oldest first."""
T = TypeVar("T")


def covering(
    window: tuple[T, ...], reach: int, time_of: Callable[[Any], int] = itemgetter(0)
) -> tuple[T, ...]:
    """From the newest entry that is old enough on: the window is covered, and not more."""
    first, last = 0, len(window) - 1
    while first < last and time_of(window[first + 1]) <= reach:
        first += 1
    return window[first:] if first else window


def add(window: Window, clock_ms: int, total: int | None, window_ms: int) -> Window:
    if total is None:
        return ()
    if window and total < window[-1][1]:
        window = ()
    return covering((*window, (clock_ms, total)), clock_ms - window_ms)


def counted(window: Window) -> int | None:
    """How much was counted over the window, as far as it is known."""
    return window[-1][1] - window[0][1] if window else None


class TrafficCounters(NamedTuple):
    """The windows of one backend's counters."""

    requests: Window = ()
    successes: Window = ()
    errors: Window = ()
    connect: Window = ()
    retries: Window = ()
    retransmits: Window = ()
    scraped: Window = ()
    """Requests as the application counts them."""

    def begin_again(self) -> "TrafficCounters":
        """Without the errors before a probe's first good answer."""
        return self._replace(scraped=(), successes=(), errors=(), connect=())


class Signals(NamedTuple):
    """One backend over the window, ready for a snapshot. None: unknown."""

    queue: float | None = None
    p95_ms: LatencyMs | None = None
    error_rate: float | None = None
    requests: int | None = None
    successes: int | None = None
    retries: int | None = None
    rtt_ms: LatencyMs | None = None
    retrans_rate: float | None = None
    jitter_ms: LatencyMs | None = None
    drain_per_s: float | None = None
    """Successes per second; None where they are not counted, or the window has just begun."""
    connect_failures_in_a_row: int = 0


_NOTHING = BackendSeen()


def last_step(window: Window) -> int:
    """By how much a counter grew between the last two looks."""
    return window[-1][1] - window[-2][1] if len(window) > 1 else 0


def read_counters(
    before: TrafficCounters,
    clock_ms: int,
    seen: BackendSeen | None,
    reading: Reading,
    covered: Collection[str],
    *,
    window_ms: int = WINDOW_MS,
) -> tuple[TrafficCounters, Signals]:
    """One tick. `covered` are the fields for which the application itself is asked; `queue` and
    `p95_ms` of the signals are this moment's.
    """
    proxy = seen or _NOTHING
    errors_covered = "errors" in covered
    now = TrafficCounters(
        add(before.requests, clock_ms, None if seen is None else seen.admitted, window_ms),
        add(before.successes, clock_ms, proxy.successes, window_ms),
        add(before.errors, clock_ms, reading.errors if errors_covered else proxy.errors, window_ms),
        add(before.connect, clock_ms, proxy.connect_failures, window_ms),
        add(before.retries, clock_ms, reading.retries, window_ms),
        add(before.retransmits, clock_ms, proxy.retransmits, window_ms),
        add(before.scraped, clock_ms, reading.requests, window_ms),
    )
    admitted, retransmits = counted(now.requests), counted(now.retransmits)
    successes, failures = _outcomes(now, errors_covered=errors_covered)
    done = (successes or 0) + (failures or 0)
    known = successes is not None and failures is not None
    source = now.scraped if errors_covered else now.successes
    span_ms = source[-1][0] - source[0][0] if source else 0
    # What waits for it and what is in it. Where a dataplane cannot see what waits, its open
    # connections may be idle ones, and mean nothing.
    queue = None if proxy.queue is None else float(proxy.queue + (proxy.open or 0))
    return now, Signals(
        queue=reading.queue if "queue" in covered else queue,
        p95_ms=reading.p95_ms if "p95_ms" in covered else proxy.p95_ms,
        # Of nothing at all, measured, it is 0; `requests` says how much that is worth.
        error_rate=(failures or 0) / max(1, done) if known else None,
        requests=counted(now.scraped) if "requests" in covered else admitted,
        successes=successes,
        retries=counted(now.retries),
        rtt_ms=proxy.rtt_ms,
        retrans_rate=None if not admitted or retransmits is None else retransmits / admitted,
        jitter_ms=proxy.jitter_ms,
        drain_per_s=None if successes is None or not span_ms else successes * 1000 / span_ms,
        connect_failures_in_a_row=proxy.consecutive_failures or 0,
    )


def _outcomes(now: TrafficCounters, *, errors_covered: bool) -> tuple[int | None, int | None]:
    """Successes and failures. Connects that fail are failures, whatever counts the rest."""
    errors, connect = counted(now.errors), counted(now.connect)
    if not errors_covered:
        unknown = errors is None and connect is None
        return counted(now.successes), None if unknown else (errors or 0) + (connect or 0)
    scraped = counted(now.scraped)
    if errors is None or scraped is None:
        return None, None
    # Scraped counters are read one after the other: a request may be in one of them only.
    return max(0, scraped - errors), errors + (connect or 0)


def outcomes(
    seen: BackendSeen | None, reading: Reading, covered: Collection[str]
) -> tuple[int | None, int | None]:
    """Successes and errors of a backend so far: the application's where it is asked for both."""
    if "requests" in covered and "errors" in covered:
        if reading.requests is None or reading.errors is None:
            return None, None
        return max(0, reading.requests - reading.errors), reading.errors
    return (None, None) if seen is None else (seen.successes, seen.errors)


@dataclass(frozen=True, slots=True)
class Streak:
    """The last moments of one backend; where it is looked at less often, the last few looks."""

    looks: tuple[Look, ...] = ()
    full: int = 0
    """Looks with too much in it, less those since then without."""
    judged_ms: int | None = None
    """Of the last look that counted for `full`."""
    sent: Window = ()
    span_ms: int = SPAN_MS

    @property
    def failed(self) -> int:
        return self.looks[-1].errors - self.looks[0].errors if self.looks else 0

    @property
    def served(self) -> int:
        return self.looks[-1].successes - self.looks[0].successes if self.looks else 0

    def advance(
        self,
        clock_ms: int,
        successes: int | None,
        errors: int | None,
        inside: int | None = None,
        admitted: int | None = None,
    ) -> "Streak":
        """Counters so far, what is in it now, and what the dataplane has sent it. What is not
        counted is no failure.
        """
        sent: Window = ()
        if admitted is not None:
            past = self.sent if not self.sent or admitted >= self.sent[-1][1] else ()
            reach_ms = clock_ms - SPAN_MS
            sent = (*(one for one in past if one[0] >= reach_ms), (clock_ms, admitted))
        looks: tuple[Look, ...] = ()
        if successes is not None and errors is not None:
            look = Look(clock_ms, successes, errors, max(0, inside or 0))
            # Else another process counts, or the clock went back.
            if self.looks and not any(map(lt, look[:3], self.looks[-1][:3])):
                reach_ms = clock_ms - self.span_ms
                looks = tuple(past for past in self.looks if past.at_ms >= reach_ms)
            looks = (*looks, look)
        return Streak(looks, self.full, self.judged_ms, sent, self.span_ms)

    def fails(self, least: int) -> bool:
        """Whether it gave so many errors, and more of them than answers, since any of the looks.

        Since any: what it answered well before it broke does not excuse it. What was in it by then
        may still end well and is no answer to what came since, up to half of the answers.
        """
        for look in self.looks if self.failed >= least else ():
            failed = self.looks[-1].errors - look.errors
            served = self.looks[-1].successes - look.successes
            if failed >= least and failed > served - min(look.inside, (served + 1) // 2):
                return True
        return False

    @property
    def per_s(self) -> float | None:
        """How many it served in a second of these moments; None where too little was seen."""
        span_ms = self.looks[-1].at_ms - self.looks[0].at_ms if self.looks else 0
        return self.served * 1000 / span_ms if 2 * span_ms >= SPAN_MS else None

    def stay_s(self, held: int | None) -> float | None:
        """How long a request stays with it, by Little's law; None where that is not known."""
        per_s = self.per_s
        if held is None or per_s is None:
            return None
        return held / max(per_s, 1000 / self.span_ms)

    def judge(self, held: int | None, usual_s: float | None, usual_per_s: float | None) -> "Streak":
        """Count one look at what has piled up in it, beside how long requests stay with the other
        backends and how many those serve.

        Both: a backend that is only busy holds much too, and isolating the busy makes the next ones
        busy.
        """
        stay_s = self.stay_s(held)
        if held is None or stay_s is None or usual_s is None or usual_per_s is None:
            return replace(self, full=0) if self.full else self
        at_ms = self.looks[-1].at_ms
        if at_ms == self.judged_ms:  # the same look twice proves nothing more
            return self
        slow = stay_s > TIMES_STAY * usual_s and 2 * (self.per_s or 0.0) < usual_per_s
        full = self.full + 1 if held >= HELD_MIN and slow else max(0, self.full - 1)
        return replace(self, full=full, judged_ms=at_ms)


def is_urgent(looks: tuple[Look, ...]) -> bool:
    """Whether reports that show hardly anything but errors are not to wait for the next tick."""
    return Streak(looks).fails(ERRORS_MIN)


def find_broken(
    streaks: Mapping[str, Streak], held: Mapping[str, int | None]
) -> tuple[dict[str, Streak], set[str]]:
    """The streaks with this look counted, and the backends whose last answers were hardly anything
    but errors, or that stall.

    Where others fail too it takes more: in a group in which one of ten requests fails, three in a
    row are chance. Where more than half of the group is broken the fault lies elsewhere, and
    isolating some of them does not help.
    """
    failed = {name: streak.failed for name, streak in streaks.items()}
    came = {name: counted(streak.sent) or 0 for name, streak in streaks.items()}
    failed_total, came_total = sum(failed.values()), sum(came.values())
    stays = {name: streaks[name].stay_s(count) for name, count in held.items()}
    known = {name: stay for name, stay in stays.items() if stay is not None}
    rates = {name: streaks[name].per_s or 0.0 for name in known}
    all_stays, all_rates = sorted(known.values()), sorted(rates.values())
    judged, broken = {}, set()
    for name, streak in streaks.items():
        usual_s = _median_without(all_stays, known.get(name))
        usual_per_s = _median_without(all_rates, rates.get(name))
        now = judged[name] = streak.judge(held.get(name), usual_s, usual_per_s)
        harmless = came[name] <= HARMLESS * came_total
        least = ERRORS_MIN if failed[name] == failed_total else ERRORS_MIN_AMONG_ERRORS
        stalled = now.full >= (TICKS_HARMLESS if harmless else TICKS_HELD)
        if stalled or now.fails(least):
            broken.add(name)
    return judged, broken if 2 * len(broken) <= len(streaks) else set()


def _median_without(ordered: Sequence[float], own: float | None) -> float | None:
    """The lower median of the sorted values without one of them."""
    if own is None:
        return median(ordered)
    if len(ordered) == 1:
        return None
    middle = (len(ordered) - 2) // 2
    return ordered[middle + 1] if bisect_left(ordered, own) <= middle else ordered[middle]
