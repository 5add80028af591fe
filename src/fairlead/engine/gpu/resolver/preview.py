"""Preemption previews: which runs would lose what, and the odds of the others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import msgspec
from msgspec import Struct, field

from fairlead.core import gpu
from fairlead.core.lottery.pseudonym import chain_id
from fairlead.core.units import counted
from fairlead.engine.gpu.backfill import ended_by
from fairlead.engine.gpu.checkpoint import imagined
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import Document, FundRefusal, LeaseUnfunded
from fairlead.engine.gpu.projection import Projection, reservation_spec, starts_ms
from fairlead.engine.gpu.recall import recall_entries
from fairlead.engine.gpu.resolver.chains import needed, pseudonyms
from fairlead.engine.gpu.resolver.deficit import Shortage, free_at, need_of, shortage_of
from fairlead.engine.gpu.resolver.outcome import Case
from fairlead.engine.gpu.starting import StartAnswer
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.engine.gpu.values import Refused
from fairlead.ports.entropy import EntropySource
from fairlead.schema.convert import convert
from fairlead.schema.times import format_time

NAMED_MAX = 20  # in a sentence; a preview names all

CANDIDATES = "would be preempted: "
"""Names follow, up to the end of the message."""
Tier = Literal["unfunded", "nominated", "funded"]


class CutRow(Struct, forbid_unknown_fields=True):
    """A lease that ends by rule, whatever the lottery selects."""

    run: str
    owner: str
    lease: str
    kind: Literal["DropSpare", "Shrink"]
    gpus: int
    tier: Tier


class RiskRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A run at risk: its odds are one in `oneIn` at the first draw, and `chance` in all draws
    together, off by `chanceError` at most 19 times in 20 (0: exact); `certain`: no lottery."""

    run: str
    owner: str
    tier: Tier
    one_in: int = field(name="oneIn")
    chance: float
    chance_error: float = field(name="chanceError")
    certain: bool
    times: int = 1
    """More than 1 where every GPU is as likely as the next: so many times `oneIn`."""


class PlaceDocument(Struct, forbid_unknown_fields=True):
    """The scope in which GPUs are missing."""

    flavor: str
    location: dict[str, str]


class Forecast(Struct, kw_only=True, forbid_unknown_fields=True):
    """Preemption preview: leases that end by rule, runs at risk with odds, GPUs still missing.

    Where the lottery has a choice, leases that end by rule may be restored after it.
    """

    scope: PlaceDocument | None
    deficit_gpus: int = field(name="deficitGPUs")
    shortfall_gpus: int = field(name="shortfallGPUs")
    cuts: list[CutRow]
    at_risk: list[RiskRow] = field(name="atRisk")

    def document(self) -> Document:
        return cast(Document, msgspec.to_builtins(self))

    def refuse_short(self) -> None:
        """No run is preempted where it would not be enough."""
        if self.shortfall_gpus:
            raise Refused(
                "NotEnough",
                f"{counted(self.shortfall_gpus, 'GPU')} would be missing even if every candidate "
                "in scope were preempted",
            )


class AssumedEnds(Struct, forbid_unknown_fields=True):
    """Runs that hold devices now and are taken to have ended by then, because their `duration` or
    `maxRuntime` says so. One without either is taken to run on, and runs that wait to be waiting.
    """

    runs: int
    gpus: int


class DueBefore(Struct, forbid_unknown_fields=True):
    """Reservations of the flavor that are due by then. What they take is not counted: it is not
    known until they start."""

    runs: int
    gpus: int


class RecalledLeases(Struct, forbid_unknown_fields=True):
    """Leases of others on envelopes of the run's owner that would be unfunded for it. The rest of
    the preview is what follows then."""

    leases: int
    gpus: int


class RunForecast(Forecast, kw_only=True):
    """The preview of a pending run: when it could start, with and without preemption.

    A run with a refusal is not funded, so no run is preempted for it. A time is null where it
    cannot be known.
    """

    ended: AssumedEnds
    due: DueBefore
    recall: RecalledLeases | None
    starts: bool
    refusal: FundRefusal | None
    earliest_start: str | None = field(name="earliestStart")
    without_cuts: str | None = field(name="withoutCuts")


NOTHING = Forecast(scope=None, deficit_gpus=0, shortfall_gpus=0, cuts=[], at_risk=[])


