"""What people ask of the resolver: free GPUs of a place, bring a budget within its caps, start a
run now, drain a node.

A budget that was lowered is brought back within its caps by one resolve after the other: the caps
that bind by name, and a place, if one is given too, last. Each resolve is decided on what the one
before left, and so waits for its end, graces included. What is still to be done stands in the
ledger; another turn, after a crash or by another replica, continues with it.

    gpu.resolve.asked    the budget, the caps that bind, the place
    gpu.resolve.case     an outcome is begun for the next of them, and cites the request
    gpu.resolve.passed   no resolve is needed for it any more, or none is possible; and why
"""

from collections.abc import Sequence

from fairlead.core.gpu import Budget, CapDemand, GangDemand, NodeDemand, PlaceDemand, Scope, caps_of
from fairlead.core.invariant import known
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.checkpoint import imagined
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import Document, NewEntry
from fairlead.engine.gpu.leases import swap
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.resolver.deficit import need_of, shortage_of
from fairlead.engine.gpu.resolver.outcome import Case, Outcomes, not_enough, refuse_tenants
from fairlead.engine.gpu.resolver.preview import NOTHING, Forecast, Previews
from fairlead.engine.gpu.settlement import Settlement
from fairlead.engine.gpu.state import PLACE, BudgetRequest, Phase, Step, Stored
from fairlead.engine.gpu.values import Author, Forbidden, NotFound, Refused
from fairlead.schema.border import BadInput
from fairlead.schema.words import readable

StepState = tuple[str, int | None]
"""What became of a step, and its outcome."""


