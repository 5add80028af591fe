"""The port between the traffic governor and what really moves connections.

    plane.configure(groups)                    # what may be routed where; nothing else ever is
    plane.apply(Table("web", 7, {"b1": 200, "b2": 56}, admission))
    plane.heartbeat()                          # every tick: the plane judges its age by itself
    plane.read()                               # what the plane has seen since it began

A plane goes on without the agent. It judges the heartbeat's age on its own clock: normal below
3 s; then *hold* (the active table stays, flips are refused); from 15 s *fallback* (a rendezvous
hash of the flow inside its group; `hard` decays to `soft` with the stored budget, so that a dead
agent never leaves a closed door). Planes that cannot judge bring a small process that does.

All raise `TemporaryFault` or `PermanentFault` of `fairlead.ports.faults`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.core.traffic.state import AdmissionMode as Mode

__all__ = [
    "FALLBACK_AFTER_MS",
    "HOLD_AFTER_MS",
    "SCHEMA_VERSION",
    "Admission",
    "Backend",
    "BackendSeen",
    "Dataplane",
    "GroupSeen",
    "Liveness",
    "Mode",
    "Proto",
    "RouteGroup",
    "Stale",
    "Table",
]

SCHEMA_VERSION = 3
"""Of the tables and maps that an agent and a plane share; they must agree before the first flip."""

HOLD_AFTER_MS, FALLBACK_AFTER_MS = 3_000, 15_000


class Proto(StrEnum):
    """What a group carries."""

    TCP = "tcp"
    UDP = "udp"


@dataclass(frozen=True, slots=True)
class Backend:
    """One place that can serve a group's requests."""

    id: str
    host: str
    """An IPv4 or IPv6 address, as text."""
    port: int


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """A virtual address and the equivalent backends behind it. Nothing leaves its group."""

    name: str
    vip: str
    port: int
    proto: Proto
    backends: tuple[Backend, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """The door of a group. In `normal` there is no bucket; `soft` and `hard` have both numbers."""

    mode: Mode = Mode.NORMAL
    rate_per_s: float | None = None
    burst: float | None = None
    stored_rate_per_s: float | None = None
    """With `stored_burst` the budget that `hard` decays to in fallback. The two numbers above are a
    drip then, which would be a closed door in all but name; without a stored budget they stay."""
    stored_burst: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One decision for one group: applied whole, in one flip, or not at all."""

    group: str
    epoch: int
    """Rises with every flip of the group; an older or equal one is refused as out of date."""
    slots: Mapping[str, int]
    """Backend id to slots. Every backend of the group is listed; 0 sends it nothing new."""
    admission: Admission
    inside_max: int | None = None
    """How many connections (requests, on a proxy) may be inside the group at once. More are told to
    try again, as by a soft door, in every mode. Within it a backend that holds its slots' part of
    what is inside (but at least 4) is passed over for the next, as far as a plane can: a backend
    that stalls fills up long before any signal says so. None: no bound, nobody is passed over.
    In fallback nothing is bounded: what was learnt may be long out of date.
    """
    decision: int | None = field(default=None, compare=False)
    """The recorded decision that this table comes from, by its sequence number."""


class Stale(Exception):
    """The plane is in hold or fallback, or the epoch is not newer: the table was not applied."""


class Dataplane(Protocol):
    """Moves connections by the last table it was given. Not thread-safe; one agent owns it."""

    name: str
    sources: Mapping[str, str]
    """Signal to where this plane takes it from, for people: queue, latency, errors, requests."""

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others. Those that stay keep their active table and counters."""
        ...

    def schema_version(self) -> int:
        """Of what is installed, which may be older than this agent."""
        ...

    def apply(self, table: Table) -> None:
        """Flip a group to a table: every new connection sees the old one or the new one, whole."""
        ...

    def heartbeat(self) -> None:
        """The agent is alive. After hold or fallback the next flip is accepted again."""
        ...

    def drain(self, group: str, backend: str) -> None:
        """Ask for its kept connections to end, where the plane can; new ones stop by slots."""
        ...

    def read(self) -> Mapping[str, GroupSeen]:
        """Every group's counters."""
        ...

    def detach(self) -> None:
        """Let go without changing anything: connections go on by the active table."""
        ...

    def remove(self) -> None:
        """Take everything of this plane off the machine."""
        ...
