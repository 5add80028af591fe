"""A budget that was lowered is brought back within its caps: one resolve after the other.

The caps that bind are taken by name, and a place, if one is asked for too, comes last. Each resolve
is decided on what the one before left: whoever gave way for the first cap need not give way again
for the second. So each waits for the end of the one before, graces included. What is still to be
done stands in the ledger; a crash, or another replica, goes on with it.

    gpu.resolve.asked    the budget, the caps that bind, the place
    gpu.resolve.case     an outcome is begun for the next of them, and cites the request
    gpu.resolve.passed   nobody has to give way for it any more, or it cannot be done; and why
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairlead.core.gpu import Budget, Scope, ScopeCap
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.resolver.commands import ResolverCommands, refuse_others, refuse_short
from fairlead.engine.gpu.resolver.protocol import Case
from fairlead.engine.gpu.resolver.state import PLACE, Asked, Step
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.engine.gpu.store import Drafts
from fairlead.engine.gpu.values import SYSTEM, Author, NotFound, Refused

NOTHING: dict[str, Any] = {
    "scope": None,
    "deficitGPUs": 0,
    "shortfallGPUs": 0,
    "cuts": [],
    "atRisk": [],
}


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit of a budget, and who pays under it."""

    step: Step
    scope: Scope
    max_gpus: int | None
    metered: bool
    """Whether hours or loans are limited, too: then what is unpaid may be so because of it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Why there is no resolve for a step."""

    reason: str
    message: str


