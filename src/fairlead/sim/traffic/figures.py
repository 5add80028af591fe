"""What a play comes to: per second for the timeline, as a whole for the summary."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from fairlead.sim.traffic.expect import failed, good
from fairlead.sim.traffic.story import Answer, Outcome, Played, Tick


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a play: what was sent in it and became of it, and where the slots stood."""

    at_s: int
    arrivals: int
    attempts: int
    good: int
    late: int
    """Answered well, though not within the SLO."""
    failed: int
    refused: int
    open: int
    """Still under way when the play ended."""
    p95_ms: float | None
    mode: str
    rate_per_s: float | None
    conductance: float | None
    slots: dict[str, int]
    pressure: dict[str, float]
    isolated: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """The whole play."""

    arrivals: int
    attempts: int
    good_ratio: float
    """Answers within the SLO per arrival."""
    failed_ratio: float
    refused_ratio: float
    """Explicit refusals per attempt."""
    p50_ms: float | None
    p99_ms: float | None
    ticks: int
    missed_ticks: int
    mode_changes: int
    isolations: int
    slots_moved: int
    """How many slots changed hands, all ticks together."""


def measure(played: Played) -> Figures:
    """The summary."""
    answers = list(played.answers)
    arrivals = sum(answer.retry == 0 for answer in answers)
    times = [answer.latency_ms for answer in answers if answer.outcome is Outcome.OK]
    pairs = list(pairwise(played.ticks))
    return Figures(
        arrivals=arrivals,
        attempts=len(answers),
        good_ratio=_ratio(good(played, answers), arrivals),
        failed_ratio=_ratio(sum(a.final and failed(a) for a in answers), arrivals),
        refused_ratio=_ratio(sum(a.outcome.refused for a in answers), len(answers)),
        p50_ms=percentile(times, 0.5),
        p99_ms=percentile(times, 0.99),
        ticks=len(played.ticks),
        missed_ticks=played.missed_ticks,
        mode_changes=sum(a.mode != b.mode for a, b in pairs),
        isolations=sum(len(b.isolated - a.isolated) for a, b in pairs),
        slots_moved=sum(_moved(a, b) for a, b in pairs),
    )


def timeline(played: Played) -> list[Second]:
    """Second by second; a second without a tick shows the last one's slots."""
    sent: dict[int, list[Answer]] = {}
    for answer in played.answers:
        sent.setdefault(int(answer.at_ms // 1000), []).append(answer)
    ticks: dict[int, Tick] = {int(tick.at_ms // 1000): tick for tick in played.ticks}
    found, last = [], None
    for second in range(played.scenario.duration_s):
        last = ticks.get(second, last)
        found.append(_second(played, second, sent.get(second, []), last))
    return found


def _second(played: Played, second: int, answers: list[Answer], tick: Tick | None) -> Second:
    outcomes = Counter(answer.outcome for answer in answers)
    times = [answer.latency_ms for answer in answers if answer.outcome is Outcome.OK]
    well = good(played, answers)
    output = {} if tick is None else tick.output
    return Second(
        at_s=second,
        arrivals=sum(answer.retry == 0 for answer in answers),
        attempts=len(answers),
        good=well,
        late=outcomes[Outcome.OK] - well,
        failed=sum(failed(answer) for answer in answers),
        refused=outcomes[Outcome.SOFT] + outcomes[Outcome.HARD],
        open=outcomes[Outcome.OPEN],
        p95_ms=percentile(times, 0.95),
        mode="" if tick is None else tick.mode,
        rate_per_s=output.get("admission", {}).get("rate_per_s"),
        conductance=output.get("conductance"),
        slots=dict(output.get("slots", {})),
        pressure={name: each["total"] for name, each in output.get("pressure", {}).items()},
        isolated=() if tick is None else tuple(sorted(tick.isolated)),
        reasons=() if tick is None else tick.reasons,
    )


def percentile(values: list[float], part: float) -> float | None:
    """The smallest value that this part of them does not pass; None of nothing."""
    if not values:
        return None
    return round(sorted(values)[max(0, ceil(part * len(values)) - 1)], 3)


def _moved(before: Tick, after: Tick) -> int:
    return sum(max(0, slots - before.slots.get(name, 0)) for name, slots in after.slots.items())


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 5) if whole else 0.0
