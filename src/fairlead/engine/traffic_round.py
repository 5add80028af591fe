"""The values of the traffic loop: what it drives, through which ports, and what a tick came to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.core.traffic import Node, Snapshot, TickPlan
from fairlead.engine.traffic import GroupGovernor
from fairlead.ports.dataplane import GroupSeen, RouteGroup
from fairlead.ports.recorder import FlightRecorder
from fairlead.ports.traffic import (
    Chronicle,
    NodeSensor,
    Probed,
    Prober,
    Reading,
    Signals,
    Transition,
)

Orders = Mapping[str, Mapping[str, str]]
"""By group and backend: `isolate` or `drain`, until the operator restores it."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as the loop drives it."""

    route: RouteGroup
    governor: GroupGovernor
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The machines of its backends, where they are known."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything but the plane; what is None is not there."""

    record: Callable[[str], FlightRecorder | None] = lambda _: None
    """The flight recorder of a group: each has its own, so that its ticks are stored as deltas of
    each other."""
    signals: Signals | None = None
    nodes: NodeSensor | None = None
    prober: Prober | None = None
    chronicle: Chronicle | None = None
    orders: Callable[[], Orders] = dict


@dataclass(frozen=True, slots=True)
class GroupRound:
    """What one tick decided for one group, and what became of it."""

    snapshot: Snapshot
    plan: TickPlan
    reasons: tuple[str, ...]
    """The plan's, after what the agent alone knows: `failsafe` where the heartbeat was found stale,
    `full` where an open door refused somebody."""
    seen: GroupSeen | None
    sequence: int | None
    flipped: bool
    fault: str = ""
    """Why the plan was not applied; empty when it was, or when nothing had to change."""


@dataclass(frozen=True, slots=True)
class Round:
    """One tick over all groups."""

    time_ms: int
    groups: Mapping[str, GroupRound]
    transitions: tuple[Transition, ...]
    faults: tuple[str, ...]
    """What went wrong outside of any single group."""


@dataclass(frozen=True, slots=True)
class Sights:
    """What one tick has seen of everything."""

    now_ms: int
    seen: Mapping[str, GroupSeen]
    readings: Mapping[tuple[str, str], Reading]
    probed: Sequence[Probed]
    nodes: tuple[Node, ...]
