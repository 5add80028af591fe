"""What the traffic governor needs beside its dataplane: eyes, a knock at a door, and a chronicle.

The loop in `engine.traffic_loop` asks these once per tick and never waits for them: whoever has to
talk to a network does it elsewhere and answers with what it knows. What is unknown is None, and
None is never zero.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fairlead.core.traffic import Resource, StallTotals
from fairlead.ports.recorder import Head


class Look(NamedTuple):
    """What a backend had counted when somebody looked, and how much was in it then."""

    at_ms: int
    successes: int
    errors: int
    inside: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What an application says of itself, at its last word. Counters since it began."""

    requests: int | None = None
    errors: int | None = None
    retries: int | None = None
    """How many of its requests were repetitions of an earlier one."""
    queue: float | None = None
    p95_ms: float | None = None
    """Of successes, over about the last 5 s."""
    looks: tuple[Look, ...] = ()
    """Its last words of the last moments, this one included, where it counts requests and errors:
    it is asked more often than there are ticks."""


class Signals(Protocol):
    """Applications that tell more than a plane can see."""

    def covers(self, group: str) -> Collection[str]:
        """The fields of `Reading` that are asked for in this group; for these the plane's own
        figures are not used, or a silent application would look like an idle one."""
        ...

    def read(self, now_ms: int) -> Mapping[tuple[str, str], Reading]:
        """By group and backend. Those that have not answered lately are left out."""
        ...


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Counters of a machine's CPUs together, in any unit of time: all of it, and idle for want of a
    disk."""

    at_ms: int
    total: float
    iowait: float


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One machine: counters of stalled time, and what can run out."""

    id: str
    totals: StallTotals | None = None
    resources: tuple[Resource, ...] = ()
    cpu: CpuTimes | None = None


class NodeSensor(Protocol):
    """Sees the machines under the backends."""

    def read(self, now_ms: int) -> Sequence[NodeReading]:
        """Every machine that can be seen now."""
        ...


@dataclass(frozen=True, slots=True)
class Probed:
    """How a backend answered a knock."""

    group: str
    backend: str
    ok: bool
    latency_ms: float | None = None
    """None when it did not answer at all, well or badly."""


class Prober(Protocol):
    """Knocks at backends that get no traffic, and at all of them where checks are configured."""

    def probe(self, group: str, backends: Sequence[str]) -> None:
        """Begin to knock once at each; the answer is among a later tick's `results`."""
        ...

    def results(self) -> Sequence[Probed]:
        """Answers since this was last asked."""
        ...

    def check_ok(self, group: str, backend: str) -> bool | None:
        """What its health check says; None where it has none, or none was made yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change that people ask about afterwards: of a door, of a backend's isolation, of the plane.

    `what` is `mode`, `isolation` or `failsafe`; `before` and `after` are modes, causes of isolation
    (None: in service) or what the plane thought of its agent.
    """

    time_ms: int
    group: str
    what: str
    before: str | None
    after: str | None
    reasons: tuple[str, ...]
    backend: str | None = None
    record: Head | None = None
    """The tick that led to it, in the flight recorder."""


class Chronicle(Protocol):
    """Where transitions and the roots of the record are kept for good. Never waits for a disk."""

    def transition(self, transition: Transition) -> None:
        """Keep this change."""
        ...

    def anchor(self, now_ms: int, heads: Mapping[str, Head]) -> None:
        """Keep the ends of the groups' records: what is before them can no longer be changed."""
        ...

    def close(self) -> None:
        """Write what is waiting, as far as that is possible, and stop."""
        ...
