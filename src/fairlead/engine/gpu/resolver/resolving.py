"""Resolves from beginning to end: commit, draw, carry out; and on, after an interruption.

Every step is durable before the next and asks the projection what is still to be done, so another
turn, after a crash or by another replica, goes on where this one was; never with new luck.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fairlead.core.gpu import Budget, Conflict, Scope
from fairlead.core.invariant import known
from fairlead.core.lottery import entropy_hash
from fairlead.engine.gpu.admit import admission
from fairlead.engine.gpu.applying import Wish
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.projection import node_spec
from fairlead.engine.gpu.resolver.cuts import (
    clear_actions,
    cut_drafts,
    due_drafts,
    name_open_leases,
)
from fairlead.engine.gpu.resolver.fold import beacon_key
from fairlead.engine.gpu.resolver.freeze import freeze
from fairlead.engine.gpu.resolver.names import Names, chain_of, scopes_of_budget, scopes_of_node
from fairlead.engine.gpu.resolver.protocol import (
    ANOTHER_MASTER,
    Case,
    commit_drafts,
    final_draft,
    introductions,
    show,
)
from fairlead.engine.gpu.resolver.state import Outcome, Stage
from fairlead.engine.gpu.resolver.winner import obstacle
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.engine.gpu.store import Drafts, Store
from fairlead.engine.gpu.values import SYSTEM, NotFound, Refused
from fairlead.ports.chance import Chance
from fairlead.ports.ledger import Damaged, Draft
from fairlead.schema.border import check_shape, parse_json
from fairlead.schema.objects import BudgetManifest, NodeManifest, RunManifest, to_budget
from fairlead.schema.resolve import ResolveDocument, to_conflict

Scopes = list[tuple[Scope, str | None]]
"""Scopes, each with the owner of its cap."""


class Resolving(Effects, Store):
    """The resolver's part of the control plane."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._conflicts: dict[int, tuple[Conflict, Names | None]] = {}
        """Conflicts of open outcomes, as they were frozen; the ledger has them too."""
        if self._chance is not None and not self._is_the_ledgers(self._chance):
            # Nothing may be fixed or drawn with another one: it could never be shown.
            self._chance, self.faults["*chance"] = None, ANOTHER_MASTER
        self._introduced = self._chance is None

    @property
    def _resolves(self) -> bool:
        """Whether anybody is really made to give way."""
        return self.config.resolver == "enforce" and self._chance is not None

    def _is_the_ledgers(self, chance: Chance) -> bool:
        """Whether this is the master secret that the first chain was fixed with."""
        first = next(iter(self._projection.resolver.chains.values()), None)
        return first is None or (
            entropy_hash(chance.entropy(first.chain, first.k)) == first.commitment
        )

    # -- what is published long before ----------------------------------------------------------

    def _also(self, wishes: Sequence[Wish]) -> Drafts:
        """In the batch of new objects, and before them: the secrets of their owners and scopes."""
        if self._chance is None:
            return []
        owners: set[str] = set()
        scopes: Scopes = []
        for wish in wishes:
            given = wish.given
            if isinstance(given, BudgetManifest):
                owners.add(given.spec.owner)
                scopes += _of_budget(to_budget(given.metadata.name, given.spec))
            elif isinstance(given, RunManifest):
                owners.add(given.spec.owner)
            elif isinstance(given, NodeManifest):
                scopes += [(scope, None) for scope in scopes_of_node(given.spec)]
        return list(introductions(self._projection, self._chance, owners, scopes, self._now()))

    def _introduce(self) -> None:
        """Once after a start: what was applied while nobody kept secrets."""
        if self._introduced or self._chance is None:
            return
        chance = self._chance

        def decide() -> Drafts:
            projection = self._projection
            owners = {budget.owner for budget in projection.budgets.values()}
            owners |= {projection.run_spec(name).owner for name in projection.runs}
            scopes: Scopes = []
            for stored in projection.of_kind("Node"):
                scopes += [(scope, None) for scope in scopes_of_node(node_spec(stored))]
            for budget in projection.budgets.values():
                scopes += _of_budget(budget)
            return list(introductions(projection, chance, owners, scopes, self._now()))

        self._commit(decide)
        self._introduced = True

    # -- one resolve ----------------------------------------------------------------------------

    def _begin(self, case: Case) -> Outcome:
        """Freeze the conflict and promise an outcome; then go as far as that goes by itself."""
        chance, chain = self._fixed(case)
        frozen: list[tuple[Conflict, Names]] = []

        def decide() -> Drafts:
            now_ms, known = self._now(), self._projection.resolver.chains[chain]
            self._refuse_open(case.scope.flavor)
            if case.asked is not None and not self._is_next(case):
                raise Refused("ResolveOpen", "another replica made this step")
            names = Names(self._projection, chance, chain, known.k)
            found = freeze(
                self._projection,
                names,
                case.scope,
                case.deficit_gpus,
                beneficiary=case.run,
                node=case.node,
                owner_weighting=self.config.owner_weighting,
            )
            frozen[:] = [(found.conflict, names)]
            return commit_drafts(
                self._projection,
                names,
                chain=chain,
                case=case,
                frozen=found,
                beacon=self._future_round(now_ms),
                now_ms=now_ms,
                owner_weighting=self.config.owner_weighting,
            )

        commit = self._commit(decide)[0]
        self._conflicts[commit.seq] = frozen[0]
        self._proceed(self._now())
        return self._projection.resolver.outcomes[commit.seq]

    def _fixed(self, case: Case) -> tuple[Chance, str]:
        """The chain of a scope; where it is new, its entropy is fixed first, durably."""
        chance = self._chance
        if chance is None:
            raise Refused("NoChance", "this control plane has no master secret to draw lots with")
        owner = None
        if case.scope.cap is not None:
            owner = self._projection.budgets[case.scope.cap.budget].owner
        scopes = [(case.scope, owner)]
        self._commit(lambda: list(introductions(self._projection, chance, (), scopes, self._now())))
        return chance, chain_of(chance, case.scope, owner)

    def _is_next(self, case: Case) -> bool:
        """Whether a resolve is still the next step of its request."""
        asked = self._projection.resolver.asked.get(case.asked or 0)
        return asked is not None and asked.steps[0] == case.step

    def _refuse_open(self, flavor: str) -> None:
        outcome = self._projection.resolver.open_outcome(flavor)
        if outcome is not None:
            raise Refused(
                "ResolveOpen",
                f"outcome {outcome.seq} of {flavor} is not over; one resolve per flavor at a time",
            )

    def _future_round(self, now_ms: int) -> dict[str, Any] | None:
        beacon = self.config.beacon
        if beacon is None:
            return None
        number = beacon.round_after(now_ms)
        # A clock may be late, or a value supplied early: what is known decides nothing.
        while beacon_key({"source": beacon.source, "round": number}) in (
            self._projection.resolver.beacons
        ):
            number += 1
        return {"round": number, "source": beacon.source}

    def _proceed(self, now_ms: int) -> None:
        """Every open outcome as far as it can go now."""
        for seq in sorted(self._projection.resolver.open_seqs.values()):
            self._draw(seq, now_ms)
        self._commit(lambda: self._due(now_ms))
        for seq in sorted(self._projection.resolver.open_seqs.values()):
            self._commit(partial(self._finish, seq, now_ms))
        for seq in [seq for seq in self._conflicts if not self._is_open(seq)]:
            del self._conflicts[seq]

    def _is_open(self, seq: int) -> bool:
        outcome = self._projection.resolver.outcomes.get(seq)
        return outcome is not None and outcome.stage.open

    def _draw(self, seq: int, now_ms: int) -> None:
        outcome = self._projection.resolver.outcomes[seq]
        # Where nobody is to be cut a commitment stays open; it can be drawn later, or voided.
        if outcome.stage is Stage.COMMITTED and self._resolves and not self._waits(outcome):
            self._commit(lambda: self._answer(seq, now_ms))

    def _beacon_value(self, outcome: Outcome) -> str | None:
        """The value of the round that was committed to, if there is one and it is known."""
        if outcome.beacon is None:
            return None
        return self._projection.resolver.beacons.get(beacon_key(outcome.beacon))

    def _waits(self, outcome: Outcome) -> bool:
        return outcome.beacon is not None and self._beacon_value(outcome) is None

    def _answer(self, seq: int, now_ms: int) -> Drafts:
        """The draw and what it takes from whom; or a void, if its winner would not start."""
        outcome, chance = self._projection.resolver.outcomes[seq], self._chance
        if outcome.stage is not Stage.COMMITTED or chance is None:
            return []  # another replica was quicker
        conflict, names = self._conflict(outcome)
        shown = show(self._projection, chance, outcome, conflict, self._beacon_value(outcome))
        resolution = known(shown.resolution, "what waits for no beacon is decided")
        if names is None:
            names = Names(self._projection, chance, outcome.chain, outcome.k)
            name_open_leases(self._projection, names, outcome.flavor)
        actions = clear_actions(self._projection, names, resolution.actions)
        why = self._obstacle(outcome, [lease for lease, _ in actions], now_ms)
        head = self._ledger.head().as_document()
        final = final_draft(chance, outcome, shown, commit_head=head, now_ms=now_ms, void=why)
        if why is not None:
            return [final]
        grace_ms = self.config.grace_ms
        return [
            final,
            *cut_drafts(self._projection, seq, actions, default_grace_ms=grace_ms, now_ms=now_ms),
        ]

    def _obstacle(self, outcome: Outcome, ending: list[LeaseFact], now_ms: int) -> str | None:
        reservation = outcome.reservation
        if reservation is not None and reservation not in self._projection.resolver.reservations:
            return "the reservation that it was for is gone"
        if outcome.run is None:
            return None
        return obstacle(self._projection, outcome.run, ending, now_ms)

    def _conflict(self, outcome: Outcome) -> tuple[Conflict, Names | None]:
        """What was frozen, from memory with its names, or from the ledger without."""
        known = self._conflicts.get(outcome.seq)
        if known is None:
            data = self._ledger.blob_get(outcome.conflict_digest)
            if data is None:
                raise Damaged(f"the conflict of outcome {outcome.seq} is missing")
            document = {**parse_json(data), "seed": "0" * 64}
            known = (to_conflict(check_shape(document, ResolveDocument)), None)
            self._conflicts[outcome.seq] = known
        return known

    def _due(self, now_ms: int) -> Drafts:
        return list(
            due_drafts(
                self._projection, now_ms=now_ms, has_process=self._has_process, told=self._was_told
            )
        )

    def _finish(self, seq: int, now_ms: int) -> Drafts:
        """Everybody has given way: the winner starts, and the outcome is over."""
        outcome = self._projection.resolver.outcomes[seq]
        if outcome.stage is not Stage.DRAWN or outcome.cutting:
            return []
        drafts: Drafts = []
        state = self._projection.runs.get(outcome.run or "")
        if outcome.run is not None and state is not None and state.phase is Phase.PENDING:
            drafts = admission(self._projection, outcome.run, now_ms)
        started = any(draft.kind == "lease.open" for draft in drafts)
        drafts += self._activated(outcome, now_ms, started=started)
        body = {"outcome": seq, "started": outcome.run if started else None}
        applied = Draft(
            kind="gpu.resolve.applied",
            time_ms=now_ms,
            author=SYSTEM,
            body=body,
            plan_id=f"outcome.{seq}",
            effect="applied",
        )
        return [*drafts, applied]

    def _activated(self, outcome: Outcome, now_ms: int, *, started: bool) -> Drafts:
        """What an outcome's end means to its reservation; see `Reserving`."""
        return []

    def _held(self, run: str, now_ms: int) -> bool:
        """Whether a run waits because what is free is meant for the winner of an open outcome."""
        outcome = self._projection.resolver.open_outcome(self._projection.run_spec(run).flavor)
        if outcome is None:
            return False
        return outcome.stage is Stage.DRAWN or now_ms < outcome.time_ms + self.config.hold_ms

    def _outcome(self, seq: int) -> Outcome:
        found = self._projection.resolver.outcomes.get(seq)
        if found is None:
            raise NotFound("outcome", str(seq))
        return found


def _of_budget(budget: Budget) -> Scopes:
    return [(scope, budget.owner) for scope in scopes_of_budget(budget)]
