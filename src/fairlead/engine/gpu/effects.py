"""Effects: the executor made to do what the ledger says. Asking twice is asking once.

Nothing here decides. After a restart every start is asked for again, because a crash may have come
between recording it and asking; jobs that the ledger no longer wants are stopped.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fairlead.engine.gpu.control import Core
from fairlead.engine.gpu.resolver.cuts import kept_devices
from fairlead.engine.gpu.settle import end_run
from fairlead.engine.gpu.state import Cut, Phase, RunState
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.executor import Executor, Exit, Job
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.schema.times import format_time

CLOCK_BEHIND_MS = 5_000
"""From here on people are told; time servers and replicas are apart by less."""


class Effects(Core):
    """Starts, stops, pauses and resumes the commands of runs."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._started: set[str] = set()
        """Jobs that this process asked for."""
        self._stopped_in_place: set[str] = set()
        """Jobs that this process paused."""
        self._told: dict[str, int] = {}
        """Runs that this process told of a smaller width, and of which cut."""
        self._wide: dict[str, tuple[str, ...]] = {}
        """The devices that this process last told a job to have."""
        self._missing: set[str] = set()
        """Jobs that are to end and that the executor does not know."""
        self.faults: dict[str, str] = {}
        """What the executor last failed at, by run or `*call`, and `*clock`; for status pages."""

    def _has_process(self, name: str) -> bool:
        return self._executor is not None and bool(self._projection.run_spec(name).command)

    def _poll(self) -> list[Exit]:
        found: list[Exit] = []
        executor = self._executor
        if executor is not None:
            self._try("*poll", lambda: found.extend(executor.poll()))
        return found

    def _acknowledge(self, exits: Iterable[Exit]) -> None:
        """They stand in the ledger; when this fails they are heard of again, and known."""
        gone, executor = list(exits), self._executor
        if gone and executor is not None:
            self._try("*acknowledge", lambda: executor.acknowledge(gone))

    def _touch_world(self) -> None:
        """Every run's job as the ledger wants it."""
        executor, running = self._executor, set[str]()
        if executor is None or not self._try(
            "*running", lambda: running.update(executor.running())
        ):
            return
        self._missing.clear()
        wanted = {state.job for state in self._projection.live.values() if state.job is not None}
        for job in sorted(running - wanted):
            run = job.rsplit(".", 2)[0]
            self._try(run, partial(executor.stop, run, 0, decision=job))
        for name, state in sorted(self._projection.live.items()):
            if state.job is not None and self._has_process(name):
                self._drive(executor, name, state, running, running - wanted)

    def _drive(
        self, executor: Executor, name: str, state: RunState, running: set[str], leaving: set[str]
    ) -> None:
        job, cut = state.job or "", state.cut
        if state.stopping or (cut is not None and cut.preempts):
            grace_ms = self.config.grace_ms if cut is None else cut.grace_ms
            self._try(name, lambda: executor.stop(name, grace_ms, decision=job))
            if job not in running:
                self._missing.add(name)  # ended already, or never started: no exit will come
            return
        fresh = job not in self._started
        if fresh:
            if any(old.rsplit(".", 2)[0] == name for old in leaving):
                return  # its devices changed; the old job has to be gone first
            if not self._try(name, lambda: executor.start(self._job(name, state)), starting=True):
                return
            self._started.add(job)
        self._tell(executor, name, state)
        if state.paused and job not in self._stopped_in_place:
            if self._try(name, lambda: executor.pause(name, decision=job)):
                self._stopped_in_place.add(job)
            return
        # A crash may have come between recording that it goes on and letting it.
        halted = job in self._stopped_in_place or (fresh and state.reason == "Resumed")
        if (
            halted
            and not state.paused
            and self._try(name, lambda: executor.resume(name, decision=job))
        ):
            self._stopped_in_place.discard(job)

    def _tell(self, executor: Executor, name: str, state: RunState) -> None:
        """A run that is to shrink is told which devices it keeps, before they are taken; one that
        has grown, which it has."""
        cut, job = state.cut, state.job or ""
        told = not state.grown if cut is None else self._was_told(name, cut)
        if told:
            return
        devices = kept_devices(state)
        if cut is None and self._wide.get(job) == devices:
            return
        if self._try(name, lambda: executor.resize(name, devices, decision=job)):
            self._wide[job] = devices
            if cut is not None:
                self._told[name] = cut.since_ms

    def _was_told(self, run: str, cut: Cut) -> bool:
        return self._told.get(run) == cut.since_ms

    def _try(self, name: str, effect: Callable[[], object], *, starting: bool = False) -> bool:
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

    def _recover(self) -> None:
        """After an append that failed, and none that did not: is there room for an entry again?"""
        failure = self._ledger.failure()
        if failure is not None:
            body = {"message": f"entries are recorded again, after: {failure}"}
            self._commit(lambda: [self._draft("control.recovered", SYSTEM, body)])

    def _watch_clock(self) -> None:
        """A clock that was ahead once: no time passes until it is past the last entry again."""
        behind_ms = self.clock_behind_ms
        if behind_ms < CLOCK_BEHIND_MS:
            self.faults.pop("*clock", None)
            return
        last = format_time(self._projection.time_ms)
        self.faults["*clock"] = (
            f"the clock is {behind_ms // 1000} s behind the last entry, of {last}, and no time "
            "passes until then: set the clock right if it is slow, else wait"
        )

    def _start_failed(self, name: str, message: str) -> None:
        now_ms = self._now()
        self._commit(
            lambda: end_run(
                self._projection,
                name,
                end_ms=now_ms,
                now_ms=now_ms,
                phase=Phase.FAILED,
                reason="StartFailed",
                message=message,
                lease_reason="Cancelled",
            )
        )

    def _job(self, name: str, state: RunState) -> Job:
        spec, stored = self._projection.run_spec(name), self._projection.objects["Run", name]
        leases = sorted(state.leases.values(), key=lambda each: (each.group, each.seq))
        return Job(
            id=state.job or "",
            run=name,
            owner=spec.owner,
            command=tuple(spec.command),
            devices=tuple(slot for each in leases if each.is_active for slot in each.slots),
            leases=tuple(each.id for each in leases),
            env=dict(spec.env),
            secret_env={key: secret.file for key, secret in spec.secret_env.items()},
            user=stored.user,
            working_directory=spec.working_directory,
        )
