"""What people ask of the resolver: resolve a scope, forecast, void, add to the chance."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairlead.core.gpu import Conflict, Forecast, Scope, forecast
from fairlead.engine.gpu.applying import Wish, imagined
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.resolver.freeze import freeze
from fairlead.engine.gpu.resolver.names import Names, chain_of
from fairlead.engine.gpu.resolver.protocol import Case, final_draft, show
from fairlead.engine.gpu.resolver.reserving import Reserving, reservation_spec, starts_ms
from fairlead.engine.gpu.resolver.state import Stage
from fairlead.engine.gpu.resolver.winner import deficit_of, free_at, need_of
from fairlead.engine.gpu.state import Phase
from fairlead.engine.gpu.store import Drafts, Outcomes, Steps
from fairlead.engine.gpu.values import Author, Forbidden, NotFound, Refused
from fairlead.schema.border import BadInput
from fairlead.schema.objects import ReservationManifest
from fairlead.schema.times import format_time, parse_time

NAMED_MAX = 20  # in a sentence; a forecast names all
_NONCE = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_VALUE = re.compile(r"(?:[0-9a-f]{2}){1,256}")


class ResolverCommands(Reserving):
    """The resolver as people use it."""

    def resolve(
        self,
        *,
        flavor: str,
        gpus: int,
        author: Author,
        location: dict[str, str] | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Free so many GPUs somewhere, for maintenance: nobody is placed on them."""
        refuse_others(author)
        scope = Scope(flavor, dict(location or {}))
        with self._lock:
            self._catch_up()
            refuse_nowhere(self._projection, scope)
            return self._by_hand(Case("scope", scope, gpus, author.user), dry_run=dry_run)

    def _by_hand(self, case: Case, *, dry_run: bool) -> dict[str, Any]:
        with self._lock:
            self._catch_up()
            shown = self._forecast(case)
            if dry_run or self.config.resolver != "enforce" or not case.deficit_gpus:
                return {"outcome": None, "forecast": shown}
            refuse_short(shown)
            outcome = self._begin(case)
            self._touch_world()
            return {"outcome": outcome.seq, "forecast": shown}

    def forecast(self, kind: str, name: str) -> dict[str, Any]:
        """What starting a run, or a reservation's, would take now: when, and who is at risk."""
        with self._lock:
            self._catch_up()
            stored, at_ms = self._stored(kind, name), self._now()
            run = reservation_spec(stored).run if kind == "Reservation" else name
            if kind == "Reservation":
                at_ms = max(at_ms, starts_ms(stored))
            state = self._projection.runs.get(run)
            if state is None or state.phase is not Phase.PENDING:
                raise Refused("NotPending", f"run {run!r} is not waiting")
            flavor = self._projection.run_spec(run).flavor
            opened = self._projection.resolver.open_outcome(flavor)
            if opened is not None and opened.run == run:
                raise Refused("Resolving", f"others give way for it now, in outcome {opened.seq}")
            return self._outlook(self._projection, run, at_ms)

    def _imagine(self, wishes: Sequence[Wish], steps: Steps) -> Outcomes:
        """A dry run of a reservation says who would give way for it."""
        found = super()._imagine(wishes, steps)
        if self._chance is None:
            return found
        for at, wish in enumerate(wishes):
            if isinstance(wish.given, ReservationManifest):
                spec = wish.given.spec
                due_ms = max(self._now(), parse_time(spec.earliest_start, "spec.earliestStart"))
                outlook = self._outlook(imagined(self._projection, steps), spec.run, due_ms)
                preview = {**(found[at].preview or {}), "forecast": outlook}
                found[at] = replace(found[at], preview=preview)
        return found

    def _outlook(self, world: Projection, run: str, at_ms: int) -> dict[str, Any]:
        now_ms = self._now()
        need = need_of(world, run, now_ms)
        nothing = {"cuts": [], "atRisk": [], "deficitGPUs": 0, "shortfallGPUs": 0, "scope": None}
        if need.starts or need.gang is None:
            start = format_time(at_ms) if need.starts else None
            return {
                "starts": need.starts,
                "refusal": need.refusal,
                "earliestStart": start,
                "withoutCuts": start,
                **nothing,
            }
        deficit = deficit_of(world, run, need.gang)
        shown: dict[str, Any] = dict(nothing)
        if deficit is not None:
            shown = self._forecast(Case("run", deficit.scope, deficit.gpus, run=run), world)
        possible = deficit is not None and not shown["shortfallGPUs"]
        free_ms = free_at(world, need.gang, now_ms)
        waiting = None if free_ms is None else format_time(max(free_ms, at_ms))
        cuts = self.config.resolver == "enforce" and possible
        return {
            "starts": False,
            "refusal": None,
            **shown,
            "withoutCuts": waiting,
            "earliestStart": format_time(at_ms) if cuts else waiting,
        }

    def _forecast(self, case: Case, world: Projection | None = None) -> dict[str, Any]:
        """Who would give way, by rule, and who might, with which odds; in clear."""
        world, owner = world or self._projection, None
        if case.scope.cap is not None:
            owner = world.budgets[case.scope.cap.budget].owner
        if self._chance is None:
            raise Refused("NoChance", "this control plane has no master secret to draw lots with")
        chain = chain_of(self._chance, case.scope, owner)
        known = world.resolver.chains.get(chain)
        # Ties go by the pseudonyms of the very outcome that would come next.
        names = Names(world, self._chance, chain, 0 if known is None else known.k)
        frozen = freeze(
            world, names, case.scope, case.deficit_gpus, beneficiary=case.run, node=case.node
        )
        outlook = forecast(frozen.conflict, owner_weighting=self.config.owner_weighting)
        return _shown(names, case, frozen.conflict, outlook)

    def _foretold(self, case: Case) -> str:
        """In words, for a rehearsal: the log has them when nobody asks for a forecast."""
        if self._chance is None:
            return "nobody can be foretold without a master secret"
        shown = self._forecast(case)
        cuts = sorted({f"{row['run']} ({row['kind']})" for row in shown["cuts"]})
        risks = sorted(f"{row['run']} (1 in {row['oneIn']})" for row in shown["atRisk"])
        names = [*cuts, *risks]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return f"would give way: {', '.join(names[:NAMED_MAX])}{more}"

    def void(
        self, seq: int, reason: str, *, author: Author, dry_run: bool = False
    ) -> dict[str, Any]:
        """Give up an outcome that waits for its beacon; what it would have been is disclosed."""
        refuse_others(author)
        if not reason.strip():
            raise BadInput("reason", "must say why")

        def decide() -> Drafts:
            outcome = self._outcome(seq)
            if outcome.stage is not Stage.COMMITTED:
                raise Refused("NotOpen", f"outcome {seq} is {outcome.stage.value}")
            if self._chance is None:
                raise Refused("NoChance", "without its master secret nothing can be disclosed")
            if dry_run:
                return []  # what it would have been is shown with the void, not before
            shown = show(
                self._projection,
                self._chance,
                outcome,
                self._conflict(outcome)[0],
                self._beacon_value(outcome),
            )
            head = self._ledger.head().as_document()
            return [
                final_draft(
                    self._chance,
                    outcome,
                    shown,
                    commit_head=head,
                    now_ms=self._now(),
                    author=author.user,
                    void=reason,
                )
            ]

        with self._lock:
            self._commit(decide)
            return {"outcome": seq, "stage": self._outcome(seq).stage.value}

    def add_nonce(
        self, owner: str, nonce: str, *, author: Author, dry_run: bool = False
    ) -> dict[str, Any]:
        """An owner's own bytes, for the next outcome: then nobody could have known its seed."""
        if not author.may_act_for(owner):
            raise Forbidden(f"{author.user} may not act for owner {owner!r}")
        if not _NONCE.fullmatch(nonce):
            raise BadInput("nonce", "must be 1 to 64 bytes in hex, lower case")
        with self._lock:
            self._catch_up()
            if owner not in self._projection.resolver.owners:
                raise NotFound("owner", owner)
            body = {"owner": owner, "nonce": nonce}
            if not dry_run:
                self._commit(lambda: [self._draft("gpu.resolve.nonce", author.user, body)])
            return body

    def add_beacon(
        self, source: str, number: int, value: str, *, author: Author, dry_run: bool = False
    ) -> dict[str, Any]:
        """The value of a beacon's round, as its public source says; outcomes that wait go on."""
        refuse_others(author)
        if not _VALUE.fullmatch(value):
            raise BadInput("value", "must be 1 to 256 bytes in hex, lower case")
        body = {"source": source, "round": number, "value": value}

        def decide() -> Drafts:
            known = self._projection.resolver.beacons.get(f"{source}/{number}")
            if known is not None and known != value:
                raise Refused("RoundKnown", f"round {number} of {source!r} has another value")
            done = known is not None or dry_run
            return [] if done else [self._draft("gpu.beacon", author.user, body)]

        with self._lock:
            self._commit(decide)
            if dry_run:
                return body
            self._proceed(self._now())
            self._touch_world()
            return body


