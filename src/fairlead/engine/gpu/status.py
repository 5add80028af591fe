"""Objects as users see them: metadata, spec and a status worked out from the projection; and the
five conditions of a budget: caps near, used up or exceeded, unused lending entries."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from fairlead.core.gpu import AggregateCap, Budget, Envelope, Lending, Usage, aggregate
from fairlead.core.gpu.usage import FOREVER
from fairlead.core.invariant import known
from fairlead.core.units import are, counted
from fairlead.engine.gpu.entries import BudgetCondition, Document, NewEntry
from fairlead.engine.gpu.leases import cordoned_nodes, drained_node
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.state import (
    Condition,
    LeaseFact,
    Phase,
    Reclaim,
    Reservation,
    RunState,
    Stored,
)
from fairlead.schema.objects import API_VERSION, foreign_of
from fairlead.schema.times import format_time, hours
from fairlead.schema.words import WAITS_FOR_IDLE


def as_document(kind: str, metadata: Document, spec: Document, status: Document) -> Document:
    head = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}
    return {**head, "spec": spec, "status": status}


def object_document(
    projection: Projection, stored: Stored, now_ms: int, near_limit_percent: int
) -> Document:
    metadata = {
        "name": stored.name,
        "labels": stored.labels,
        "uid": stored.uid,
        "generation": stored.generation,
        "resourceVersion": stored.version,
        "creationTimestamp": format_time(stored.created_ms),
    }
    status = {"observedGeneration": stored.generation}
    if stored.kind == "Budget":
        status |= budget_status(projection, stored, now_ms, near_limit_percent)
    elif stored.kind == "Run":
        status |= run_status(projection, stored.name)
    elif stored.kind == "Reservation":
        status |= reservation_status(projection.resolver.reservations[stored.name])
    else:
        status |= node_status(projection, stored)
    return as_document(stored.kind, metadata, stored.document, status)


def budget_status(
    projection: Projection, stored: Stored, now_ms: int, near_limit_percent: int
) -> Document:
    """Headroom of every envelope and aggregate cap, and the conditions."""
    budget = projection.budgets[stored.name]
    usage = projection.accounts.at(now_ms)
    return {
        "headroom": [
            _headroom(projection, budget, envelope, now_ms) for envelope in budget.envelopes
        ],
        "aggregateHeadroom": [
            _aggregate_headroom(cap, aggregate(usage, budget.name, cap.envelopes))
            for cap in budget.aggregate_caps
        ],
        "conditions": [
            {
                "type": condition.type,
                "status": str(condition.status),
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": condition.generation,
                "lastTransitionTime": format_time(condition.since_ms),
            }
            for condition in conditions(projection, stored, now_ms, near_limit_percent)
        ],
    }


def _headroom(projection: Projection, budget: Budget, envelope: Envelope, now_ms: int) -> Document:
    found = projection.accounts.get(budget.name, envelope.name)
    account = known(found, "an envelope has an account")
    used, end_ms = account.usage(now_ms), account.period.end_ms
    return {
        "name": envelope.name,
        "flavor": envelope.flavor,
        "open": envelope.is_open(now_ms),
        "concurrencyUsed": used.gpus,
        "concurrency": max(0, envelope.gpus - account.paid_usage(now_ms).gpus),
        "lentGPUs": used.lent_gpus,
        "gpuHoursUsed": hours(used.used_ms),
        "gpuHoursHeld": hours(used.held_ms),
        "gpuHours": _left(envelope.max_hours_ms, used.used_ms + used.held_ms),
        "overdraftGPUHours": hours(account.statement(now_ms).overdraft_ms),
        "periodEnd": None if end_ms == FOREVER.end_ms else format_time(end_ms),
    }


def _aggregate_headroom(cap: AggregateCap, used: Usage) -> Document:
    return {
        "name": cap.name,
        "flavor": cap.flavor,
        "concurrencyUsed": used.gpus,
        "concurrency": None if cap.max_gpus is None else max(0, cap.max_gpus - used.gpus),
        "gpuHoursUsed": hours(used.used_ms),
        "gpuHoursHeld": hours(used.held_ms),
        "gpuHours": _left(cap.max_hours_ms, used.used_ms + used.held_ms),
    }


def _left(limit_ms: int | None, taken_ms: int) -> float | None:
    return None if limit_ms is None else max(0, limit_ms - taken_ms) / 3_600_000


def run_status(projection: Projection, name: str) -> Document:
    state = projection.runs[name]
    return {
        "phase": shown_phase(state, reserved=projection.waits_for_time(name)),
        "reason": state.reason,
        "message": run_message(projection, name),
        "since": format_time(state.since_ms),
        "width": state.width,
        "spares": state.spares,
        "funded": bool(state.leases) and all(map(projection.is_funded, state.leases)),
        "refusal": None if state.refusal is None else msgspec.to_builtins(state.refusal),
        "paused": state.paused,
        "stopping": state.stopping,
        "leases": sorted(state.leases),
        "virtual": projection.is_virtual(state.leases.values()),
        "startTime": _time(state.started_ms),
        "completionTime": _time(state.ended_ms),
        "exitCode": state.exit_code,
        "exitSignal": state.exit_signal,
        "exitReason": state.exit_reason,
        "coverSeq": state.cover_seq,
        "placeSeq": state.place_seq,
        "job": state.job,
        "attempts": state.attempt,
        "restarts": state.restarts,
        "restartTime": _time(state.starts_ms),
        "reservation": projection.reserved.get(name),
        "nominated": state.nominated,
        "lastOutcome": state.last_outcome,
        "preempting": None if state.reclaim is None else sorted(state.reclaim.leases),
        "graceEnds": None if state.reclaim is None else format_time(state.reclaim.due_ms),
    }


def run_message(projection: Projection, name: str) -> str:
    """What the last entry said, unless leases have come or are going since, or have lost their
    funding."""
    state, gpus = projection.runs[name], projection.run_spec(name).gpus
    if state.phase is Phase.PENDING:
        return idle_first(projection, name, state.message) + _recalling(projection, name)
    if state.phase is not Phase.RUNNING:
        return state.message
    if state.reclaim is not None:
        return _leaving(projection, state.reclaim)
    if state.reason != "Admitted":
        return state.message
    leases = [projection.leases[lease] for lease in state.leases]
    amount = counted(gpus, "GPU")
    if state.width != gpus:
        amount = f"{state.width} of {amount}"
    paid = [lease for lease in leases if projection.is_funded(lease.id)]
    payers = {(lease.budget, lease.envelope) for lease in paid}
    said = f"{amount}, paid by {counted(len(payers), 'envelope')}"
    return said if len(paid) == len(leases) else f"{amount}, {_unfunded(state, leases, paid)}"


def waits_for_idle(projection: Projection, name: str) -> bool:
    """Whether a run was refused funding, and starts without it once GPUs are idle."""
    spec = projection.run_spec(name)
    if spec.funding.allow_unfunded is not True or projection.runs[name].refusal is None:
        return False
    return bool(projection.own_envelopes(spec.owner, spec.flavor, projection.time_ms))


def idle_first(projection: Projection, name: str, refused: str) -> str:
    """Why a run waits: for idle GPUs, where it needs no funding; `refused`: why it has none."""
    if not waits_for_idle(projection, name):
        return refused
    return f"{WAITS_FOR_IDLE}; {refused}"


def _unfunded(state: RunState, leases: list[LeaseFact], paid: list[LeaseFact]) -> str:
    """What of a run is not paid for, and who recalled it."""
    lost = [lease for lease in leases if lease not in paid]
    owners = sorted({lease.payer for lease in lost if lease.id in state.recalled})
    why = f" since {', '.join(owners)} recalled them" if owners else ""
    amount = "unfunded" if not paid else f"{sum(lease.gpus for lease in lost)} of them unfunded"
    return f"{amount}{why}: first to be preempted"


def _recalling(projection: Projection, name: str) -> str:
    """What was recalled for a run that waits."""
    gpus = sum(
        projection.leases[lease].gpus
        for run in (projection.running[other] for other in projection.giving_back)
        for lease, by in run.recalled.items()
        if by == name
    )
    if not gpus:
        return ""
    return (
        f"; {counted(gpus, 'GPU')} of its envelopes {are(gpus)} recalled from other owners, whose "
        "runs have their minimum runtime and are then the first to be preempted"
    )


def _leaving(projection: Projection, reclaim: Reclaim) -> str:
    """What a run gives up, until when, and because of which node."""
    leases = [projection.leases[lease] for lease in reclaim.leases]
    amount = counted(sum(lease.gpus for lease in leases), "GPU")
    said = f"gives up {amount} by {format_time(reclaim.due_ms)}"
    if not reclaim.preempts:
        return said
    out = cordoned_nodes(projection, leases)
    if reclaim.outcome is not None:
        node = drained_node(projection, reclaim.outcome)
        out = [] if node is None else [node]
    where = f"node {', '.join(out)} is out of service: " if out else ""
    return f"{where}{said}, and stops"


PhaseName = Literal["Running", "Shrunk", "Pending", "Reserved", "Failed", "Completed"]
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
"""Every phase as users see it."""


def shown_phase(state: RunState, *, reserved: bool) -> PhaseName:
    """As users see it: a reserved run waits for its time, a shrunk one runs on with less."""
    phase = state.phase
    if phase is Phase.PENDING:
        return "Reserved" if reserved else "Pending"
    if phase is Phase.RUNNING:
        return "Shrunk" if state.shrunk else "Running"
    return "Failed" if phase is Phase.FAILED else "Completed"


def reservation_status(state: Reservation) -> Document:
    return {
        "state": state.state,
        "reason": state.reason,
        "message": state.message,
        "since": format_time(state.since_ms),
        "shortfallGPUs": state.shortfall_gpus,
        "outcome": state.outcome,
        "activated": _time(state.activated_ms),
        "released": _time(state.released_ms),
    }


def node_status(projection: Projection, stored: Stored) -> Document:
    spec, taken = node_spec(stored), projection.taken.get(stored.name, {})
    own = f"{stored.name}#"
    quarantined = sorted(slot for slot in projection.withheld if slot.startswith(own))
    held = len(taken) + len(quarantined)
    return {
        "devices": spec.devices,
        "leased": len(taken),
        "free": 0 if spec.cordoned else max(0, spec.devices - held - foreign_of(spec)),
        "leases": sorted(set(taken.values())),
        "virtual": spec.virtual is True,
        "quarantined": quarantined,
    }


def lease_document(projection: Projection, lease: LeaseFact, now_ms: int) -> Document:
    is_open = lease.end_ms is None
    until_ms = now_ms if lease.end_ms is None else lease.end_ms
    metadata = {
        "name": lease.id,
        "labels": {},
        "uid": lease.id,
        "generation": 1,
        "resourceVersion": lease.seq,
        "creationTimestamp": format_time(lease.start_ms),
    }
    spec = {
        "run": lease.run,
        "owner": lease.owner,
        "role": lease.role,
        "group": lease.group,
        "slots": list(lease.slots),
        "payer": {"budget": lease.budget, "envelope": lease.envelope},
        "borrowed": lease.borrowed,
        "start": format_time(lease.start_ms),
        "expectedEnd": _time(lease.expected_end_ms),
        "reason": lease.reason,
    }
    status = {
        "open": is_open,
        "end": _time(lease.end_ms),
        "reason": lease.end_reason,
        "funded": projection.is_funded(lease.id) if is_open else not lease.overdraft_ms,
        "gpuHours": hours(lease.gpus * max(0, until_ms - lease.start_ms)),
        "virtual": projection.is_virtual([lease]),
    }
    return as_document("Lease", metadata, spec, status)


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else format_time(time_ms)


# -- conditions of budgets -------------------------------------------------------------------------

CONDITIONS = ("Healthy", "NearLimit", "Exhausted", "Overcommitted", "UnusedLendingEntry")


@dataclass(frozen=True, slots=True)
class Gauge:
    """One cap of a budget and what is used of it or held; hours in GPU-milliseconds."""

    kind: str
    name: str
    limit: int
    taken: int
    hours: bool

    def text(self) -> str:
        amounts = f"{self.taken} of {counted(self.limit, 'GPU')}"
        if self.hours:
            amounts = f"{self.taken / 3_600_000:.2f} of {self.limit / 3_600_000:.2f} GPU-hours"
        return f"{self.kind} {self.name}: {amounts}"


def gauges(projection: Projection, budget: Budget, now_ms: int) -> Iterator[Gauge]:
    """Every cap of a budget that has a limit."""
    usage = projection.accounts.at(now_ms)
    for own in budget.envelopes:
        used, lending = usage[budget.name, own.name], own.lending
        taken = (used.gpus, used.used_ms + used.held_ms)
        yield from _pair("envelope", own.name, own.gpus, own.max_hours_ms, taken)
        if lending.allow:
            lent = (used.lent_gpus, used.lent_used_ms + used.lent_held_ms)
            yield from _pair("lending", own.name, lending.max_gpus, lending.max_hours_ms, lent)
    for cap in budget.aggregate_caps:
        used = aggregate(usage, budget.name, cap.envelopes)
        taken = (used.gpus, used.used_ms + used.held_ms)
        yield from _pair("aggregate", cap.name, cap.max_gpus, cap.max_hours_ms, taken)


def _pair(
    kind: str, name: str, max_gpus: int | None, max_ms: int | None, taken: tuple[int, int]
) -> Iterator[Gauge]:
    if max_gpus is not None:
        yield Gauge(kind, name, max_gpus, taken[0], hours=False)
    if max_ms is not None:
        yield Gauge(kind, name, max_ms, taken[1], hours=True)


def conditions(
    projection: Projection, stored: Stored, now_ms: int, near_limit_percent: int
) -> list[Condition]:
    """The five conditions of a budget; `since_ms` moves only with the status."""
    budget = projection.budgets[stored.name]
    caps = list(gauges(projection, budget, now_ms))
    near = [c for c in caps if c.limit and c.taken * 100 >= c.limit * near_limit_percent]
    out = [c for c in caps if c.hours and c.taken >= c.limit]
    over = [c for c in caps if c.taken > c.limit]
    unused = list(_unused_entries(projection, budget))

    def condition(name: str, texts: list[str], bad: str, good: str) -> Condition:
        status = bool(texts) != (name == "Healthy")
        before = projection.conditions.get((stored.name, name))
        since_ms = now_ms if before is None or before.status != status else before.since_ms
        reason, message = bad if texts else good, "; ".join(texts)
        return Condition(name, status, reason, message, stored.generation, since_ms)

    def of_caps(name: str, about: list[Gauge], bad: str, good: str) -> Condition:
        return condition(name, [cap.text() for cap in about], bad, good)

    return [
        of_caps("Healthy", out or over, "CapExceeded" if over else "HoursUsedUp", "WithinCaps"),
        of_caps("NearLimit", near, "AboveThreshold", "BelowThreshold"),
        of_caps("Exhausted", out, "HoursUsedUp", "HoursLeft"),
        of_caps("Overcommitted", over, "CapExceeded", "WithinCaps"),
        condition("UnusedLendingEntry", unused, "NoSuchOwner", "AllEntriesMatch"),
    ]


def condition_entries(
    projection: Projection, now_ms: int, near_limit_percent: int
) -> list[NewEntry]:
    """Conditions that changed since they were last recorded."""
    made = []
    for stored in projection.of_kind("Budget"):
        for condition in conditions(projection, stored, now_ms, near_limit_percent):
            before = projection.conditions.get((stored.name, condition.type))
            new = (condition.status, condition.generation)
            if before is not None and (before.status, before.generation) == new:
                continue
            facts = msgspec.structs.asdict(condition)
            del facts["since_ms"]  # the time of the entry
            made.append(NewEntry(BudgetCondition(stored.name, **facts), now_ms))
    return made


def _unused_entries(projection: Projection, budget: Budget) -> Iterator[str]:
    """Lending entries that match no owner of a budget or a run: most often a typing error."""
    if not any(envelope.lending.to for envelope in budget.envelopes):
        return
    owners = {other.owner for other in projection.budgets.values() if other.name != budget.name}
    owners |= projection.run_owners.keys()
    owners.discard(budget.owner)
    for envelope in budget.envelopes:
        for entry in envelope.lending.to:
            alone = Lending(allow=envelope.lending.allow, to=(entry,))
            if not any(map(alone.admits, owners)):
                why = "matches no owner" if alone.allow else "is off: allow is false"
                yield f"{envelope.name}: {entry!r} {why}"
