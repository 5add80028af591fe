"""Overdraw: whether a run that no budget pays for may use devices that would be idle.

Its owner asked for it (`allowUnfunded`). It starts where devices are free that no funded run waits
for, at the first of its widths that fits. Its leases are unfunded from the start: their hours are
overdraft of one of its owner's own envelopes, and they are the first to be preempted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.core.gpu.place import Gang, Node, Placement, place
from fairlead.core.reasons import OverdrawReason
from fairlead.core.units import Name, OutOfRange, repeats


@dataclass(frozen=True, slots=True)
class OwnEnvelope:
    """An open envelope of the run's owner and flavor."""

    budget: Name
    envelope: Name


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """What a funded run that waits for devices is to be placed as."""

    run: Name
    gang: Gang


@dataclass(frozen=True, slots=True)
class OverdrawRequest:
    """All that decides whether a run starts without funding."""

    run: Name
    gangs: tuple[Gang, ...]
    """Its widths, the widest first."""
    envelopes: tuple[OwnEnvelope, ...]
    nodes: tuple[Node, ...]
    waiting: tuple[WaitingGang, ...] = ()

    def faults(self) -> Iterator[OutOfRange]:
        if not self.gangs:
            yield OutOfRange("gangs", "must have at least 1 item, got 0")
        yield from repeats("nodes", "name", [node.name for node in self.nodes])
        yield from repeats("waiting", "run", [row.run for row in self.waiting])


@dataclass(frozen=True, slots=True)
class Overdraw:
    """Devices and the envelope that the overdraft is counted in; or why it does not start."""

    reason: OverdrawReason
    payer: OwnEnvelope | None = None
    gang: Gang | None = None
    placement: Placement | None = None
    waits_for: str | None = None
    """The funded run that could use the devices."""

    @property
    def starts(self) -> bool:
        return self.reason is OverdrawReason.STARTS


def overdraw(asked: OverdrawRequest) -> Overdraw:
    if not asked.envelopes:
        return Overdraw(OverdrawReason.NO_ENVELOPE)
    payer = min(asked.envelopes, key=lambda own: (own.budget, own.envelope))
    free = [node for node in asked.nodes if node.free and not node.cordoned]
    for row in sorted(asked.waiting, key=lambda row: row.run):
        if any(_could_use(node, row.gang) for node in free):
            return Overdraw(OverdrawReason.FUNDED_RUN_WAITS, waits_for=row.run)
    for gang in asked.gangs:
        placement = place(free, gang)
        if placement.placed:
            return Overdraw(OverdrawReason.STARTS, payer, gang, placement)
    return Overdraw(OverdrawReason.NO_DEVICES)


def _could_use(node: Node, gang: Gang) -> bool:
    """Whether what is free there may be a part of what a gang waits for."""
    return node.flavor == gang.flavor and (gang.elsewhere or node.is_in(gang.location))
