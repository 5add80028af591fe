"""`ControlPlane`: the store, and the loop that admits, starts, ends and settles runs."""

from collections.abc import Callable, Iterable
from typing import Any

from fairlead.engine.gpu.admit import admission
from fairlead.engine.gpu.control import Config
from fairlead.engine.gpu.reports import Reports
from fairlead.engine.gpu.settle import end_run, refunding
from fairlead.engine.gpu.state import Phase, RunState, Stored
from fairlead.engine.gpu.status import conditions
from fairlead.engine.gpu.values import SYSTEM, Author, Refused
from fairlead.ports.executor import Executor, Exit, Job
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.ledger import Draft, Ledger


class ControlPlane(Reports):
    """The embedded control plane. `reconcile` is to be called after commands and every second."""

    def __init__(
        self, ledger: Ledger, executor: Executor | None, now_ms: Callable[[], int],
        config: Config | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ledger, executor, now_ms, config)
        self._started: set[str] = set()
        """Jobs that this process asked the executor to start. After a restart all are asked again:
        a crash may have come between recording a start and asking for it."""
        self.faults: dict[str, str] = {}
        """What the executor last failed at, by run; for status pages and logs."""

    # -- verbs ----------------------------------------------------------------------------------

    def act(
        self, kind: str, name: str, verb: str, *, author: Author, **parameters: Any
    ) -> dict[str, Any]:
        """Run: cancel, pause, resume. Node: cordon, uncordon, drain, fail. Returns the object."""
        verbs: dict[tuple[str, str], Callable[[Stored, Author], list[Draft]]] = {
            ("Run", "cancel"): self._cancel,
            ("Run", "pause"): lambda stored, by: self._pause(stored, by, paused=True),
            ("Run", "resume"): lambda stored, by: self._pause(stored, by, paused=False),
            ("Node", "cordon"): lambda stored, by: self._cordon(stored, by, cordoned=True),
            ("Node", "uncordon"): lambda stored, by: self._cordon(stored, by, cordoned=False),
            ("Node", "drain"): lambda stored, by: self._vacate(stored, by, "Drained"),
            ("Node", "fail"): lambda stored, by: self._vacate(stored, by, "NodeFailed"),
        }
        found = verbs.get((kind, verb))
        if found is None:
            raise Refused("UnknownVerb", f"a {kind} cannot {verb!r}")

        def decide() -> list[Draft]:
            stored = self._stored(kind, name)
            self._may_touch(author, stored)
            return found(stored, author)

        with self._lock:
            self._commit(decide)
            self._touch_world()
            return self._document(kind, name)

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
            self._projection, stored.name, end_ms=now_ms, now_ms=now_ms, phase=Phase.FAILED,
            reason="Cancelled", message=f"cancelled by {author.user}", lease_reason="Cancelled",
            author=author.user,
        )  # fmt: skip

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
        return {
            "run": run, "phase": state.phase.value, "reason": reason, "message": "", **given
        }  # fmt: skip

    def _cordon(self, stored: Stored, author: Author, *, cordoned: bool) -> list[Draft]:
        if stored.document["cordoned"] == cordoned:
            return []
        body = {
            "kind": "Node", "name": stored.name, "uid": stored.uid,
            "generation": stored.generation + 1, "labels": stored.labels,
            "spec": {**stored.document, "cordoned": cordoned},
        }  # fmt: skip
        return [self._draft("object.applied", author.user, body)]

    def _vacate(self, stored: Stored, author: Author, reason: str) -> list[Draft]:
        """Cordon a node, and let every gang with a device there return to Pending."""
        drafts, now_ms = self._cordon(stored, author, cordoned=True), self._now()
        for run in self._runs_on(stored.name):
            drafts += end_run(
                self._projection, run, end_ms=now_ms, now_ms=now_ms, phase=Phase.PENDING,
                reason=reason, message=f"node {stored.name} is out of service",
                lease_reason="NodeFailed", author=author.user,
            )  # fmt: skip
        return drafts

    # -- the loop -------------------------------------------------------------------------------

    def reconcile(self, now_ms: int | None = None) -> None:
        """One turn: collect endings, settle funding, admit, start, say how the budgets are."""
        with self._lock:
            self._catch_up()
            now_ms = max(self._now(), now_ms or 0)
            self._end_runs(now_ms)
            budgets = list(self._projection.budgets)
            self._commit(lambda: refunding(self._projection, budgets, now_ms, now_ms))
            for name in self._projection.pending():
                self._commit(lambda name=name: self._admit(name, now_ms))  # type: ignore[misc]
            self._touch_world()
            self._commit(lambda: self._condition_drafts(now_ms))

    def _admit(self, name: str, now_ms: int) -> list[Draft]:
        # Another replica may have started or removed it since the list was made.
        if name not in self._projection.pending():
            return []
        return admission(self._projection, name, now_ms)

    def _end_runs(self, now_ms: int) -> None:
        """Exits of commands, and runs without one whose time is over, in order of time."""
        exits = [] if self._executor is None else self._polled(self._executor)
        endings = [(each.time_ms, each.run, each) for each in exits]
        for name, state in self._projection.runs.items():
            until_ms = self._virtual_end(name, state)
            if until_ms is not None and until_ms <= now_ms:
                endings.append((until_ms, name, None))  # type: ignore[arg-type]
        for time_ms, name, found in sorted(endings, key=lambda each: each[:2]):
            self._end(name, min(time_ms, now_ms), now_ms, found)
        if exits and self._executor is not None:
            self._executor.acknowledge(exits)

    def _polled(self, executor: Executor) -> list[Exit]:
        try:
            return executor.poll()
        except Fault as fault:
            self.faults["*"] = str(fault)
            return []

    def _virtual_end(self, name: str, state: RunState) -> int | None:
        """When a run without a process is over: at the end of its duration."""
        if state.phase is not Phase.RUNNING or self._has_process(name):
            return None
        ends = [lease.expected_end_ms for lease in state.leases.values()]
        return None if None in ends or not ends else max(ends)  # type: ignore[type-var]

    def _end(self, name: str, end_ms: int, now_ms: int, found: Exit | None) -> None:
        # Who ran out of hours before this end is demoted first, at that moment.
        payers = self._payers(name)
        self._commit(lambda: refunding(self._projection, payers(), end_ms, now_ms))

        def decide() -> list[Draft]:
            state = self._projection.runs.get(name)
            if state is None or state.phase is not Phase.RUNNING:
                return []
            if found is not None and found.job != state.job:
                return []  # an earlier start of the same run, settled when it was displaced
            phase, reason, message = _verdict(state, found)
            return end_run(
                self._projection, name, end_ms=end_ms, now_ms=now_ms, phase=phase, reason=reason,
                message=message, lease_reason="Cancelled" if state.stopping else "Completed",
                code=None if found is None else found.code,
                signal=None if found is None else found.signal,
            )  # fmt: skip

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
                    each.status, each.generation,
                ):  # fmt: skip
                    continue
                body = {
                    "budget": stored.name, "type": each.type, "status": each.status,
                    "reason": each.reason, "message": each.message,
                    "generation": each.generation,
                }  # fmt: skip
                drafts.append(
                    Draft(kind="budget.condition", time_ms=now_ms, author=SYSTEM, body=body)
                )
        return drafts

    # -- effects --------------------------------------------------------------------------------

    def _has_process(self, name: str) -> bool:
        return self._executor is not None and bool(self._projection.run_spec(name).command)

    def _touch_world(self) -> None:
        """Make the executor do what the ledger says; asking twice is asking once."""
        executor = self._executor
        if executor is None:
            return
        for name, state in sorted(self._projection.runs.items()):
            if not self._has_process(name):
                continue
            if state.phase is Phase.RUNNING and state.job is not None:
                self._drive(executor, name, state)
            elif state.attempt and self._started_before(name):
                self._try(name, lambda name=name: executor.stop(name, 0))  # type: ignore[misc]

    def _started_before(self, name: str) -> bool:
        return any(job.startswith(f"{name}.") for job in self._started)

    def _drive(self, executor: Executor, name: str, state: RunState) -> None:
        if state.stopping:
            self._try(name, lambda: executor.stop(name, self.config.grace_ms))
            return
        job = state.job or ""
        if job not in self._started:
            if not self._try(name, lambda: executor.start(self._job(name, state)), starting=True):
                return
            self._started.add(job)
        if state.reason == "Paused":
            self._try(name, lambda: executor.pause(name))
        elif state.reason == "Resumed":
            self._try(name, lambda: executor.resume(name))

    def _try(self, name: str, effect: Callable[[], None], *, starting: bool = False) -> bool:
        """One effect; a fault is kept for people and tried again at the next turn."""
        try:
            effect()
        except PermanentFault as fault:
            self.faults[name] = str(fault)
            if starting:
                self._start_failed(name, str(fault))
            return False
        except Fault as fault:
            self.faults[name] = str(fault)
            return False
        self.faults.pop(name, None)
        return True

    def _start_failed(self, name: str, message: str) -> None:
        now_ms = self._now()
        self._commit(
            lambda: end_run(
                self._projection, name, end_ms=now_ms, now_ms=now_ms, phase=Phase.FAILED,
                reason="StartFailed", message=message, lease_reason="Cancelled",
            )
            if self._projection.runs[name].phase is Phase.RUNNING
            else []
        )  # fmt: skip

    def _job(self, name: str, state: RunState) -> Job:
        spec, stored = self._projection.run_spec(name), self._projection.objects["Run", name]
        leases = sorted(state.leases.values(), key=lambda each: (each.group, each.seq))
        return Job(
            id=state.job or "", run=name, owner=spec.owner, command=tuple(spec.command),
            devices=tuple(slot for each in leases if each.is_active for slot in each.slots),
            leases=tuple(each.id for each in leases), env=dict(spec.env),
            secret_env={key: secret.file for key, secret in spec.secret_env.items()},
            user=stored.user, working_directory=spec.working_directory,
        )  # fmt: skip


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
