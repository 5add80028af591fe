"""The port between the traffic governor and the proxy or kernel program that routes connections.

    dataplane.configure(groups)                  # what may be routed where; nothing else ever is
    dataplane.apply(Table("web", 7, {"b1": 200, "b2": 56}, limits), decision=41)
    dataplane.heartbeat()                        # every tick: the dataplane judges its age itself
    dataplane.read()                             # what it has counted since it began

A dataplane goes on without the agent. It judges the heartbeat's age by its own clock: normal below
3 s; then *hold* (the active table stays, new ones are refused); from 15 s *fallback* (a hash of the
flow inside its group, and the table's fallback admission). Every number in a table is decided by
`fairlead.core.traffic`; a dataplane translates. All raise `TemporaryFault` or `PermanentFault`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from fairlead.core.traffic.limits import Concurrency, Limits, Split
from fairlead.core.traffic.sighting import GroupSeen
from fairlead.ports.faults import PermanentFault

SCHEMA_VERSION = 5
"""Of the tables and maps that an agent and a dataplane share: they must agree before a flip."""


class Proto(StrEnum):
    """What a group carries."""

    TCP = "tcp"
    UDP = "udp"


@dataclass(frozen=True, slots=True)
class Backend:
    """One server of a group's requests; `host` is an IPv4 or IPv6 address, as text."""

    id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """A virtual address and the equivalent backends behind it. Nothing leaves its group."""

    name: str
    vip: str
    port: int
    proto: Proto
    backends: tuple[Backend, ...]
    retry: bool = False
    """Whether idempotent requests may be repeated, as far as a table's limits allow it."""
    split: Split | None = field(default=None, compare=False)
    """What it goes by until the first table for these backends; None: nothing is decided, and what
    stays keeps its slots, or all get the same."""
    decision: int | None = field(default=None, compare=False)
    """The recorded decision behind the split."""


@dataclass(frozen=True, slots=True)
class Table:
    """One decision for one group: applied whole, in one flip, or not at all."""

    group: str
    epoch: int
    """Rises with every flip of the group; an older or equal one is refused as out of date."""
    slots: Mapping[str, int]
    """Backend id to slots. Every backend of the group is listed; 0 sends it nothing new."""
    limits: Limits
    """Admission now and in fallback, and how much may be inside. More than `inside_max` requests
    are refused softly, in every mode; within it a backend that holds its share of what is inside
    is passed over for the next, as far as a dataplane can: a backend that stalls fills up long
    before any signal shows it. In fallback the bound of `limits.fallback` holds, which relaxes
    while requests succeed: what was learnt may be out of date, but no group is without a bound.
    """


class Stale(Exception):
    """The dataplane is in hold or fallback, or the epoch is not newer: nothing was applied."""


class GroupRefused(PermanentFault):
    """This group cannot be served here; nothing was changed, and the others could be."""

    def __init__(self, group: str, message: str) -> None:
        super().__init__(message)
        self.group = group


class Dataplane(Protocol):
    """Routes connections by the last table it was given. Not thread-safe; one agent owns it.

    Calls that act carry the sequence number of the recorded decision behind them, None where
    nothing is recorded.
    """

    name: str
    sources: Mapping[str, str]
    """Signal (queue, latency, errors, requests) to where it is taken from, for people."""

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others. Those whose backends stay keep their active table; a new one,
        or one with other backends, goes by its split."""

    def schema_version(self) -> int:
        """Of what is installed, which may be older than this agent."""

    def apply(self, table: Table, *, decision: int | None) -> None:
        """Flip a group to a table: every new connection sees the old one or the new one, whole."""

    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """What each backend of a bounded group may hold until the next tick, without a flip;
        nothing to do where shares are compared on every request."""

    def heartbeat(self) -> None:
        """The agent is alive. After hold or fallback the next flip is accepted again."""

    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Ask for its kept connections to end, where that is possible; slots stop new ones."""

    def read(self) -> Mapping[str, GroupSeen]: ...
    def detach(self) -> None:
        """Let go without changing anything: connections go on by the active table. A proxy of its
        operator's gets back what was found there."""

    def remove(self) -> None:
        """Take everything of this dataplane off the machine."""


@runtime_checkable
class Glancing(Protocol):
    """A dataplane that has to ask for the counters of each backend, and need not ask in every tick.

    Both raise what `Dataplane.read` does.
    """

    def glance(self, resting: Collection[str]) -> Mapping[str, GroupSeen]:
        """Like `read`. Of groups in `resting` that got nothing but requests that went well, and
        hold too few for one backend to hold `HELD_MIN`, backends may show what they had counted
        at an earlier look; what was sent to the group is counted."""

    def look_closer(self, groups: Collection[str]) -> Mapping[str, GroupSeen]:
        """Those of these groups of which the last glance showed such backends, read whole."""