def refuse_others(author: Author) -> None:
    """By hand it is the operator's."""
    if not author.admin:
        raise Forbidden(f"{author.user} may not use the resolver by hand")


def refuse_nowhere(projection: Projection, scope: Scope) -> None:
    """A name that no node has is a slip of the pen, not a shortage."""
    nodes = projection.nodes()
    flavors = sorted({node.flavor for node in nodes})
    if scope.flavor not in flavors:
        there = f"there are {', '.join(flavors)}" if flavors else "there are no nodes"
        raise BadInput("flavor", f"no node has {scope.flavor!r}; {there}")
    wanted = scope.location.items()
    if not any(node.flavor == scope.flavor and wanted <= node.location.items() for node in nodes):
        place = ", ".join(f"{key}={value}" for key, value in sorted(wanted))
        raise BadInput("location", f"no node with {scope.flavor} is in {place}")


def refuse_short(shown: dict[str, Any]) -> None:
    """Nobody is asked to give way where it would not be enough."""
    if shown["shortfallGPUs"]:
        raise Refused(
            "NotEnough",
            f"{shown['shortfallGPUs']} GPUs would be missing if everybody in scope gave way",
        )


def _shown(names: Names, case: Case, conflict: Conflict, outlook: Forecast) -> dict[str, Any]:
    """A forecast in clear."""
    withdrawn = {action.lease for action in outlook.withdrawn}
    owners = {names.owner(owner): owner for owner in names.known_owners()}
    owner_of = {run.id: owners[run.owner] for run in conflict.runs}
    return {
        "scope": {"flavor": case.scope.flavor, "location": dict(case.scope.location)},
        "deficitGPUs": case.deficit_gpus,
        "shortfallGPUs": outlook.shortfall_gpus,
        "cuts": [
            {
                "run": names.runs[action.run],
                "owner": owner_of[action.run],
                "lease": names.leases[action.lease],
                "kind": action.kind.value,
                "gpus": action.gpus,
                "tier": action.tier.value,
            }
            for action in outlook.actions
            if action.lease not in withdrawn
        ],
        "atRisk": [
            {
                "run": names.runs[odds.token],
                "owner": owners[odds.owner],
                "tier": risk.tier.value,
                "oneIn": odds.chance.denominator,
                "certain": risk.all_lost,
            }
            for risk in outlook.risks
            for odds in risk.odds
        ],
    }
