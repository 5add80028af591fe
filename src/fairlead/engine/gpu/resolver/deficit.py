"""Where GPUs are missing for a winner, and how many: the smallest scope that covers the deficit.

The scopes are tried from the smallest on: a domain, a cluster, a region, everywhere. In each, the
deficit is so large that the winner fits whoever gives way: inside one domain its groups can be
spread over all nodes; over several domains, what is freed may leave a rest in each that is too
small for a group, and so many more GPUs are asked for. So there is no cut without a start, and no
draw has to be thrown away because its winner would not fit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fairlead.core.gpu import Scope
from fairlead.core.gpu.place import Gang, Node
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.resolver.freeze import Places, spared
from fairlead.engine.gpu.resolver.names import PLACES
from fairlead.engine.gpu.state import LeaseFact


@dataclass(frozen=True, slots=True)
class Deficit:
    """A scope, the GPUs that are missing in it, and those that could be freed."""

    scope: Scope
    gpus: int
    candidate_gpus: int

    @property
    def shortfall_gpus(self) -> int:
        """What would still be missing if everybody gave way."""
        return max(0, self.gpus - self.candidate_gpus)


def find_deficit(
    projection: Projection, gang: Gang, *, beneficiary: str | None = None
) -> Deficit | None:
    """The smallest scope in which enough could give way, the least deficit first.

    Where there is none: the one that comes nearest. None: no scope has room for the gang at all.
    """
    nodes = [node for node in projection.nodes() if _usable(node, gang)]
    movable = _movable(projection, gang.flavor, beneficiary)
    nearest: Deficit | None = None
    for level in _levels(nodes, gang):
        found = [_deficit(scope, nodes, movable, gang) for scope in level]
        enough = [each for each in found if each.gpus > 0 and not each.shortfall_gpus]
        if enough:
            return min(enough, key=lambda each: (each.gpus, _order(each.scope)))
        for each in found:
            if nearest is None or each.shortfall_gpus < nearest.shortfall_gpus:
                nearest = each
    return nearest


def _usable(node: Node, gang: Gang) -> bool:
    """Whether the gang may be placed there."""
    if node.flavor != gang.flavor or node.cordoned:
        return False
    return gang.elsewhere or node.is_in(gang.location)


Movable = list[tuple[Mapping[str, str], list[LeaseFact]]]
"""Leases that could end, by place: a scope looks at places, of which there are few."""


def _movable(projection: Projection, flavor: str, beneficiary: str | None) -> Movable:
    places, found = Places(projection), dict[int, tuple[Mapping[str, str], list[LeaseFact]]]()
    for name, state in projection.runs.items():
        if not state.leases or projection.run_spec(name).flavor != flavor:
            continue
        if spared(projection, name, beneficiary) is None:
            for lease in state.leases.values():
                place = places.of(lease)  # one object for each place, as long as `places` lives
                found.setdefault(id(place), (place, []))[1].append(lease)
    return list(found.values())


def _levels(nodes: list[Node], gang: Gang) -> Iterator[list[Scope]]:
    """Scopes by size, the smallest first.

    First those that ask for the labels that the gang asks for; then those without, because a lease
    that is partly elsewhere can be in the way, and is in none of the first.
    """
    fixed = {key: value for key, value in gang.location.items() if value != "*"}
    seen: set[tuple[tuple[str, str], ...]] = set()
    for asked in ({} if gang.elsewhere else fixed, {}):
        for depth in range(len(PLACES), -1, -1):
            level = {}
            for node in nodes:
                labels = {key: node.location[key] for key in PLACES[:depth] if key in node.location}
                location = {**labels, **asked}
                key = tuple(sorted(location.items()))
                if key not in seen:
                    level[key] = Scope(gang.flavor, location)
            seen |= level.keys()
            if level:
                yield [level[key] for key in sorted(level)]


def _deficit(scope: Scope, nodes: list[Node], movable: Movable, gang: Gang) -> Deficit:
    labels = scope.location.items()
    inside = [node for node in nodes if labels <= node.location.items()]
    free = sum(len(node.free) for node in inside)
    candidates = [lease for place, leases in movable if labels <= place.items() for lease in leases]
    # What ends where the winner may not be placed helps nobody: asked for on top, to be safe.
    usable = {node.name for node in inside}
    stuck = sum(
        slot.partition("#")[0] not in usable for lease in candidates for slot in lease.slots
    )
    need = _need(inside, candidates, gang)
    gpus = sum(lease.gpus for lease in candidates)
    return Deficit(scope, need - free + stuck, gpus)


def _need(nodes: list[Node], candidates: Iterable[LeaseFact], gang: Gang) -> int:
    """Free GPUs with which the gang fits for certain, however they lie."""
    sizes = [gpus + gang.spares_per_group for gpus in gang.groups()]
    if gang.group_gpus is None and not gang.spares_per_group:
        return sum(sizes)
    # In every domain but one, a rest that is one GPU short of a group may stay unused.
    domain_of = {node.name: node.domain for node in nodes}
    room: dict[tuple[str, ...], int] = {}
    for node in nodes:
        room[node.domain] = room.get(node.domain, 0) + len(node.free)
    for lease in candidates:
        for slot in lease.slots:
            domain = domain_of.get(slot.partition("#")[0])
            if domain is not None:
                room[domain] += 1
    rests = sorted(min(max(sizes) - 1, gpus) for gpus in room.values())
    return sum(sizes) + sum(rests[:-1])


def _order(scope: Scope) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(scope.location.items()))
