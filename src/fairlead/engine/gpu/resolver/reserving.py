"""Reservations: a run that starts at its time, if need be by others giving way.

Pending    not due yet, or its resolve is under way
Blocked    due, and cannot start: why, and how many GPUs are short. Tried again when the world
           is another one; said again only when the answer is another one
Active     its run has started
Released   its run is over, or gives way itself: then it waits like any other run, so that two
           reservations never take turns in cutting each other
"""

from dataclasses import dataclass, replace
from typing import Any

from fairlead.engine.gpu.admit import admission
from fairlead.engine.gpu.resolver.deficit import Deficit
from fairlead.engine.gpu.resolver.protocol import Case
from fairlead.engine.gpu.resolver.resolving import Resolving
from fairlead.engine.gpu.resolver.state import Outcome, Reservation, Stage
from fairlead.engine.gpu.resolver.winner import Need, deficit_of, need_of
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.store import Drafts
from fairlead.engine.gpu.values import SYSTEM, Refused
from fairlead.ports.ledger import Draft
from fairlead.schema.specs import ReservationSpec
from fairlead.schema.times import parse_time


@dataclass(frozen=True, slots=True)
class Why:
    """Where a reservation stands, and why."""

    state: str
    reason: str
    message: str = ""
    shortfall_gpus: int = 0


