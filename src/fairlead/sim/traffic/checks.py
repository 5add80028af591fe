"""The promises of a traffic scenario, checked from its record: invariants, and its own.

Each check looks at recorded ticks, clients' answers and the dataplane's counters. It returns the
first thing that is wrong, or nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

from fairlead.core.reasons import TrafficReason
from fairlead.schema.traffic_scenario import ExpectDocument, What
from fairlead.sim.traffic import result
from fairlead.sim.traffic.result import Answer, AnswerKind, Tick, TrafficResult

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


class TickStep(NamedTuple):
    """A tick that started from what the one before had decided."""

    tick: Tick
    moved: Mapping[str, int]
    freed: int  # slots of backends that left, or were bypassed
    most: int  # how far a backend may move: Δmax, four times that in crisis


def _steps(played: TrafficResult) -> Iterator[TickStep]:
    """Not across a restart that began afresh, nor after a tick that did not come into force."""
    for before, after in pairwise(played.ticks):
        if before.applied and after.input["state"] is not None:
            moved, bypass = result.moves(before, after), after.output["bypass"]
            freed = sum(before.slots[name] for name in before.slots.keys() - after.slots.keys())
            freed += sum(-moved[name] for name in bypass if moved.get(name, 0) < 0)
            factor = played.config.crisis_factor if after.mode == "hard" else 1.0
            yield TickStep(after, moved, freed, int(played.config.step * factor))


def _slots_add_up(played: TrafficResult) -> str | None:
    """Σ slots is S_total in every tick, or 0 where there is no backend."""
    for tick in played.ticks:
        total = sum(tick.slots.values())
        if total != (played.config.s_total if tick.slots else 0):
            return f"{total} slots at {tick.at}"
    return None


def _slew_is_bounded(played: TrafficResult) -> str | None:
    for tick, moved, freed, most in _steps(played):
        for name, change in moved.items():
            # What a bypass frees comes on top, to backends under their target.
            allowed = most + (freed if change > 0 else 0)
            if name not in tick.output["bypass"] and abs(change) > allowed:
                return f"{name} moved by {change} at {tick.at}, at most {most} were allowed"
    return None


def _remap_is_bounded(played: TrafficResult) -> str | None:
    """No more slots change hands than a step allows, beside those of backends that left."""
    for tick, moved, freed, most in _steps(played):
        lost = sum(-change for change in moved.values() if change < 0)
        room = freed + most * max(1, len(tick.slots) // 2) * 2
        if lost > room:
            return f"{lost} slots changed hands at {tick.at}, {room} at most should have"
    return None


def _nothing_is_lost(played: TrafficResult) -> str | None:
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
    answered, admitted = outcomes.total() - seen, played.counted["admitted"]
    if answered != admitted:
        return f"{admitted} were admitted and {answered} answered or under way"
    return None


def _modes_do_not_flap(played: TrafficResult) -> str | None:
    changes = [b.at_ms for a, b in pairwise(played.ticks) if a.mode != b.mode]
    most = played.scenario.limits.mode_changes_per_minute
    return _too_often(changes, most, "admission changed its mode")


def _isolations_do_not_flap(played: TrafficResult) -> str | None:
    most = played.scenario.limits.isolations_per_minute
    for name in [backend.name for backend in played.scenario.backends]:
        times = [b.at_ms for a, b in pairwise(played.ticks) if name in b.isolated - a.isolated]
        if problem := _too_often(times, most, f"{name} was isolated"):
            return problem
    return None


def _too_often(times: list[float], most: int, what: str) -> str | None:
    for index, at_ms in enumerate(times):
        count = sum(at_ms <= other < at_ms + _MINUTE_MS for other in times[index:])
        if count > most:
            return f"{what} {count} times in the minute from {at_ms / 1000:.1f} s, at most {most}"
    return None


def _reasons_are_given(played: TrafficResult) -> str | None:
    """One or two of the closed list in every tick; a tick that moves slots is never steady."""
    for tick in played.ticks:
        if not 1 <= len(tick.reasons) <= 2 or not _REASONS.issuperset(tick.reasons):
            return f"reasons {list(tick.reasons)} at {tick.at}"
    for step in _steps(played):
        if any(step.moved.values()) and "steady" in step.tick.output["reasons"]:
            return f"slots moved and it was called steady at {step.tick.at}"
    return None


INVARIANTS: Mapping[str, Callable[[TrafficResult], str | None]] = {
    "every tick replays byte for byte": lambda played: next(iter(played.problems), None),
    "the slots add up in every tick": _slots_add_up,
    "no backend moves faster than the slew": _slew_is_bounded,
    "no more slots change hands than they must": _remap_is_bounded,
    "no attempt is lost": _nothing_is_lost,
    "admission does not flap": _modes_do_not_flap,
    "isolations do not flap": _isolations_do_not_flap,
    "every tick has its reasons": _reasons_are_given,
}


def check_expectation(played: TrafficResult, expect: ExpectDocument) -> PromiseCheck:
    to_s = expect.to_s or played.scenario.duration_s
    from_ms, to_ms = expect.from_s * 1000, to_s * 1000
    if expect.what in _OF_TICKS:
        ticks = [tick for tick in played.ticks if from_ms <= tick.at_ms < to_ms]
        text, problem = _judge_ticks(expect, ticks)
    else:
        answers = [answer for answer in played.answers if from_ms <= answer.at_ms < to_ms]
        text, value = _measure_answers(played, expect, answers, to_s - expect.from_s)
        text, problem = f"{text} {_bounds(expect)}", _outside(value, expect)
    return PromiseCheck(f"{text}, from {expect.from_s:g} s to {to_s:g} s", problem)


_OF_TICKS = {What.SHARE, What.MODE, What.MODES_ONLY, What.REASON, What.ISOLATED}


def _judge_ticks(expect: ExpectDocument, ticks: Sequence[Tick]) -> tuple[str, str]:
    """An expectation about ticks in words, and what is wrong with it."""
    if expect.what is What.SHARE:
        problems = ((_outside(tick.share(expect.backend), expect), tick) for tick in ticks)
        wrong = next((f"{problem} at {tick.at}" for problem, tick in problems if problem), "")
        problem = wrong if ticks else "there was no tick"
        return f"share of {expect.backend} is {_bounds(expect)}", problem
    if expect.what is What.MODE:
        seen = sorted({tick.mode for tick in ticks})
        problem = "" if expect.mode in seen else f"the modes were {', '.join(seen) or 'unknown'}"
        return f"admission is {expect.mode} at some time", problem
    if expect.what is What.MODES_ONLY:
        other = next((tick for tick in ticks if tick.mode != expect.mode), None)
        problem = "" if other is None else f"it was {other.mode} at {other.at}"
        return f"admission is {expect.mode} all the time", problem
    if expect.what is What.REASON:
        seen = sorted({reason for tick in ticks for reason in tick.reasons})
        problem = "" if expect.reason in seen else f"the reasons were {', '.join(seen)}"
        return f"reason {expect.reason} is given", problem
    isolated = any(expect.backend in tick.isolated for tick in ticks)
    return f"{expect.backend} is isolated at some time", "" if isolated else "it never was"


def _measure_answers(
    played: TrafficResult, expect: ExpectDocument, answers: Sequence[Answer], seconds: float
) -> tuple[str, float]:
    """An expectation about answers in words, and the value that has to be within its bounds."""
    arrivals, good = max(1, result.count_arrivals(answers)), result.count_good(played, answers)
    if expect.what is What.GOODPUT:
        return "goodput per arrival is", good / arrivals
    if expect.what is What.THROUGHPUT:
        capacity = played.capacity_per_s(expect.from_s * 1000) * seconds
        return "goodput per capacity is", good / max(1.0, capacity)
    if expect.what is What.ERRORS:
        failures = sum(answer.final and answer.failed for answer in answers)
        return "failures per arrival are", failures / arrivals
    refusals = sum(answer.outcome.refused for answer in answers)
    return "refusals per attempt are", refusals / max(1, len(answers))


def _bounds(expect: ExpectDocument) -> str:
    bounds = {"at least": expect.least, "at most": expect.most}
    return " and ".join(f"{word} {n:g}" for word, n in bounds.items() if n is not None)


def _outside(value: float, expect: ExpectDocument) -> str:
    least = -inf if expect.least is None else expect.least
    most = inf if expect.most is None else expect.most
    return "" if least <= value <= most else f"it was {value:.3g}"
