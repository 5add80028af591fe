"""Outcomes from beginning to end: commit, draw, carry out; and on, after an interruption.

    gpu.deficit                            which scope is short, and who is a candidate
    gpu.resolve.commit, gpu.resolve.case   the conflict is frozen; for whom, in clear names
    gpu.resolve.draw or gpu.resolve.void   the entropy is revealed, and the next one is fixed
    run.cut, lease.close                   what each run loses: see `carry_out`
    gpu.resolve.applied                    the run that it was for has started

Every step is durable before the next and asks the projection what is still to be done, so another
turn, after a crash or by another replica, continues the same outcome, never with another seed.
docs/reference/outcome-export.md says what is in the entries, and why no clear name is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlead.core import gpu
from fairlead.core.canonical import canonical
from fairlead.core.invariant import known
from fairlead.core.lottery import (
    SEED_BYTES,
    BeaconRound,
    Commitment,
    Pseudonyms,
    entropy_hash,
    luck_of,
    reveal,
)
from fairlead.core.reasons import DeficitReason, StartReason
from fairlead.core.units import are, counted
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.clock_watch import refuse_if_held
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import SYSTEM, Document, NewEntry
from fairlead.engine.gpu.resolver import carry_out
from fairlead.engine.gpu.resolver.chains import ANOTHER_MASTER, SecretHashes, needed, pseudonyms
from fairlead.engine.gpu.resolver.deficit import (
    OBSTACLES,
    Shortage,
    deficit_decision,
    guest_of,
    need_of,
    shortage_of,
)
from fairlead.engine.gpu.starting import admission, opens_leases, start_decision
from fairlead.engine.gpu.state import LeaseFact, Outcome, OutcomeStage, Phase, RunState, Step
from fairlead.engine.gpu.values import Author, Forbidden, NotFound, Refused
from fairlead.ports.entropy import EntropySource
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Blob, Damaged
from fairlead.schema.border import BadInput, check_shape, parse_json
from fairlead.schema.gpu import VERSIONS, ResolveDocument, from_resolution, to_conflict
from fairlead.schema.times import format_time


@dataclass(frozen=True, slots=True)
class Case:
    """What asks for a resolve: what is missing, and for whom."""

    cause: str
    demand: gpu.Demand
    author: str = SYSTEM
    run: str | None = None
    reservation: str | None = None
    request: int | None = None
    """The request that it is a step of, and which step."""
    step: Step | None = None


class Outcomes:
    """Commits, draws and carries out; keeps nothing that the ledger does not have, but for the last
    conflict, which need not be read back."""

    def __init__(
        self,
        committer: Committer,
        effects: Effects,
        hashes: SecretHashes,
        chance: EntropySource | None,
    ) -> None:
        self._committer, self._config, self._effects = committer, committer.config, effects
        self._hashes, self._chance = hashes, chance
        self._projection = committer.projection
        self._frozen: tuple[str, gpu.Conflict | None] = ("", None)
        """The last conflict that this process froze, by its digest."""

    @property
    def enforced(self) -> bool:
        return self._config.resolver == "enforce" and self._chance is not None

    def refusal(self, shortage: Shortage) -> Refused | None:
        """Why there is no resolve for a waiting run; None: there can be one."""
        deficit = shortage.deficit
        if deficit.scope is None:
            return Refused("NoDevices", "no node can hold it")
        if deficit.shortfall_gpus:
            return not_enough(deficit.shortfall_gpus, shortage.next_candidate_ms)
        if self._config.resolver != "enforce":
            missing = f"{counted(deficit.gpus, 'GPU')} {are(deficit.gpus)} missing"
            off = f"{missing}, and the resolver is {self._config.resolver}"
            return Refused("ResolverOff", off)
        return None

    def is_open(self, seq: int) -> bool:
        outcome = self._projection.resolver.outcomes.get(seq)
        return outcome is not None and outcome.stage.open

    # -- commit -----------------------------------------------------------------------------------

    def ready(self) -> EntropySource:
        """What an outcome is drawn with; raises `Refused` where none can begin now."""
        refuse_if_held(self._committer)
        return needed(self._chance)

    def begin(self, case: Case) -> Outcome:
        """Freeze the conflict and commit to an outcome; then go as far as that goes by itself."""
        chance = self.ready()
        protection = self._committer.protection()
        deficit = shortage_of(self._projection, case.demand, protection).deficit
        scope = deficit.scope
        if scope is None:  # nothing is missing any more: another replica was quicker
            raise _changed()
        chain = self._hashes.open_chain(scope.flavor)

        def decide() -> Sequence[NewEntry]:
            self.refuse_open(scope.flavor)
            start = self._start(case)
            shortage = shortage_of(self._projection, case.demand, protection)
            found = (shortage.deficit.scope, shortage.deficit.reason)
            if found != (scope, DeficitReason.RESOLVABLE) or not self._is_next(case):
                raise _changed()
            return [*start, *self._commitment(case, shortage, chance, chain, after=len(start))]

        *_, commit, _ = self._committer.commit(decide)
        self.proceed(self._committer.now())
        return self._projection.resolver.outcomes[commit.seq]

    def _start(self, case: Case) -> list[NewEntry]:
        """The decision that a case's run is funded and lacks devices for the gang it asks for."""
        run, at = case.run, self._committer.at()
        if run is None:
            return []
        if not _waits(self._projection.runs.get(run)):
            raise _changed()
        answer = need_of(self._projection, run, at.now_ms)
        gang, reason = answer.found.gang, answer.found.reason
        wanted = case.demand
        if reason is not StartReason.NO_DEVICES or not isinstance(wanted, gpu.GangDemand):
            raise _changed()
        guest = guest_of(self._projection, run, answer.found.plan) if wanted.unfunded_only else ()
        if (wanted.run, wanted.gang, wanted.guest_of) != (run, gang, guest):
            raise _changed()
        return [start_decision(at, run, answer, case.cause)]

    def _commitment(
        self, case: Case, shortage: Shortage, chance: EntropySource, chain: str, *, after: int
    ) -> list[NewEntry]:
        """This conflict, these odds, this entropy, before it is known which runs lose; `after` so
        many entries of the same batch."""
        projection, now_ms = self._projection, self._committer.now()
        last, weighting = projection.resolver.chains[chain], self._config.owner_weighting
        names = pseudonyms(projection, chance, chain, last.turn)
        found = gpu.freeze(
            case.demand, shortage.deficit, shortage.holdings, names, owner_weighting=weighting
        )
        document = Blob.of(gpu.conflict_bytes(found.conflict))
        notice = Blob.of(canonical(found.notice.document()))
        self._frozen = (document.digest, found.conflict)
        given = {} if last.carry else self._nonces(names, found.conflict)
        luck: dict[str, Any] = {
            "nonces": {names.owner(owner): bytes.fromhex(given[owner]) for owner in given},
            "beacon": self._future_round(now_ms),
        }
        if last.carry:  # the outcome before was voided: it is this one's luck, and no other
            luck = luck_of(last.carry)
        commitment = Commitment(
            chain=chain,
            k=last.k,
            previous_seq=last.published_seq,
            scope=found.conflict.scope.document(),
            deficit_gpus=shortage.deficit.gpus,
            conflict_digest=self._frozen[0],
            notice_digest=notice.digest,
            owner_weighting=weighting,
            turn=last.turn,
            continued=last.carry is not None,
            **luck,
        )
        committed = NewEntry(
            entries.OutcomeCommitted(commitment),
            now_ms,
            plan_id=commitment.plan_id,
            effect="commit",
            input_digest=commitment.conflict_digest,
            version=VERSIONS[weighting],
            blobs=(document, notice),
        )
        body = _case_body(case, commitment, last.flavor, given, projection.seq + after + 1)
        clear, plan_id = (Blob.of(canonical(names.clear)),), commitment.plan_id
        about = NewEntry(
            body, now_ms, author=case.author, plan_id=plan_id, effect="case", blobs=clear
        )
        return [deficit_decision(shortage, case.cause, now_ms), committed, about]

    def _nonces(self, names: Pseudonyms, conflict: gpu.Conflict) -> dict[str, str]:
        """Of owners with a run in the conflict: any other would be a salt that can be chosen."""
        owners = {run.owner for run in conflict.runs}
        given = self._projection.resolver.signed_nonces
        return {
            owner: given[owner].nonce
            for owner in given
            if not given[owner].used and names.owner(owner) in owners
        }

    def refuse_open(self, flavor: str) -> None:
        """One resolve per flavor at a time."""
        outcome = self._projection.resolver.open_outcome(flavor)
        if outcome is not None:
            raise Refused(
                "ResolveOpen",
                f"outcome {outcome.seq} of {flavor} is not over; one resolve per flavor at a time",
            )

    def _is_next(self, case: Case) -> bool:
        """Whether a step of a request is still the next one of it."""
        request = self._projection.resolver.requests.get(case.request or 0)
        return case.request is None or (request is not None and request.steps[0] == case.step)

    def _future_round(self, now_ms: int) -> BeaconRound | None:
        beacon = self._config.beacon
        if beacon is None:
            return None
        promised = beacon.round_after(now_ms)
        # A clock may be late, or a value supplied early: what is known decides nothing.
        while promised.key in self._projection.resolver.beacons:
            promised = beacon.at(promised.round + 1)
        return promised

    # -- draw -------------------------------------------------------------------------------------

    def proceed(self, now_ms: int) -> None:
        """Every open outcome as far as it can go now."""
        resolver, commit = self._projection.resolver, self._committer.commit
        for seq in sorted(resolver.open_seqs.values()):
            # Without enforcement a commitment stays open; it can be drawn later, or voided.
            if self.enforced:
                commit(partial(self._draw, seq, now_ms))
        commit(lambda: list(carry_out.due_closures(self._projection, self._effects, now_ms)))
        for seq in sorted(resolver.open_seqs.values()):
            commit(partial(self._finish, seq, now_ms))

    def _draw(self, seq: int, now_ms: int) -> Sequence[NewEntry]:
        """The draw and what it takes from which run; or a void, if its winner would not start."""
        outcome, chance = self._projection.resolver.outcomes[seq], self._chance
        if outcome.stage is not OutcomeStage.COMMITTED or chance is None:
            return []  # another replica was quicker
        if outcome.beacon is not None and self._beacon_value(outcome) is None:
            return []
        promised, decided = self._decide(outcome)
        resolution = known(decided, "what waits for no beacon is decided")
        names = pseudonyms(self._projection, chance, outcome.chain, outcome.entropy_index)
        cuts = resolution.actions
        actions = carry_out.clear_actions(self._projection, names, outcome.flavor, cuts)
        at = Context(self._projection, now_ms)
        void, made = self._obstacle(at, outcome, [lease for lease, _ in actions])
        made.append(self._reveal(at, outcome, promised, resolution, void))
        if void is None:
            made += carry_out.reclaims(at, seq, actions, self._config.grace)
        return made

    def _decide(self, outcome: Outcome) -> tuple[Commitment, gpu.Resolution | None]:
        """The same for ever, in any process; no resolution while a beacon is awaited."""
        entropy = needed(self._chance).entropy(outcome.chain, outcome.entropy_index)
        if entropy_hash(entropy) != self._projection.resolver.chains[outcome.chain].commitment:
            raise PermanentFault(ANOTHER_MASTER)
        entry = self._committer.ledger.entry(outcome.seq)
        if entry is None:
            raise Damaged(f"the commitment of outcome {outcome.seq} is missing")
        promised = entries.OutcomeCommitted.of(entry.body).commitment
        seed = promised.seed(entropy, self._beacon_value(outcome))
        if seed is None:
            return promised, None
        conflict, weighting = self._conflict(outcome), promised.owner_weighting
        return promised, gpu.resolve(conflict, seed, owner_weighting=weighting)

    def _conflict(self, outcome: Outcome) -> gpu.Conflict:
        """What was frozen, read back from the ledger unless this process has just frozen it."""
        digest, conflict = self._frozen
        if conflict is not None and digest == outcome.conflict_digest:
            return conflict
        data = self._committer.ledger.blob_get(outcome.conflict_digest)
        if data is None:
            raise Damaged(f"the conflict of outcome {outcome.seq} is missing")
        document = {**parse_json(data), "seed": "00" * SEED_BYTES}
        return to_conflict(check_shape(document, ResolveDocument))

    def _reveal(
        self,
        at: Context,
        outcome: Outcome,
        promised: Commitment,
        resolution: gpu.Resolution | None,
        void: str | None,
        *,
        beacon_lost: bool = False,
    ) -> NewEntry:
        """The answer to a commitment: what was drawn, or why it is void and what it would be."""
        chance, result = needed(self._chance), None
        if resolution is not None:
            result = Blob.of(canonical(from_resolution(resolution, promised.conflict_digest)))
        shown = reveal(
            promised,
            commit_seq=outcome.seq,
            entropy=chance.entropy(outcome.chain, outcome.entropy_index),
            next_entropy=chance.entropy(outcome.chain, outcome.entropy_index + 1),
            beacon_value=self._beacon_value(outcome),
            result_digest=None if result is None else result.digest,
            void=void,
            beacon_lost=beacon_lost,
        )
        head = self._committer.ledger.head().as_document()
        kind = entries.OutcomeDrawn if void is None else entries.OutcomeVoided
        blobs, version = () if result is None else (result,), VERSIONS[promised.owner_weighting]
        body = kind(shown, head)
        return at.entry(body, promised.plan_id, "outcome", version=version, blobs=blobs)

    def _beacon_value(self, outcome: Outcome) -> bytes | None:
        """The value of the round that was committed to, if there is one and it is known."""
        if outcome.beacon is None:
            return None
        value = self._projection.resolver.beacons.get(outcome.beacon.key)
        return None if value is None else bytes.fromhex(value)

    def _obstacle(
        self, at: Context, outcome: Outcome, ending: list[LeaseFact]
    ) -> tuple[str | None, list[NewEntry]]:
        """Why the run that an outcome is for would not start on what is freed, or needs none of
        it; and the decision that says so. Asked in the step that records the draw."""
        projection, reservation, run = self._projection, outcome.reservation, outcome.run
        if reservation is not None and reservation not in projection.resolver.reservations:
            return "the reservation that it was for is gone", []
        if run is None:
            return None, []
        if not _waits(projection.runs.get(run)):
            return "the run that it was for is gone", []
        answer = need_of(projection, run, at.now_ms, ending)
        return OBSTACLES.get(answer.found.reason), [start_decision(at, run, answer, "draw")]

    # -- carry out --------------------------------------------------------------------------------

    def _finish(self, seq: int, now_ms: int) -> Sequence[NewEntry]:
        """Everything reclaimed is free: the winner starts, and the outcome is over."""
        projection = self._projection
        outcome = projection.resolver.outcomes[seq]
        if outcome.stage is not OutcomeStage.DRAWN or outcome.reclaiming:
            return []
        made: list[NewEntry] = []
        run, state = outcome.run, projection.runs.get(outcome.run or "")
        if run is not None and state is not None and state.phase is Phase.PENDING:
            made = admission(projection, run, now_ms)
        started = run if opens_leases(made) else None
        reservation = projection.get("Reservation", outcome.reservation or "")
        if started is not None and reservation is not None:
            message = f"other runs were preempted by outcome {seq}"
            body = entries.ReservationState(
                reservation.name, started, "Active", "Resolved", message, 0
            )
            made.append(NewEntry(body, now_ms))
        applied = NewEntry(
            entries.OutcomeApplied(seq, started), now_ms, plan_id=f"outcome.{seq}", effect="applied"
        )
        return [*made, applied]

    # -- what people cancel -----------------------------------------------------------------------

    def void(
        self,
        seq: int,
        reason: str,
        *,
        author: Author,
        beacon_lost: bool = False,
        dry_run: bool = False,
    ) -> Document:
        """Cancel an outcome that waits for its beacon; what it would have been is disclosed.

        The next outcome of the flavor has the same entropy, nonces and round, so this is no second
        draw; `beacon_lost`: it has no round, and is trusted to the operator.
        """
        refuse_tenants(author)
        if not reason.strip():
            raise BadInput("reason", "must say why")

        def decide() -> Sequence[NewEntry]:
            outcome = self._outcome(seq)
            if outcome.stage is not OutcomeStage.COMMITTED:
                done = f"outcome {seq} cannot be voided: it is already {outcome.stage.value}"
                raise Refused("NotOpen", done)
            if self._chance is None:
                raise Refused("NoChance", "without its master secret nothing can be disclosed")
            if dry_run:
                return []  # what it would have been is shown with the void, not before
            promised, resolution = self._decide(outcome)
            at = self._committer.at(author.user)
            if beacon_lost and self._beacon_value(outcome) is not None:
                raise Refused("RoundKnown", f"outcome {seq} has the value of its round")
            lost = {"beacon_lost": beacon_lost}
            return [self._reveal(at, outcome, promised, resolution, reason, **lost)]

        with self._committer.current():
            self._committer.commit(decide)
            return {"outcome": seq, "stage": self._outcome(seq).stage.value}

    def _outcome(self, seq: int) -> Outcome:
        outcome = self._projection.resolver.outcomes.get(seq)
        if outcome is None:
            raise NotFound("outcome", str(seq))
        return outcome