class Reserving(Resolving):
    """The loop's part that looks after reservations."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tried: dict[str, int] = {}
        """The world that each blocked reservation was last tried in."""

    def _reserve(self, now_ms: int) -> None:
        """One turn for every reservation, in order of their times."""
        due = sorted(
            (starts_ms(stored), stored.name) for stored in self._projection.of_kind("Reservation")
        )
        self._commit(lambda: self._released(now_ms))
        for at_ms, name in due:
            if now_ms >= at_ms:
                self._activate(name, now_ms)
        self._commit(lambda: self._released(now_ms))  # those who gave way just now

    def _released(self, now_ms: int) -> Drafts:
        names = sorted(self._projection.resolver.reservations)
        return [draft for name in names for draft in self._release(name, now_ms)]

    def _release(self, name: str, now_ms: int) -> Drafts:
        """A reservation is over with its run, and when its run has given way."""
        known, run = self._reservation(name)
        if known is None or known.state == "Released":
            return []
        state = self._projection.runs.get(run)
        if state is None or state.phase.ended:
            why = "its run is gone" if state is None else f"its run is {state.phase.value}"
            return [state_draft(name, run, Why("Released", "RunEnded", why), now_ms)]
        if known.state == "Active" and state.phase is Phase.PENDING:
            gone = Why("Released", state.reason, state.message)
            return [state_draft(name, run, gone, now_ms)]
        return []

    def _activate(self, name: str, now_ms: int) -> None:
        known, run = self._reservation(name)
        if known is None or not known.waits:
            return
        need = need_of(self._projection, run, now_ms)
        if need.starts and not self._held(run, now_ms):
            self._commit(lambda: self._start(name, now_ms))
            return
        why = self._obstructed(known, run, need)
        if why is None:
            world = self._projection.resolver.world_seq
            if self._tried.get(name) == world or self._voided_in(world, known):
                why = self._given_up(known)
            else:
                self._tried[name] = world
                why = self._cut_for(name, run, need, now_ms)
        if why is not None:
            self._commit(lambda: self._block(name, why, now_ms))

    def _start(self, name: str, now_ms: int) -> Drafts:
        known, run = self._reservation(name)
        state = self._projection.runs.get(run)
        if known is None or not known.waits or state is None or state.phase is not Phase.PENDING:
            return []
        drafts = admission(self._projection, run, now_ms)
        if not any(draft.kind == "lease.open" for draft in drafts):
            return []
        return [*drafts, state_draft(name, run, Why("Active", "Started"), now_ms)]

    def _obstructed(self, known: Reservation, run: str, need: Need) -> Why | None:
        """What no resolve can help with, or what has to be waited for."""
        flavor = self._projection.run_spec(run).flavor
        open_outcome = self._projection.resolver.open_outcome(flavor)
        if open_outcome is not None:
            mine = open_outcome.run == run
            reason = "Resolving" if mine else "ResolveOpen"
            return Why("Pending", reason, f"outcome {open_outcome.seq} of {flavor} is not over")
        if need.refusal is not None:
            return Why(
                "Blocked",
                need.refusal["code"],
                need.refusal["message"],
                need.refusal["shortfall_gpus"],
            )
        last = self._projection.resolver.outcomes.get(known.outcome or 0)
        if last is not None and last.stage is Stage.APPLIED:
            return Why("Blocked", "NoDevices", "others gave way for it once, and it does not fit")
        if last is not None and last.voided_by not in ("", SYSTEM):
            return self._given_up(known)
        return None

    def _voided_in(self, world: int, known: Reservation) -> bool:
        """Whether its resolve came to nothing in this very world; a restart is no other one."""
        last = self._projection.resolver.outcomes.get(known.outcome or 0)
        return last is not None and last.stage is Stage.VOID and last.seq > world

    def _given_up(self, known: Reservation) -> Why | None:
        """In the world as it is, the last resolve came to nothing: another would, too."""
        last = self._projection.resolver.outcomes.get(known.outcome or 0)
        if last is None or last.stage is not Stage.VOID:
            return None
        return Why("Blocked", "OutcomeVoided", f"outcome {last.seq} was given up: {last.reason}")

    def _cut_for(self, name: str, run: str, need: Need, now_ms: int) -> Why | None:
        """Begin the resolve of an activation; or why not."""
        if need.gang is None:
            return None
        deficit = deficit_of(self._projection, run, need.gang)
        why = self._hopeless(deficit)
        if deficit is None:
            return why
        case = Case("reservation", deficit.scope, deficit.gpus, run=run, reservation=name)
        if why is not None:
            rehearsed = why.reason == "ResolverOff" and self.config.resolver == "dry-run"
            if rehearsed and not self._is_said(name, why):
                why = replace(why, message=f"{why.message}: {self._foretold(case)}")
            return why
        try:
            self._begin(case)
        except Refused as refused:  # another replica was quicker, with this one or another
            waits = refused.reason == "ResolveOpen"
            state = "Pending" if waits else "Blocked"
            return Why(state, refused.reason, refused.message, 0 if waits else deficit.gpus)
        return None

    def _hopeless(self, deficit: Deficit | None) -> Why | None:
        if deficit is None:
            return Why("Blocked", "NoDevices", "no node could ever hold it")
        if deficit.shortfall_gpus:
            text = f"{deficit.shortfall_gpus} GPUs would be missing if everybody gave way"
            return Why("Blocked", "NotEnough", text, deficit.shortfall_gpus)
        if self.config.resolver != "enforce":
            text = f"{deficit.gpus} GPUs are missing, and the resolver is {self.config.resolver}"
            return Why("Blocked", "ResolverOff", text, deficit.gpus)
        return None

    def _block(self, name: str, why: Why, now_ms: int) -> Drafts:
        known, run = self._reservation(name)
        if known is None or not known.waits or self._is_said(name, why):
            return []
        return [state_draft(name, run, why, now_ms)]

    def _is_said(self, name: str, why: Why) -> bool:
        """Whether the last answer was the same, in whatever words."""
        known, _ = self._reservation(name)
        return known is not None and (known.state, known.reason, known.shortfall_gpus) == (
            why.state,
            why.reason,
            why.shortfall_gpus,
        )

    def _foretold(self, case: Case) -> str:
        """Who would give way; see `ResolverCommands`, which foretells."""
        return ""

    def _activated(self, outcome: Outcome, now_ms: int, *, started: bool) -> Drafts:
        known, run = self._reservation(outcome.reservation or "")
        if known is None or not started:
            return []
        why = Why("Active", "Resolved", f"others gave way in outcome {outcome.seq}")
        return [state_draft(outcome.reservation or "", run, why, now_ms)]

    def _reservation(self, name: str) -> tuple[Reservation | None, str]:
        stored = self._projection.get("Reservation", name)
        if stored is None:
            return None, ""
        return self._projection.resolver.reservations[name], reservation_spec(stored).run


def state_draft(name: str, run: str, why: Why, now_ms: int) -> Draft:
    """A reservation is in another state, or in the same for another reason."""
    body = {
        "reservation": name,
        "run": run,
        "state": why.state,
        "reason": why.reason,
        "message": why.message,
        "shortfall_gpus": why.shortfall_gpus,
    }
    return Draft(kind="reservation.state", time_ms=now_ms, author=SYSTEM, body=body)


def reservation_spec(stored: Stored) -> ReservationSpec:
    """The spec of a Reservation."""
    assert isinstance(stored.spec, ReservationSpec)
    return stored.spec


def starts_ms(stored: Stored) -> int:
    """When it is due."""
    return parse_time(reservation_spec(stored).earliest_start, "spec.earliestStart")
