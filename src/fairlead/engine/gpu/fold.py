"""How each kind of entry changes the projection; `Projection.fold` alone calls these."""

from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from fairlead.core.gpu.clock import ClockAnchor, ClockJump, follow_boot
from fairlead.core.invariant import require
from fairlead.core.lottery import BeaconRound
from fairlead.core.reasons import AfterReason, LimitReason
from fairlead.engine.gpu import entries, state
from fairlead.engine.gpu.entries import Stamp
from fairlead.schema.convert import convert
from fairlead.schema.objects import BudgetSpec, ReservationSpec, RunSpec, to_budget
from fairlead.schema.times import parse_time

if TYPE_CHECKING:
    from fairlead.engine.gpu.projection import Projection

OUTCOMES_KEPT = 1_000  # closed ones that no reservation cites; all of them are in the log
COUNTED = {
    "DropSpare": "resolver_spares_dropped_total",
    "Shrink": "resolver_shrinks_total",
    "draws": "resolver_lottery_draws_total",
    "applied": "resolver_invocations_total",
}


# -- objects --------------------------------------------------------------------------------------


def _object_applied(known: "Projection", at: Stamp, body: entries.ObjectApplied) -> None:
    kind, name = intern(body.kind), body.name
    before = known.get(kind, name)
    created_ms, user = at.time_ms, intern(at.author)
    token = None if body.token is UNSET else body.token
    if before is not None:
        created_ms, user, token = before.created_ms, before.user, before.token
    spec_document = state.shared_document(kind, body.spec)
    labels = state.shared_labels(body.labels)
    facts = (body.uid, body.generation, at.seq, created_ms, *labels, spec_document, user, token)
    stored = state.Stored(kind, name, *facts)
    known.put(stored)
    spec = stored.spec
    if isinstance(spec, BudgetSpec):
        known.set_budget(name, to_budget(name, spec))
        known.accounts.define(known.budgets[name], at.time_ms)
    elif isinstance(spec, RunSpec) and before is None:
        run = state.RunState(submitted_seq=at.seq, since_ms=at.time_ms)
        known.runs[name] = run
        known.index_run(name, run)
    elif isinstance(spec, ReservationSpec) and before is None:
        known.reserved[spec.run] = name
        known.resolver.reservations[name] = state.Reservation(since_ms=at.time_ms)
    known.resolver.changed_seq = at.seq


def _object_deleted(known: "Projection", at: Stamp, body: entries.ObjectDeleted) -> None:
    kind, name = body.kind, body.name
    known.drop(kind, name)
    if kind == "Budget":
        known.set_budget(name, None)
        for key in [key for key in known.conditions if key[0] == name]:
            del known.conditions[key]
    elif kind == "Reservation":
        del known.resolver.reservations[name]
        known.reserved = {run: by for run, by in known.reserved.items() if by != name}
    known.resolver.changed_seq = at.seq


def _clock_anchored(known: "Projection", at: Stamp, body: entries.ClockAnchored) -> None:
    if body.shift_ms:
        known.restate(body.shift_ms, at.time_ms)
    known.clock = ClockAnchor(at.time_ms, body.monotonic_ms, body.boot, body.host, body.offset_ms)
    known.clock_jump = None
    known.boots = follow_boot(known.boots, known.clock, known.time_ms)


def _clock_held(known: "Projection", at: Stamp, body: entries.ClockHeld) -> None:
    before, since = known.clock_jump, (body.boot, body.monotonic_ms, body.host)
    asked = before is not None and (before.asked or before.boot != body.boot)
    known.clock_jump = ClockJump(at.seq, at.time_ms, body.ahead_ms, *since, asked)
    seen = ClockAnchor(at.time_ms, body.monotonic_ms, body.boot, body.host)
    known.boots = follow_boot(known.boots, seen, known.time_ms)


def _budget_condition(known: "Projection", at: Stamp, body: entries.BudgetCondition) -> None:
    key = (body.budget, body.type)
    before = known.conditions.get(key)
    same = before is not None and before.status == body.status
    since_ms = before.since_ms if same and before is not None else at.time_ms
    facts = (body.status, body.reason, body.message, body.generation)
    known.conditions[key] = state.Condition(body.type, *facts, since_ms)


# -- runs and leases ------------------------------------------------------------------------------