class Resolver:
    """The resolver as people use it."""

    def __init__(
        self,
        committer: Committer,
        settlement: Settlement,
        effects: Effects,
        outcomes: Outcomes,
        previews: Previews,
    ) -> None:
        self._committer, self._config = committer, committer.config
        self._settlement, self._effects = settlement, effects
        self._outcomes, self._previews = outcomes, previews
        self._projection = committer.projection
        self.preview = previews.of

    @property
    def enforced(self) -> bool:
        return self._outcomes.enforced

    # -- a place, a cap, a budget -----------------------------------------------------------------

    def resolve(
        self,
        *,
        flavor: str,
        gpus: int,
        author: Author,
        location: dict[str, str] | None = None,
        dry_run: bool = False,
    ) -> Document:
        """Free so many GPUs somewhere, for maintenance: no run is placed on them."""
        refuse_tenants(author)
        demand = PlaceDemand(flavor, dict(location or {}), gpus)
        with self._committer.current() as projection:
            _refuse_unknown(projection, demand.scope)
            return self._by_hand(Case("scope", demand, author.user), dry_run=dry_run)

    def resolve_cap(
        self, budget: str, cap: str, *, author: Author, dry_run: bool = False
    ) -> Document:
        """Free what a lowered budget does not pay for any more, among what that cap pays."""
        refuse_tenants(author)
        with self._committer.current():
            named = [demand for demand in caps_of(self._budget(budget)) if demand.name == cap]
            if not named:
                raise NotFound("cap", f"{budget}/{cap}")
            return self._by_hand(Case("cap", named[0], author.user), dry_run=dry_run)

    def resolve_budget(
        self,
        budget: str,
        *,
        author: Author,
        place: tuple[Scope, int] | None = None,
        dry_run: bool = False,
    ) -> Document:
        """The same for every cap of a budget that binds, by name; then for a place.

        A dry run shows each against the present state: which runs the first ones hit, the lottery
        decides.
        """
        refuse_tenants(author)
        with self._committer.current() as projection:
            caps, acts = caps_of(self._budget(budget)), self.enforced and not dry_run
            if acts:
                self._settlement.refund([budget])
            binding = [cap for cap in caps if shortage_of(projection, cap).deficit.gpus]
            cases = {_step(cap): Case("cap", cap, author.user) for cap in binding}
            freed = None
            if place is not None:
                freed = entries.Place(place[0].flavor, dict(place[0].location), place[1])
                cases[PLACE] = Case("scope", _place_demand(freed), author.user)
            shown = {step: self._previews.of_case(case) for step, case in cases.items()}
            state: dict[Step, StepState] = dict.fromkeys(cases, ("forecast", None))
            if acts and cases:
                for preview in shown.values():
                    preview.refuse_short()
                    if preview.scope is not None:
                        self._outcomes.refuse_open(preview.scope.flavor)
                state = self._request(budget, list(cases), freed, author)
            return _steps_document(shown, state)

    def _by_hand(self, case: Case, *, dry_run: bool) -> Document:
        shown = self._previews.of_case(case)
        result: Document = {"outcome": None, "forecast": shown.document()}
        if not dry_run and self._config.resolver == "enforce" and shown.deficit_gpus:
            shown.refuse_short()
            result["outcome"] = self._outcomes.begin(case).seq
            self._effects.carry_out()
        return result

    def _request(
        self, budget: str, steps: list[Step], place: entries.Place | None, author: Author
    ) -> dict[Step, StepState]:
        """Record what is to be done and begin; what became of each step."""
        named = tuple(entries.StepName(kind, name) for kind, name in steps)
        body = entries.BudgetRequested(budget, named, place)
        (entry,) = self._committer.commit(lambda: [self._committer.new(body, author.user)])
        begun: dict[Step, int] = {}
        while self._next_step(entry.seq, begun):
            pass
        self._effects.carry_out()
        request = self._projection.resolver.requests.get(entry.seq)
        left = [] if request is None else request.steps
        return {
            step: ("begun", begun[step])
            if step in begun
            else ("waits" if step in left else "passed", None)
            for step in steps
        }

    def proceed(self) -> None:
        """Every request that is not over yet, as far as it goes now."""
        for seq in sorted(self._projection.resolver.requests):
            while self._next_step(seq, {}):
                pass

    def _next_step(self, seq: int, begun: dict[Step, int]) -> bool:
        """The next step of a request is begun, or skipped; False: it is over, or waits."""
        request = self._projection.resolver.requests.get(seq)
        if request is None or (request.outcome and self._outcomes.is_open(request.outcome)):
            return False
        step = request.steps[0]
        if request.budget in self._projection.budgets:
            self._settlement.refund([request.budget])  # what the last step left may be funded again
        try:
            case = self._case_of(request)
        except Refused as why:
            passed = entries.StepSkipped(seq, request.budget, *step, why.reason, why.message)

            def skip() -> Sequence[NewEntry]:
                still = self._projection.resolver.requests.get(seq)
                quicker = still is None or still.steps[0] != step  # another replica
                return [] if quicker else [self._committer.new(passed)]

            self._committer.commit(skip)
            return True
        try:
            begun[step] = self._outcomes.begin(case).seq
        except Refused:  # an outcome of the flavor is open, or another replica was quicker
            return False
        return True

    def _case_of(self, request: BudgetRequest) -> Case:
        """The next step; raises `Refused` where there is no resolve for it."""
        if not self.enforced:
            raise Refused("ResolverOff", f"the resolver is {self._config.resolver}")
        step, place = request.steps[0], request.place
        demand: PlaceDemand | CapDemand
        if step == PLACE and place is not None:
            cause, demand = "scope", _place_demand(place)
        else:
            budget = self._projection.budgets.get(request.budget)
            caps = [] if budget is None else [cap for cap in caps_of(budget) if _step(cap) == step]
            if not caps:
                raise Refused("Gone", "there is no such cap any more")
            cause, demand = "cap", caps[0]
        case = Case(cause, demand, request.author, request=request.seq, step=step)
        shown = self._previews.of_case(case)
        if not shown.deficit_gpus:
            raise Refused("WithinCap", "nothing is above it any more")
        if shown.shortfall_gpus:
            raise not_enough(shown.shortfall_gpus)
        return case

    def _budget(self, name: str) -> Budget:
        budget = self._projection.budgets.get(name)
        if budget is None:
            raise NotFound("Budget", name)
        return budget

    # -- a run that starts now --------------------------------------------------------------------

    def refuse_unless_allowed(self, run: str, author: Author) -> None:
        """Raises unless this author may preempt other runs for this one."""
        owner = self._projection.run_spec(run).owner
        may = author.may_act_for(owner) and owner in self._config.may_resolve
        if not (author.admin or may):
            raise Forbidden(f"{author.user} may not preempt other runs for runs of {owner!r}")

    def start_run(self, run: str, author: Author) -> None:
        """A waiting run starts now, by preemption where that is necessary and allowed."""
        with self._committer.current() as projection:
            self.refuse_unless_allowed(run, author)
            state = projection.runs[run]
            if state.phase is not Phase.PENDING or state.stopping:
                now = "being cancelled" if state.stopping else state.phase.value
                raise Refused("NotPending", f"run {run!r} is {now}, not Pending")
            if projection.waits_for_runs(run):
                raise Refused("DependencyPending", f"run {run!r} starts after others")
            need = need_of(projection, run, self._committer.now())
            if need.refusal is not None:
                raise Refused(need.refusal.code, readable(need.refusal.message))
            if need.found.starts:
                return  # the next turn starts it
            demand = GangDemand(run, known(need.found.gang, "what is funded is a gang"))
            shortage = shortage_of(projection, demand, self._committer.protection())
            refused = self._outcomes.refusal(shortage)
            if refused is not None:
                raise refused
            self._outcomes.begin(Case("run", demand, author.user, run=run))

    # -- a node that is drained -------------------------------------------------------------------

    def drain(self, stored: Stored, author: Author) -> None:
        """Cordon a node; gangs with spares elsewhere go on, the others are preempted in order."""
        if not author.admin:
            raise Forbidden(f"{author.user} may not change Node {stored.name!r}: admins only")
        name, flavor = stored.name, node_spec(stored).flavor
        self._outcomes.refuse_open(flavor)
        demand = NodeDemand(name, flavor)
        after = imagined(self._projection, self._cordoned(name, author))
        if shortage_of(after, demand).deficit.gpus:
            self._outcomes.ready()  # a refusal leaves the node as it was
        self._committer.commit(lambda: self._cordoned(name, author))
        if shortage_of(self._projection, demand).deficit.gpus:
            self._outcomes.begin(Case("drain", demand, author.user))

    def preview_drain(self, stored: Stored, author: Author) -> Document | None:
        """Which runs a drain would preempt now; None: none."""
        after = imagined(self._projection, self._cordoned(stored.name, author))
        demand = NodeDemand(stored.name, node_spec(stored).flavor)
        shortage = shortage_of(after, demand)
        if not shortage.deficit.gpus:
            return None
        case = Case("drain", demand, author.user)
        return self._previews.of_case(case, after, shortage).document()

    def _cordoned(self, node: str, author: Author) -> list[NewEntry]:
        """Out of service, and gangs with spares elsewhere go on with them."""
        self._committer.stored("Node", node)  # another replica may have deleted it
        at = self._committer.at(author.user)
        made = cordon(at, node, cordoned=True)
        for run in self._projection.runs_on(node):
            swapped, entries = swap(at, run, node)
            made += entries if swapped else []
        return made


