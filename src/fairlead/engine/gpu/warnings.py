"""What an object says that is allowed, and almost surely not meant.

A warning changes nothing and is not recorded: it is in the answer, for the person who asked. What
can become right later (a node that is added, a budget that comes) is warned of and not refused.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import partial

from fairlead.core.gpu import GracePolicy
from fairlead.engine.gpu.projection import Projection
from fairlead.schema.objects import (
    BudgetSpec,
    NodeSpec,
    RunSpec,
    Spec,
    grace_ms,
    max_runtime_ms,
    to_budget,
    to_request,
)
from fairlead.schema.times import format_duration, format_time


def warnings_of(
    projection: Projection, name: str, spec: Spec, now_ms: int, grace: GracePolicy
) -> tuple[str, ...]:
    """About an object as it was applied, beside the others as they are now."""
    if isinstance(spec, RunSpec):
        return tuple(_run(projection, spec, grace))
    return tuple(_budget(projection, name, spec, now_ms)) if isinstance(spec, BudgetSpec) else ()


def _run(projection: Projection, spec: RunSpec, grace: GracePolicy) -> Iterator[str]:
    if grace.cuts(grace_ms(spec)):
        most = format_duration(grace.most_ms)
        yield f"spec.checkpointGrace: is cut to {most}, the most that the operator allows"
    most_ms, duration_ms = max_runtime_ms(spec), to_request(spec).duration_ms
    if most_ms is not None and duration_ms is not None and duration_ms > most_ms:
        most = format_duration(most_ms)
        yield f"spec.duration: {spec.duration} is above maxRuntime, which ends the run after {most}"
    devices = _devices(projection)
    there = devices.get(spec.flavor, 0)
    if spec.flavor not in devices:
        yield f"spec.flavor: no node has {spec.flavor!r}{similar(spec.flavor, devices)}"
    elif there < (least := spec.gpus if spec.malleable is None else spec.malleable.min_gpus):
        yield f"spec.totalGPUs: all nodes of {spec.flavor} together have {there}, not {least}"
    owners = {budget.owner for budget in projection.budgets.values()}
    for i, sponsor in enumerate(spec.funding.sponsors):
        if sponsor not in owners:
            meant = similar(sponsor, owners)
            yield f"spec.funding.sponsors[{i}]: {sponsor!r} has no budget{meant}"
    if spec.owner not in owners and not spec.funding.allow_borrow:
        yield f"spec.owner: {spec.owner!r} has no budget{similar(spec.owner, owners)}"


def _budget(projection: Projection, name: str, spec: BudgetSpec, now_ms: int) -> Iterator[str]:
    devices = _devices(projection)
    for i, envelope in enumerate(to_budget(name, spec).envelopes):
        path, window, lending = f"spec.envelopes[{i}]", envelope.window, envelope.lending
        if window is not None and window.end_ms <= now_ms:
            yield f"{path}.window: ended at {format_time(window.end_ms)}: it pays for nothing"
        if lending.allow and not lending.to:
            yield f'{path}.lending.to: is empty, so it lends to no owner; ["*"] lends to all'
        if lending.to and not lending.allow:
            yield f"{path}.lending.allow: is false, so `to` has no effect"
        if devices and envelope.flavor not in devices:
            meant = similar(envelope.flavor, devices)
            yield f"{path}.flavor: no node has {envelope.flavor!r}{meant}"


def _devices(projection: Projection) -> dict[str, int]:
    """How many devices of each flavor the nodes have, in use or not; counted once for a batch."""
    return projection.kept("warnings.devices", partial(_count_devices, projection))


def _count_devices(projection: Projection) -> dict[str, int]:
    found: dict[str, int] = {}
    for stored in projection.of_kind("Node"):
        if isinstance(stored.spec, NodeSpec):
            found[stored.spec.flavor] = found.get(stored.spec.flavor, 0) + stored.spec.devices
    return found


def similar(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in sorted(known)}
    close = get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
