"""What every dataplane asks of groups and tables, and what it keeps of them.

Dataplanes call the checks before they touch anything, so that a bad table is refused whole, with
the path of the field.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from math import isfinite

from fairlead.core.traffic.limits import Fallback, Limits, split
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import Proto, RouteGroup, Stale, Table
from fairlead.ports.faults import PermanentFault

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Active:
    """What a group goes by now: its last table, or an even split before the first."""

    table: Table
    decision: int | None = None
    side: str = "a"
    """Proxies have two copies of every group; this one serves."""


def check_groups(
    groups: Sequence[RouteGroup], *, dataplane: str, protos: Collection[Proto]
) -> None:
    """Refuse what no dataplane, or not this one, can route."""
    names: set[str] = set()
    addresses: set[tuple[str, int, Proto]] = set()
    for index, group in enumerate(groups):
        path = f"groups[{index}]"
        if group.name in names:
            raise PermanentFault(f"{path}.name: {group.name!r} is taken")
        if group.proto not in protos:
            raise PermanentFault(f"{path}.proto: {group.proto} is not supported by {dataplane}")
        _check_address(group.vip, group.port, f"{path}.vip", f"{path}.port")
        address = (str(ip_address(group.vip)), group.port, group.proto)
        if address in addresses:
            raise PermanentFault(f"{path}.vip: {group.vip} port {group.port} is taken")
        names.add(group.name)
        addresses.add(address)
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


def check_table(table: Table, groups: Mapping[str, RouteGroup]) -> RouteGroup:
    """The group of a table. One that does not fit it is refused: nothing of it is applied."""
    group = configured(groups, table.group)
    wanted = {backend.id for backend in group.backends}
    for id in sorted(wanted ^ set(table.slots)):
        problem = "is missing" if id in wanted else "is not in the group"
        raise PermanentFault(f"slots[{id!r}]: {problem}")
    for id, slots in table.slots.items():
        if slots < 0:
            raise PermanentFault(f"slots[{id!r}]: must be at least 0, got {slots}")
    limits = table.limits
    if limits.concurrency is not None and limits.concurrency.inside_max < 1:
        got = limits.concurrency.inside_max
        raise PermanentFault(f"inside_max: must be at least 1, got {got}")
    for id in sorted(set(limits.fallback.members) - wanted):
        raise PermanentFault(f"fallback.members: {id!r} is not in the group")
    for path, admission in (
        ("admission", limits.admission),
        ("fallback.admission", limits.fallback.admission),
    ):
        if admission.mode != AdmissionMode.NORMAL:
            _check_number(admission.rate_per_s, f"{path}.rate_per_s")
            _check_number(admission.burst, f"{path}.burst")
    return group


def _check_number(value: float | None, path: str) -> None:
    if value is None or not isfinite(value) or value < 0:
        raise PermanentFault(f"{path}: must be a finite number of at least 0, got {value!r}")


def active(group: RouteGroup, before: Active | None) -> Active:
    """What a group goes by after `configure`: what it had, as far as its backends are still there,
    or an even split."""
    now = split([backend.id for backend in group.backends], before.table.slots if before else None)
    if before is None:
        return Active(Table(group.name, 0, now.slots, Limits(Fallback(now.members))))
    limits = before.table.limits
    limits = replace(limits, fallback=replace(limits.fallback, members=now.members))
    return replace(before, table=replace(before.table, slots=now.slots, limits=limits))


def check_flip(table: Table, active_epoch: int, liveness: Liveness) -> None:
    """Raise `Stale` unless the agent is alive and the table newer than the active one."""
    if liveness is not Liveness.NORMAL:
        raise Stale(f"the heartbeat is old: {liveness}")
    if table.epoch <= active_epoch:
        raise Stale(f"epoch {table.epoch} is not after {active_epoch}")


def check_backend(groups: Mapping[str, RouteGroup], name: str, backend: str) -> None:
    if backend not in {member.id for member in configured(groups, name).backends}:
        raise PermanentFault(f"backend {backend!r} is not in group {name!r}")


def configured(groups: Mapping[str, RouteGroup], name: str) -> RouteGroup:
    if name not in groups:
        raise PermanentFault(f"group {name!r} is not configured")
    return groups[name]


def group_seen(
    active: Active, liveness: Liveness, counts: Sequence[int], backends: Mapping[str, BackendSeen]
) -> GroupSeen:
    """One group's counters; `counts` are admitted, refused softly and refused hard."""
    limits = active.table.limits
    alone = liveness is Liveness.FALLBACK
    admitted, refused_soft, refused_hard = counts
    return GroupSeen(
        epoch=active.table.epoch,
        liveness=liveness,
        mode=(limits.fallback.admission if alone else limits.admission).mode,
        admitted=admitted,
        refused_soft=refused_soft,
        refused_hard=refused_hard,
        backends=backends,
        decision=active.decision,
    )
