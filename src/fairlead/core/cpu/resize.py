"""Which pods of a node may be resized now, given what the API server and the kubelet say of them.

A resize takes a while to come into force, and until the kubelet says so the old limit or the new
one may be. Each pod therefore counts with the highest limit that it may have (`ceiling`), and an
increase is sent only into room that is free by that count: what a decrease gives up is free once
it was seen in force. So Σ limits <= capacity at every instant, wherever the sender is stopped.

Where weights are governed it is the requests that are resized, and "limit" below stands for one of
these: they are bounded and ordered in the same way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from fairlead.core.apportion import fill_grants
from fairlead.core.claims import Claim
from fairlead.core.invariant import require

Limits = Mapping[str, int]
"""Millicores by container."""


class ResizeState(StrEnum):
    """What the kubelet says of the last resize of a pod."""

    SETTLED = "settled"
    """The limits in force are those of the spec."""
    MOVING = "moving"
    DEFERRED = "deferred"
    """It waits for room on the node; it may come into force at any time."""
    INFEASIBLE = "infeasible"


class ResizeWait(StrEnum):
    """Why a limit is not what was decided."""

    IN_PROGRESS = "InProgress"
    ROOM = "WaitsForRoom"


@dataclass(frozen=True, slots=True)
class ResizePod:
    """One pod as the API server shows it.

    `adopted`: a resize of ours was sent, so that its limits count. `newcomer`: that was the first,
    and it is not in force yet; until then the pod counts with what it is to have. `unseen` are
    limits that the kubelet may still put in force although the spec asks for others by now.
    `leaves`: it gets its own limits back, which are not ours to count. `marked`: it carries our
    marks, by which it is watched; one that is as decided is sent for these alone.
    """

    uid: str
    wanted: Limits
    spec: Limits
    actual: Limits
    state: ResizeState = ResizeState.SETTLED
    adopted: bool = True
    newcomer: bool = False
    unseen: Limits = field(default_factory=dict)
    leaves: bool = False
    marked: bool = True

    @property
    def ceilings(self) -> dict[str, int]:
        """The highest limit that each container may have before the next resize is seen."""
        parts = (self.actual, self.unseen)
        return {name: max(limit, *(p.get(name, 0) for p in parts)) for name, limit in _of(self)}

    @property
    def counted(self) -> int:
        """What it takes of the capacity now."""
        if not self.adopted or self.leaves:
            return 0
        if self.newcomer and self.state is not ResizeState.SETTLED:
            return sum(self.spec.values())
        return sum(self.ceilings.values())

    @property
    def added(self) -> int:
        """What it takes beyond that once the resize is sent; 0 or less where it only gives up."""
        if self.leaves:
            return 0
        if not self.adopted or (self.newcomer and self.state is not ResizeState.SETTLED):
            return sum(self.wanted.values()) - self.counted
        ceilings = self.ceilings
        return sum(max(limit - ceilings[name], 0) for name, limit in self.wanted.items())

    @property
    def differs(self) -> bool:
        return self.wanted != self.spec or not ((self.adopted and self.marked) or self.leaves)


def _of(pod: ResizePod) -> list[tuple[str, int]]:
    return sorted(pod.spec.items())


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """Which pods to resize to what they want now, and why others wait."""

    send: tuple[str, ...]
    wait: Mapping[str, ResizeWait]


def next_resizes(capacity_millicores: int, pods: Iterable[ResizePod]) -> ResizePlan:
    """Decreases at once, then newcomers, then increases as far as there is room.

    What is sent together may come into force in any order. A pod whose last resize is under way
    waits, unless the kubelet put that resize off.
    """
    pods = sorted(pods, key=attrgetter("uid"))
    room = capacity_millicores - sum(pod.counted for pod in pods)
    send: list[str] = []
    wait: dict[str, ResizeWait] = {}
    for pod in sorted((pod for pod in pods if pod.differs), key=_phase):
        require(pod.wanted.keys() == pod.spec.keys(), "a resize is of every container")
        added = pod.added
        if pod.state is ResizeState.MOVING:
            wait[pod.uid] = ResizeWait.IN_PROGRESS
        elif added > 0 and added > room:
            wait[pod.uid] = ResizeWait.ROOM
        else:
            send.append(pod.uid)
            room -= max(added, 0)
    return ResizePlan(tuple(send), wait)


def _phase(pod: ResizePod) -> int:
    return 0 if pod.added <= 0 else 2 if pod.adopted else 1


@dataclass(frozen=True, slots=True)
class PodLimits:
    """The limits of a pod, and those that were decided for it; None: it is governed no more."""

    spec: Limits
    actual: Limits
    own: Limits
    """What its user gave it."""
    floors: Limits
    """The least that it may get."""
    allocation: Limits | None
    state: ResizeState = ResizeState.SETTLED
    ends: bool = False
    """It is being deleted."""
    refused: bool = False
    """The API server or the kubelet refused this very decision."""
    tops: Limits | None = None
    """The most that it may get; None: its own."""


@dataclass(frozen=True, slots=True)
class WantedLimits:
    """What a pod is to be resized to; `held`: its floors keep it above what was decided."""

    limits: Limits
    leaves: bool = False
    held: bool = False


def wanted_limits(pod: PodLimits) -> WantedLimits:
    """A pod that ends stays as it is, and one that is governed no more gets its own limits back.
    What was refused is not sent again, so that its limits in force are what it has."""
    if pod.ends:
        return WantedLimits(pod.spec)
    if pod.allocation is None:
        return WantedLimits(pod.own, leaves=True)
    asked = {name: pod.allocation.get(name, limit) for name, limit in pod.spec.items()}
    wanted = held_limits(asked, pod.floors, pod.own if pod.tops is None else pod.tops)
    if pod.refused or pod.state is ResizeState.INFEASIBLE:
        wanted = {name: pod.actual.get(name, limit) for name, limit in pod.spec.items()}
    return WantedLimits(wanted, held=sum(asked.values()) < sum(pod.floors.values()))


def newest_capacities(decisions: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """What the newest decision of each node divided; of (node, decision, millicores)."""
    newest: dict[str, tuple[int, int]] = {}
    for node, decision, capacity in decisions:
        row = (decision, capacity)
        newest[node] = max(row, newest.get(node, row))
    return {node: capacity for node, (_, capacity) in newest.items()}


def held_limits(limits: Limits, floors: Limits, tops: Limits) -> dict[str, int]:
    """The limits of a pod's containers, none below its floor or above its top: of a limit the
    request and the user's own limit, of a request the user's own request and the limit. What is
    added to one is taken from the others, as far as their floors allow: the sum grows only where it
    is below that of the floors.
    """
    names = sorted(limits)
    low = {name: min(floors.get(name, 0), tops[name]) for name in names}
    total = max(sum(limits.values()), sum(low.values()))
    claims = [Claim(0, max(limits[name], 1), low[name], tops[name]) for name in names]
    return dict(zip(names, fill_grants(total, claims), strict=True))
