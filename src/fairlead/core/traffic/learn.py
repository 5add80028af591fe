"""What is learned of a group where the operator set nothing: references, budget, bound.

Each of these becomes a parameter of the tick (`q_ref`, `l_ref_ms`, `bucket_rate`, `bucket_burst`,
`inside_max`). They change in steps: every change is a flip of the dataplane and a line in the
record.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum

from fairlead.core.traffic.alone import UNLEARNED_EACH
from fairlead.core.traffic.config import Config, LatencyMs
from fairlead.core.traffic.counters import Window, covering
from fairlead.core.traffic.health import median
from fairlead.core.traffic.state import AdmissionMode

# --- references
#
# The equations ask for "a typical healthy queue proxy, or a constant like 50". With the constant a
# group that usually has three requests in each backend hardly feels a queue of thirty; its latency,
# a p95 over 5 s, is felt too late, and near capacity the slots swing from one backend to the next.
# In the harness's `slow` (70 % load, one of four gone) goodput within the SLO was 0.71 to 1.00 with
# 50, depending on the seed, and 1.00 with twice the usual queue.
#
# L_ref is 100 ms by default, and a service that simply takes 400 ms has a conductance below G_min
# with it: its admission would be soft for good. So where no objective is given the reference is
# what the group usually takes, if that is more; until that is known latency restricts nothing.

SAMPLE_MS, CHANGE_MS = 1_000, 10_000
USUAL_SAMPLES, USUAL_SAMPLES_MIN = 60, 10
HELPLESS_MS = 30_000
"""Admission that has been soft for so long is not soft because of the load, or letting in less
would have helped: what is seen then is usual too. Otherwise it would stay soft for good."""
QUEUE_TIMES_USUAL, QUEUE_LEAST = 2.0, 4.0


@dataclass(frozen=True, slots=True)
class Usual:
    """The median of a signal over the last minute in which admission was open, or did not help."""

    samples: tuple[float, ...] = ()
    sampled_ms: int = 0
    changed_ms: int = 0
    open_ms: int = 0

    def advance(
        self, clock_ms: int, values: Collection[float], mode: AdmissionMode
    ) -> tuple["Usual", float | None]:
        """One tick: what the backends in service show. With the median when it is due."""
        open_ms = clock_ms if mode is AdmissionMode.NORMAL else self.open_ms
        samples, sampled_ms = self.samples, self.sampled_ms
        new = len(samples) < USUAL_SAMPLES_MIN
        helpless = mode is AdmissionMode.SOFT and (new or clock_ms - open_ms >= HELPLESS_MS)
        counts = values and (mode is AdmissionMode.NORMAL or helpless)
        if counts and clock_ms - sampled_ms >= SAMPLE_MS:
            sampled_ms = clock_ms
            samples = (*samples, median(list(values)) or 0.0)[-USUAL_SAMPLES:]
        due = len(samples) >= USUAL_SAMPLES_MIN and clock_ms - self.changed_ms >= CHANGE_MS
        changed_ms = clock_ms if due else self.changed_ms
        return Usual(samples, sampled_ms, changed_ms, open_ms), median(samples) if due else None


def queue_reference(usual: float, config: Config) -> float:
    """Twice the usual queue, up to the default."""
    return min(config.q_ref, max(QUEUE_LEAST, round(QUEUE_TIMES_USUAL * usual, 1)))


def failing_flow(g_min: float, config: Config) -> float:
    """G_min of a group in which what may be inside is bounded: the conductance of backends that
    all fail as often as eta. What takes longer there is held by the bound within a tick. A budget
    per second besides it was what kept rejecting after a brown-out: it is cut for as long as the
    backends are slow, and grows back for 20 s once they are not (harness, `brown-out`).
    """
    failing = config.k_e + config.w_e * min(config.eta / config.e_ref, config.e_max)
    return min(g_min, config.p_ref / max(failing, config.p_min))


def latency_reference(usual_ms: LatencyMs, config: Config) -> float:
    """The usual latency, where that is above the default."""
    return max(config.l_ref_ms, round(usual_ms, 1))


# --- the budget of soft admission
#
# A fixed default is wrong for almost every group: 100 a second would starve one that serves 1000.
# So the budget starts below the most that was served lately, is cut once per window while the
# trigger lasts (a signal over 5 s shows no effect before that), and grows a little every calm
# second. While more comes than can be served it saws along the capacity, and admission stays soft;
# when less comes the trigger ends, and admission reopens by its own rules.

LOOK_MS, KEEP_MS = 1_000, 10_000
CUT, GROW_PER_S = 0.85, 0.07
GROW_BOUNDED_PER_S, GROWN_MOST = 1.0, 4.0
"""Where the bound holds what comes the budget need not feel its way: it doubles every second, up to
so many times what was served before."""
FLOOR = 0.25
"""Of the most that was served before admission was restricted: if less does not help either, it is
not the load, and less than that is for `hard`."""
BURST_S, BUDGET_STEP = 0.1, 0.1
LONG = 60
"""How many stretches of `KEEP_MS` are remembered: ten minutes."""
IDLE = 0.3
"""Below this part of the long memory the last seconds show how little came, not how much can."""

Rates = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class AdmissionBudget:
    """Follows what is served, and admission."""

    rate: float | None = None
    """Admissions per second of soft; None: the configured one."""
    served: Window = ()
    recent: Rates = ()
    """(clock, served per second)."""
    long: Rates = ()
    """(stretch, most served per second)."""
    soft: bool = False
    cut_ms: int = 0
    at_ms: int = 0
    before: float = 0.0
    """The most that was served while admission was open: later it is what was let in."""

    def advance(
        self,
        clock_ms: int,
        served: int | None,
        *,
        mode: AdmissionMode,
        triggered: bool,
        config: Config,
        window_ms: int,
        bounded: bool = False,
    ) -> "AdmissionBudget":
        """One tick: successes so far, and what the last tick made of admission; `bounded`: how much
        may be inside is bounded, too.
        """
        now = self._look(clock_ms, served)
        rate = config.bucket_rate if self.rate is None else self.rate
        least = config.drip_rate_min
        if mode is AdmissionMode.NORMAL:
            best = now.best
            if best is not None and abs(best - rate) > BUDGET_STEP * rate:
                rate = max(least, best)
            return replace(now, rate=rate, soft=False, before=best or 0.0)
        if mode is AdmissionMode.HARD:
            return now  # its drip is its own; the budget waits for it to be over
        if not self.soft:
            return replace(now, rate=max(least, CUT * rate), soft=True, cut_ms=clock_ms)
        if triggered and clock_ms - self.cut_ms >= window_ms:
            floor = FLOOR * self.before
            return replace(now, rate=max(least, floor, CUT * rate), cut_ms=clock_ms)
        if triggered:
            return now
        passed_s = (clock_ms - self.at_ms) / 1000
        grown = rate * (1 + (GROW_BOUNDED_PER_S if bounded else GROW_PER_S) * passed_s)
        most = max(rate, GROWN_MOST * self.before) if bounded else grown
        return replace(now, rate=min(grown, most))

    def changes(self, config: Config) -> dict[str, float]:
        rate = round(config.bucket_rate if self.rate is None else self.rate, 1)
        return {"bucket_rate": max(rate, 0.1), "bucket_burst": max(1.0, rate * BURST_S)}

    @property
    def best(self) -> float | None:
        """The most that was served in a second lately; None where that is unknown."""
        recent = max((rate for _, rate in self.recent), default=0.0)
        ever = max((rate for _, rate in self.long), default=0.0)
        return max(recent, ever if recent < IDLE * ever else 0.0) or None

    @property
    def now(self) -> float | None:
        return self.recent[-1][1] if self.recent else None

    def _look(self, clock_ms: int, served: int | None) -> "AdmissionBudget":
        """How much was served in the last second, where that is counted."""
        recent = tuple(past for past in self.recent if past[0] > clock_ms - KEEP_MS)
        if served is None:
            return replace(self, served=(), recent=recent, at_ms=clock_ms)
        past = self.served if not self.served or served >= self.served[-1][1] else ()
        past = covering((*past, (clock_ms, served)), clock_ms - LOOK_MS)
        first_ms, first = past[0]
        if clock_ms - first_ms < LOOK_MS:
            return replace(self, served=past, recent=recent, at_ms=clock_ms)
        per_s = (served - first) * 1000 / (clock_ms - first_ms)
        recent = (*recent, (clock_ms, per_s))
        stretch, long = clock_ms // KEEP_MS, self.long
        if long and long[-1][0] == stretch:
            per_s, long = max(per_s, long[-1][1]), long[:-1]
        long = (*long, (stretch, per_s))[-LONG:]
        return replace(self, served=past, recent=recent, long=long, at_ms=clock_ms)


# --- how much may be inside at once
#
# By Little's law as many are inside as come in a second, times the seconds that each stays. So a
# group that can serve `best` a second keeps its latency near `PART` of the reference with
# `PART * best * l_ref` inside. What comes beyond that would only wait, and make the requests behind
# it late: it is rejected at once, within the same tick in which it came, while the signals of
# admission need seconds. A budget per second cannot do this: with the smallest error of it a queue
# grows without end.
#
# A bound must never be what keeps a healthy group small. It is never below three times what is
# usually inside, nor below a few for each backend, and it needs to have seen the group serve. And
# it always has room for half again as long a stay as is usual: as long as requests do not stay
# longer when more come, what is served grows with the bound, and the bound with what is served,
# whatever the reference is. Only where they queue does that end. Where clients keep their
# connections and a dataplane counts nothing else, there is none.

PART, FORMER_PART = 0.5, 0.6
"""Of the reference latency: the rest is room for the slower requests. What is served `best` is the
most of ten seconds, some 8 % above what lasts: with 0.6 of the reference a group at twice its
capacity kept 24 workers busy with 60 inside, and every twentieth answer was late."""
INSIDE_TIMES_USUAL, LEAST_EACH = 3, 8
LEARN_MS, SAMPLES = 2_000, 300
"""A minute of ticks. Three looks at a small backend are luck: with 7 of its usual 4 inside, the
bound came out half again too high, and a third of what it served was late (`monopoly`)."""
TIMES_STAY, BUSY = 1.5, 0.5
"""Of the usual stay; and of the bound: with more than that inside nothing is usual. Their product
is below 1, or an overload would slowly become what is usual."""
IDLE_MS = 5_000
"""What was idle all this time is idle: the dataplane and the application are not read at once."""
BOUND_STEP = 0.1
BURIED_MS, BURIED_TIMES = 3_000, 10
"""For so long nothing is served before the group is bounded without having been seen to serve; and
so many times the reference is longer than anybody waits."""


@dataclass(frozen=True, slots=True)
class InsideBound:
    """Follows what a group can serve, and what is usual for it."""

    value: int | None = None
    inside: tuple[int, ...] = ()
    per_s: tuple[float, ...] = ()
    """Samples of what was inside, and of what was served in the second before."""
    since_ms: int | None = None
    idle: Window = ()
    busy: float | None = None
    """With more at work than this, it says nothing about what is usual."""

    def advance(
        self,
        clock_ms: int,
        *,
        inside: int | None,
        idle: int,
        best: float | None,
        per_s: float | None,
        l_ref_ms: LatencyMs,
        serving: int,
        buried: bool = False,
        part: float = PART,
    ) -> "InsideBound":
        """One tick. `inside` is what is being worked on, `idle` what the dataplane counts besides;
        `per_s` what is served now, `best` what was served lately. `value` is the bound in the
        dataplane's own count, None as long as it is unknown. What a `buried` group shows is not
        usual; one that has served nothing since we look is bounded all the same.
        """
        if inside is None:
            return self
        if best is None:
            return self._unserved(clock_ms, serving) if buried else self
        samples, rates = self.inside, self.per_s
        if not buried and (self.busy is None or inside <= self.busy):
            samples = (*samples, inside)[-SAMPLES:]
            rates = (*rates, per_s or 0.0)[-SAMPLES:]
        since_ms = clock_ms if self.since_ms is None else self.since_ms
        reach_ms = clock_ms - IDLE_MS
        idles = (*(past for past in self.idle if past[0] > reach_ms), (clock_ms, idle))
        if clock_ms - since_ms < LEARN_MS:
            return InsideBound(self.value, samples, rates, since_ms, idles, self.busy)
        usual = ceil(INSIDE_TIMES_USUAL * (median(samples) or 0))
        stay_s = stay_of(samples, rates, l_ref_ms, part)
        most = max(ceil(best * stay_s), usual, LEAST_EACH * serving)
        resting = min(count for _, count in idles)
        value, wanted = self.value, most + resting
        if 2 * resting > most:  # kept connections: how many there are says nothing about the load
            value = None
        elif value is None or abs(wanted - value) > BOUND_STEP * value:
            value = wanted
        return InsideBound(value, samples, rates, since_ms, idles, BUSY * most)

    def _unserved(self, clock_ms: int, serving: int) -> "InsideBound":
        """Wait for as long as it may be chance, then bound what comes until the backlog is gone."""
        since_ms = clock_ms if self.since_ms is None else self.since_ms
        value = self.value
        if value is None and clock_ms - since_ms >= BURIED_MS:
            value = UNLEARNED_EACH * serving
        return replace(self, since_ms=since_ms, value=value)


def is_buried(
    inside: int | None, per_s: float | None, l_ref_ms: LatencyMs | None, serving: int
) -> bool:
    """Whether requests piled up in the group whose clients have given up: more are inside than any
    group is given before it is known, and by Little's law they stay for many times the
    reference. Where that is not known (None), only a group that serves nothing is buried.
    """
    if inside is None or inside < UNLEARNED_EACH * max(1, serving):
        return False
    served = per_s or 0.0
    return not served or (l_ref_ms is not None and inside > BURIED_TIMES * served * l_ref_ms / 1000)


def stay_of(
    samples: Sequence[int], rates: Sequence[float], l_ref_ms: LatencyMs, part: float = PART
) -> float:
    """How many seconds a request is to stay: a part of the reference, or more than is usual."""
    served = fsum(rates)
    usual_stay_s = sum(samples) / served if served else 0.0  # by Little's law
    return max(part * l_ref_ms / 1000, TIMES_STAY * usual_stay_s)