def _case_body(
    case: Case, promised: Commitment, flavor: str, nonces: Iterable[str], deficit: int
) -> entries.OutcomeCase:
    """What a commitment is for, in clear names, and the deficit before it."""
    return entries.OutcomeCase(
        chain=promised.chain,
        k=promised.k,
        flavor=flavor,
        cause=case.cause,
        run=case.run,
        reservation=case.reservation,
        node=case.demand.node if isinstance(case.demand, gpu.NodeDemand) else None,
        nonce_owners=tuple(sorted(nonces)),
        asked=case.request,
        deficit=deficit,
    )


def _waits(state: RunState | None) -> bool:
    return state is not None and state.phase is Phase.PENDING and not state.stopping


def _changed() -> Refused:
    return Refused("ResolveOpen", "the state changed meanwhile; try again")


def not_enough(gpus: int, candidate_ms: int | None = None) -> Refused:
    """`candidate_ms`: when the next run that is protected now is a candidate."""
    message = f"{counted(gpus, 'GPU')} would be missing even with every preemption"
    if candidate_ms is not None:
        message += (
            "; runs that have just started or were just preempted are no candidates, the next of "
            f"them is one at {format_time(candidate_ms)}"
        )
    return Refused("NotEnough", message)


def refuse_tenants(author: Author) -> None:
    """Using the resolver by hand is the operator's."""
    if not author.admin:
        raise Forbidden(f"{author.user} may not use the resolver by hand")
