"""What the traffic governor needs beside its dataplane: sensors, probes and an event log.

The loop in `engine.traffic` reads these once per tick and never waits for them: an adapter that
talks to a network does so in its own thread and answers with what it knows. What is unknown is
None, and None is never zero.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.core.traffic.sighting import NodeReading, Probed, Reading
from fairlead.ports.recorder import RecordHead


class SignalSource(Protocol):
    """Applications that report more than a dataplane can see."""

    def covers(self, group: str) -> Collection[str]:
        """The fields of `Reading` that are asked for in this group."""

    def asked_ms(self, group: str, now_ms: int) -> int | None:
        """For how long its applications have been asked; None: for longer than any one needs."""

    def read(self, now_ms: int) -> Mapping[tuple[str, str], Reading]:
        """The last report of each, by group and backend, with its time."""


class NodeSensor(Protocol):
    """Sees the machines under the backends, as many as can be seen now."""

    def read(self, now_ms: int) -> Sequence[NodeReading]:
        """The last reading of each machine, with its time."""


class Prober(Protocol):
    """Probes backends that get no traffic, and all of them where checks are configured."""

    def probe(self, group: str, backends: Sequence[str]) -> None:
        """Begin one probe of each; the answer is among a later tick's `results`."""

    def results(self) -> Sequence[Probed]:
        """Answers to probes since this was last asked."""

    def checked(self) -> Sequence[Probed]:
        """Results of health checks since this was last asked."""


CHANGES = ("mode", "isolation", "failsafe")
"""What a `Transition` is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change that people ask about later: of admission, of a backend's isolation, of liveness.

    `what` is `mode`, `isolation` or `failsafe`; `before` and `after` are modes, causes of isolation
    (None: in service) or what the dataplane concluded about its agent; `record` is the tick that
    led to it, in the flight recorder.
    """

    time_ms: int
    group: str
    what: str
    before: str | None
    after: str | None
    reasons: tuple[str, ...]
    backend: str | None = None
    record: RecordHead | None = None


class EventLog(Protocol):
    """Where transitions and the roots of the record are kept for good. Never waits for a disk."""

    def transition(self, transition: Transition) -> None: ...
    def anchor(self, now_ms: int, heads: Mapping[str, RecordHead]) -> None:
        """Keep the ends of the groups' records: what is before them can no longer be changed."""

    def close(self) -> None:
        """Write what is waiting, as far as that is possible, and stop."""
