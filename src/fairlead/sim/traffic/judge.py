"""The promises of a play, judged from its record: what every one has to keep, and its own.

Each check looks at recorded ticks, clients' answers and the plane's counters, and answers with the
first thing that is wrong, or with nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from fairlead.core.reasons import TrafficReason
from fairlead.sim.traffic.expect import judge_expectation
from fairlead.sim.traffic.story import Outcome, Played, Tick

_MINUTE_MS = 60_000
_REASONS = frozenset(reason.value for reason in TrafficReason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise, and what was found wrong with it; empty: it was kept."""

    promise: str
    problem: str = ""

    @property
    def kept(self) -> bool:
        """Nothing was found."""
        return not self.problem


def judge(played: Played) -> list[Verdict]:
    """All promises: the invariants, then those of the scenario."""
    verdicts = [Verdict(name, check(played) or "") for name, check in INVARIANTS.items()]
    for expect in played.scenario.expect:
        if played.real and expect.virtual_only:
            continue
        verdicts.append(Verdict(*judge_expectation(played, expect)))
    return verdicts


def replays(played: Played) -> str | None:
    """Every recorded tick is decided again to the byte; and the play itself found no problem."""
    return played.problems[0] if played.problems else None


def slots_add_up(played: Played) -> str | None:
    """Σ slots is S_total in every tick, or 0 where there is nobody."""
    for tick in played.ticks:
        total = sum(tick.slots.values())
        if total != (played.config.s_total if tick.slots else 0):
            return f"{total} slots at {_at(tick)}"
    return None


def slew_is_bounded(played: Played) -> str | None:
    """No backend moves more than Δmax in a tick, four times that in crisis, bypasses excepted."""
    for before, after in _steps(played):
        most = _step_max(played, after)
        moved = _moves(before, after)
        bypass = set(after.output["bypass"])
        freed = _freed(before, after)
        for name, change in moved.items():
            # What a bypass frees comes on top, to whoever is under target.
            if name not in bypass and abs(change) > most + (freed if change > 0 else 0):
                return f"{name} moved by {change} at {_at(after)}, at most {most} were allowed"
    return None


def remap_is_bounded(played: Played) -> str | None:
    """No more slots change hands than a step allows, and those of who left or was isolated."""
    for before, after in _steps(played):
        moved = _moves(before, after)
        lost = sum(-change for change in moved.values() if change < 0)
        gone = _freed(before, after)
        room = _step_max(played, after) * max(1, len(after.slots) // 2) * 2
        if lost > gone + room:
            return f"{lost} slots changed hands at {_at(after)}, {gone + room} at most should have"
    return None


def nothing_is_lost_in_silence(played: Played) -> str | None:
    """Every attempt was answered, refused aloud or is still open; the plane counts the same."""
    outcomes = Counter(answer.outcome for answer in played.answers)
    if played.real:
        silent = outcomes[Outcome.UNREACHABLE] if not _unreachable_wanted(played) else 0
        allowed = max(2, len(played.answers) // 200)  # a real machine may drop a connection
        if silent > allowed:
            return f"{silent} attempts were lost, {allowed} of {len(played.answers)} at most"
        return None
    refused = played.counted["refused_soft"] + played.counted["refused_hard"]
    if outcomes[Outcome.SOFT] + outcomes[Outcome.HARD] != refused:
        return (
            f"clients saw {outcomes[Outcome.SOFT] + outcomes[Outcome.HARD]} refusals of {refused}"
        )
    answered = sum(count for outcome, count in outcomes.items() if not outcome.refused)
    if answered != played.counted["admitted"]:
        return f"{played.counted['admitted']} were admitted and {answered} answered or under way"
    return None


def _unreachable_wanted(played: Played) -> bool:
    return any(event.reachable is False for event in played.scenario.events)


def doors_do_not_flap(played: Played) -> str | None:
    """At most so many changes of mode in any minute."""
    most = played.scenario.limits.mode_changes_per_minute
    changes = [b.at_ms for a, b in pairwise(played.ticks) if a.mode != b.mode]
    return _too_often(changes, most, "the door changed its mode")


def isolations_do_not_flap(played: Played) -> str | None:
    """At most so many isolations of a backend in any minute."""
    most = played.scenario.limits.isolations_per_minute
    for name in (each.name for each in played.scenario.backends):
        times = [
            b.at_ms
            for a, b in pairwise(played.ticks)
            if name in b.isolated and name not in a.isolated
        ]
        problem = _too_often(times, most, f"{name} was isolated")
        if problem:
            return problem
    return None


def reasons_are_given(played: Played) -> str | None:
    """One or two of the closed list in every tick; a tick that moves slots is never steady."""
    for tick in played.ticks:
        if not 1 <= len(tick.reasons) <= 2 or not _REASONS.issuperset(tick.reasons):
            return f"reasons {list(tick.reasons)} at {_at(tick)}"
    for before, after in _steps(played):
        moved = any(_moves(before, after).values())
        if moved and "steady" in after.output["reasons"]:
            return f"slots moved and it was called steady at {_at(after)}"
    return None


INVARIANTS: Mapping[str, Callable[[Played], str | None]] = {
    "every tick replays byte for byte": replays,
    "the slots add up in every tick": slots_add_up,
    "no backend moves faster than the slew": slew_is_bounded,
    "no more slots change hands than they must": remap_is_bounded,
    "nothing is lost in silence": nothing_is_lost_in_silence,
    "the door does not flap": doors_do_not_flap,
    "isolations do not flap": isolations_do_not_flap,
    "every tick has its reasons": reasons_are_given,
}


def _steps(played: Played) -> Iterator[tuple[Tick, Tick]]:
    """Ticks after which the next one started from what it had decided: not across a restart that
    began afresh, nor after a tick that did not come into force."""
    for before, after in pairwise(played.ticks):
        if before.applied and after.input["state"] is not None:
            yield before, after


def _moves(before: Tick, after: Tick) -> dict[str, int]:
    """Changes of those who are there now."""
    return {name: slots - before.slots.get(name, 0) for name, slots in after.slots.items()}


def _freed(before: Tick, after: Tick) -> int:
    """Slots of those who left, and of those who were isolated at once."""
    bypass, moved = set(after.output["bypass"]), _moves(before, after)
    gone = sum(before.slots[name] for name in before.slots.keys() - after.slots.keys())
    return gone + sum(-change for name, change in moved.items() if name in bypass and change < 0)


def _step_max(played: Played, tick: Tick) -> int:
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
