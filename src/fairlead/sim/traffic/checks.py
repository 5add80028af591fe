"""The promises of a traffic scenario, checked from its record: invariants, and its own.

Each check looks at recorded ticks, clients' answers and the dataplane's counters. It returns the
first thing that is wrong, or nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

from fairlead.core.reasons import TrafficReason
from fairlead.schema.traffic_scenario import ExpectDocument, What
from fairlead.sim.traffic.result import (
    Answer,
    AnswerKind,
    Tick,
    TrafficResult,
    count_arrivals,
    count_good,
)

_MINUTE_MS = 60_000
_REASONS = frozenset(reason.value for reason in TrafficReason)


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """One promise, and what was found wrong with it; empty: it was kept."""

    promise: str
    problem: str = ""

    @property
    def kept(self) -> bool:
        return not self.problem


def check_promises(played: TrafficResult) -> list[PromiseCheck]:
    """All promises: the invariants, then those of the scenario."""
    checks = [PromiseCheck(name, check(played) or "") for name, check in INVARIANTS.items()]
    return checks + [
        check_expectation(played, expect)
        for expect in played.scenario.expect
        if not (played.real and expect.virtual_only)
    ]


def replays(played: TrafficResult) -> str | None:
    """Every recorded tick is decided again to the byte; and the run itself found no problem."""
    return played.problems[0] if played.problems else None


def slots_add_up(played: TrafficResult) -> str | None:
    """Σ slots is S_total in every tick, or 0 where there is no backend."""
    for tick in played.ticks:
        total = sum(tick.slots.values())
        if total != (played.config.s_total if tick.slots else 0):
            return f"{total} slots at {_at(tick)}"
    return None


def slew_is_bounded(played: TrafficResult) -> str | None:
    """No backend moves more than Δmax in a tick, four times that in crisis, bypasses excepted."""
    for before, after in _steps(played):
        most = _step_max(played, after)
        moved = _moves(before, after)
        bypass = set(after.output["bypass"])
        freed = _freed(before, after)
        for name, change in moved.items():
            # What a bypass frees comes on top, to backends under their target.
            if name not in bypass and abs(change) > most + (freed if change > 0 else 0):
                return f"{name} moved by {change} at {_at(after)}, at most {most} were allowed"
    return None


def remap_is_bounded(played: TrafficResult) -> str | None:
    """No more slots change hands than a step allows, beside those of backends that left."""
    for before, after in _steps(played):
        moved = _moves(before, after)
        lost = sum(-change for change in moved.values() if change < 0)
        gone = _freed(before, after)
        room = _step_max(played, after) * max(1, len(after.slots) // 2) * 2
        if lost > gone + room:
            return f"{lost} slots changed hands at {_at(after)}, {gone + room} at most should have"
    return None


def nothing_is_lost(played: TrafficResult) -> str | None:
    """Every attempt was answered, rejected or is still open; the dataplane counts the same."""
    outcomes = Counter(answer.outcome for answer in played.answers)
    if played.real:
        meant = any(event.reachable is False for event in played.scenario.events)
        lost = 0 if meant else outcomes[AnswerKind.UNREACHABLE]
        allowed = max(2, len(played.answers) // 200)  # a real machine may drop a connection
        if lost > allowed:
            return f"{lost} attempts were lost, {allowed} of {len(played.answers)} at most"
        return None
    refused = played.counted["refused_soft"] + played.counted["refused_hard"]
    seen = outcomes[AnswerKind.SOFT] + outcomes[AnswerKind.HARD]
    if seen != refused:
        return f"clients saw {seen} refusals of {refused}"
    answered = sum(count for outcome, count in outcomes.items() if not outcome.refused)
    if answered != played.counted["admitted"]:
        return f"{played.counted['admitted']} were admitted and {answered} answered or under way"
    return None


def modes_do_not_flap(played: TrafficResult) -> str | None:
    """At most so many changes of mode in any minute."""
    most = played.scenario.limits.mode_changes_per_minute
    changes = [b.at_ms for a, b in pairwise(played.ticks) if a.mode != b.mode]
    return _too_often(changes, most, "admission changed its mode")


def isolations_do_not_flap(played: TrafficResult) -> str | None:
    """At most so many isolations of a backend in any minute."""
    most = played.scenario.limits.isolations_per_minute
    for name in (backend.name for backend in played.scenario.backends):
        times = [
            b.at_ms
            for a, b in pairwise(played.ticks)
            if name in b.isolated and name not in a.isolated
        ]
        problem = _too_often(times, most, f"{name} was isolated")
        if problem:
            return problem
    return None


def reasons_are_given(played: TrafficResult) -> str | None:
    """One or two of the closed list in every tick; a tick that moves slots is never steady."""
    for tick in played.ticks:
        if not 1 <= len(tick.reasons) <= 2 or not _REASONS.issuperset(tick.reasons):
            return f"reasons {list(tick.reasons)} at {_at(tick)}"
    for before, after in _steps(played):
        moved = any(_moves(before, after).values())
        if moved and "steady" in after.output["reasons"]:
            return f"slots moved and it was called steady at {_at(after)}"
    return None


INVARIANTS: Mapping[str, Callable[[TrafficResult], str | None]] = {
    "every tick replays byte for byte": replays,
    "the slots add up in every tick": slots_add_up,
    "no backend moves faster than the slew": slew_is_bounded,
    "no more slots change hands than they must": remap_is_bounded,
    "no attempt is lost": nothing_is_lost,
    "admission does not flap": modes_do_not_flap,
    "isolations do not flap": isolations_do_not_flap,
    "every tick has its reasons": reasons_are_given,
}


def _steps(played: TrafficResult) -> Iterator[tuple[Tick, Tick]]:
    """Ticks after which the next one started from what it had decided: not across a restart that
    began afresh, nor after a tick that did not come into force."""
    for before, after in pairwise(played.ticks):
        if before.applied and after.input["state"] is not None:
            yield before, after


def _moves(before: Tick, after: Tick) -> dict[str, int]:
    return {name: slots - before.slots.get(name, 0) for name, slots in after.slots.items()}


def _freed(before: Tick, after: Tick) -> int:
    bypass, moved = set(after.output["bypass"]), _moves(before, after)
    gone = sum(before.slots[name] for name in before.slots.keys() - after.slots.keys())
    return gone + sum(-change for name, change in moved.items() if name in bypass and change < 0)


def _step_max(played: TrafficResult, tick: Tick) -> int:
    factor = played.config.crisis_factor if tick.mode == "hard" else 1.0
    return int(played.config.step * factor)


def _too_often(times: list[float], most: int, what: str) -> str | None:
    for index, at_ms in enumerate(times):
        count = sum(at_ms <= other < at_ms + _MINUTE_MS for other in times[index:])
        if count > most:
            return f"{what} {count} times in the minute from {at_ms / 1000:.1f} s, at most {most}"
    return None


def _at(tick: Tick) -> str:
    return f"{tick.at_ms / 1000:.1f} s"


class _Window(NamedTuple):
    """The part of a result that an expectation is about."""

    played: TrafficResult
    expect: ExpectDocument
    ticks: list[Tick]
    answers: list[Answer]


def check_expectation(played: TrafficResult, expect: ExpectDocument) -> PromiseCheck:
    from_ms, to_ms = expect.from_s * 1000, _end_ms(played, expect)
    ticks = [tick for tick in played.ticks if from_ms <= tick.at_ms < to_ms]
    answers = [answer for answer in played.answers if from_ms <= answer.at_ms < to_ms]
    problem = _EXPECTATIONS[expect.what](_Window(played, expect, ticks, answers))
    return PromiseCheck(describe(played, expect), problem)


def describe(played: TrafficResult, expect: ExpectDocument) -> str:
    when = f"from {expect.from_s:g} s to {_end_ms(played, expect) / 1000:g} s"
    bounds = [] if expect.least is None else [f"at least {expect.least:g}"]
    bounds += [] if expect.most is None else [f"at most {expect.most:g}"]
    text = {
        What.SHARE: f"share of {expect.backend} is {' and '.join(bounds)}",
        What.MODE: f"admission is {expect.mode} at some time",
        What.MODES_ONLY: f"admission is {expect.mode} all the time",
        What.REASON: f"reason {expect.reason} is given",
        What.GOODPUT: f"goodput per arrival is {' and '.join(bounds)}",
        What.THROUGHPUT: f"goodput per capacity is {' and '.join(bounds)}",
        What.ERRORS: f"failures per arrival are {' and '.join(bounds)}",
        What.REFUSED: f"refusals per attempt are {' and '.join(bounds)}",
        What.ISOLATED: f"{expect.backend} is isolated at some time",
    }[expect.what]
    return f"{text}, {when}"


def _end_ms(played: TrafficResult, expect: ExpectDocument) -> float:
    return (expect.to_s or played.scenario.duration_s) * 1000


def _share(window: _Window) -> str:
    for tick in window.ticks:
        total = sum(tick.slots.values())
        share = tick.slots.get(str(window.expect.backend), 0) / total if total else 0.0
        if problem := _outside(share, window.expect):
            return f"{problem} at {_at(tick)}"
    return "" if window.ticks else "there was no tick"


def _mode(window: _Window) -> str:
    seen = sorted({tick.mode for tick in window.ticks})
    met = window.expect.mode in seen
    return "" if met else f"the modes were {', '.join(seen) or 'unknown'}"


def _modes_only(window: _Window) -> str:
    other = next((tick for tick in window.ticks if tick.mode != window.expect.mode), None)
    return "" if other is None else f"it was {other.mode} at {_at(other)}"


def _reason(window: _Window) -> str:
    seen = sorted({reason for tick in window.ticks for reason in tick.reasons})
    return "" if window.expect.reason in seen else f"the reasons were {', '.join(seen)}"


def _isolated(window: _Window) -> str:
    isolated = any(window.expect.backend in tick.isolated for tick in window.ticks)
    return "" if isolated else "it never was"


def _goodput(window: _Window) -> str:
    good = count_good(window.played, window.answers)
    return _outside(good / max(1, count_arrivals(window.answers)), window.expect)


def _throughput(window: _Window) -> str:
    played, expect = window.played, window.expect
    seconds = (_end_ms(played, expect) / 1000) - expect.from_s
    capacity = played.capacity_per_s(expect.from_s * 1000) * seconds
    return _outside(count_good(played, window.answers) / max(1.0, capacity), expect)


def _errors(window: _Window) -> str:
    failures = sum(answer.final and answer.failed for answer in window.answers)
    return _outside(failures / max(1, count_arrivals(window.answers)), window.expect)


def _refused(window: _Window) -> str:
    refusals = sum(answer.outcome.refused for answer in window.answers)
    return _outside(refusals / max(1, len(window.answers)), window.expect)


def _outside(value: float, expect: ExpectDocument) -> str:
    least = -inf if expect.least is None else expect.least
    most = inf if expect.most is None else expect.most
    return "" if least <= value <= most else f"it was {value:.3g}"


_EXPECTATIONS: Mapping[What, Callable[[_Window], str]] = {
    What.SHARE: _share,
    What.MODE: _mode,
    What.MODES_ONLY: _modes_only,
    What.REASON: _reason,
    What.GOODPUT: _goodput,
    What.THROUGHPUT: _throughput,
    What.ERRORS: _errors,
    What.REFUSED: _refused,
    What.ISOLATED: _isolated,
}
