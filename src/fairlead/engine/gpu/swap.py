"""Swap: a gang that lost a node goes on with the spares of its groups."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fairlead.engine.gpu.admit import lease_drafts
from fairlead.engine.gpu.projection import Projection, parse_slot
from fairlead.engine.gpu.settle import close_lease
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.ports.ledger import Draft


def swap(projection: Projection, run: str, node: str, now_ms: int, author: str) -> list[Draft]:
    """The entries that replace a node's devices by spares; none when spares do not suffice.

    Spares are paid for like the rest, so nobody pays for more GPUs than before. Groups that the run
    is giving up need none: they are gone with the node. A drawn gang is not mended.
    """
    state, job = projection.runs[run], projection.next_job(run)
    cut = state.cut
    if cut is not None and cut.preempts:
        return []
    leaving = {} if cut is None else cut.leases
    closing: list[tuple[LeaseFact, str]] = []
    opening: list[LeaseFact] = []
    staying = [lease for lease in state.leases.values() if lease.id not in leaving]
    if not all(_swap_group(mine, node, closing, opening) for mine in _by_group(staying)):
        return []
    drafts: list[Draft] = []
    for lease in _leaving_with(state.leases.values(), leaving, node):
        drafts += close_lease(
            projection,
            lease,
            end_ms=now_ms,
            reason=leaving[lease.id],
            now_ms=now_ms,
            author=author,
            outcome=None if cut is None else cut.outcome,
        )
    if not closing:
        return drafts  # what it keeps is not on that node
    for lease, reason in closing:
        drafts += close_lease(
            projection, lease, end_ms=now_ms, reason=reason, now_ms=now_ms, author=author
        )
    for number, lease in enumerate(opening):
        born = replace(lease, id=f"{job}.{number}", start_ms=now_ms, reason="Swap")
        drafts += lease_drafts(projection, born, job, now_ms)
    body = {
        "run": run,
        "phase": Phase.RUNNING.value,
        "reason": "Swapped",
        "job": job,
        "message": f"spares took over from node {node}",
        "paused": state.paused,
        "stopping": state.stopping,
    }
    drafts.append(
        Draft(
            kind="run.phase", time_ms=now_ms, author=author, body=body, plan_id=job, effect="phase"
        )
    )
    return drafts


def _by_group(leases: Iterable[LeaseFact]) -> list[list[LeaseFact]]:
    """The leases of each group, by id; the groups by number."""
    groups: dict[int, list[LeaseFact]] = {}
    for lease in sorted(leases, key=lambda lease: (lease.group, lease.id)):
        groups.setdefault(lease.group, []).append(lease)
    return list(groups.values())


def _leaving_with(
    leases: Iterable[LeaseFact], leaving: Mapping[str, str], node: str
) -> list[LeaseFact]:
    """What a run is giving up, of the groups that lost a device with the node: by id."""
    mine = [lease for lease in leases if lease.id in leaving]
    hit = {
        lease.group for lease in mine if any(parse_slot(slot)[0] == node for slot in lease.slots)
    }
    return sorted((lease for lease in mine if lease.group in hit), key=lambda lease: lease.id)


def _swap_group(
    leases: list[LeaseFact],
    node: str,
    closing: list[tuple[LeaseFact, str]],
    opening: list[LeaseFact],
) -> bool:
    """Cut a group's leases where the node's devices were; whether its spares suffice."""
    lost = 0
    for lease in leases:
        kept = tuple(slot for slot in lease.slots if parse_slot(slot)[0] != node)
        if not lease.is_active or len(kept) == lease.gpus:
            continue
        lost += lease.gpus - len(kept)
        closing.append((lease, "NodeFailed"))
        if kept:
            opening.append(replace(lease, slots=kept))
    for lease in leases:
        if lease.is_active:
            continue
        kept = tuple(slot for slot in lease.slots if parse_slot(slot)[0] != node)
        used, rest = kept[:lost], kept[lost:]
        lost -= len(used)
        if not used and len(rest) == lease.gpus:
            continue
        closing.append((lease, "DropSpare"))
        for role, slots in (("Active", used), ("Spare", rest)):
            if slots:
                opening.append(replace(lease, role=role, slots=slots))
    return not lost