class Tightening(ResolverCommands):
    """The resolver for budgets that were lowered."""

    def resolve_cap(
        self, budget: str, cap: str, *, author: Author, dry_run: bool = False
    ) -> dict[str, Any]:
        """Free what a tightened budget does not pay for any more, among what that cap pays."""
        refuse_others(author)
        with self._lock:
            self._catch_up()
            named = [each for each in caps_of(self._budget(budget)) if each.step[1] == cap]
            if not named:
                raise NotFound("cap", f"{budget}/{cap}")
            case = self._cap_case(named[0], author.user)
        return self._by_hand(case, dry_run=dry_run)

    def resolve_budget(
        self,
        budget: str,
        *,
        author: Author,
        place: tuple[Scope, int] | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """The same for every cap of a budget that binds, by name; then for a place.

        A dry run shows each against the world as it is: whom the first ones hit, chance decides.
        """
        refuse_others(author)
        with self._lock:
            self._catch_up()
            found, acts = self._budget(budget), self._resolves and not dry_run
            if acts:
                self._refund([budget])
            cases: dict[Step, Case] = {
                cap.step: case
                for cap in caps_of(found)
                if (case := self._cap_case(cap, author.user)).deficit_gpus
            }
            if place is not None:
                cases[PLACE] = Case("scope", *place, author.user)
            shown = {step: self._forecast(case) for step, case in cases.items()}
            state: dict[Step, tuple[str, int | None]] = dict.fromkeys(cases, ("forecast", None))
            if acts and cases:
                for step, case in cases.items():
                    refuse_short(shown[step])
                    self._refuse_open(case.scope.flavor)
                state = self._ask(budget, cases, author)
            return {
                "outcome": next((seq for _, seq in state.values() if seq is not None), None),
                "forecast": next(iter(shown.values()), NOTHING),
                "steps": [
                    {
                        "kind": step[0],
                        "name": step[1] or None,
                        "state": state[step][0],
                        "outcome": state[step][1],
                        "forecast": shown[step],
                    }
                    for step in cases
                ],
            }

    def _ask(
        self, budget: str, cases: dict[Step, Case], author: Author
    ) -> dict[Step, tuple[str, int | None]]:
        """Record what is to be done and begin; what became of each step, and its outcome."""
        place = cases.get(PLACE)
        body = {
            "budget": budget,
            "steps": [{"kind": kind, "name": name} for kind, name in cases],
            "place": place
            and {
                "flavor": place.scope.flavor,
                "location": dict(place.scope.location),
                "gpus": place.deficit_gpus,
            },
        }
        (entry,) = self._commit(lambda: [self._draft("gpu.resolve.asked", author.user, body)])
        begun: dict[Step, int] = {}
        while self._next_step(entry.seq, begun):
            pass
        self._touch_world()
        asked = self._projection.resolver.asked.get(entry.seq)
        left = [] if asked is None else asked.steps
        return {
            step: (
                "begun" if step in begun else "waits" if step in left else "passed",
                begun.get(step),
            )
            for step in cases
        }

    def _tighten(self) -> None:
        """Every request that is not over yet, as far as it goes now."""
        for seq in sorted(self._projection.resolver.asked):
            while self._next_step(seq, {}):
                pass

    def _next_step(self, seq: int, begun: dict[Step, int]) -> bool:
        """The next step of a request is begun, or passed over; False: it is over, or waits."""
        asked = self._projection.resolver.asked.get(seq)
        if asked is None or (asked.outcome is not None and self._is_open(asked.outcome)):
            return False
        step = asked.steps[0]
        if asked.budget in self._projection.budgets:
            self._refund([asked.budget])  # what the last one left may be paid for again
        case = self._case_of(asked)
        if isinstance(case, Pass):
            why = case
            self._commit(lambda: self._pass(seq, step, why))
            return True
        if self._projection.resolver.open_outcome(case.scope.flavor) is not None:
            return False
        try:
            begun[step] = self._begin(case).seq
        except Refused:  # another replica was quicker
            return False
        return True

    def _case_of(self, asked: Asked) -> Case | Pass:
        if not self._resolves:
            return Pass("ResolverOff", f"the resolver is {self.config.resolver}")
        step, place = asked.steps[0], asked.place
        if step == PLACE and place is not None:
            scope = Scope(place["flavor"], place["location"])
            case = Case("scope", scope, place["gpus"], asked.author, asked=asked.seq, step=step)
        else:
            budget = self._projection.budgets.get(asked.budget)
            found = [] if budget is None else [c for c in caps_of(budget) if c.step == step]
            if not found:
                return Pass("Gone", "there is no such cap any more")
            case = self._cap_case(found[0], asked.author, asked.seq)
        if not case.deficit_gpus:
            return Pass("WithinCap", "nothing is above it any more")
        short = self._forecast(case)["shortfallGPUs"]
        if short:
            return Pass("NotEnough", f"{short} GPUs would be missing if everybody gave way")
        return case

    def _pass(self, seq: int, step: Step, why: Pass) -> Drafts:
        asked = self._projection.resolver.asked.get(seq)
        if asked is None or asked.steps[0] != step:
            return []  # another replica was quicker
        body = {
            "asked": seq,
            "budget": asked.budget,
            "kind": step[0],
            "name": step[1],
            "reason": why.reason,
            "message": why.message,
        }
        return [self._draft("gpu.resolve.passed", SYSTEM, body)]

    def _cap_case(self, cap: Cap, user: str, asked: int | None = None) -> Case:
        gpus = over(self._projection, cap)
        return Case("cap", cap.scope, gpus, user, asked=asked, step=cap.step)

    def _budget(self, name: str) -> Budget:
        found = self._projection.budgets.get(name)
        if found is None:
            raise NotFound("Budget", name)
        return found


def caps_of(budget: Budget) -> list[Cap]:
    """Aggregate caps, and envelopes as caps of their own; by name, an aggregate cap first."""
    return sorted(_caps(budget), key=lambda cap: (cap.step[1], cap.step[0]))


def _caps(budget: Budget) -> Iterator[Cap]:
    for each in budget.aggregate_caps:
        members = tuple(sorted(each.envelopes))
        scope = Scope(each.flavor, {}, ScopeCap(budget.name, each.name, members))
        metered = each.max_hours_ms is not None
        yield Cap(("aggregate", each.name), scope, each.max_gpus, metered)
    for own in budget.envelopes:
        scope = Scope(own.flavor, {}, ScopeCap(budget.name, own.name, (own.name,)))
        limits = (own.max_hours_ms, own.lending.max_gpus, own.lending.max_hours_ms)
        metered = any(limit is not None for limit in limits)
        yield Cap(("envelope", own.name), scope, own.gpus, metered)


def over(projection: Projection, cap: Cap) -> int:
    """GPUs above a cap's limit, or that its hours pay for no longer; less what is ending anyway."""
    payer = cap.scope.cap
    if payer is None:
        return 0
    used = unpaid = 0
    for lease in projection.leases.values():
        if lease.budget != payer.budget or lease.envelope not in payer.envelopes:
            continue
        if not _ends(projection, lease):
            used += lease.gpus
            unpaid += 0 if projection.is_funded(lease.id) else lease.gpus
    above = 0 if cap.max_gpus is None else used - cap.max_gpus
    return max(0, above, unpaid if cap.metered else 0)


def _ends(projection: Projection, lease: LeaseFact) -> bool:
    """Whether a lease is about to close, without anybody having to give way."""
    state = projection.runs[lease.run]
    if state.stopping or state.phase is not Phase.RUNNING:
        return True
    return state.cut is not None and (state.cut.preempts or lease.id in state.cut.leases)
