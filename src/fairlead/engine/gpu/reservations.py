"""Reservations: a run that starts at its time, by preemption where that is necessary.

Pending    not due yet, or its resolve is under way
Blocked    due, and cannot start: why, and how many GPUs are short. Tried again when something
           relevant changed; recorded again only when the answer is another one
Active     its run has started
Released   its run is over, or was preempted itself: then it waits like any other run, so that two
           reservations never take turns in preempting each other
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from fairlead.core.gpu import GangDemand
from fairlead.core.invariant import known
from fairlead.engine.gpu.admission import StartAnswer, admission, opens_leases, start_decision
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import SYSTEM, NewEntry, ReservationState
from fairlead.engine.gpu.leases import Context
from fairlead.engine.gpu.projection import reservation_spec, starts_ms
from fairlead.engine.gpu.resolver.deficit import Shortage, deficit_decision, need_of, shortage_of
from fairlead.engine.gpu.resolver.outcome import Case, Outcomes
from fairlead.engine.gpu.resolver.preview import Previews
from fairlead.engine.gpu.state import Outcome, OutcomeStage, Phase, Reservation
from fairlead.engine.gpu.values import Refused


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """The state that a reservation is in from now on, and why."""

    state: str
    reason: str
    message: str = ""
    shortfall_gpus: int = 0
    follows: bool = False
    """Whether it follows from what the run lacks, which is recorded with it; so is the deficit."""
    shortage: Shortage | None = None

    def decisions(self, at: Context, run: str, need: StartAnswer) -> list[NewEntry]:
        made = [start_decision(at, run, need, "reservation")] if self.follows else []
        if self.shortage is not None:
            made.append(deficit_decision(self.shortage, "reservation", at.now_ms))
        return made


class Reservations:
    """Looks after every reservation once a turn."""

    def __init__(self, committer: Committer, outcomes: Outcomes, previews: Previews) -> None:
        self._committer, self._config = committer, committer.config
        self._outcomes, self._previews = outcomes, previews
        self._projection = committer.projection
        self._repeats: dict[str, tuple[int, GangDemand]] = {}
        """Reservations whose recorded answer was found again, and for which state and demand.
        The same search has the same answer: idle turns leave it out."""

    def proceed(self, now_ms: int) -> None:
        """One turn for every reservation, in order of their times."""
        due = sorted(
            (starts_ms(stored), stored.name) for stored in self._projection.of_kind("Reservation")
        )
        self._committer.commit(lambda: self._released(now_ms))
        self._repeats = {name: self._repeats[name] for _, name in due if name in self._repeats}
        for at_ms, name in due:
            if now_ms >= at_ms:
                self._activate(name, now_ms)
        self._committer.commit(lambda: self._released(now_ms))  # those preempted just now

    def _released(self, now_ms: int) -> Sequence[NewEntry]:
        names = sorted(self._projection.resolver.reservations)
        return [entry for name in names for entry in self._release(name, now_ms)]

    def _release(self, name: str, now_ms: int) -> list[NewEntry]:
        """A reservation is over with its run, and when its run was preempted."""
        reservation, run = self._reservation(name)
        if reservation is None or reservation.state == "Released":
            return []
        state = self._projection.runs.get(run)
        if state is None or state.phase.ended:
            why = "its run is gone" if state is None else f"its run is {state.phase.value}"
            change = ReservationChange("Released", "RunEnded", why)
        elif reservation.state == "Active" and state.phase is Phase.PENDING:
            change = ReservationChange("Released", state.reason, state.message)
        else:
            return []
        return [_entry(name, run, change, now_ms)]

    def _activate(self, name: str, now_ms: int) -> None:
        """A reservation that is due starts its run, preempts others for it, or says why not."""
        reservation, run = self._reservation(name)
        if reservation is None or not reservation.waits:
            return
        at = Context(self._projection, now_ms)
        need = need_of(self._projection, run, now_ms)
        held = self._projection.is_held(run, now_ms, hold_ms=self._config.hold_ms)
        if need.found.starts and not held:
            self._committer.commit(lambda: self._start(name, now_ms))
            return
        change = self._obstructed(reservation, run, need)
        if change is None and not need.found.starts:
            change = self._preempt_for(name, at, run, need)
        if change is not None and not self._is_recorded(name, change):
            made = change.decisions(at, run, need)
            self._committer.commit(lambda: self._record(name, change, made, now_ms))

    def _start(self, name: str, now_ms: int) -> Sequence[NewEntry]:
        reservation, run = self._reservation(name)
        state = self._projection.runs.get(run)
        if reservation is None or not reservation.waits:
            return []
        if state is None or state.phase is not Phase.PENDING:
            return []
        made = admission(self._projection, run, now_ms)
        if not opens_leases(made):
            return []
        return [*made, _entry(name, run, ReservationChange("Active", "Started"), now_ms)]

    def _obstructed(
        self, reservation: Reservation, run: str, need: StartAnswer
    ) -> ReservationChange | None:
        """What no resolve can help with, or what has to be waited for."""
        flavor = self._projection.run_spec(run).flavor
        opened = self._projection.resolver.open_outcome(flavor)
        if opened is not None:
            reason = "Resolving" if opened.run == run else "ResolveOpen"
            message = f"outcome {opened.seq} of {flavor} is not over"
            return ReservationChange("Pending", reason, message)
        why = need.refusal
        if why is not None:
            blocked = ("Blocked", why.code, why.message, why.shortfall_gpus)
            return ReservationChange(*blocked, follows=True)
        last = self._last_outcome(reservation)
        if last is not None and last.stage is OutcomeStage.APPLIED:
            message = "other runs were preempted for it once; it does not fit"
            return ReservationChange("Blocked", "NoDevices", message)
        if last is not None and last.stage is OutcomeStage.VOID:
            by_operator = last.voided_by not in ("", SYSTEM)
            # As long as nothing changed another one would be voided, too; a restart is no change.
            if by_operator or last.seq > self._projection.resolver.changed_seq:
                message = f"outcome {last.seq} was voided: {last.reason}"
                return ReservationChange("Blocked", "OutcomeVoided", message)
        return None

    def _preempt_for(
        self, name: str, at: Context, run: str, need: StartAnswer
    ) -> ReservationChange | None:
        """Begin the resolve of an activation; or why not."""
        demand = GangDemand(run, known(need.found.gang, "what is funded is a gang"))
        if self._repeats.get(name) == (self._projection.seq, demand):
            return None
        shortage = shortage_of(self._projection, demand)
        deficit = shortage.deficit
        case = Case("reservation", demand, run=run, reservation=name)
        refusal = self._outcomes.refusal(deficit)
        if refusal is not None:
            short = 0 if deficit.scope is None else deficit.shortfall_gpus or deficit.gpus
            blocked = ("Blocked", refusal.reason, refusal.message, short)
            change = ReservationChange(*blocked, follows=True, shortage=shortage)
            rehearsed = refusal.reason == "ResolverOff" and self._config.resolver == "dry-run"
            if self._is_recorded(name, change):
                self._repeats[name] = (self._projection.seq, demand)
            elif rehearsed:
                sentence = self._previews.sentence(case)
                change = replace(change, message=f"{change.message}: {sentence}")
            return change
        try:
            start = start_decision(at, run, need, "reservation")
            self._outcomes.begin(replace(case, start=start))
        except Refused as refused:  # another replica was quicker, with this one or another
            waits = refused.reason == "ResolveOpen"
            state, short = ("Pending", 0) if waits else ("Blocked", deficit.gpus)
            return ReservationChange(state, refused.reason, refused.message, short)
        return None

    def _record(
        self, name: str, change: ReservationChange, made: list[NewEntry], now_ms: int
    ) -> Sequence[NewEntry]:
        reservation, run = self._reservation(name)
        if reservation is None or not reservation.waits or self._is_recorded(name, change):
            return []
        return [*made, _entry(name, run, change, now_ms)]

    def _is_recorded(self, name: str, change: ReservationChange) -> bool:
        """Whether the last answer was the same, in whatever words."""
        reservation, _ = self._reservation(name)
        said = attrgetter("state", "reason", "shortfall_gpus")
        return reservation is not None and said(reservation) == said(change)

    def _last_outcome(self, reservation: Reservation) -> Outcome | None:
        return self._projection.resolver.outcomes.get(reservation.outcome or 0)

    def _reservation(self, name: str) -> tuple[Reservation | None, str]:
        stored = self._projection.get("Reservation", name)
        if stored is None:
            return None, ""
        return self._projection.resolver.reservations[name], reservation_spec(stored).run


def _entry(name: str, run: str, change: ReservationChange, now_ms: int) -> NewEntry:
    body = ReservationState(
        name, run, change.state, change.reason, change.message, change.shortfall_gpus
    )
    return NewEntry(body, now_ms)