def _run_phase(known: "Projection", at: Stamp, body: entries.RunPhase) -> None:
    run, phase = known.runs[body.run], state.Phase(body.phase)
    if phase is not run.phase:
        run.since_ms = at.time_ms
        if run.phase is state.Phase.RUNNING:
            kept_ms = body.protected_since_ms
            run.protected_ms = None if kept_ms is UNSET else kept_ms
        if phase is state.Phase.PENDING:
            run.left = state.Departure(intern(body.message), body.outcome or None)
    run.phase, run.reason, run.message = phase, intern(body.reason), intern(body.message)
    if body.paused is not UNSET and body.paused != run.paused:
        run.pause_seq = at.seq
    leaves = run.job is not None and (phase is not state.Phase.RUNNING or bool(body.job))
    if body.reason == state.FORCED or (not run.stopping and (leaves or body.stopping is True)):
        run.stop_seq = at.seq
    run.paused, run.stopping = body.paused or False, body.stopping or False
    run.shortfall_gpus = body.shortfall_gpus or 0
    if run.shortfall_gpus:
        run.refusal = None  # it is funded now, and waits for devices alone
    if phase is state.Phase.RUNNING and body.job:
        run.job, run.started_ms, run.idle_ms = body.job, at.time_ms, None
        run.attempt += 1
        run.refusal, run.pause_seq, run.width_seq, run.left = None, None, None, None
        run.numbered, run.grown = len(run.leases), False
        run.starts_ms = None if body.starts_ms is UNSET else body.starts_ms
        run.delays = body.delays or 0
        if body.restarts is UNSET:
            run.shrunk, run.grows_to = False, 0
        else:
            run.restarts = body.restarts
    if phase is not state.Phase.RUNNING:
        run.job, run.shrunk, run.grows_to, run.grown = None, False, 0, False
        run.restarts = run.restarts if body.restarts is UNSET else body.restarts
    known.index_run(body.run, run)
    if phase.ended:
        run.ended_ms = None if body.ended_ms is UNSET else body.ended_ms
        run.exit_code = None if body.code is UNSET else body.code
        run.exit_signal = None if body.signal is UNSET else body.signal
        run.exit_reason = body.exit_reason or None


def _after(known: "Projection", at: Stamp, body: entries.AfterDecision) -> None:
    known.runs[body.run].released = body.output["reason"] == AfterReason.READY


def _run_grown(known: "Projection", at: Stamp, body: entries.RunGrown) -> None:
    run = known.runs[body.run]
    run.width_seq = at.seq
    if body.width >= run.grows_to:
        run.shrunk, run.grows_to = False, 0


def _fund(known: "Projection", at: Stamp, body: entries.FundDecision) -> None:
    run, refusal = known.runs[body.run], body.output.refusal
    result = "funded" if refusal is None else refusal.code
    known.plans[result] = known.plans.get(result, 0) + 1
    run.refusal = None if refusal is None else state.shared_refusal(refusal)
    if run.phase is not state.Phase.RUNNING:  # else it grows; how it started stays to be explained
        run.cover_seq, run.place_seq = at.seq, None  # a placement follows what is funded
    for binding in () if refusal is None else refusal.binding:
        if binding.kind in ("acl", "lending"):
            key = (binding.budget or "", binding.name)
            known.denied[key] = known.denied.get(key, 0) + 1


def _lease_open(known: "Projection", at: Stamp, body: entries.LeaseOpen) -> None:
    payer = known.budgets[body.budget].owner
    lease = state.LeaseFact(**_shared(known, body.terms()), id=body.lease, seq=at.seq, payer=payer)
    run = known.runs[lease.run]
    run.add_lease(lease)
    if lease.reason == "Grow":
        run.numbered, run.grown = run.numbered + 1, True
    known.resolver.changed_seq = at.seq
    known.adopt(lease)
    known.accounts.hold(lease.to_lease(lease.id))


def _shared(known: "Projection", terms: entries.Document) -> entries.Document:
    """The terms of a lease with texts that others have too: thousands of ended leases are kept."""
    slots = tuple(intern(slot) for slot in terms["slots"])
    shared = {key: intern(value) for key, value in terms.items() if isinstance(value, str)}
    return {**terms, **shared, "run": known.shared_name(terms["run"]), "slots": slots}