def cordon(at: Context, name: str, *, cordoned: bool) -> list[NewEntry]:
    """The entry that takes a node out of service, or back; none where it is so already."""
    stored = at.projection.objects["Node"][name]
    if stored.document["cordoned"] == cordoned:
        return []
    spec, generation = {**stored.document, "cordoned": cordoned}, stored.generation + 1
    about = (stored.name, stored.uid, generation, stored.labels)
    return [at.entry(entries.ObjectApplied("Node", *about, spec))]


def _steps_document(
    shown: dict[Step, Forecast], state: dict[Step, tuple[str, int | None]]
) -> Document:
    """Every step with its state and outcome; the first ones stand for the whole."""
    return {
        "outcome": next((seq for _, seq in state.values() if seq is not None), None),
        "forecast": next(iter(shown.values()), NOTHING).document(),
        "steps": [
            {
                "kind": kind,
                "name": name or None,
                "state": state[kind, name][0],
                "outcome": state[kind, name][1],
                "forecast": preview.document(),
            }
            for (kind, name), preview in shown.items()
        ],
    }


def _step(cap: CapDemand) -> Step:
    return (cap.kind, cap.name)


def _place_demand(place: entries.Place) -> PlaceDemand:
    return PlaceDemand(place.flavor, place.location, place.gpus)


def _refuse_unknown(projection: Projection, scope: Scope) -> None:
    """A name that no node has is a typing error, not a shortage."""
    nodes = projection.devices.nodes
    flavors = sorted({node.flavor for node in nodes})
    if scope.flavor not in flavors:
        there = f"there are {', '.join(flavors)}" if flavors else "there are no nodes"
        raise BadInput("flavor", f"no node has {scope.flavor!r}; {there}")
    wanted = scope.location.items()
    if not any(node.flavor == scope.flavor and wanted <= node.location.items() for node in nodes):
        place = ", ".join(f"{key}={value}" for key, value in sorted(wanted))
        raise BadInput("location", f"no node with {scope.flavor} is in {place}")