class StartForecast(NamedTuple):
    """A start at a time: what the run lacks, the leases that will have ended, who loses what."""

    need: StartAnswer
    ended: tuple[LeaseFact, ...]
    shown: Forecast


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
                now = "unknown" if state is None else state.phase.value
                why = f"run {run!r} is {now}, not Pending: there is nothing to preview"
                raise Refused("NotPending", why)
            opened = projection.resolver.open_outcome(projection.run_spec(run).flavor)
            if opened is not None and opened.run == run:
                raise Refused(
                    "Resolving", f"other runs are being preempted for it, by outcome {opened.seq}"
                )
            return self.of_run(run, at_ms, projection)

    def of_run(self, run: str, at_ms: int, projection: Projection) -> Document:
        """The same, at a time and in a projection."""
        now_ms, recalled = self._committer.now(), list[LeaseFact]()
        need, ended, shown = self.at(run, at_ms, projection)
        if need.refusal is not None:
            made = recall_entries(Context(projection, now_ms), run)
            ids = [each.body.lease for each in made if isinstance(each.body, LeaseUnfunded)]
            recalled = [projection.leases[lease] for lease in ids]
        if recalled:
            projection = imagined(projection, made)
            need, ended, shown = self.at(run, at_ms, projection)
        found, possible = need.found, need.found.starts
        waiting = format_time(at_ms) if found.starts else None
        if found.gang is not None and not found.starts:
            if shown is not NOTHING:
                possible = self._config.resolver == "enforce" and not shown.shortfall_gpus
            free_ms = free_at(projection, found.gang, now_ms)
            waiting = None if free_ms is None else format_time(max(free_ms, at_ms))
        return {
            "starts": found.starts,
            "refusal": None if need.refusal is None else msgspec.to_builtins(need.refusal),
            **shown.document(),
            "ended": {
                "runs": len({lease.run for lease in ended}),
                "gpus": sum(lease.gpus for lease in ended),
            },
            "due": _due_before(projection, run, at_ms),
            "recall": _sum(recalled) if recalled else None,
            "withoutCuts": waiting,
            "earliestStart": format_time(at_ms) if possible else waiting,
        }

    def at(self, run: str, at_ms: int, projection: Projection | None = None) -> StartForecast:
        """What a start at a time would take: runs that will have ended lose nothing, and others
        are candidates by then."""
        projection, now_ms = projection or self._committer.projection, self._committer.now()
        flavor = projection.run_spec(run).flavor
        ended = ended_by(projection, flavor, at_ms, now_ms=now_ms, policy=self._config.backfill)
        need = need_of(projection, run, now_ms, ended)
        if need.found.gang is None or need.found.starts:
            return StartForecast(need, ended, NOTHING)
        demand = gpu.GangDemand(run, need.found.gang)
        protection = replace(self._committer.protection(), now_ms=at_ms)
        gone = frozenset(lease.id for lease in ended)
        shortage = shortage_of(projection, demand, protection, gone)
        if shortage.deficit.scope is None:
            return StartForecast(need, ended, NOTHING)
        return StartForecast(
            need, ended, self.of_case(Case("run", demand, run=run), projection, shortage)
        )

    def of_case(
        self, case: Case, projection: Projection | None = None, shortage: Shortage | None = None
    ) -> Forecast:
        """Which runs would lose leases by rule, and which might, with which odds."""
        projection, chance = projection or self._committer.projection, needed(self._chance)
        shortage = shortage or shortage_of(projection, case.demand, self._committer.protection())
        scope = shortage.deficit.scope
        if scope is None:
            return NOTHING
        chain = chain_id(scope.flavor)
        last = projection.resolver.chains.get(chain)
        # Ties go by the pseudonyms of the very outcome that would come next.
        names = pseudonyms(projection, chance, chain, 0 if last is None else last.turn)
        conflict = gpu.freeze(case.demand, shortage.deficit, shortage.holdings, names).conflict
        outlook = gpu.forecast(conflict, owner_weighting=self._config.owner_weighting)
        chances = {
            row.run: row
            for row in gpu.total_odds(conflict, owner_weighting=self._config.owner_weighting)
        }
        clear = {**names.runs, **names.leases, **names.owners}
        owner_of = {run.id: clear[run.owner] for run in conflict.runs}
        kept = {action.lease for action in outlook.withdrawn}
        cuts = [
            {
                "run": clear[action.run],
                "owner": owner_of[action.run],
                "lease": clear[action.lease],
                "kind": action.kind.value,
                "gpus": action.gpus,
                "tier": action.tier.value,
            }
            for action in outlook.actions
            if action.lease not in kept
        ]
        risks = [
            {
                "run": clear[odds.token],
                "owner": clear[odds.owner],
                "tier": risk.tier.value,
                "oneIn": odds.chance.denominator,
                "times": odds.chance.numerator,
                "chance": chances[odds.token].chance,
                "chanceError": chances[odds.token].error,
                "certain": risk.all_lost,
            }
            for risk in outlook.risks
            for odds in risk.odds
        ]
        return Forecast(
            scope=PlaceDocument(scope.flavor, dict(scope.location)),
            deficit_gpus=conflict.deficit_gpus,
            shortfall_gpus=outlook.shortfall_gpus,
            cuts=convert(cuts, list[CutRow]),
            at_risk=convert(risks, list[RiskRow]),
        )

    def sentence(self, case: Case) -> str:
        """In words, for a rehearsal: they are recorded though no preview is asked for."""
        if not self.possible:
            return "there is no preview without a master secret"
        shown = self.of_case(case)
        losses = sorted({f"{row.run} ({row.kind})" for row in shown.cuts})
        risks = sorted(f"{row.run} ({row.times} in {row.one_in})" for row in shown.at_risk)
        names = [*losses, *risks]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return f"{CANDIDATES}{', '.join(names[:NAMED_MAX])}{more}"


def _sum(leases: Sequence[LeaseFact]) -> Document:
    return {"leases": len(leases), "gpus": sum(lease.gpus for lease in leases)}


def _due_before(projection: Projection, run: str, at_ms: int) -> Document:
    """Other reservations that wait and are due by a time, of the run's flavor."""
    waiting = (
        projection.run_spec(name)
        for stored in projection.of_kind("Reservation")
        if (name := reservation_spec(stored).run) != run
        and projection.resolver.reservations[stored.name].waits
        and starts_ms(stored) <= at_ms
    )
    flavor = projection.run_spec(run).flavor
    widths = [spec.gpus for spec in waiting if spec.flavor == flavor]
    return {"runs": len(widths), "gpus": sum(widths)}


def without_names(message: str) -> str:
    """A recorded sentence for those who may not know other owners' runs."""
    return message.partition(CANDIDATES)[0].rstrip(": ")
