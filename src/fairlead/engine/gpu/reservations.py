"""Reservations: a run that starts at its time, by preemption where that is necessary.

Pending    not due yet, or its resolve is under way
Blocked    due, and cannot start: why, and how many GPUs are short. Tried again when something
           relevant changed; recorded again only when the answer is another one
Active     its run has started
Released   its run is over, or was preempted itself: then it waits like any other run, so that two
           reservations never take turns in preempting each other
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec import structs

from fairlead.core.gpu import (
    ActivateRequest,
    Activation,
    FreeDevices,
    GangDemand,
    LastOutcome,
    WaitingReservation,
    activate,
)
from fairlead.core.invariant import known
from fairlead.core.reasons import ActivationReason
from fairlead.engine.gpu.claims import OwnerClaims
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import SYSTEM, ActivateDecision, NewEntry, ReservationState
from fairlead.engine.gpu.orders import TurnOrder, turn_order
from fairlead.engine.gpu.projection import reservation_spec, starts_ms
from fairlead.engine.gpu.resolver.deficit import Shortage, deficit_decision, need_of, shortage_of
from fairlead.engine.gpu.resolver.outcome import Case, Outcomes
from fairlead.engine.gpu.resolver.preview import Previews
from fairlead.engine.gpu.starting import StartAnswer, admission, opens_leases, start_decision
from fairlead.engine.gpu.state import OutcomeStage, Phase, Reservation
from fairlead.engine.gpu.values import Refused
from fairlead.schema.words import readable

FOREVER = 2**62


class Reservations:
    """Looks after every reservation once a turn."""

    def __init__(
        self, committer: Committer, outcomes: Outcomes, previews: Previews, claims: OwnerClaims
    ) -> None:
        self._committer, self._config = committer, committer.config
        self._outcomes, self._previews, self._claims = outcomes, previews, claims
        self._projection = committer.projection
        self._order: TurnOrder
        """Of this turn."""
        self._repeats: dict[str, tuple[int, GangDemand, int | None]] = {}
        """Reservations whose recorded answer was found again, for which state and demand, and
        until when: then a run that is protected now is a candidate. The same search has the same
        answer: idle turns leave it out."""

    def proceed(self, now_ms: int) -> None:
        """One turn for every reservation that is due, in the order that core decides.

        The order is recorded with the first start or resolve that it decides, and with an answer
        that follows from how the last outcome ended.
        """
        self._committer.commit(lambda: self._released(now_ms))
        asked = ActivateRequest(now_ms, tuple(self._waiting()))
        found = activate(asked)
        names = [row.reservation for row in found.order]
        self._order = turn_order(self._projection, ActivateDecision, names, found, asked)
        known = self._projection.resolver.reservations
        self._repeats = {name: at for name, at in self._repeats.items() if name in known}
        for row in found.order:
            self._activate(row, now_ms)
        self._committer.commit(lambda: self._released(now_ms))  # those preempted just now

    def _waiting(self) -> Iterator[WaitingReservation]:
        resolver = self._projection.resolver
        for stored in self._projection.of_kind("Reservation"):
            reservation = resolver.reservations[stored.name]
            if not reservation.waits:
                continue
            last, ended = resolver.outcomes.get(reservation.outcome or 0), None
            if last is not None and not last.stage.open:
                applied = last.stage is OutcomeStage.APPLIED
                by_operator = last.voided_by not in ("", SYSTEM)
                # A restart is no change.
                changed = last.seq <= resolver.changed_seq
                ended = LastOutcome(last.seq, applied, by_operator, changed)
            run = reservation_spec(stored).run
            yield WaitingReservation(stored.name, run, starts_ms(stored), ended)

    def _released(self, now_ms: int) -> Sequence[NewEntry]:
        """Reservations that are over with their run, or because it was preempted."""
        made = []
        for name, before in sorted(self._projection.resolver.reservations.items()):
            run = self._run(name)
            state = self._projection.runs.get(run)
            if before.state == "Released":
                continue
            if state is None or state.phase.ended:
                why = "its run is gone" if state is None else f"its run is {state.phase.value}"
                change = ReservationState(name, run, "Released", "RunEnded", why, 0)
            elif before.state == "Active" and state.phase is Phase.PENDING:
                change = ReservationState(name, run, "Released", state.reason, state.message, 0)
            else:
                continue
            made.append(NewEntry(change, now_ms))
        return made

    def _activate(self, row: Activation, now_ms: int) -> None:
        """A reservation that is due starts its run, preempts others for it, or says why not."""
        name, run = row.reservation, row.run
        if self._find(name) is None:
            return
        at = Context(self._projection, now_ms)
        devices = self._devices(run, now_ms)
        need = need_of(self._projection, run, now_ms, devices=devices, claims=self._claims)
        held = self._projection.is_held(run, now_ms, hold_ms=self._config.hold_ms)
        if need.found.starts and not held:
            self._committer.commit(lambda: self._start(name, run, now_ms))
            return
        obstacle = self._obstacle(row, need)
        if obstacle is not None:
            funded = need.refusal is None
            blocked = obstacle.state == "Blocked"
            ordered = [self._order.decision()] if blocked and funded else []
            self._record(at, obstacle, None if funded or not blocked else need, ordered=ordered)
        elif not need.found.starts:
            self._preempt_for(at, name, run, need)

    def _start(self, name: str, run: str, now_ms: int) -> Sequence[NewEntry]:
        state = self._projection.runs.get(run)
        if self._find(name) is None or state is None or state.phase is not Phase.PENDING:
            return []
        devices = self._devices(run, now_ms)
        made = admission(self._projection, run, now_ms, devices, self._claims)
        body = ReservationState(name, run, "Active", "Started", "", 0)
        return (
            [*self._order.entries(name), *made, NewEntry(body, now_ms)]
            if opens_leases(made)
            else []
        )

    def _devices(self, run: str, now_ms: int) -> FreeDevices:
        flavor, hold_ms = self._projection.run_spec(run).flavor, self._config.hold_ms
        return self._projection.devices_outside(flavor, now_ms, hold_ms=hold_ms)

    def _obstacle(self, row: Activation, need: StartAnswer) -> ReservationState | None:
        """What no resolve can help with, or what has to be waited for."""
        name, run = row.reservation, row.run
        resolver, flavor = self._projection.resolver, self._projection.run_spec(run).flavor
        opened, why = resolver.open_outcome(flavor), need.refusal
        if opened is not None:
            reason = "Resolving" if opened.run == run else "ResolveOpen"
            message = f"outcome {opened.seq} of {flavor} is not over"
            return ReservationState(name, run, "Pending", reason, message, 0)
        if why is not None:
            facts = (why.code, readable(why.message), why.shortfall_gpus)
            return ReservationState(name, run, "Blocked", *facts)
        if row.reason is ActivationReason.PREEMPTED_ONCE:
            message = "other runs were preempted for it once; it does not fit"
            return ReservationState(name, run, "Blocked", "NoDevices", message, 0)
        if not row.preempts:
            last = resolver.outcomes[resolver.reservations[name].outcome or 0]
            message = f"outcome {last.seq} was voided: {last.reason}"
            return ReservationState(name, run, "Blocked", "OutcomeVoided", message, 0)
        return None

    def _preempt_for(self, at: Context, name: str, run: str, need: StartAnswer) -> None:
        """Begin the resolve of an activation; or say why not."""
        demand = GangDemand(run, known(need.found.gang, "what is funded is a gang"))
        seq, said, until_ms = self._repeats.get(name, (0, demand, None))
        if (seq, said) == (self._projection.seq, demand) and at.now_ms < (until_ms or FOREVER):
            return
        shortage = shortage_of(self._projection, demand, self._committer.protection())
        deficit = shortage.deficit
        case = Case("reservation", demand, run=run, reservation=name)
        refusal = self._outcomes.refusal(shortage)
        if refusal is not None:
            short = 0 if deficit.scope is None else deficit.shortfall_gpus or deficit.gpus
            facts = (refusal.reason, refusal.message, short)
            change = ReservationState(name, run, "Blocked", *facts)
            if self._is_recorded(change):
                self._repeats[name] = (self._projection.seq, demand, shortage.next_candidate_ms)
            elif refusal.reason == "ResolverOff" and self._config.resolver == "dry-run":
                sentence = self._previews.sentence(case)
                change = structs.replace(change, message=f"{change.message}: {sentence}")
            self._record(at, change, need, shortage)
            return
        self._committer.commit(lambda: self._order.entries(name))
        try:
            self._outcomes.begin(case)
        except Refused as refused:  # another replica was quicker, with this one or another
            waits = refused.reason == "ResolveOpen"
            facts = (refused.reason, refused.message, 0 if waits else deficit.gpus)
            self._record(at, ReservationState(name, run, "Pending" if waits else "Blocked", *facts))

    def _record(
        self,
        at: Context,
        change: ReservationState,
        need: StartAnswer | None = None,
        shortage: Shortage | None = None,
        ordered: Sequence[NewEntry] = (),
    ) -> None:
        """Another answer than the last one, with the decisions that it follows from."""
        if self._is_recorded(change):
            return
        made = [*ordered]
        if need is not None:
            made.append(start_decision(at, change.run, need, "reservation"))
        if shortage is not None:
            made.append(deficit_decision(shortage, "reservation", at.now_ms))
        made.append(at.entry(change))
        seen = self._projection.seq

        def decide() -> Sequence[NewEntry]:
            # Where another replica was quicker the next turn answers, on what it did.
            moved = self._projection.seq > seen
            return [] if moved or self._is_recorded(change) else made

        self._committer.commit(decide)

    def _is_recorded(self, change: ReservationState) -> bool:
        """Whether the last answer was the same, in whatever words, or none is waited for."""
        found = self._find(change.reservation)
        said = attrgetter("state", "reason", "shortfall_gpus")
        return found is None or said(found) == said(change)

    def _find(self, name: str) -> Reservation | None:
        """A reservation whose run is still to be started."""
        found = self._projection.resolver.reservations.get(name)
        return found if found is not None and found.waits else None

    def _run(self, name: str) -> str:
        return reservation_spec(self._projection.objects["Reservation"][name]).run
