"""Resize: which leases of a running run end and begin, when its owner shrinks it or a node is lost.

A run shrinks by whole groups, from the highest number down. Where a node is lost, the spares of
each group take over: they are paid for like the rest, so no owner pays for more GPUs than before.
Groups that the run is giving back need no spares: they are gone with the node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from fairlead.core.gpu.conflict import Role
from fairlead.core.reasons import CutKind, ResizeReason
from fairlead.core.units import Count, Gpus, Name, OutOfRange, repeats

NODE_FAILED = "NodeFailed"


@dataclass(frozen=True, slots=True)
class RunLease:
    """An open lease of the run. `ending`: it is being given back, and why."""

    id: Name
    role: Role
    group: Count
    slots: tuple[Name, ...]
    ending: Name | None = None

    def elsewhere(self, node: str) -> tuple[str, ...]:
        return tuple(slot for slot in self.slots if slot.partition("#")[0] != node)


@dataclass(frozen=True, slots=True)
class Shrink:
    """Its owner wants it to go on with fewer GPUs; spares do not count."""

    TAG: ClassVar[str] = "shrink"
    width: Gpus
    min_gpus: Gpus
    step_gpus: Gpus


@dataclass(frozen=True, slots=True)
class Swap:
    """A node is lost, or drained: spares replace its devices."""

    TAG: ClassVar[str] = "swap"
    node: Name


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """What is to change, and every open lease of the run."""

    change: Shrink | Swap
    leases: tuple[RunLease, ...]

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("leases", "id", [lease.id for lease in self.leases])

    @property
    def width(self) -> int:
        return sum(len(lease.slots) for lease in self.leases if lease.role is Role.ACTIVE)


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that ends, and with which reason."""

    lease: str
    reason: str


@dataclass(frozen=True, slots=True)
class NewLease:
    """A lease that goes on with a part of another's devices, or as another role."""

    of: str
    role: Role
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resize:
    """What ends and begins; nothing, where it is refused.

    `width` is the run's from then on; for `NotWholeGroups`, the next one that whole groups leave.
    """

    reason: ResizeReason
    width: int
    ended: tuple[EndedLease, ...] = ()
    begun: tuple[NewLease, ...] = ()


def resize(asked: ResizeRequest) -> Resize:
    leases = sorted(asked.leases, key=lambda lease: (lease.group, lease.id))
    if isinstance(asked.change, Swap):
        return _swap(leases, asked.change.node, asked.width)
    return _shrink(leases, asked.change, asked.width)


def _shrink(leases: list[RunLease], change: Shrink, width: int) -> Resize:
    if not change.min_gpus <= change.width < width:
        return Resize(ResizeReason.WIDTH, width)
    if (width - change.width) % change.step_gpus:
        return Resize(ResizeReason.STEP, width)
    ended: list[EndedLease] = []
    groups = [list(group) for _, group in groupby(leases, key=lambda lease: lease.group)]
    while width > change.width:
        for lease in groups.pop():
            width -= len(lease.slots) if lease.role is Role.ACTIVE else 0
            ended.append(EndedLease(lease.id, CutKind.SHRINK.value))
    if width < change.width:
        return Resize(ResizeReason.GROUPS, width)
    return Resize(ResizeReason.RESIZED, width, tuple(ended))


def _swap(leases: list[RunLease], node: str, width: int) -> Resize:
    going = sorted((lease for lease in leases if lease.ending), key=lambda lease: lease.id)
    hit = {lease.group for lease in going if len(lease.elsewhere(node)) < len(lease.slots)}
    leaving = [lease for lease in going if lease.group in hit]
    ended = [EndedLease(lease.id, lease.ending or "") for lease in leaving]
    begun: list[NewLease] = []
    staying = [lease for lease in leases if not lease.ending]
    for _, group in groupby(staying, key=lambda lease: lease.group):
        if not _swap_group(list(group), node, ended, begun):
            return Resize(ResizeReason.NO_SPARES, width)
    gone = sum(len(lease.slots) for lease in leaving if lease.role is Role.ACTIVE)
    return Resize(ResizeReason.RESIZED, width - gone, tuple(ended), tuple(begun))


def _swap_group(
    leases: list[RunLease], node: str, ended: list[EndedLease], begun: list[NewLease]
) -> bool:
    """Split a group's leases where the node's devices were; whether its spares suffice."""
    lost = 0
    for lease in leases:
        kept = lease.elsewhere(node)
        if lease.role is Role.SPARE or len(kept) == len(lease.slots):
            continue
        lost += len(lease.slots) - len(kept)
        ended.append(EndedLease(lease.id, NODE_FAILED))
        if kept:
            begun.append(NewLease(lease.id, Role.ACTIVE, kept))
    for lease in leases:
        if lease.role is Role.ACTIVE:
            continue
        kept = lease.elsewhere(node)
        used, rest = kept[:lost], kept[lost:]
        lost -= len(used)
        if not used and len(rest) == len(lease.slots):
            continue
        ended.append(EndedLease(lease.id, CutKind.DROP_SPARE.value))
        parts = ((Role.ACTIVE, used), (Role.SPARE, rest))
        begun += [NewLease(lease.id, role, slots) for role, slots in parts if slots]
    return not lost