def _lease_close(known: "Projection", at: Stamp, body: entries.LeaseClose) -> None:
    lease = known.leases.pop(body.lease)
    known.devices_moved(lease.nodes)
    run = known.runs[lease.run]
    if body.reason == "Shrink":
        run.shrunk = True
        # What its owner gave up is given up; what an outcome took may come back.
        if body.outcome is UNSET or not run.numbered:
            run.grows_to = 0
        elif not run.grows_to:
            run.grows_to = run.width
    run.drop_lease(lease.id)
    for slot in lease.slots:
        node, ordinal = state.parse_slot(slot)
        del known.taken[node][ordinal]
    charge = known.accounts.post(lease.id, body.end_ms)
    # The charge stands in the entry after this one; it must be what the accounts say.
    known.closed.append(
        replace(
            lease,
            end_ms=body.end_ms,
            end_reason=intern(body.reason),
            used_ms=charge.used_ms,
            overdraft_ms=charge.overdraft_ms,
        )
    )
    known.resolver.changed_seq = at.seq
    _reclaimed(known, run, body)
    payer = (lease.budget, lease.envelope)
    known.posted[payer] = known.posted.get(payer, 0) + charge.used_ms
    for part in charge.parts:
        key = (part.day, lease.owner, lease.payer, *payer, lease.borrowed)
        sums = known.charges.setdefault(key, [0, 0])
        sums[0] += part.used_ms
        sums[1] += part.overdraft_ms


def _reclaimed(known: "Projection", run: state.RunState, body: entries.LeaseClose) -> None:
    """A lease that is gone need not be given back any more; what an outcome ended is counted."""
    if body.outcome is not UNSET and body.reason in COUNTED:
        _count(known, body.reason)
    reclaim = run.reclaim
    if reclaim is None:
        return
    if reclaim.leases.pop(body.lease, None) is None and not reclaim.preempts:
        return
    if run.leases if reclaim.preempts else reclaim.leases:
        return
    if reclaim.outcome is not None:
        known.resolver.outcomes[reclaim.outcome].reclaiming.pop(body.run, None)
        if reclaim.draw is not None:
            _count(known, "draws")
    run.reclaim = None


def _charge_post(known: "Projection", at: Stamp, body: entries.ChargePost) -> None:
    last = known.closed[-1]
    require(last.id == body.lease, "a charge follows its lease's end")
    require(
        (last.used_ms, last.overdraft_ms) == (body.used_ms, body.overdraft_ms),
        "the accounts post what was recorded",
    )


def _limit(known: "Projection", at: Stamp, body: entries.LimitDecision) -> None:
    if body.output["reason"] == LimitReason.IDLE:
        known.runs[body.run].idle_warned = body.output["since"]


def _idle(known: "Projection", at: Stamp, body: entries.IdleDecision) -> None:
    for row in body.output.runs:
        run, times = known.runs[row.run], row.streak
        if run.job == row.job:
            run.idle_ms = None
            if times is not None:
                run.idle_ms = parse_time(times.since, "since"), parse_time(times.read, "read")


def _quarantine(known: "Projection", at: Stamp, body: entries.QuarantineDecision) -> None:
    dirty, clean = body.output["quarantined"], body.output["cleared"]
    known.quarantined = (known.quarantined | set(dirty)) - set(clean)
    known.devices_moved({state.parse_slot(slot)[0] for slot in (*dirty, *clean)})
    known.resolver.changed_seq = at.seq


def _job_unknown(known: "Projection", at: Stamp, body: entries.JobUnknown) -> None:
    known.unknown_jobs[body.job] = state.UnknownJob(at.seq, body.run, body.devices)
    known.devices_moved({state.parse_slot(slot)[0] for slot in body.devices})


def _job_gone(known: "Projection", at: Stamp, body: entries.JobGone) -> None:
    gone = known.unknown_jobs.pop(body.job)
    known.devices_moved({state.parse_slot(slot)[0] for slot in gone.slots})
    known.resolver.changed_seq = at.seq


def _warned(known: "Projection", at: Stamp, body: entries.RunWarned) -> None:
    run = known.runs[body.run]
    said = (at.seq, body.start_ms, body.chance, body.chance_error, body.message)
    later = {slot: row for slot, row in run.warned.items() if row.start_ms > at.time_ms}
    run.warned = {**later, body.slot: state.RiskWarning(*said)}


def _unfunded(known: "Projection", at: Stamp, body: entries.LeaseUnfunded) -> None:
    run = known.runs[body.run]
    if body.hours:
        run.hours_over = {**run.hours_over, body.lease: body.at_ms}
    if body.recalled_for is not UNSET:
        run.recalled = {**run.recalled, body.lease: body.recalled_for}
        known.index_run(body.run, run)
    if body.kind == entries.OVERDRAFT:
        run.overdrawn = {**run.overdrawn, body.lease: True}
    known.accounts.of_lease(body.lease).demote(body.lease, body.at_ms)
    known.resolver.changed_seq = at.seq


