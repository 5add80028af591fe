"""What every dataplane asks of groups and tables, and what it keeps of them.

Dataplanes call the checks before they touch anything, so that a bad table is refused whole, with
the path of the field.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeVar

from fairlead.core.traffic.limits import Fallback, Limits, split
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import Proto, RouteGroup, Stale, Table
from fairlead.ports.faults import PermanentFault
from fairlead.schema.border import BadInput
from fairlead.schema.traffic_agent import check_routes

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Active:
    """What a group goes by now: its last table, or an even split before the first."""

    table: Table
    decision: int | None = None
    side: str = "a"  # proxies have two copies of every group; this one serves


def check_groups(
    groups: Sequence[RouteGroup], *, dataplane: str, protos: Collection[Proto]
) -> None:
    """Refuse what no dataplane, or not this one, can route."""
    try:
        check_routes(groups)
    except BadInput as error:
        raise PermanentFault(str(error)) from error
    for index, group in enumerate(groups):
        if group.proto not in protos:
            message = f"{group.proto} is not supported by {dataplane}"
            raise PermanentFault(f"groups[{index}].proto: {message}")


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
    """What a group goes by after `configure`: what it had if its backends are the same, or its
    split."""
    ids = {backend.id for backend in group.backends}
    if before is not None and before.table.slots.keys() == ids:
        return before
    now = group.split or split(ids, before.table.slots if before else None)
    if before is None:
        table = Table(group.name, 0, now.slots, Limits(Fallback(now.members)))
        return Active(table, group.decision)
    limits = before.table.limits
    limits = replace(limits, fallback=replace(limits.fallback, members=now.members))
    table = replace(before.table, slots=now.slots, limits=limits)
    return replace(before, table=table, decision=group.decision)


def check_flip(table: Table, active_epoch: int, liveness: Liveness) -> None:
    """Raise `Stale` unless the agent is alive and the table newer than the active one."""
    if liveness is not Liveness.NORMAL:
        raise Stale(f"the heartbeat is old: {liveness}")
    if table.epoch <= active_epoch:
        raise Stale(f"epoch {table.epoch} is not after {active_epoch}")


def check_backend(groups: Mapping[str, RouteGroup], name: str, backend: str) -> None:
    if backend not in {member.id for member in configured(groups, name).backends}:
        raise PermanentFault(f"backend {backend!r} is not in group {name!r}")


def configured(groups: Mapping[str, _T], name: str) -> _T:
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
