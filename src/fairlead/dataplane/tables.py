"""What every plane asks of groups and tables, and what it makes of them without its agent.

Planes call these before they touch anything, so that a bad table is refused whole, with the path of
the field, and what fallback does is the same on each of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from math import isfinite

from fairlead.core.apportion import largest_remainder
from fairlead.core.traffic.admission import judge
from fairlead.ports.dataplane import Admission, Liveness, Mode, Proto, RouteGroup, Table
from fairlead.ports.faults import PermanentFault

SLOTS = 256
"""Of a group that has had no table yet."""
HELD_LEAST = 4
"""A bounded group's backend may hold so much whatever its part of what is inside."""
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Current:
    """What a group goes by now: its last table, or an even split before the first."""

    epoch: int
    slots: Mapping[str, int]
    admission: Admission
    inside_max: int | None = None


def check_groups(groups: Sequence[RouteGroup], *, plane: str, protos: Collection[Proto]) -> None:
    """Refuse what no plane, or not this one, can route."""
    names: set[str] = set()
    doors: set[tuple[str, int, Proto]] = set()
    for index, group in enumerate(groups):
        path = f"groups[{index}]"
        if group.name in names:
            raise PermanentFault(f"{path}.name: {group.name!r} is taken")
        if group.proto not in protos:
            raise PermanentFault(f"{path}.proto: the {plane} plane does not carry {group.proto}")
        _check_address(group.vip, group.port, f"{path}.vip", f"{path}.port")
        door = (str(ip_address(group.vip)), group.port, group.proto)
        if door in doors:
            raise PermanentFault(f"{path}.vip: {group.vip} port {group.port} is taken")
        names.add(group.name)
        doors.add(door)
        _check_backends(group, path)


def _check_backends(group: RouteGroup, path: str) -> None:
    ids: set[str] = set()
    places: set[tuple[str, int]] = set()
    for index, backend in enumerate(group.backends):
        here = f"{path}.backends[{index}]"
        if backend.id in ids:
            raise PermanentFault(f"{here}.id: {backend.id!r} is taken")
        _check_address(backend.host, backend.port, f"{here}.host", f"{here}.port")
        place = (str(ip_address(backend.host)), backend.port)
        if place in places:  # proxies count by address: two ids could not be told apart
            raise PermanentFault(f"{here}.host: {place[0]} port {place[1]} is taken")
        ids.add(backend.id)
        places.add(place)


def _check_address(host: str, port: int, host_path: str, port_path: str) -> None:
    try:
        ip_address(host)
    except ValueError:
        raise PermanentFault(f"{host_path}: must be an IP address, got {host!r}") from None
    if not 0 < port <= PORT_MAX:
        raise PermanentFault(f"{port_path}: must be between 1 and {PORT_MAX}, got {port}")


def check_table(table: Table, group: RouteGroup) -> None:
    """Refuse a table that does not fit its group: nothing of it is applied."""
    wanted = {backend.id for backend in group.backends}
    for id in sorted(wanted ^ set(table.slots)):
        problem = "is missing" if id in wanted else "is not in the group"
        raise PermanentFault(f"slots[{id!r}]: {problem}")
    for id, slots in table.slots.items():
        if slots < 0:
            raise PermanentFault(f"slots[{id!r}]: must be at least 0, got {slots}")
    if table.inside_max is not None and table.inside_max < 1:
        raise PermanentFault(f"inside_max: must be at least 1, got {table.inside_max}")
    admission = table.admission
    if admission.mode != Mode.NORMAL:
        _check_number(admission.rate_per_s, "admission.rate_per_s")
        _check_number(admission.burst, "admission.burst")
    if admission.stored_rate_per_s is not None or admission.stored_burst is not None:
        _check_number(admission.stored_rate_per_s, "admission.stored_rate_per_s")
        _check_number(admission.stored_burst, "admission.stored_burst")


def _check_number(value: float | None, path: str) -> None:
    if value is None or not isfinite(value) or value < 0:
        raise PermanentFault(f"{path}: must be a finite number of at least 0, got {value!r}")


def even(ids: Sequence[str]) -> dict[str, int]:
    """The same for everybody, to the slot; what does not divide goes to the first ids."""
    ordered = sorted(ids)
    return dict(zip(ordered, largest_remainder(SLOTS, [1] * len(ordered)), strict=True))


def current(group: RouteGroup, before: Current | None) -> Current:
    """What a group goes by after `configure`: what it had, as far as its backends are still there.

    Newcomers wait for the next table. When everybody who had slots is gone, an even split keeps
    the door open.
    """
    ids = [backend.id for backend in group.backends]
    if before is None:
        return Current(0, even(ids), Admission())
    kept = {id: before.slots.get(id, 0) for id in ids}
    return replace(before, slots=kept if any(kept.values()) else even(ids))


def held_max(slots: int, total: int, inside: int) -> int:
    """How much a backend of a bounded group may hold before it is passed over, with so much inside.

    Its part: who has more lets out less than the others, and gets no more until it has caught up.
    With the newcomer counted as inside there is always somebody below.
    """
    return max(HELD_LEAST, -(-inside * slots // total)) if slots else 0


def fallback_members(slots: Mapping[str, int]) -> list[str]:
    """Who a flow may hash to without an agent: those the last table still sent something to.

    Who had no slots was isolated or drained by the last word of somebody who knew; only when that
    leaves nobody is everybody tried.
    """
    return sorted(id for id, share in slots.items() if share > 0) or sorted(slots)


def fallback_admission(admission: Admission) -> Admission:
    """The door without an agent: `hard` decays to `soft` with the stored budget."""
    if admission.mode != Mode.HARD:
        return admission
    if admission.stored_rate_per_s is None:
        return replace(admission, mode=Mode.SOFT)
    return replace(
        admission,
        mode=Mode.SOFT,
        rate_per_s=admission.stored_rate_per_s,
        burst=admission.stored_burst,
    )


def liveness(age_ms: int) -> Liveness:
    """What a heartbeat of this age says. One from the future comes from before a reboot."""
    return Liveness(judge(age_ms)) if age_ms >= 0 else Liveness.FALLBACK