def _fact(known: "Projection", at: Stamp, body: entries.Body) -> None:
    """Kinds that set one value."""
    resolver = known.resolver
    match body:
        case entries.RunNominated():
            known.runs[body.run].nominated = body.nominated
        case entries.PlaceDecision() if known.runs[body.run].phase is not state.Phase.RUNNING:
            known.runs[body.run].place_seq = at.seq
        case entries.OrderDecision():
            known.orders[body.key] = tuple(map(known.shared_name, body.names))
        case entries.LeaseFunded():
            known.runs[body.run].forget_unfunded(body.lease)
            known.accounts.of_lease(body.lease).restore(body.lease, body.at_ms)
            resolver.changed_seq = at.seq
        case entries.OwnerPseudonym():
            resolver.owners[body.owner] = at.seq
        case entries.ChainOpened():
            place, by = (body.flavor, body.location, body.capped), body.next_commitment
            resolver.chains[body.chain] = state.OutcomeChain(body.chain, *place, at.seq, by)
        case entries.BudgetRequested():
            steps = [(step.kind, step.name) for step in body.steps]
            request = state.BudgetRequest(at.seq, at.author, body.budget, steps, body.place)
            resolver.requests[at.seq] = request
        case entries.StepSkipped():
            _next_step(resolver, body.asked)
        case entries.NonceGiven():
            if body.signature is not UNSET:
                resolver.signed_nonces[body.owner] = state.PendingNonce(body.nonce, at.seq)
        case entries.OwnerKey():
            resolver.owner_keys.setdefault(body.owner, []).append((body.public_key, at.seq))
        case entries.BeaconValue():
            # Kept for good: a round that was forgotten could be given another value.
            resolver.beacons[BeaconRound(body.source, body.round).key] = body.value


# -- the resolver ---------------------------------------------------------------------------------


def _committed(known: "Projection", at: Stamp, body: entries.OutcomeCommitted) -> None:
    resolver, promised = known.resolver, body.commitment
    chain = resolver.chains[promised.chain]
    require(chain.flavor not in resolver.open_seqs, "one resolve per flavor at a time")
    require((promised.k, chain.open_seq) == (chain.k, None), "outcomes of a scope follow in order")
    chain.open_seq = at.seq
    resolver.open_seqs[chain.flavor] = at.seq
    place = {} if promised.turn is None else promised.scope["location"]
    resolver.outcomes[at.seq] = state.Outcome(
        at.seq,
        promised.chain,
        promised.k,
        chain.flavor,
        promised.deficit_gpus,
        promised.conflict_digest,
        promised.notice_digest,
        promised.beacon,
        at.time_ms,
        owner_weighting=promised.owner_weighting,
        turn=promised.turn,
        location=convert(place, dict[str, str]),
    )
    # How the last outcome of a reservation ended decides whether another one may begin.
    cited = {reservation.outcome for reservation in resolver.reservations.values()}
    closed = [
        seq
        for seq, outcome in resolver.outcomes.items()
        if not outcome.stage.open and seq not in cited
    ]
    for seq in closed[: max(0, len(closed) - OUTCOMES_KEPT)]:
        del resolver.outcomes[seq]


def _case(known: "Projection", at: Stamp, body: entries.OutcomeCase) -> None:
    resolver = known.resolver
    outcome = resolver.outcomes[resolver.open_seqs[body.flavor]]
    outcome.cause, outcome.author = body.cause, at.author
    outcome.run, outcome.reservation, outcome.node = body.run, body.reservation, body.node
    for owner in body.nonce_owners:
        if owner in resolver.signed_nonces:  # those of the first protocol are not kept
            resolver.signed_nonces[owner].used = True
    if outcome.reservation in resolver.reservations:
        resolver.reservations[outcome.reservation].outcome = outcome.seq
    if body.asked is not None:
        resolver.requests[body.asked].outcome = outcome.seq
        _next_step(resolver, body.asked)


def _next_step(resolver: state.ResolverState, request: int) -> None:
    """A request is one step further; it is over with its last one."""
    resolver.requests[request].steps.pop(0)
    if not resolver.requests[request].steps:
        del resolver.requests[request]


