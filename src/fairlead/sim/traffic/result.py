"""What a traffic scenario leaves behind on any dataplane: ticks, answers, and the figures of both.

Nothing here trusts the governor: ticks are the recorded documents, answers what clients saw.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import ceil, exp
from typing import Any, NamedTuple

from fairlead.core.traffic import Config
from fairlead.schema.traffic_scenario import SimBackendDocument, TrafficScenarioDocument
from fairlead.sim.record import SimEvent

GROUP = "web"  # the one group of a scenario
COUNTED = ("admitted", "refused_soft", "refused_hard")
"""The dataplane's own counters that a result holds."""


class AnswerKind(StrEnum):
    """How an attempt ended, as its client saw it."""

    OK = "ok"
    ERROR = "error"  # the backend answered with an error
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    SOFT = "soft"  # told to try again
    HARD = "hard"  # refused
    OPEN = "open"  # still under way when the run ended

    @property
    def refused(self) -> bool:
        """Rejected by admission, which is not a failure."""
        return self in (AnswerKind.SOFT, AnswerKind.HARD)


class Answer(NamedTuple):
    """One attempt of a client: when it was meant to be sent, what came, and after how long."""

    at_ms: float
    outcome: AnswerKind
    latency_ms: float
    backend: str | None
    retry: int = 0
    final: bool = True  # false: the client tries again

    @property
    def failed(self) -> bool:
        """The client saw a failure; an explicit refusal is none."""
        return self.outcome in (AnswerKind.ERROR, AnswerKind.TIMEOUT, AnswerKind.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Tick:
    """One recorded tick, on the scenario's clock."""

    at_ms: float
    input: Mapping[str, Any]
    output: Mapping[str, Any]
    reasons: tuple[str, ...]
    applied: bool  # whether it came into force; a tick that did not moved nothing

    @property
    def at(self) -> str:
        return f"{self.at_ms / 1000:.1f} s"

    @property
    def slots(self) -> Mapping[str, int]:
        slots: Mapping[str, int] = self.output["slots"]
        return slots

    @property
    def mode(self) -> str:
        return str(self.output["admission"]["mode"])

    @property
    def isolated(self) -> frozenset[str]:
        return frozenset(b["id"] for b in self.input["backends"] if b["isolated"])

    def share(self, backend: str | None) -> float:
        """A backend's part of all slots."""
        total = sum(self.slots.values())
        return self.slots.get(str(backend), 0) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class TrafficResult:
    """A scenario, played once."""

    scenario: TrafficScenarioDocument
    seed: int
    config: Config
    plane: str
    ticks: Sequence[Tick]
    answers: Sequence[Answer]
    counted: Mapping[str, int]
    events: Sequence[SimEvent]
    digest: str
    sources: Mapping[str, str] = field(default_factory=dict)
    missed_ticks: int = 0
    real: bool = False
    deaths: Sequence[tuple[float, float]] = ()  # when the agent was dead, from and to
    problems: Sequence[str] = ()
    """What the run itself found: a replay that differed, an agent that would not start."""

    def capacity_per_s(self, at_ms: float) -> float:
        """What the healthy backends could do then."""
        return sum(
            spec.concurrency * 1000 / (spec.latency_ms * exp(spec.sigma**2 / 2))
            for spec in backends_at(self.scenario, at_ms / 1000)
        )


def backends_at(scenario: TrafficScenarioDocument, now_s: float) -> list[SimBackendDocument]:
    """Those that have joined and not left."""
    specs = ((spec, spec.leaves_s) for spec in scenario.backends if spec.joins_s <= now_s)
    return [spec for spec, leaves_s in specs if leaves_s is None or now_s < leaves_s]


def count_good(played: TrafficResult, answers: Iterable[Answer]) -> int:
    """Answers within the SLO."""
    slo_ms = played.scenario.load.slo_ms
    return sum(a.outcome is AnswerKind.OK and a.latency_ms <= slo_ms for a in answers)


def count_arrivals(answers: Iterable[Answer]) -> int:
    return sum(answer.retry == 0 for answer in answers)


@dataclass(frozen=True, slots=True)
class Second:
    """One second: what was sent in it, what became of it, and where the slots stood."""

    at_s: int
    arrivals: int
    attempts: int
    good: int
    late: int  # answered well, though not within the SLO
    failed: int
    refused: int
    open: int  # still under way when the run ended
    p95_ms: float | None
    mode: str
    rate_per_s: float | None
    conductance: float | None
    slots: Mapping[str, int]
    pressure: Mapping[str, float]
    isolated: frozenset[str]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrafficFigures:
    """The whole run."""

    arrivals: int
    attempts: int
    good_ratio: float  # answers within the SLO per arrival
    failed_ratio: float
    refused_ratio: float  # explicit refusals per attempt
    p50_ms: float | None
    p99_ms: float | None
    ticks: int
    missed_ticks: int
    mode_changes: int
    isolations: int
    slots_moved: int  # how many slots changed hands, all ticks together


def measure(played: TrafficResult) -> TrafficFigures:
    answers, arrivals = played.answers, count_arrivals(played.answers)
    times = [answer.latency_ms for answer in answers if answer.outcome is AnswerKind.OK]
    pairs = list(pairwise(played.ticks))
    return TrafficFigures(
        arrivals=arrivals,
        attempts=len(answers),
        good_ratio=_ratio(count_good(played, answers), arrivals),
        failed_ratio=_ratio(sum(a.final and a.failed for a in answers), arrivals),
        refused_ratio=_ratio(sum(a.outcome.refused for a in answers), len(answers)),
        p50_ms=percentile(times, 0.5),
        p99_ms=percentile(times, 0.99),
        ticks=len(played.ticks),
        missed_ticks=played.missed_ticks,
        mode_changes=sum(a.mode != b.mode for a, b in pairs),
        isolations=sum(len(b.isolated - a.isolated) for a, b in pairs),
        slots_moved=sum(max(0, change) for a, b in pairs for change in moves(a, b).values()),
    )


_NO_TICK = Tick(
    0, {"backends": ()}, {"slots": {}, "admission": {"mode": ""}, "pressure": {}}, (), applied=False
)


def timeline(played: TrafficResult) -> list[Second]:
    """Second by second; a second without a tick shows the last one's slots."""
    sent: dict[int, list[Answer]] = {}
    for answer in played.answers:
        sent.setdefault(int(answer.at_ms // 1000), []).append(answer)
    ticks: dict[int, Tick] = {int(tick.at_ms // 1000): tick for tick in played.ticks}
    seconds, last = [], _NO_TICK
    for second in range(played.scenario.duration_s):
        last = ticks.get(second, last)
        seconds.append(_second(played, second, sent.get(second, []), last))
    return seconds


def _second(played: TrafficResult, second: int, answers: list[Answer], tick: Tick) -> Second:
    outcomes = Counter(answer.outcome for answer in answers)
    times = [answer.latency_ms for answer in answers if answer.outcome is AnswerKind.OK]
    well = count_good(played, answers)
    return Second(
        at_s=second,
        arrivals=count_arrivals(answers),
        attempts=len(answers),
        good=well,
        late=outcomes[AnswerKind.OK] - well,
        failed=sum(answer.failed for answer in answers),
        refused=outcomes[AnswerKind.SOFT] + outcomes[AnswerKind.HARD],
        open=outcomes[AnswerKind.OPEN],
        p95_ms=percentile(times, 0.95),
        mode=tick.mode,
        rate_per_s=tick.output["admission"].get("rate_per_s"),
        conductance=tick.output.get("conductance"),
        slots=tick.slots,
        pressure={name: terms["total"] for name, terms in tick.output["pressure"].items()},
        isolated=tick.isolated,
        reasons=tick.reasons,
    )


def percentile(values: list[float], part: float) -> float | None:
    """The smallest value that this part of the values does not pass; None of no values."""
    if not values:
        return None
    return round(sorted(values)[max(0, ceil(part * len(values)) - 1)], 3)


def moves(before: Tick, after: Tick) -> dict[str, int]:
    """By how many slots each backend changed."""
    return {name: slots - before.slots.get(name, 0) for name, slots in after.slots.items()}


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 5) if whole else 0.0
