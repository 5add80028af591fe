"""`ControlPlane`: the store, and the loop that admits, starts, ends and settles runs."""

from collections.abc import Callable, Iterable
from typing import Any

from fairlead.engine.gpu.admit import admission
from fairlead.engine.gpu.applying import may_touch
from fairlead.engine.gpu.conditions import conditions
from fairlead.engine.gpu.grow import growth, may_grow
from fairlead.engine.gpu.reports import Reports
from fairlead.engine.gpu.resolver.cuts import preempted, shrink_draft
from fairlead.engine.gpu.resolver.telling import OutcomeReports
from fairlead.engine.gpu.settle import end_run, refunding
from fairlead.engine.gpu.state import Phase, RunState, Stored
from fairlead.engine.gpu.swap import swap
from fairlead.engine.gpu.values import SYSTEM, Applied, Author, Refused
from fairlead.ports.executor import Exit
from fairlead.ports.ledger import Draft

Decide = Callable[[Stored, Author], list[Draft]]


class ControlPlane(OutcomeReports, Reports):
    """The embedded control plane. `reconcile` is to be called after commands and every second."""

    # -- verbs ----------------------------------------------------------------------------------

    def act(
        self, kind: str, name: str, verb: str, *, author: Author, **parameters: Any
    ) -> dict[str, Any]:
        """One verb on one object, which is returned as it is then.

        Run: cancel, pause, resume, nominate, withdraw, shrink (`width`), resolve. Node: cordon,
        uncordon, drain, fail.
        """
        return self.carry_out(kind, name, verb, author=author, **parameters).object

    def carry_out(
        self,
        kind: str,
        name: str,
        verb: str,
        *,
        author: Author,
        dry_run: bool = False,
        **parameters: Any,
    ) -> Applied:
        """The same, with whether it changed anything; a dry run says which runs it would touch."""
        found = self._verbs(parameters).get((kind, verb))
        if found is None:
            raise Refused("UnknownVerb", f"a {kind} cannot {verb!r}")

        def decide() -> list[Draft]:
            stored = self._stored(kind, name)
            may_touch(self._projection, author, stored)
            return found(stored, author)

        with self._lock:
            if dry_run:
                self._catch_up()
                drafts = decide()
                changed = bool(drafts) or verb == "resolve"
                return Applied(
                    self._document(kind, name),
                    "configured" if changed else "unchanged",
                    {**_touched(drafts), **self._who_gives_way(kind, name, verb, author)},
                )
            before = self._projection.seq
            if (kind, verb) == ("Run", "resolve"):
                self._start_by_resolving(self._stored(kind, name), author)
            elif (kind, verb) == ("Node", "drain") and self._resolves:
                self._drain(self._stored(kind, name), author)
            else:
                self._commit(decide)
            changed = self._projection.seq > before
            self._touch_world()
            return Applied(self._document(kind, name), "configured" if changed else "unchanged")

    def _verbs(self, parameters: dict[str, Any]) -> dict[tuple[str, str], Decide]:
        """What can be done to an object, and what decides what comes of it."""
        return {
            ("Run", "cancel"): self._cancel,
            ("Run", "pause"): lambda stored, by: self._pause(stored, by, paused=True),
            ("Run", "resume"): lambda stored, by: self._pause(stored, by, paused=False),
            ("Run", "nominate"): lambda stored, by: self._nominate(stored, by, nominated=True),
            ("Run", "withdraw"): lambda stored, by: self._nominate(stored, by, nominated=False),
            ("Run", "shrink"): lambda stored, by: self._shrink(stored, by, **parameters),
            ("Run", "resolve"): self._may_resolve,
            ("Node", "cordon"): lambda stored, by: self._cordon(stored, by, cordoned=True),
            ("Node", "uncordon"): lambda stored, by: self._cordon(stored, by, cordoned=False),
            ("Node", "drain"): lambda stored, by: self._vacate(stored, by, "Drained"),
            ("Node", "fail"): lambda stored, by: self._vacate(stored, by, "NodeFailed"),
        }

    def _who_gives_way(self, kind: str, name: str, verb: str, author: Author) -> dict[str, Any]:
        """What a dry run says of others; with a resolver, it decides whom a drain hits."""
        if (kind, verb) == ("Run", "resolve"):
            return {"forecast": self.forecast(kind, name)}
        if (kind, verb) == ("Node", "drain") and self._resolves:
            return {"runs": [], "forecast": self._drain_preview(self._stored(kind, name), author)}
        return {}

    def _nominate(self, stored: Stored, author: Author, *, nominated: bool) -> list[Draft]:
        if self._projection.runs[stored.name].nominated == nominated:
            return []
        body = {"run": stored.name, "nominated": nominated}
        return [self._draft("run.nominated", author.user, body)]

    def _shrink(self, stored: Stored, author: Author, *, width: int) -> list[Draft]:
        return [
            shrink_draft(
                self._projection,
                stored.name,
                width,
                default_grace_ms=self.config.grace_ms,
                now_ms=self._now(),
                author=author.user,
            )
        ]

    def _cancel(self, stored: Stored, author: Author) -> list[Draft]:
        state, now_ms = self._projection.runs[stored.name], self._now()
        if state.phase.ended:
            raise Refused("RunEnded", f"run {stored.name!r} has ended")
        if state.stopping:
            return []
        if state.phase is Phase.RUNNING and self._has_process(stored.name):
            # Its leases go on until the process is gone: grace is charged like the rest.
            body = self._phase_body(stored.name, state, "CancelRequested", stopping=True)
            return [self._draft("run.phase", author.user, body)]
        return end_run(
            self._projection,
            stored.name,
            end_ms=now_ms,
            now_ms=now_ms,
            phase=Phase.FAILED,
            reason="Cancelled",
            message=f"cancelled by {author.user}",
            lease_reason="Cancelled",
            author=author.user,
        )

    def _pause(self, stored: Stored, author: Author, *, paused: bool) -> list[Draft]:
        state = self._projection.runs[stored.name]
        if state.phase is not Phase.RUNNING or state.stopping:
            raise Refused("NotRunning", f"run {stored.name!r} is not running")
        if state.paused == paused:
            return []
        reason = "Paused" if paused else "Resumed"
        body = self._phase_body(stored.name, state, reason, paused=paused)
        return [self._draft("run.phase", author.user, body)]

    def _phase_body(self, run: str, state: RunState, reason: str, **flags: Any) -> dict[str, Any]:
        given = {"paused": state.paused, "stopping": state.stopping, **flags}
        return {"run": run, "phase": state.phase.value, "reason": reason, "message": "", **given}

    def _cordon(self, stored: Stored, author: Author, *, cordoned: bool) -> list[Draft]:
        if stored.document["cordoned"] == cordoned:
            return []
        body = {
            "kind": "Node",
            "name": stored.name,
            "uid": stored.uid,
            "generation": stored.generation + 1,
            "labels": stored.labels,
            "spec": {**stored.document, "cordoned": cordoned},
        }
        return [self._draft("object.applied", author.user, body)]

    def _vacate(self, stored: Stored, author: Author, reason: str) -> list[Draft]:
        """Cordon a node; a gang with a device there goes on with its spares, or waits again."""
        drafts, now_ms = self._cordon(stored, author, cordoned=True), self._now()
        for run in self._runs_on(stored.name):
            swapped = swap(self._projection, run, stored.name, now_ms, author.user)
            drafts += swapped or end_run(
                self._projection,
                run,
                end_ms=now_ms,
                now_ms=now_ms,
                phase=Phase.PENDING,
                reason=reason,
                message=f"node {stored.name} is out of service",
                lease_reason="NodeFailed",
                author=author.user,
            )
        return drafts

    # -- the loop -------------------------------------------------------------------------------

    def reconcile(self, now_ms: int | None = None) -> None:
        """One turn: collect endings, settle funding, admit, start, say how the budgets are."""
        with self._lock:
            self._catch_up()
            now_ms = max(self._now(), now_ms or 0)
            self._introduce()
            self._end_runs(now_ms)
            self._roll_over(now_ms, now_ms)
            self._settle(now_ms, now_ms)
            self._proceed(now_ms)
            self._tighten()  # caps come before places: who waits for one sees what they left
            self._reserve(now_ms)
            self._admit_all(now_ms)
            self._grow_all(now_ms)
            self._touch_world()
            self._commit(lambda: self._condition_drafts(now_ms))
            self._watch_clock()
            self._recover()

    def _admit_all(self, now_ms: int) -> None:
        """Everybody who waits."""
        self._answer_all(self._projection.pending(), lambda name: self._admit(name, now_ms))

    def _answer_all(self, queue: list[str], answer: Callable[[str], list[Draft]]) -> None:
        """In order; one append for all answers up to the next one that takes devices."""
        answered = 0

        def decide() -> list[Draft]:
            nonlocal answered
            drafts: list[Draft] = []
            for number, name in enumerate(queue, start=1):
                answered, found = number, answer(name)
                drafts += found
                if any(draft.kind == "lease.open" for draft in found):
                    break  # the next one has to see what this one took
            return drafts

        while queue:
            self._commit(decide)
            queue = queue[answered:]

    def _admit(self, name: str, now_ms: int) -> list[Draft]:
        # Another replica may have started or removed it since the list was made.
        if not self._projection.is_pending(name) or self._held(name, now_ms):
            return []
        return admission(self._projection, name, now_ms)

    def _grow_all(self, now_ms: int) -> None:
        """What outcomes took comes back where nobody who waits could use it."""
        live = self._projection.live
        queue = sorted(name for name in live if may_grow(live[name]))
        self._answer_all(queue, lambda name: self._grow(name, now_ms))

    def _grow(self, name: str, now_ms: int) -> list[Draft]:
        # Another replica may have been quicker since the list was made.
        state = self._projection.live.get(name)
        if state is None or not may_grow(state) or self._held(name, now_ms):
            return []
        return growth(self._projection, name, now_ms)

    def _end_runs(self, now_ms: int) -> None:
        """Exits of commands, and runs without one whose time is over, in order of time."""
        exits = self._poll()
        endings: list[tuple[int, str, Exit | None]] = [
            (each.time_ms, each.run, each) for each in exits
        ]
        for name, state in self._projection.live.items():
            until_ms = self._virtual_end(name, state)
            if until_ms is not None and until_ms <= now_ms:
                endings.append((until_ms, name, None))
        told = {each.run for each in exits}
        endings += [(now_ms, name, None) for name in sorted(self._missing - told)]
        for time_ms, name, found in sorted(endings, key=lambda each: each[:2]):
            self._end(name, min(time_ms, now_ms), now_ms, found)
        self._acknowledge(exits)
        if "*poll" not in self.faults:
            self._ends_known_ms = now_ms

    def _virtual_end(self, name: str, state: RunState) -> int | None:
        """When a run without a process is over: at the end of its duration."""
        if state.phase is not Phase.RUNNING or self._has_process(name):
            return None
        held = state.leases.values()
        ends = [lease.expected_end_ms for lease in held if lease.expected_end_ms is not None]
        return max(ends) if ends and len(ends) == len(held) else None

    def _end(self, name: str, end_ms: int, now_ms: int, found: Exit | None) -> None:
        # Who ran out of hours before this end is demoted first, at that moment.
        self._roll_over(end_ms, now_ms)
        payers = self._payers(name)
        self._commit(lambda: refunding(self._projection, payers(), end_ms, now_ms))

        def decide() -> list[Draft]:
            state = self._projection.runs.get(name)
            if state is None or state.phase is not Phase.RUNNING:
                return []
            if found is not None and found.job != state.job:
                return []  # an earlier start of the same run, settled when it was displaced
            if found is None and self._has_process(name) and not _is_to_end(state):
                return []
            how: dict[str, Any] = {
                "code": None if found is None else found.code,
                "signal": None if found is None else found.signal,
                "exit_reason": None if found is None else found.reason,
            }
            if _gave_way(state, end_ms):
                return preempted(self._projection, name, end_ms=end_ms, now_ms=now_ms, **how)
            phase, reason, message = _verdict(state, found)
            if found is not None and found.reason is not None:
                message = f"{message}: {found.reason}"
            return end_run(
                self._projection,
                name,
                end_ms=end_ms,
                now_ms=now_ms,
                phase=phase,
                reason=reason,
                message=message,
                lease_reason="Cancelled" if state.stopping else "Completed",
                **how,
            )

        self._commit(decide)

    def _payers(self, name: str) -> Callable[[], Iterable[str]]:
        def names() -> set[str]:
            state = self._projection.runs.get(name)
            return set() if state is None else {each.budget for each in state.leases.values()}

        return names

    def _condition_drafts(self, now_ms: int) -> list[Draft]:
        drafts = []
        for stored in self._projection.of_kind("Budget"):
            for each in conditions(
                self._projection, stored, now_ms, self.config.near_limit_percent
            ):
                before = self._projection.conditions.get((stored.name, each.type))
                if before is not None and (before.status, before.generation) == (
                    each.status,
                    each.generation,
                ):
                    continue
                body = {
                    "budget": stored.name,
                    "type": each.type,
                    "status": each.status,
                    "reason": each.reason,
                    "message": each.message,
                    "generation": each.generation,
                }
                drafts.append(
                    Draft(kind="budget.condition", time_ms=now_ms, author=SYSTEM, body=body)
                )
        return drafts