def _drawn(known: "Projection", at: Stamp, body: entries.OutcomeDrawn) -> None:
    """A draw or a void: either way the entropy is out; what the next one has is fixed."""
    resolver, shown = known.resolver, body.reveal
    outcome, chain = resolver.outcomes[shown.commit_seq], resolver.chains[shown.chain]
    chain.k, chain.published_seq, chain.open_seq = chain.k + 1, at.seq, None
    chain.commitment = shown.next_commitment
    chain.carry = None if shown.carry is None else dict(shown.carry)
    chain.voids += 0 if shown.carry is None else 1
    outcome.final_seq, outcome.label = at.seq, shown.label.value
    outcome.result_digest = shown.result_digest
    if shown.void is None:
        outcome.stage = state.OutcomeStage.DRAWN
        return
    outcome.stage = state.OutcomeStage.VOID
    outcome.reason, outcome.voided_by = shown.void, at.author
    del resolver.open_seqs[outcome.flavor]


def _run_reclaimed(known: "Projection", at: Stamp, body: entries.RunReclaimed) -> None:
    run = known.runs[body.run]
    run.reclaim = state.Reclaim(
        body.outcome, dict(body.leases), body.preempts, body.draw, at.time_ms, body.grace_ms
    )
    run.width_seq = at.seq
    if body.outcome is None and body.preempts:
        run.stop_seq = at.seq
        run.reason = body.reason  # it waits again with this reason when its process is gone
    if body.outcome is not None:
        run.last_outcome = body.outcome
        run.preempted_ms = at.time_ms if body.preempts else run.preempted_ms
        known.resolver.outcomes[body.outcome].reclaiming[body.run] = True


def _applied(known: "Projection", at: Stamp, body: entries.OutcomeApplied) -> None:
    outcome = known.resolver.outcomes[body.outcome]
    require(not outcome.reclaiming, "an outcome is applied when all it reclaims is free")
    outcome.stage = state.OutcomeStage.APPLIED
    del known.resolver.open_seqs[outcome.flavor]
    _count(known, "applied")


def _reservation(known: "Projection", at: Stamp, body: entries.ReservationState) -> None:
    reservation = known.resolver.reservations[body.reservation]
    if reservation.state != body.state:
        reservation.since_ms = at.time_ms
    reservation.state, reservation.reason = body.state, body.reason
    reservation.message, reservation.shortfall_gpus = body.message, body.shortfall_gpus
    if reservation.state == "Active":
        reservation.activated_ms = at.time_ms
    elif reservation.state == "Released":
        reservation.released_ms = at.time_ms


def _count(known: "Projection", what: str) -> None:
    counters, name = known.resolver.counters, COUNTED[what]
    counters[name] = counters.get(name, 0) + 1


FACTS = (
    *(entries.RunNominated, entries.PlaceDecision, entries.QueueDecision),
    *(entries.ActivateDecision, entries.GrowDecision, entries.RankDecision),
    *(entries.LeaseFunded, entries.OwnerPseudonym, entries.ChainOpened),
    *(entries.BudgetRequested, entries.StepSkipped, entries.NonceGiven, entries.BeaconValue),
    entries.OwnerKey,
)
FOLDS: dict[type[entries.Body], Callable[["Projection", Stamp, Any], None]] = {
    **dict.fromkeys(FACTS, _fact),
    entries.ObjectApplied: _object_applied,
    entries.ObjectDeleted: _object_deleted,
    entries.BudgetCondition: _budget_condition,
    entries.ClockAnchored: _clock_anchored,
    entries.ClockHeld: _clock_held,
    entries.RunPhase: _run_phase,
    entries.AfterDecision: _after,
    entries.RunGrown: _run_grown,
    entries.RunReclaimed: _run_reclaimed,
    entries.FundDecision: _fund,
    entries.LimitDecision: _limit,
    entries.IdleDecision: _idle,
    entries.QuarantineDecision: _quarantine,
    entries.JobUnknown: _job_unknown,
    entries.JobGone: _job_gone,
    entries.LeaseOpen: _lease_open,
    entries.LeaseUnfunded: _unfunded,
    entries.RunWarned: _warned,
    entries.LeaseClose: _lease_close,
    entries.ChargePost: _charge_post,
    entries.OutcomeCommitted: _committed,
    entries.OutcomeCase: _case,
    entries.OutcomeDrawn: _drawn,
    entries.OutcomeVoided: _drawn,
    entries.OutcomeApplied: _applied,
    entries.ReservationState: _reservation,
}
"""Kinds that are not here (`charge.hold`, `charge.void`, `gpu.deficit`…) change nothing."""
