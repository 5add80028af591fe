"""Entries of the resolver folded into the projection; called by `Projection.apply` alone."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.core.invariant import require
from fairlead.core.lottery import OwnerWeighting
from fairlead.engine.gpu.resolver.state import Asked, Chain, Outcome, ResolverState, Stage
from fairlead.engine.gpu.state import Cut
from fairlead.ports.ledger import Entry

if TYPE_CHECKING:
    from fairlead.engine.gpu.projection import Projection

OUTCOMES_KEPT = 1_000  # closed ones; all of them are in the log
BEACONS_KEPT = 100
COUNTED = {
    "DropSpare": "resolver_spares_dropped_total",
    "Shrink": "resolver_shrinks_total",
    "draws": "resolver_lottery_draws_total",
    "applied": "resolver_invocations_total",
}
Body = Mapping[str, Any]


def _owner_pseudonym(projection: "Projection", entry: Entry, body: Body) -> None:
    projection.resolver.owners[body["owner"]] = entry.seq


def _scope(projection: "Projection", entry: Entry, body: Body) -> None:
    chain = body["chain"]
    projection.resolver.chains[chain] = Chain(
        chain, body["flavor"], body["location"], body["capped"], entry.seq, body["next_commitment"]
    )


def _commit(projection: "Projection", entry: Entry, body: Body) -> None:
    resolver, flavor = projection.resolver, body["scope"]["flavor"]
    require(flavor not in resolver.open_seqs, "one resolve per flavor at a time")
    chain = resolver.chains[body["chain"]]
    require((body["k"], chain.open_seq) == (chain.k, None), "outcomes of a scope follow in order")
    chain.open_seq = entry.seq
    resolver.open_seqs[flavor] = entry.seq
    resolver.outcomes[entry.seq] = Outcome(
        entry.seq,
        body["chain"],
        body["k"],
        flavor,
        body["deficit_gpus"],
        body["conflict_digest"],
        body["notice_digest"],
        body["beacon"],
        body["nonces"],
        entry.time_ms,
        # Commitments from before it could be set have none.
        owner_weighting=OwnerWeighting(body.get("owner_weighting", OwnerWeighting.OWNERS)),
    )
    closed = [seq for seq, each in resolver.outcomes.items() if not each.stage.open]
    for seq in closed[: max(0, len(closed) - OUTCOMES_KEPT)]:
        del resolver.outcomes[seq]


def _case(projection: "Projection", entry: Entry, body: Body) -> None:
    """Right behind its commitment: whom it is for, in clear."""
    resolver = projection.resolver
    outcome = resolver.outcomes[resolver.open_seqs[body["flavor"]]]
    outcome.cause, outcome.author = body["cause"], entry.author
    outcome.run, outcome.reservation = body["run"], body["reservation"]
    outcome.node = body["node"]
    for owner in body["nonce_owners"]:
        resolver.nonces.pop(owner, None)
    if outcome.reservation in resolver.reservations:
        resolver.reservations[outcome.reservation].outcome = outcome.seq
    asked = body.get("asked")
    if asked is not None:
        resolver.asked[asked].outcome = outcome.seq
        _step_over(resolver, asked)


def _asked(projection: "Projection", entry: Entry, body: Body) -> None:
    steps = [(each["kind"], each["name"]) for each in body["steps"]]
    projection.resolver.asked[entry.seq] = Asked(
        entry.seq, entry.author, body["budget"], steps, body["place"]
    )


def _passed(projection: "Projection", entry: Entry, body: Body) -> None:
    _step_over(projection.resolver, body["asked"])


def _step_over(resolver: ResolverState, asked: int) -> None:
    """A request is one step further; it is over with its last one."""
    resolver.asked[asked].steps.pop(0)
    if not resolver.asked[asked].steps:
        del resolver.asked[asked]


def _final(projection: "Projection", entry: Entry, body: Body) -> None:
    """A draw or a void: either way the entropy is out, and the next one is fixed."""
    resolver = projection.resolver
    outcome, chain = resolver.outcomes[body["commit_seq"]], resolver.chains[body["chain"]]
    chain.k, chain.published_seq, chain.open_seq = chain.k + 1, entry.seq, None
    chain.commitment = body["next_commitment"]
    outcome.final_seq, outcome.label = entry.seq, body["label"]
    outcome.result_digest = body["result_digest"]
    if entry.kind == "gpu.resolve.void":
        outcome.stage, outcome.reason = Stage.VOID, body["reason"]
        outcome.voided_by = entry.author
        del resolver.open_seqs[outcome.flavor]
    else:
        outcome.stage = Stage.DRAWN


def _run_cut(projection: "Projection", entry: Entry, body: Body) -> None:
    state = projection.runs[body["run"]]
    state.cut = Cut(
        body["outcome"],
        dict(body["leases"]),
        body["preempts"],
        body["draw"],
        entry.time_ms,
        body["grace_ms"],
    )
    if body["outcome"] is not None:
        state.last_outcome = body["outcome"]
        projection.resolver.outcomes[body["outcome"]].cutting[body["run"]] = True


def _applied(projection: "Projection", entry: Entry, body: Body) -> None:
    resolver = projection.resolver
    outcome = resolver.outcomes[body["outcome"]]
    require(not outcome.cutting, "an outcome is applied when everybody has given way")
    outcome.stage = Stage.APPLIED
    del resolver.open_seqs[outcome.flavor]
    count(projection, "applied")


def _nominated(projection: "Projection", entry: Entry, body: Body) -> None:
    projection.runs[body["run"]].nominated = body["nominated"]


def _nonce(projection: "Projection", entry: Entry, body: Body) -> None:
    projection.resolver.nonces[body["owner"]] = body["nonce"]


def _beacon(projection: "Projection", entry: Entry, body: Body) -> None:
    beacons = projection.resolver.beacons
    beacons[beacon_key(body)] = body["value"]
    while len(beacons) > BEACONS_KEPT:
        del beacons[next(iter(beacons))]


def beacon_key(body: Body) -> str:
    """A round of a source."""
    return f"{body['source']}/{body['round']}"


def _reservation(projection: "Projection", entry: Entry, body: Body) -> None:
    state = projection.resolver.reservations[body["reservation"]]
    if state.state != body["state"]:
        state.since_ms = entry.time_ms
    state.state, state.reason, state.message = body["state"], body["reason"], body["message"]
    state.shortfall_gpus = body["shortfall_gpus"]
    if state.state == "Active":
        state.activated_ms = entry.time_ms
    elif state.state == "Released":
        state.released_ms = entry.time_ms


def lease_closed(projection: "Projection", entry: Entry, body: Body) -> None:
    """A lease that is gone need not be given up any more; what an outcome ended is counted."""
    projection.resolver.world_seq = entry.seq
    state, lease = projection.runs[body["run"]], body["lease"]
    if body.get("outcome") is not None and body["reason"] in COUNTED:
        count(projection, body["reason"])
    cut = state.cut
    if cut is None or (cut.leases.pop(lease, None) is None and not cut.preempts):
        return
    if not (state.leases if cut.preempts else cut.leases):
        if cut.outcome is not None:
            projection.resolver.outcomes[cut.outcome].cutting.pop(body["run"], None)
            if cut.draw is not None:
                count(projection, "draws")
        state.cut = None


def count(projection: "Projection", what: str) -> None:
    """One more of an applied action."""
    counters, name = projection.resolver.counters, COUNTED[what]
    counters[name] = counters.get(name, 0) + 1


FOLDS: dict[str, Callable[["Projection", Entry, Body], None]] = {
    "owner.pseudonym": _owner_pseudonym,
    "gpu.resolve.scope": _scope,
    "gpu.resolve.commit": _commit,
    "gpu.resolve.case": _case,
    "gpu.resolve.draw": _final,
    "gpu.resolve.void": _final,
    "gpu.resolve.applied": _applied,
    "gpu.resolve.asked": _asked,
    "gpu.resolve.passed": _passed,
    "gpu.resolve.nonce": _nonce,
    "gpu.beacon": _beacon,
    "run.cut": _run_cut,
    "run.nominated": _nominated,
    "reservation.state": _reservation,
}
