"""What moves at once: the first placement, and slots that must not wait for a slew (section 4.2).

Isolated and removed backends lose their slots in this very tick; only those slots move, to backends
below their targets. While nobody is routable all slots are parked with the least bad, and leave it
without slew as soon as somebody is.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Backend, Pressure
from fairlead.core.traffic.slots import hand_over, rescale
from fairlead.core.traffic.state import State


class Placed(NamedTuple):
    """Slots in the order of the backends; `bypass` lists whom it was for."""

    slots: list[int]
    bypass: tuple[str, ...]


def parked_slots(
    backends: Sequence[Backend], pressures: Sequence[Pressure], s_total: int
) -> list[int]:
    """All slots to the lowest P, ties by id: even a drip has to go somewhere."""
    totals = [pressure.total for pressure in pressures]
    best = totals.index(min(totals))
    return [s_total if index == best else 0 for index in range(len(backends))]


def place(
    backends: Sequence[Backend], target: Sequence[int], before: State | None, config: Config
) -> Placed:
    """Slots after everything that does not wait; the slew comes later, if the gate lets it."""
    ids = [backend.id for backend in backends]
    if before is None:
        return Placed(list(target), ())
    held = slots_before(before, config)
    wanted = dict(zip(ids, target, strict=True))
    routable = {backend.id for backend in backends if not backend.isolated}
    if before.parked or not routable:
        losing = {name for name, slots in held.items() if slots > wanted.get(name, 0)}
        returning = {name for name in routable if wanted[name] > held.get(name, 0)}
        return Placed(list(target), tuple(sorted(losing | returning)))
    names = sorted(held.keys() | wanted.keys())
    freed = [name not in routable and held.get(name, 0) > 0 for name in names]
    if not any(freed):
        return Placed([held.get(name, 0) for name in ids], ())
    slots = [held.get(name, 0) for name in names]
    after = hand_over(slots, [wanted.get(name, 0) for name in names], freed)
    by_name = dict(zip(names, after, strict=True))
    leaving = tuple(name for name, free in zip(names, freed, strict=True) if free)
    return Placed([by_name[name] for name in ids], leaving)


def slots_before(before: State, config: Config) -> dict[str, int]:
    """Slots in force by id, those of removed backends included, on today's total."""
    slots = rescale([memory.slots for memory in before.backends], config.s_total)
    return dict(zip((memory.id for memory in before.backends), slots, strict=True))
