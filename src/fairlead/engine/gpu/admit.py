"""Admission: cover, then place, then the entries that say so. Reads the projection, writes nothing.

`consider` is also what a dry run and `plan` show: the same decision, not recorded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairlead.core.gpu import Request, Tier, cover
from fairlead.core.gpu.charges import split_hold
from fairlead.core.gpu.place import Gang, Node, Placement
from fairlead.core.invariant import known, of_kind, require
from fairlead.engine.gpu.decided import decided
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact, Phase, RunState
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.ledger import Draft
from fairlead.schema.gpu import from_plan, fund, fund_document
from fairlead.schema.objects import budget_document, to_gang, to_request, without_spares
from fairlead.schema.place import from_placement, no_room, slot_text
from fairlead.schema.specs import BudgetSpec, RunSpec

FUND_VERSION = 1
PLACE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What cover and place say of a run now. `placement` None: it is not funded."""

    request: Request
    output: dict[str, Any]
    gang: Gang | None = None
    placement: Placement | None = None

    @property
    def starts(self) -> bool:
        """Funded and placed."""
        return self.placement is not None and self.placement.placed


def consider(
    projection: Projection, spec: RunSpec, now_ms: int, request: Request | None = None
) -> Verdict:
    """Cover a run and place it; a malleable one at the widest width that is both.

    `request`: a part of it only, which has its groups and place.
    """
    request, book = request or to_request(spec), projection.book(now_ms)
    output = fund(book, request, now_ms)
    first: Verdict | None = None
    while True:
        if not output["funded"]:
            return first or Verdict(request, output)
        verdict = _placed(projection, spec, request, output)
        first = first or verdict
        if verdict.starts:
            return verdict
        least, step = request.min_gpus, request.step_gpus or 1
        if least is None:
            return first
        # Wider than all free devices nothing is placed: of 100 000 widths on 8, only 8 are tried.
        free = projection.free_gpus(spec.flavor)
        width = min(output["gpus"] - step, least + (free - least) // step * step)
        if width < least:
            return first
        request = replace(request, gpus=width)
        output = fund(book, request, now_ms)


def _placed(
    projection: Projection, spec: RunSpec, request: Request, output: dict[str, Any]
) -> Verdict:
    gang = to_gang(spec, without_spares(spec, output["gpus"]), elsewhere=elsewhere_of(output))
    return Verdict(request, output, gang, projection.place(gang))


def elsewhere_of(output: dict[str, Any]) -> bool:
    """Whether a plan is paid, in part, by envelopes elsewhere: then it may be placed there too."""
    return any(Tier(line["tier"]).value.endswith("elsewhere") for line in output["plan"])


def fund_input(projection: Projection, request: Request, now_ms: int) -> dict[str, Any]:
    """The recorded input of a cover: the budgets that decide it, and their usage."""
    book = projection.book(now_ms)
    kin = set(book.families.kin(request.owner, request.sponsors))
    documents, usage = [], {}
    for owner in kin | book.families.parents_circle(request.owner):
        for budget in book.by_owner.get(owner, ()):
            stored = projection.objects["Budget", budget.name]
            spec = of_kind(stored.spec, BudgetSpec, "a Budget has a budget's spec")
            document = budget_document(budget.name, spec)
            if owner not in kin:  # an uncle makes cousins but pays for nothing
                document = msgspec.structs.replace(document, envelopes=[], aggregate_caps=[])
            documents.append(document)
            for envelope in document.envelopes:
                key = (budget.name, envelope.name)
                usage[key] = projection.accounts.usage(key, now_ms)
    documents.sort(key=lambda document: document.name)
    return fund_document(now_ms, documents, usage, request)


def admission(projection: Projection, name: str, now_ms: int) -> list[Draft]:
    """The entries of one attempt to start a run; none when nothing new is to be said."""
    spec, state = projection.run_spec(name), projection.runs[name]
    if state.refusal is not None and _still_refused(projection, spec, state.refusal, now_ms):
        return []
    verdict = consider(projection, spec, now_ms)
    job = projection.next_job(name)
    if not verdict.output["funded"]:
        return _refused(projection, name, verdict, now_ms)
    if not verdict.starts:
        return _waiting(name, state, verdict, now_ms)
    drafts = [
        cover_draft(projection, name, verdict, now_ms, plan_id=job),
        place_draft(projection, name, verdict, now_ms, plan_id=job),
    ]
    leases = list(lease_facts(name, spec, verdict, job, now_ms))
    for lease in leases:
        drafts += lease_drafts(projection, lease, job, now_ms)
    width = sum(lease.gpus for lease in leases if lease.is_active)
    body = {
        "run": name,
        "phase": Phase.RUNNING.value,
        "reason": "Admitted",
        "job": job,
        "message": f"{width} GPUs, paid by {len(verdict.output['plan'])} envelopes",
    }
    drafts.append(_draft("run.phase", now_ms, body, job, "phase"))
    return drafts


def _still_refused(
    projection: Projection, spec: RunSpec, refusal: dict[str, Any], now_ms: int
) -> bool:
    """Whether the answer is the recorded one: the search for a remedy costs ten times the cover."""
    plan = cover(projection.book(now_ms), to_request(spec), now_ms)
    return not plan.funded and _gist(from_plan(plan, None)["refusal"]) == _gist(refusal)


def _refused(projection: Projection, name: str, verdict: Verdict, now_ms: int) -> list[Draft]:
    """A refusal is recorded when it is another one than before: waiting must not fill the log."""
    refusal = verdict.output["refusal"]
    body = {
        "run": name,
        "phase": Phase.PENDING.value,
        "reason": refusal["code"],
        "message": refusal["message"],
    }
    return [cover_draft(projection, name, verdict, now_ms), _draft("run.phase", now_ms, body)]


def _gist(refusal: dict[str, Any]) -> object:
    """What makes a refusal another one; use goes up every millisecond, that alone is not news."""
    binding = [(b["kind"], b["budget"], b["name"], b["limit"]) for b in refusal["binding"]]
    return (refusal["code"], refusal["shortfall_gpus"], binding)


def _waiting(name: str, state: RunState, verdict: Verdict, now_ms: int) -> list[Draft]:
    """Funded, but there are no devices: said once. Groups are placed whole, so what is missing is
    the GPUs of all groups without a place, and not the few devices that each of them lacks."""
    missing = 0 if verdict.placement is None else verdict.placement.shortfall_gpus
    if (state.reason, state.shortfall_gpus) == ("NoDevices", missing):
        return []
    body = {
        "run": name,
        "phase": Phase.PENDING.value,
        "reason": "NoDevices",
        "message": "funded, but " + no_room(missing, verdict.output["gpus"]),
        "shortfall_gpus": missing,
    }
    return [_draft("run.phase", now_ms, body)]


def _draft(
    kind: str,
    now_ms: int,
    body: dict[str, Any],
    plan_id: str | None = None,
    effect: str | None = None,
) -> Draft:
    return Draft(
        kind=kind, time_ms=now_ms, author=SYSTEM, body=body, plan_id=plan_id, effect=effect
    )


def cover_draft(
    projection: Projection, name: str, verdict: Verdict, now_ms: int, plan_id: str | None = None
) -> Draft:
    """The recorded cover."""
    refusal = verdict.output["refusal"]
    return decided(
        "gpu.fund",
        FUND_VERSION,
        input=fund_input(projection, verdict.request, now_ms),
        output=verdict.output,
        now_ms=now_ms,
        about={"run": name},
        plan_id=plan_id,
        effect=None if plan_id is None else "cover",
        reasons=() if refusal is None else (refusal["code"],),
    )


def place_draft(
    projection: Projection, name: str, verdict: Verdict, now_ms: int, *, plan_id: str
) -> Draft:
    """The recorded placement."""
    gang = known(verdict.gang, "what starts is a gang")
    placement = known(verdict.placement, "what starts was placed")
    return decided(
        "gpu.place",
        PLACE_VERSION,
        input=place_input(projection.nodes(), gang),
        output=from_placement(placement),
        now_ms=now_ms,
        about={"run": name},
        plan_id=plan_id,
        effect="place",
    )


def place_input(nodes: list[Node], gang: Gang) -> dict[str, Any]:
    """The recorded input of a placement: the nodes that it had to choose from.

    Nodes that are full, cordoned or out of reach change nothing, and on a busy fleet they are most.
    """
    return {
        "nodes": [
            {
                "name": node.name,
                "flavor": node.flavor,
                "location": dict(node.location),
                "free": list(node.free),
                "cordoned": node.cordoned,
            }
            for node in nodes
            if node.flavor == gang.flavor
            and node.free
            and not node.cordoned
            and (gang.elsewhere or node.is_in(gang.location))
        ],
        "gang": {
            "flavor": gang.flavor,
            "gpus": gang.gpus,
            "group_gpus": gang.group_gpus,
            "spares_per_group": gang.spares_per_group,
            "location": dict(gang.location),
            "elsewhere": gang.elsewhere,
        },
    }


def lease_facts(
    name: str, spec: RunSpec, verdict: Verdict, job: str, now_ms: int
) -> Iterator[LeaseFact]:
    """One lease per payer, group and role: the plan's lines laid along the placed devices."""
    duration_ms = verdict.request.duration_ms
    until_ms = None if duration_ms is None else now_ms + duration_ms
    lines = [[line, line["gpus"]] for line in verdict.output["plan"]]
    number = 0
    for group in verdict.placement.groups if verdict.placement else ():
        for role, slots in (("Active", group.active), ("Spare", group.spares)):
            done = 0
            while done < len(slots):
                line, left = lines[0]
                mine = slots[done : done + left]
                done += len(mine)
                lines[0][1] -= len(mine)
                if not lines[0][1]:
                    lines.pop(0)
                yield LeaseFact(
                    f"{job}.{number}",
                    name,
                    spec.owner,
                    role,
                    group.group,
                    tuple(slot_text(slot) for slot in mine),
                    line["budget"],
                    line["envelope"],
                    line["borrowed"],
                    now_ms,
                    until_ms,
                    "Start",
                    0,
                )
                number += 1
    require(not lines, "every GPU of the plan has a device")


def lease_drafts(
    projection: Projection, lease: LeaseFact, job: str, now_ms: int
) -> Iterator[Draft]:
    """A lease opens, and its hours are promised."""
    yield _draft("lease.open", now_ms, open_body(lease), job, f"open {lease.id}")
    if lease.expected_end_ms is not None:
        found = projection.accounts.get(lease.budget, lease.envelope)
        account = known(found, "a payer has an account")
        parts = split_hold(lease.to_lease(), account.envelope)
        body = {
            "lease": lease.id,
            "budget": lease.budget,
            "envelope": lease.envelope,
            "gpu_ms": sum(amount for _, amount in parts),
            "parts": [{"from_ms": at_ms, "gpu_ms": amount} for at_ms, amount in parts],
        }
        yield _draft("charge.hold", now_ms, body, job, f"hold {lease.id}")


def open_body(lease: LeaseFact) -> dict[str, Any]:
    """The body of `lease.open`."""
    return {
        "lease": lease.id,
        "run": lease.run,
        "owner": lease.owner,
        "role": lease.role,
        "group": lease.group,
        "slots": list(lease.slots),
        "budget": lease.budget,
        "envelope": lease.envelope,
        "borrowed": lease.borrowed,
        "start_ms": lease.start_ms,
        "expected_end_ms": lease.expected_end_ms,
        "reason": lease.reason,
    }
