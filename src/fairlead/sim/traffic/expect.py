"""A scenario's own expectations, in words and judged."""

from collections.abc import Callable, Mapping
from math import inf

from fairlead.schema.traffic_scenario import ExpectDocument, What
from fairlead.sim.traffic.story import Answer, Outcome, Played, Tick, between


def judge_expectation(played: Played, expect: ExpectDocument) -> tuple[str, str]:
    """The promise in words, and what is wrong with it (empty: nothing)."""
    from_ms, to_ms = expect.from_s * 1000, _end_ms(played, expect)
    ticks: list[Tick] = list(between(played.ticks, from_ms, to_ms))
    answers: list[Answer] = list(between(played.answers, from_ms, to_ms))
    return describe(played, expect), _JUDGES[expect.what](played, expect, ticks, answers)


def describe(played: Played, expect: ExpectDocument) -> str:
    """In words."""
    when = f"from {expect.from_s:g} s to {_end_ms(played, expect) / 1000:g} s"
    bounds = [] if expect.least is None else [f"at least {expect.least:g}"]
    bounds += [] if expect.most is None else [f"at most {expect.most:g}"]
    text = {
        What.SHARE: f"share of {expect.backend} is {' and '.join(bounds)}",
        What.MODE: f"the door is {expect.mode} at some time",
        What.MODES_ONLY: f"the door is {expect.mode} all the time",
        What.REASON: f"reason {expect.reason} is given",
        What.GOODPUT: f"goodput per arrival is {' and '.join(bounds)}",
        What.THROUGHPUT: f"goodput per capacity is {' and '.join(bounds)}",
        What.ERRORS: f"failures per arrival are {' and '.join(bounds)}",
        What.REFUSED: f"refusals per attempt are {' and '.join(bounds)}",
        What.ISOLATED: f"{expect.backend} is isolated at some time",
    }[expect.what]
    return f"{text}, {when}"


def _end_ms(played: Played, expect: ExpectDocument) -> float:
    return (expect.to_s or played.scenario.duration_s) * 1000


def _share(_: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]) -> str:
    for tick in ticks:
        total = sum(tick.slots.values())
        share = tick.slots.get(str(expect.backend), 0) / total if total else 0.0
        if problem := _outside(share, expect):
            return f"{problem} at {tick.at_ms / 1000:.1f} s"
    return "" if ticks else "there was no tick"


def _mode(_: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]) -> str:
    seen = sorted({tick.mode for tick in ticks})
    return "" if expect.mode in seen else f"the modes were {', '.join(seen) or 'unknown'}"


def _modes_only(_: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]) -> str:
    other = next((tick for tick in ticks if tick.mode != expect.mode), None)
    return "" if other is None else f"it was {other.mode} at {other.at_ms / 1000:.1f} s"


def _reason(_: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]) -> str:
    seen = sorted({reason for tick in ticks for reason in tick.reasons})
    return "" if expect.reason in seen else f"the reasons were {', '.join(seen)}"


def _isolated(_: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]) -> str:
    return "" if any(expect.backend in tick.isolated for tick in ticks) else "it never was"


def _goodput(
    played: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]
) -> str:
    arrivals = sum(answer.retry == 0 for answer in answers)
    return _outside(good(played, answers) / max(1, arrivals), expect)


def _throughput(
    played: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]
) -> str:
    seconds = (_end_ms(played, expect) / 1000) - expect.from_s
    capacity = played.capacity_per_s(expect.from_s * 1000) * seconds
    return _outside(good(played, answers) / max(1.0, capacity), expect)


def _errors(
    played: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]
) -> str:
    arrivals = sum(answer.retry == 0 for answer in answers)
    failures = sum(answer.final and failed(answer) for answer in answers)
    return _outside(failures / max(1, arrivals), expect)


def _refused(_: Played, expect: ExpectDocument, ticks: list[Tick], answers: list[Answer]) -> str:
    refusals = sum(answer.outcome.refused for answer in answers)
    return _outside(refusals / max(1, len(answers)), expect)


def good(played: Played, answers: list[Answer]) -> int:
    """Answers within the SLO."""
    slo_ms = played.scenario.load.slo_ms
    return sum(a.outcome is Outcome.OK and a.latency_ms <= slo_ms for a in answers)


def failed(answer: Answer) -> bool:
    """Did the client see a failure that nobody had announced?"""
    return answer.outcome in (Outcome.ERROR, Outcome.TIMEOUT, Outcome.UNREACHABLE)


def _outside(value: float, expect: ExpectDocument) -> str:
    least = -inf if expect.least is None else expect.least
    most = inf if expect.most is None else expect.most
    return "" if least <= value <= most else f"it was {value:.3g}"


_JUDGES: Mapping[What, Callable[[Played, ExpectDocument, list[Tick], list[Answer]], str]] = {
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
