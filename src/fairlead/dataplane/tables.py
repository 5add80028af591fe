"""What every dataplane asks of groups and tables, before it touches anything, and keeps of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeVar

from fairlead.core.traffic.alone import bound_alone
from fairlead.core.traffic.limits import Fallback, Limits, split
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import RouteGroup, Stale, Table
from fairlead.ports.faults import PermanentFault
from fairlead.schema.border import BadInput
from fairlead.schema.traffic_agent import check_routes

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Active:
    """What a group goes by now: its last table, or its split before the first."""

    table: Table
    decision: int | None = None
    side: str = "a"  # proxies have two copies of every group; this one serves


def check_groups(groups: Sequence[RouteGroup], *, placed: bool = True) -> None:
    """Refuse what no dataplane can route; not `placed`: groups have no address of their own."""
    try:
        check_routes(groups, placed=placed)
    except BadInput as error:
        raise PermanentFault(str(error)) from error


def check_table(table: Table, groups: Mapping[str, RouteGroup]) -> RouteGroup:
    """The group of a table. One that does not fit it is refused: nothing of it is applied."""
    group = configured(groups, table.group)
    for problem in _problems(table, {backend.id for backend in group.backends}):
        raise PermanentFault(problem)
    return group


def _problems(table: Table, wanted: set[str]) -> Iterator[str]:
    limits, fallback = table.limits, table.limits.fallback
    for id in sorted(wanted ^ set(table.slots)):
        yield f"slots[{id!r}]: {'is missing' if id in wanted else 'is not in the group'}"
    for id, slots in table.slots.items():
        if slots < 0:
            yield f"slots[{id!r}]: must be at least 0, got {slots}"
    if limits.concurrency is not None and limits.concurrency.inside_max < 1:
        yield f"inside_max: must be at least 1, got {limits.concurrency.inside_max}"
    if fallback.bound.inside_max < 1:
        yield f"fallback.bound.inside_max: must be at least 1, got {fallback.bound.inside_max}"
    for id in sorted(set(fallback.members) - wanted):
        yield f"fallback.members: {id!r} is not in the group"
    admissions = {"admission": limits.admission, "fallback.admission": fallback.admission}
    for path, admission in admissions.items():
        for name in ("rate_per_s", "burst") if admission.mode != AdmissionMode.NORMAL else ():
            value = getattr(admission, name)
            if value is None or not isfinite(value) or value < 0:
                yield f"{path}.{name}: must be a finite number of at least 0, got {value!r}"


def active(group: RouteGroup, before: Active | None) -> Active:
    """What a group goes by after `configure`: what it had if its backends are the same, or its
    split."""
    ids = {backend.id for backend in group.backends}
    if before is not None and before.table.slots.keys() == ids:
        return before
    now = group.split or split(ids, before.table.slots if before else None)
    if before is None:
        bound = bound_alone(None, members=len(now.members), open=0)
        table = Table(group.name, 0, now.slots, Limits(Fallback(now.members, bound=bound)))
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
    active: Active,
    liveness: Liveness,
    counts: Sequence[int],
    backends: Mapping[str, BackendSeen],
    *,
    retries: int | None = None,
) -> GroupSeen:
    """One group's counters; `counts` are admitted, refused softly and refused hard."""
    table, limits = active.table, active.table.limits
    alone = liveness is Liveness.FALLBACK
    mode = (limits.fallback.admission if alone else limits.admission).mode
    admitted, soft, hard = counts
    seen = (table.epoch, liveness, mode, admitted, soft, hard)
    return GroupSeen(*seen, backends, active.decision, retries)
