"""What a play leaves behind, whatever plane it was played on: its ticks, and its clients' answers.

Nothing here trusts the governor: ticks are the recorded documents, answers what clients saw.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from fairlead.core.traffic import Config
from fairlead.schema.traffic_scenario import TrafficScenarioDocument

GROUP = "web"
"""The one group of a play."""


class Outcome(StrEnum):
    """How an attempt ended, as its client saw it."""

    OK = "ok"
    ERROR = "error"
    """The backend answered with an error."""
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    SOFT = "soft"
    """Told to try again."""
    HARD = "hard"
    """Refused."""
    OPEN = "open"
    """Still under way when the play ended."""

    @property
    def refused(self) -> bool:
        """An explicit no of the door, which is not a failure."""
        return self in (Outcome.SOFT, Outcome.HARD)


class Answer(NamedTuple):
    """One attempt of a client: when it was meant to be sent, what came, and after how long."""

    at_ms: float
    outcome: Outcome
    latency_ms: float
    backend: str | None
    retry: int = 0
    final: bool = True
    """False: the client tries again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One recorded tick, on the play's clock."""

    at_ms: float
    input: Mapping[str, Any]
    output: Mapping[str, Any]
    reasons: tuple[str, ...]
    applied: bool
    """Whether it came into force; a tick that did not moved nothing."""

    @property
    def slots(self) -> Mapping[str, int]:
        """As decided."""
        found: Mapping[str, int] = self.output["slots"]
        return found

    @property
    def mode(self) -> str:
        """Of the door."""
        return str(self.output["admission"]["mode"])

    @property
    def isolated(self) -> frozenset[str]:
        """Backends that get nothing."""
        return frozenset(b["id"] for b in self.input["backends"] if b["isolated"])


class Happening(NamedTuple):
    """A line of the story."""

    at_ms: float
    text: str


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario, played once."""

    scenario: TrafficScenarioDocument
    seed: int
    plane: str
    config: Config
    ticks: Sequence[Tick]
    answers: Sequence[Answer]
    counted: Mapping[str, int]
    """The plane's own counters at the end: admitted, refused_soft, refused_hard, and by backend."""
    happenings: Sequence[Happening]
    digest: str
    sources: Mapping[str, str] = field(default_factory=dict)
    missed_ticks: int = 0
    real: bool = False
    deaths: Sequence[tuple[float, float]] = ()
    """When the agent was dead, from and to."""
    problems: Sequence[str] = ()
    """What the play itself found: a replay that differed, an agent that would not start."""

    @property
    def duration_ms(self) -> int:
        """Of the scenario."""
        return self.scenario.duration_s * 1000

    def capacity_per_s(self, at_ms: float) -> float:
        """What the healthy backends could do then."""
        total = 0.0
        for each in self.scenario.backends:
            here = each.joins_s * 1000 <= at_ms < (each.leaves_s or 1e9) * 1000
            mean_ms = each.latency_ms * 2.718281828459045 ** (each.sigma**2 / 2)
            total += each.concurrency * 1000 / mean_ms if here else 0.0
        return total


def between(items: Sequence[Any], from_ms: float, to_ms: float) -> Iterator[Any]:
    """Those whose time is in [from, to)."""
    return (item for item in items if from_ms <= item.at_ms < to_ms)
