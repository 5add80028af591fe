"""Preemption previews: which runs would lose what, and the odds of the others."""

from dataclasses import dataclass

import msgspec

from fairlead.core.gpu import Conflict, Forecast, GangDemand, Scope, forecast, freeze
from fairlead.core.lottery import Pseudonyms
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document
from fairlead.engine.gpu.projection import Projection, reservation_spec, starts_ms
from fairlead.engine.gpu.resolver.chains import cap_owner, chain_of, needed, pseudonyms
from fairlead.engine.gpu.resolver.deficit import Shortage, free_at, need_of, shortage_of
from fairlead.engine.gpu.resolver.outcome import Case
from fairlead.engine.gpu.state import Phase
from fairlead.engine.gpu.values import Refused
from fairlead.ports.entropy import EntropySource
from fairlead.schema.times import format_time

NAMED_MAX = 20  # in a sentence; a preview names all

NOTHING = Forecast(0)


@dataclass(frozen=True, slots=True)
class Preview:
    """What freeing GPUs would take now: a forecast, and the names behind its pseudonyms."""

    scope: Scope | None = None
    conflict: Conflict | None = None
    outlook: Forecast = NOTHING
    names: Pseudonyms | None = None

    @property
    def deficit_gpus(self) -> int:
        return 0 if self.conflict is None else self.conflict.deficit_gpus

    @property
    def shortfall_gpus(self) -> int:
        return self.outlook.shortfall_gpus

    def document(self) -> Document:
        """As the API shows it: which runs lose leases by rule, and which might, with their odds."""
        names, scope = self.names, self.scope
        clear = {} if names is None else {**names.runs, **names.leases, **names.owners}
        runs = () if self.conflict is None else self.conflict.runs
        owner_of = {run.id: clear[run.owner] for run in runs}
        kept = {action.lease for action in self.outlook.withdrawn}
        return {
            "scope": scope and {"flavor": scope.flavor, "location": dict(scope.location)},
            "deficitGPUs": self.deficit_gpus,
            "shortfallGPUs": self.shortfall_gpus,
            "cuts": [
                {
                    "run": clear[action.run],
                    "owner": owner_of[action.run],
                    "lease": clear[action.lease],
                    "kind": action.kind.value,
                    "gpus": action.gpus,
                    "tier": action.tier.value,
                }
                for action in self.outlook.actions
                if action.lease not in kept
            ],
            "atRisk": [
                {
                    "run": clear[odds.token],
                    "owner": clear[odds.owner],
                    "tier": risk.tier.value,
                    "oneIn": odds.chance.denominator,
                    "certain": risk.all_lost,
                }
                for risk in self.outlook.risks
                for odds in risk.odds
            ],
        }

    def refuse_short(self) -> None:
        """No run is preempted where it would not be enough."""
        if self.shortfall_gpus:
            raise Refused(
                "NotEnough",
                f"{self.shortfall_gpus} GPUs would be missing even if every candidate in scope "
                "were preempted",
            )


class Previews:
    """Forecasts for runs, reservations and cases."""

    def __init__(self, committer: Committer, chance: EntropySource | None) -> None:
        self._committer, self._config, self._chance = committer, committer.config, chance

    @property
    def possible(self) -> bool:
        return self._chance is not None

    def of(self, kind: str, name: str) -> Document:
        """What starting a run, or a reservation's, would take now: when, and which runs lose."""
        with self._committer.current() as projection:
            stored, at_ms = self._committer.stored(kind, name), self._committer.now()
            run = name
            if kind == "Reservation":
                run, at_ms = reservation_spec(stored).run, max(at_ms, starts_ms(stored))
            state = projection.runs.get(run)
            if state is None or state.phase is not Phase.PENDING:
                raise Refused("NotPending", f"run {run!r} is not waiting")
            opened = projection.resolver.open_outcome(projection.run_spec(run).flavor)
            if opened is not None and opened.run == run:
                raise Refused(
                    "Resolving", f"other runs are being preempted for it, by outcome {opened.seq}"
                )
            return self.of_run(run, at_ms, projection)

    def of_run(self, run: str, at_ms: int, projection: Projection) -> Document:
        """The same, at a time and in a projection."""
        now_ms = self._committer.now()
        need = need_of(projection, run, now_ms)
        if need.starts or need.gang is None:
            start = format_time(at_ms) if need.starts else None
            return {
                "starts": need.starts,
                "refusal": None if need.refusal is None else msgspec.to_builtins(need.refusal),
                "earliestStart": start,
                "withoutCuts": start,
                **Preview().document(),
            }
        demand = GangDemand(run, need.gang)
        shortage = shortage_of(projection, demand)
        possible, shown = False, Preview()
        if shortage.deficit.scope is not None:
            shown = self.of_case(Case("run", demand, run=run), projection, shortage)
            possible = not shown.shortfall_gpus
        free_ms = free_at(projection, need.gang, now_ms)
        waiting = None if free_ms is None else format_time(max(free_ms, at_ms))
        preempts = self._config.resolver == "enforce" and possible
        return {
            "starts": False,
            "refusal": None,
            **shown.document(),
            "withoutCuts": waiting,
            "earliestStart": format_time(at_ms) if preempts else waiting,
        }

    def of_case(
        self, case: Case, projection: Projection | None = None, shortage: Shortage | None = None
    ) -> Preview:
        """Which runs would lose leases by rule, and which might, with which odds."""
        projection, chance = projection or self._committer.projection, needed(self._chance)
        shortage = shortage or shortage_of(projection, case.demand)
        scope = shortage.deficit.scope
        if scope is None:
            return Preview()
        chain = chain_of(chance, scope, cap_owner(projection, scope))
        last = projection.resolver.chains.get(chain)
        # Ties go by the pseudonyms of the very outcome that would come next.
        names = pseudonyms(projection, chance, chain, 0 if last is None else last.k)
        conflict = freeze(case.demand, shortage.deficit, shortage.holdings, names).conflict
        outlook = forecast(conflict, owner_weighting=self._config.owner_weighting)
        return Preview(scope, conflict, outlook, names)

    def sentence(self, case: Case) -> str:
        """In words, for a rehearsal: they are recorded though no preview is asked for."""
        if not self.possible:
            return "there is no preview without a master secret"
        shown = self.of_case(case).document()
        losses = sorted({f"{row['run']} ({row['kind']})" for row in shown["cuts"]})
        risks = sorted(f"{row['run']} (1 in {row['oneIn']})" for row in shown["atRisk"])
        names = [*losses, *risks]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return f"would be preempted: {', '.join(names[:NAMED_MAX])}{more}"
