"""Free devices: nodes by what they have free, so that a placement looks at a few of a large fleet.

Best fit takes, of the nodes that have as much free, the first by domain and name. A gang of so many
groups takes from so many nodes at most: of each number of free devices, more nodes than that decide
nothing. They are left out of what is searched and of what is recorded.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from fairlead.core.gpu.place import Gang, Node, Placement, place

_PlaceKey = tuple[str, tuple[tuple[str, str], ...]]


class FreeDevices:
    """Nodes, and where gangs fit on their free devices.

    Every gang is placed once until a node changes: after a large resolve thousands wait, most of
    them alike.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes: dict[str, Node] = {}
        self._sorted: list[Node] | None = None
        self._shelves: dict[_PlaceKey, _Shelf] = {}
        self._placements: dict[str, Placement] = {}
        self._gpus: dict[str, int] = {}
        for node in nodes:
            self.put(node)

    @property
    def nodes(self) -> list[Node]:
        """All of them, by name."""
        if self._sorted is None:
            self._sorted = [node for _, node in sorted(self._nodes.items())]
        return self._sorted

    def put(self, node: Node) -> None:
        """A node as it is from now on."""
        self.drop(node.name)
        self._nodes[node.name] = node
        self._count(node, 1)
        if _is_open(node):
            self._shelves.setdefault(_place_key(node), _Shelf(node)).add(node)

    def drop(self, name: str) -> None:
        """A node that is gone, if it was there."""
        self._sorted = None
        self._placements.clear()
        node = self._nodes.pop(name, None)
        if node is None:
            return
        self._count(node, -1)
        if _is_open(node):
            key = _place_key(node)
            self._shelves[key].remove(node)
            if not self._shelves[key].names:
                del self._shelves[key]

    def _count(self, node: Node, sign: int) -> None:
        if not node.cordoned:
            self._gpus[node.flavor] = self.gpus(node.flavor) + sign * len(node.free)

    def gpus(self, flavor: str) -> int:
        """Free devices on nodes in service."""
        return self._gpus.get(flavor, 0)

    def place(self, gang: Gang) -> Placement:
        shape = repr(gang)
        known = self._placements.get(shape)
        if known is None:
            known = self._placements[shape] = place(self.candidates(gang), gang)
        return known

    def candidates(self, gang: Gang) -> list[Node]:
        """The nodes that decide where a gang goes, by name: on these it is placed as on all.

        Where one number of free devices, enough for a group, is that of as many nodes in the gang's
        location as the gang could take from, every group finds one node: no domain is chosen by its
        room, none elsewhere is looked at, and of every number of free devices the first nodes
        suffice. Spares count by domain, which has room for them where nodes were left out. Else:
        all nodes with a free device that it may use.
        """
        shelves = [shelf for shelf in self._shelves.values() if shelf.flavor == gang.flavor]
        near = [shelf for shelf in shelves if shelf.node.is_in(gang.location)]
        groups, spares = gang.groups(), gang.spares_per_group
        takes = len(groups) * (1 + spares)
        least = 1 if spares else groups[-1]
        alike: dict[tuple[tuple[str, ...], int], list[tuple[tuple[str, ...], str]]] = {}
        for shelf in near:
            domain = shelf.node.domain
            for free, names in shelf.names.items():
                if free >= least:
                    rows = alike.setdefault((domain if spares else (), free), [])
                    rows += ((domain, name) for name in names[:takes])
        if any(free >= groups[0] and len(rows) >= takes for (_, free), rows in alike.items()):
            chosen = chain.from_iterable(sorted(rows)[:takes] for rows in alike.values())
            found = [name for _, name in chosen]
        else:
            lists = (shelf.names.values() for shelf in (shelves if gang.elsewhere else near))
            found = list(chain.from_iterable(chain.from_iterable(lists)))
        return [self._nodes[name] for name in sorted(found)]

    def after(self, slots: Iterable[str]) -> "FreeDevices":
        """The same once these devices, as `node#ordinal`, are free too."""
        freed: dict[str, list[int]] = {}
        for slot in slots:
            name, _, ordinal = slot.rpartition("#")
            freed.setdefault(name, []).append(int(ordinal))
        if not freed:
            return self
        return FreeDevices(
            replace(node, free=tuple(sorted({*node.free, *freed.get(node.name, ())})))
            for node in self.nodes
        )


class _Shelf:
    """Nodes of one flavor and location by their number of free devices, in order of their names."""

    def __init__(self, node: Node) -> None:
        self.node, self.flavor = node, node.flavor
        """One of them, for where they are."""
        self.names: dict[int, list[str]] = {}

    def add(self, node: Node) -> None:
        insort(self.names.setdefault(len(node.free), []), node.name)

    def remove(self, node: Node) -> None:
        names = self.names[len(node.free)]
        del names[bisect_left(names, node.name)]
        if not names:
            del self.names[len(node.free)]


def _is_open(node: Node) -> bool:
    return bool(node.free) and not node.cordoned


def _place_key(node: Node) -> _PlaceKey:
    location: Mapping[str, str] = node.location
    return node.flavor, tuple(sorted(location.items()))
