"""Place: which devices a funded run gets. Deterministic best fit, no backtracking.

A group goes to the node that it fills best; else, to the domain that it fills best, over as few
nodes as possible; else, only where groups need not stay together, over several domains. Nodes in
the run's location come first; others are used only when the plan is paid from elsewhere. Spares
stay in their group's domain and, where they can, off its nodes: a spare that dies with the group
is no spare. Ties by name. Groups are equal but for the last, so that greedy is never wrong about
whether they fit into whole domains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fairlead.core.invariant import require
from fairlead.core.units import Gpus, Name, OutOfRange, Range

DOMAIN_KEYS = ("region", "cluster", "domain")
ORDINAL_MAX = 1023
GANG_GPUS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with devices; `free` are the ordinals that no lease holds."""

    name: Name
    flavor: Name
    location: Mapping[str, str] = field(default_factory=dict)
    free: tuple[Annotated[int, Range(0, ORDINAL_MAX)], ...] = ()
    cordoned: bool = False

    @property
    def domain(self) -> tuple[str, ...]:
        """Where its neighbours are near; nodes without labels are all neighbours."""
        return tuple(self.location.get(key, "") for key in DOMAIN_KEYS)

    def faults(self) -> Iterator[OutOfRange]:
        if len(set(self.free)) != len(self.free):
            yield OutOfRange("free", "names a device twice")

    def is_in(self, location: Mapping[str, str]) -> bool:
        """Whether it has every label that is asked for; `*` takes any value."""
        return matches(self.location, location)


def matches(labels: Mapping[str, str], location: Mapping[str, str]) -> bool:
    """Whether labels have every one that is asked for; `*` takes any value."""
    return all(key in labels and value in ("*", labels[key]) for key, value in location.items())


@dataclass(frozen=True, slots=True)
class Gang:
    """What is to be placed, whole or not at all. `group_gpus` None: one group, kept nowhere."""

    flavor: Name
    gpus: Annotated[int, Range(1, GANG_GPUS_MAX)]
    group_gpus: Gpus | None = None
    spares_per_group: Annotated[int, Range(0, GANG_GPUS_MAX)] = 0
    location: Mapping[str, str] = field(default_factory=dict)
    elsewhere: bool = False

    def groups(self) -> list[int]:
        """The active GPUs of each group; the last may be smaller."""
        if self.group_gpus is None:
            return [self.gpus]
        whole, rest = divmod(self.gpus, self.group_gpus)
        return [self.group_gpus] * whole + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """One group's devices as `node#ordinal`."""

    group: int
    active: tuple[str, ...]
    spares: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """All groups, or none and how many GPUs found no place."""

    groups: tuple[PlacedGroup, ...]
    shortfall_gpus: int = 0

    @property
    def placed(self) -> bool:
        return not self.shortfall_gpus


def place(nodes: Iterable[Node], gang: Gang) -> Placement:
    usable = sorted(
        (node for node in nodes if node.flavor == gang.flavor and not node.cordoned),
        key=lambda node: node.name,
    )
    tiers = [_Floor(node for node in usable if node.is_in(gang.location))]
    if gang.elsewhere:
        tiers.append(_Floor(node for node in usable if not node.is_in(gang.location)))
    whole = gang.group_gpus is not None or gang.spares_per_group > 0
    placed: list[PlacedGroup] = []
    missing = 0
    for number, gpus in enumerate(gang.groups()):
        found = _one(tiers, number, gpus, gang.spares_per_group, whole=whole)
        if found is None:
            missing += gpus + gang.spares_per_group
        else:
            placed.append(found)
    if missing:
        return Placement((), missing)
    taken = [slot for group in placed for slot in (*group.active, *group.spares)]
    require(len(taken) == len(set(taken)), "a device is given once")
    return Placement(tuple(placed))


def _one(
    tiers: list["_Floor"], number: int, gpus: int, spares: int, *, whole: bool
) -> PlacedGroup | None:
    for floor in tiers:
        found = floor.group(number, gpus, spares)
        if found is not None:
            return found
    if whole:
        return None
    # Nothing asks for one domain: in location first, the rest wherever it fits.
    if sum(floor.room() for floor in tiers) < gpus:
        return None
    slots: list[str] = []
    for floor in tiers:
        slots += floor.scatter(min(gpus - len(slots), floor.room()))
    return PlacedGroup(number, tuple(slots), ())


_Domain = tuple[str, ...]


class _Floor:
    """The free devices of some nodes, taken away as they are given."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, list[int]] = {}
        self._domain: dict[str, _Domain] = {}
        self._domains: dict[_Domain, list[str]] = {}
        self._rooms: dict[_Domain, int] = {}
        for node in nodes:
            domain = self._domain[node.name] = node.domain
            self._free[node.name] = sorted(node.free)
            self._domains.setdefault(domain, []).append(node.name)
            self._rooms[domain] = self._rooms.get(domain, 0) + len(node.free)

    def room(self) -> int:
        return sum(self._rooms.values())

    def group(self, number: int, gpus: int, spares: int) -> PlacedGroup | None:
        """One group inside one domain: the fullest node that has room, else the fullest domain."""
        fits = [
            (len(self._free[name]), domain, name)
            for domain, names in self._domains.items()
            if self._rooms[domain] >= gpus + spares
            for name in names
            if len(self._free[name]) >= gpus
        ]
        if fits:
            _, domain, name = min(fits)
            active = self._give(name, gpus)
        else:
            rooms = [
                (room, domain) for domain, room in self._rooms.items() if room >= gpus + spares
            ]
            if not rooms:
                return None
            _, domain = min(rooms)
            active = self._spread(self._domains[domain], gpus, lambda name: 0)
        used = {slot.rpartition("#")[0] for slot in active}
        reserve = self._spread(self._domains[domain], spares, lambda name: int(name in used))
        return PlacedGroup(number, tuple(active), tuple(reserve))

    def scatter(self, gpus: int) -> list[str]:
        return self._spread(list(self._free), gpus, lambda name: 0)

    def _spread(self, names: list[str], gpus: int, shunned: Callable[[str], int]) -> list[str]:
        """Over as few nodes as possible: a best fit for what is left, else the emptiest node."""
        given: list[str] = []
        while len(given) < gpus:
            left = gpus - len(given)
            _, _, size, name = min(
                (
                    shunned(name),
                    len(free) < left,
                    len(free) if len(free) >= left else -len(free),
                    name,
                )
                for name in names
                if (free := self._free[name])
            )
            given += self._give(name, min(left, abs(size)))
        return given

    def _give(self, name: str, gpus: int) -> list[str]:
        free = self._free[name]
        given, self._free[name] = free[:gpus], free[gpus:]
        self._rooms[self._domain[name]] -= len(given)
        return [f"{name}#{ordinal}" for ordinal in given]
