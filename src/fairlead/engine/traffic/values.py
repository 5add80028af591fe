"""The values of the traffic loop: what it drives, through which ports, and what a tick came to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.core.traffic import AdmissionMode, Cause, GroupDecision, Snapshot, TickPlan
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.engine.traffic.governor import GroupGovernor
from fairlead.ports.dataplane import RouteGroup
from fairlead.ports.recorder import FlightRecorder, RecordHead
from fairlead.ports.traffic import EventLog, NodeSensor, Prober, SignalSource, Transition

Orders = Mapping[str, Mapping[str, str]]
"""By group and backend: `isolate` or `drain`, until the operator restores it."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as the loop drives it."""

    route: RouteGroup
    governor: GroupGovernor
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The machines of its backends, where they are known."""

    @property
    def members(self) -> list[str]:
        return sorted(backend.id for backend in self.route.backends)


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything but the dataplane."""

    record: Callable[[str], FlightRecorder]
    """The flight recorder of a group; each has its own."""
    signals: SignalSource
    nodes: NodeSensor
    prober: Prober
    events: EventLog | None = None
    orders: Callable[[], Orders] = dict


@dataclass(frozen=True, slots=True)
class GroupRound:
    """What one tick decided for one group, and what became of it."""

    decision: GroupDecision
    seen: GroupSeen | None
    """What the dataplane had counted."""
    reasons: tuple[str, ...]
    """The plan's, after what the agent alone knows: `failsafe` where the heartbeat was found stale,
    `full` where open admission rejected requests."""
    sequence: int | None
    """Of the recorded decision; None: it could not be recorded, and nothing of it is done."""
    flipped: bool = False
    fault: str = ""
    """Why the plan was not applied; empty when it was, or when nothing had to change."""

    @property
    def snapshot(self) -> Snapshot:
        """What the tick looked at."""
        return self.decision.snapshot

    @property
    def plan(self) -> TickPlan:
        """What the tick decided."""
        return self.decision.plan


@dataclass(frozen=True, slots=True)
class TickRound:
    """One tick over all groups."""

    time_ms: int
    groups: Mapping[str, GroupRound]
    transitions: tuple[Transition, ...]
    faults: tuple[str, ...]
    """What went wrong outside of any single group."""


class GroupStatus(NamedTuple):
    """What people ask about later: admission, isolation, and whether the dataplane trusts us."""

    mode: AdmissionMode = AdmissionMode.NORMAL
    liveness: Liveness = Liveness.NORMAL
    isolated: Mapping[str, Cause] = {}


def transitions(
    before: GroupStatus,
    now: GroupStatus,
    *,
    time_ms: int,
    group: str,
    reasons: tuple[str, ...],
    record: RecordHead,
) -> tuple[Transition, ...]:
    """Every change, in a fixed order: the dataplane's trust, admission, then backends by id."""
    changes: list[tuple[str, str | None, str | None, str | None]] = []
    if before.liveness is not now.liveness:
        changes.append(("failsafe", None, before.liveness.value, now.liveness.value))
    if before.mode is not now.mode:
        changes.append(("mode", None, before.mode.value, now.mode.value))
    for backend in sorted(before.isolated.keys() | now.isolated.keys()):
        was, cause = before.isolated.get(backend), now.isolated.get(backend)
        if was is not cause:
            changes.append(("isolation", backend, was and was.value, cause and cause.value))
    return tuple(
        Transition(
            time_ms=time_ms,
            group=group,
            what=what,
            backend=backend,
            before=old,
            after=new,
            reasons=reasons,
            record=record,
        )
        for what, backend, old, new in changes
    )
