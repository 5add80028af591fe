"""Which group and which backend has which place in the maps, and how places change hands.

The rule behind every order of steps here: a program that runs during a change sees the group as it
was or as it will be, and never another group's backend. So a place is given away only when nothing
leads to it any more and every program that may still hold it has ended (`barrier`). A crash between
two steps leaves what the next agent and its `configure` put right.
"""

import ctypes
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.dataplane.ebpf import layout
from fairlead.dataplane.ebpf.kernel import Maps
from fairlead.dataplane.tables import Active, active
from fairlead.ports.dataplane import Backend, GroupRefused, RouteGroup, Table
from fairlead.ports.faults import PermanentFault

_FULL = 2**63  # a new bucket's level; it is capped to its budget when it is first used


@dataclass(slots=True)
class RegisteredGroup:
    """A group in the maps."""

    index: int
    vip: ctypes.Structure
    word: int
    active: Active
    at: dict[str, int]  # backend id to its place


class Registry:
    """The groups of an installation. Raises BpfError, and PermanentFault where there is no room."""

    def __init__(self, maps: Maps) -> None:
        self._maps = maps
        self.placed: dict[str, RegisteredGroup] = {}
        self._find()

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        wanted = {group.name: group for group in groups}
        self._check_room(wanted)
        gone = {name: placed for name, placed in self.placed.items() if name not in wanted}
        moved = {
            name: placed
            for name, placed in self.placed.items()
            if name in wanted and bytes(placed.vip) != bytes(_vip(wanted[name]))
        }
        for placed in (*gone.values(), *moved.values()):
            self._maps.vips.discard(placed.vip)
        free = [index for placed in gone.values() for index in placed.at.values()]
        for name in wanted.keys() & self.placed.keys():
            free += self._reshape(self.placed[name], wanted[name])
        if gone or moved or free:
            self._maps.barrier()
        self._clear_backends(free)
        for name, placed in gone.items():
            self._maps.groups[placed.index] = _new("group")
            heapq.heappush(self._free_groups, placed.index)
            del self.placed[name]
        for name, placed in moved.items():
            # Nothing leads to the group now, so its cursor can be copied with the rest.
            group = self._maps.groups[placed.index]
            group.vip = placed.vip = _vip(wanted[name])
            self._maps.groups[placed.index] = group
        for route in groups:
            if route.name not in self.placed:
                self.placed[route.name] = self._create(route)
            placed = self.placed[route.name]
            self._maps.vips[placed.vip] = ctypes.c_uint32(placed.index)

    def flip(self, table: Table, decision: int | None) -> layout.HookAnswer:
        placed = self.placed[table.group]
        return self._write(placed, layout.Command.FLIP, Active(table, decision), placed.at)

    # What one group goes through.

    def _create(self, group: RouteGroup) -> RegisteredGroup:
        index = heapq.heappop(self._free_groups)
        at = {backend.id: self._place_backend(backend, group, index) for backend in group.backends}
        begin, vip = active(group, None), _vip(group)
        word = layout.word_of(begin.table.epoch, turn=0, side=0)
        self._maps.tables[2 * index] = layout.encode(begin, word, at)
        self._maps.buckets[index] = _new("bucket", level=_FULL)
        self._maps.group_counts.clear(index)
        name = group.name.encode()
        self._maps.groups[index] = _new("group", selector=word, vip=vip, live=1, name=name)
        return RegisteredGroup(index, vip, word, begin, at)

    def _reshape(self, placed: RegisteredGroup, group: RouteGroup) -> list[int]:
        """Give a group other backends; returns the places that nothing leads to any more."""
        staying = self._staying(placed, group)
        if len(staying) == len(placed.at) == len(group.backends):
            return []
        at = {
            backend.id: staying[backend.id]
            if backend.id in staying
            else self._place_backend(backend, group, placed.index)
            for backend in group.backends
        }
        before, now = placed.at, active(group, placed.active)
        answer = self._write(placed, layout.Command.RESHAPE, now, at)
        if answer != layout.HookAnswer.DONE:
            raise PermanentFault(f"group {group.name!r}: another agent changed it ({answer.name})")
        return [index for id, index in before.items() if at.get(id) != index]

    def _write(
        self, placed: RegisteredGroup, kind: layout.Command, now: Active, at: dict[str, int]
    ) -> layout.HookAnswer:
        """The table on the idle side first, then the one word that makes it the active one."""
        word = layout.next_word(placed.word, now.table.epoch)
        self._maps.tables[2 * placed.index + (word & 1)] = layout.encode(now, word, at)
        answer, _ = self._maps.command(kind, placed.index, expected=placed.word, word=word)
        if answer == layout.HookAnswer.DONE:
            placed.word, placed.active, placed.at = word, now, at
        return answer

    # Places.

    def _place_backend(self, backend: Backend, group: RouteGroup, index: int) -> int:
        place = heapq.heappop(self._free_backends)
        to, name = _to(backend, group), backend.id.encode()
        self._maps.backends[place] = _new("backend", to=to, group=index + 1, name=name)
        self._maps.backend_counts.clear(place)
        self._maps.healths[place] = _new("health")
        return place

    def _clear_backends(self, places: Iterable[int]) -> None:
        for place in places:
            self._maps.forget(place)  # first, while the place still says whose it was
            self._maps.backends[place] = _new("backend")
            heapq.heappush(self._free_backends, place)

    def _staying(self, placed: RegisteredGroup, group: RouteGroup) -> dict[str, int]:
        """The backends that have a place already, and at the same address."""
        places = ((backend, placed.at.get(backend.id)) for backend in group.backends)
        return {
            backend.id: place
            for backend, place in places
            if place is not None
            and bytes(self._maps.backends[place].to) == bytes(_to(backend, group))
        }

    def _check_room(self, wanted: Mapping[str, RouteGroup]) -> None:
        """Before anything is touched: is there a place for every group and backend?"""
        # Backends that join need a place before those that leave give theirs up.
        joining = sum(
            len(group.backends) - len(self._staying(self.placed[name], group))
            for name, group in wanted.items()
            if name in self.placed
        )
        backends = sum(len(group.backends) for group in wanted.values())
        used = self._maps.backends.entries - len(self._free_backends)
        for what, needed, room in (
            ("groups", len(wanted), self._maps.groups.entries),
            ("backends", max(backends, used + joining), self._maps.backends.entries),
        ):
            if needed > room:
                # The last of them would have to go.
                raise GroupRefused(
                    [*wanted][-1],
                    f"{what}: {needed} places are needed, the dataplane was installed with {room}",
                )

    # Taking over.

    def _find(self) -> None:
        groups = self._maps.groups.first(self._maps.groups.entries)
        backends = self._maps.backends.first(self._maps.backends.entries)
        self._free_groups = [index for index, group in enumerate(groups) if not group.live]
        self._free_backends: list[int] = []
        members: dict[int, dict[int, str]] = {}
        strays = []
        for place, backend in enumerate(backends):
            owner = backend.group - 1
            if owner < 0:
                self._free_backends.append(place)
            elif groups[owner].live:
                members.setdefault(owner, {})[place] = backend.name.decode()
            else:
                strays.append(place)  # its group was not finished, or is half removed
        for index, group in enumerate(groups):
            if group.live:
                placed, left = self._found(index, group, members.get(index, {}))
                self.placed[group.name.decode()] = placed
                strays += left
        if strays:
            self._maps.barrier()
            self._clear_backends(strays)

    def _found(
        self, index: int, group: ctypes.Structure, members: Mapping[int, str]
    ) -> tuple[RegisteredGroup, list[int]]:
        """A group as it stands, and places that its active table does not lead to although a
        change of the backends had begun or ended there."""
        table = self._maps.tables[2 * index + (group.selector & 1)]
        led = {*layout.slot_indices(table), *table.rendezvous}
        at: dict[str, int] = {}
        strays = []
        for place, id in sorted(members.items(), key=lambda member: member[0] in led):
            if id in at:
                strays.append(at[id])
            at[id] = place
        was = layout.decode(table, group.name.decode(), at)
        vip = type(group.vip).from_buffer_copy(group.vip)
        return RegisteredGroup(index, vip, group.selector, was, at), strays


def _new(structure: str, **values: object) -> ctypes.Structure:
    return layout.STRUCTURES[structure](**values)


def _to(backend: Backend, group: RouteGroup) -> ctypes.Structure:
    return layout.endpoint(backend.host, backend.port, group.proto)


def _vip(group: RouteGroup) -> ctypes.Structure:
    return layout.endpoint(group.vip, group.port, group.proto)