def _touched(drafts: Iterable[Draft]) -> dict[str, Any]:
    """The runs that would be in another phase, paused or stopped; and leases that would end."""
    found: dict[str, Any] = {"runs": [], "leases": []}
    for draft in drafts:
        if draft.kind == "run.phase":
            keys = ("run", "phase", "reason", "message")
            found["runs"].append({key: draft.body[key] for key in keys})
        elif draft.kind == "run.cut":
            found["leases"] += sorted(draft.body["leases"])
    return found


def _is_to_end(state: RunState) -> bool:
    return state.stopping or (state.cut is not None and state.cut.preempts)


def _gave_way(state: RunState, end_ms: int) -> bool:
    """Whether a process ended because it was asked to give way, and not by itself before that."""
    cut = state.cut
    return cut is not None and cut.preempts and not state.stopping and end_ms >= cut.since_ms


def _verdict(state: RunState, found: Exit | None) -> tuple[Phase, str, str]:
    """The phase, reason and sentence of an ending."""
    if state.stopping:
        return Phase.FAILED, "Cancelled", "cancelled"
    if found is None:
        return Phase.COMPLETED, "DurationOver", "its time is over"
    if found.succeeded:
        return Phase.COMPLETED, "Exited", "the command ended with 0"
    if found.lost:
        return Phase.FAILED, "Lost", "its process is gone and left no exit status"
    how = f"with {found.code}" if found.code is not None else f"by signal {found.signal}"
    return Phase.FAILED, "Exited", f"the command ended {how}"
