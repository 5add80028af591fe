"""Effects: the executor made to do what the ledger says. Asking twice is asking once.

Nothing here decides. After a restart every start is asked for again, because a crash may have come
between recording it and asking; one that was recorded longer ago and left no trace has ended. Jobs
that the ledger no longer wants are stopped; those that it does not know (it was restored) are
written down first, and have their grace.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from msgspec import UNSET, UnsetType

from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import JobUnknown
from fairlead.engine.gpu.state import LeaseFact, Reclaim, RunState, job_prefix
from fairlead.ports.executor import Executor, Exit, Job, Widths
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.schema.objects import RunSpec, cpu_millicores, memory_bytes
from fairlead.schema.objects import grace_ms as spec_grace_ms
from fairlead.schema.times import format_time

START_MS = 60_000
"""A start that was recorded longer ago was asked for."""


class Effects:
    """Starts, stops, pauses, resumes and resizes the commands of runs."""

    def __init__(
        self, committer: Committer, executor: Executor | None, faults: dict[str, str]
    ) -> None:
        self._committer, self._executor, self._config = committer, executor, committer.config
        self._projection = committer.projection
        self._started: set[str] = set()
        """Jobs that this process asked for."""
        self._later: set[str] = set()
        """Jobs that this process will ask for, when their delay is over."""
        self._paused: set[str] = set()
        """Jobs that this process paused."""
        self._notified: dict[str, int] = {}
        """Runs that this process notified of a smaller width, and since when it is smaller."""
        self._devices: dict[str, tuple[str, ...]] = {}
        """The devices that this process last told a job to have."""
        self._warned: dict[str, int] = {}
        """Jobs that this process warned, and the entry that says of what."""
        self._unknown: dict[str, int] = {}
        """Jobs that the ledger did not start, and the entry that says so."""
        self._opened_ms = self._projection.time_ms
        """The last that was known when this process began."""
        self.missing: set[str] = set()
        """Runs that are to end and whose job the executor does not know."""
        self.failed_starts: dict[str, tuple[str, str]] = {}
        """Runs whose job will never start, by name: the job's id, and why."""
        self.faults = faults
        """What the executor last failed at, by run or `*call`."""

    def has_process(self, run: str) -> bool:
        return self._executor is not None and bool(self._projection.run_spec(run).command)

    @property
    def can_pause(self) -> bool:
        return self._executor is None or self._executor.pauses

    def was_notified(self, run: str, reclaim: Reclaim) -> bool:
        """Whether this process told a run which devices it keeps."""
        return self._notified.get(run) == reclaim.since_ms

    def has_released(self, run: str, reclaim: Reclaim, slots: tuple[str, ...], now_ms: int) -> bool:
        """Whether devices that a run gives up are free: when its job does not use them any more,
        or, where that cannot be told, when it was notified and its grace is over."""
        if not self.was_notified(run, reclaim) or self._executor is None:
            return False
        if self._projection.runs[run].job not in self._started:
            return True  # it restarts later, and has no process
        held: list[bool | None] = []
        executor = self._executor
        if not self._try(run, lambda: held.append(executor.held(run, slots))):
            return False
        return now_ms >= reclaim.due_ms if held[0] is None else not held[0]

    def poll(self) -> list[Exit]:
        exits: list[Exit] = []
        executor = self._executor
        if executor is not None:
            self._try("*poll", lambda: exits.extend(executor.poll()))
            for name, state in sorted(self._projection.running.items()):
                if state.job not in self._started:
                    self._try(name, partial(self._look_for, executor, name, state, exits))
        return exits

    def _look_for(self, executor: Executor, name: str, state: RunState, exits: list[Exit]) -> None:
        """Add the end of a job that this process did not start, and that is not there any more."""
        job, started_ms = state.job, state.command_ms
        if job is None or job in self._later or not self.has_process(name):
            return
        if self._committer.now() - started_ms < START_MS:
            return  # a crash may have come before it was asked for: it is asked for again
        exit = executor.ended(job, name)
        if exit is not None:
            time_ms = max(started_ms, exit.time_ms or self._opened_ms)
            exits.append(replace(exit, time_ms=time_ms))

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        """They are recorded; when this fails they are reported again, and known."""
        gone, executor = list(exits), self._executor
        if gone and executor is not None:
            self._try("*acknowledge", lambda: executor.acknowledge(gone))

    def carry_out(self) -> None:
        """Every run's job as the ledger wants it."""
        executor, running = self._executor, set[str]()
        if executor is None or not self._try(
            "*running", lambda: running.update(executor.running())
        ):
            return
        self.missing.clear()
        wanted = {state.job for state in self._projection.running.values() if state.job is not None}
        self._forget_all_but(wanted)
        leaving: set[str] = set()
        for job in sorted(running - wanted):
            run = _run_of(job)
            leaving.add(run)
            self._try(run, partial(self._stop_unwanted, executor, run, job))
        for name, state in sorted(self._projection.running.items()):
            if state.job is not None and self.has_process(name):
                self._drive(executor, name, state, running, leaving)

    def _forget_all_but(self, jobs: set[str]) -> None:
        """What was asked for jobs that are over: of years of them nothing is kept."""
        self._started &= jobs
        self._later &= jobs
        self._paused &= jobs
        for told in (self._devices, self._warned):
            for job in told.keys() - jobs:
                del told[job]
        for run in self._notified.keys() - self._projection.live.keys():
            del self._notified[run]

    def _stop_unwanted(self, executor: Executor, run: str, job: str) -> None:
        state, stored = self._projection.runs.get(run), self._projection.get("Run", run)
        if state is not None and stored is not None:
            prefix, _, attempt = job.rpartition(".")
            if f"{prefix}." == job_prefix(run, stored.uid) and int(attempt) <= state.attempt:
                decision = job if state.stop_seq is None else str(state.stop_seq)
                executor.stop(run, 0, decision=decision)
                return
        asked_ms = None if stored is None else spec_grace_ms(self._projection.run_spec(run))
        grace_ms = self._config.grace.of(asked_ms)
        if job not in self._unknown:
            message = "the ledger did not start it: it is asked to end, and has its grace"
            body = JobUnknown(run, job, grace_ms, message)
            (entry,) = self._committer.commit(lambda: [self._committer.new(body)])
            self._unknown[job] = entry.seq
        executor.stop(run, grace_ms, decision=str(self._unknown[job]))

    def _drive(
        self, executor: Executor, name: str, state: RunState, running: set[str], leaving: set[str]
    ) -> None:
        """`leaving`: runs that have a job which is to be gone."""
        job, reclaim = state.job or "", state.reclaim
        if state.is_ending:
            grace_ms = self._config.grace_ms if reclaim is None else reclaim.grace_ms
            decision = _decision(state, state.stop_seq)
            self._try(name, lambda: executor.stop(name, grace_ms, decision=decision))
            if job not in running:
                self.missing.add(name)  # ended already, or never started: no exit will come
            return
        fresh = job not in self._started
        if fresh:
            if name in leaving:
                return  # its devices changed; the old job has to be gone first
            if self._committer.now() < state.command_ms:
                self._wait(name, state)
                return
            if not self._start(executor, name, state):
                return
            self._started.add(job)
            self._later.discard(job)
        self._resize(executor, name, state)
        self._warn(executor, name, state)
        decision = job if state.pause_seq is None else str(state.pause_seq)
        if state.paused and job not in self._paused:
            if self._try(name, lambda: executor.pause(name, decision=decision)):
                self._paused.add(job)
            return
        # A crash may have come between recording that it goes on and letting it.
        halted = job in self._paused or (fresh and state.reason == "Resumed")
        if (
            halted
            and not state.paused
            and self._try(name, lambda: executor.resume(name, decision=decision))
        ):
            self._paused.discard(job)

    def _wait(self, name: str, state: RunState) -> None:
        """A run that restarts later has no process to tell: what it gives up, it does not use."""
        self._later.add(state.job or "")
        if state.reclaim is not None:
            self._notified[name] = state.reclaim.since_ms

    def _resize(self, executor: Executor, name: str, state: RunState) -> None:
        """A run that is to shrink is told which devices it keeps, before they are taken; one that
        has grown, which it has."""
        reclaim, job = state.reclaim, state.job or ""
        if not state.grown if reclaim is None else self.was_notified(name, reclaim):
            return
        devices = _kept_devices(state)
        if reclaim is None and self._devices.get(job) == devices:
            return
        decision = _decision(state, state.width_seq)
        grace_ms = 0 if reclaim is None else max(0, reclaim.due_ms - self._committer.now())

        def resize() -> None:
            executor.resize(name, devices, grace_ms=grace_ms, decision=decision)

        if self._try(name, resize):
            self._devices[job] = devices
            if reclaim is not None:
                self._notified[name] = reclaim.since_ms

    def _warn(self, executor: Executor, name: str, state: RunState) -> None:
        """A run that asked for it is told what may happen to it, once by this process."""
        spec = self._projection.run_spec(name)
        if spec.warn_before is UNSET or not state.warned:
            return
        last = max(state.warned.values(), key=lambda row: row.seq)
        job = state.job or ""
        if self._warned.get(job) == last.seq or last.start_ms <= self._committer.now():
            return
        notice = {
            "start": format_time(last.start_ms),
            "chance": last.chance,
            "chanceError": last.chance_error,
            "message": last.message,
        }
        by, decision = spec.warn_before.signal, str(last.seq)
        if self._try(name, lambda: executor.warn(name, notice, signal=by, decision=decision)):
            self._warned[job] = last.seq

    def _start(self, executor: Executor, name: str, state: RunState) -> bool:
        job = self._job(name, state)

        def start() -> None:
            try:
                executor.start(job)
            except PermanentFault as fault:
                self.failed_starts[name] = (job.id, str(fault))
                raise
            self.failed_starts.pop(name, None)

        return self._try(name, start)

    def _try(self, name: str, effect: Callable[[], object]) -> bool:
        """One effect; a fault is kept for people and tried again at the next turn."""
        try:
            effect()
        except Fault as fault:
            self.faults[name] = str(fault)
            return False
        self.faults.pop(name, None)
        return True

    def _job(self, name: str, state: RunState) -> Job:
        spec, stored = self._projection.run_spec(name), self._projection.objects["Run", name]
        leases = _in_order(state)
        return Job(
            id=state.job or "",
            run=name,
            owner=spec.owner,
            command=tuple(spec.command),
            devices=_kept_devices(state),
            leases=tuple(lease.id for lease in leases),
            env=dict(spec.env),
            secret_env={key: secret.file for key, secret in spec.secret_env.items()},
            user=stored.user,
            working_directory=spec.working_directory,
            cpu_millicores=cpu_millicores(spec),
            memory_bytes=memory_bytes(spec),
            pids=None if isinstance(spec.pids, UnsetType) else spec.pids,
            umask=None if isinstance(spec.umask, UnsetType) else int(spec.umask, 8),
            terminal=spec.terminal is True,
            warns=spec.warn_before is not UNSET,
            widths=_widths(spec),
        )


def _run_of(job: str) -> str:
    return job.rsplit(".", 2)[0]


def _widths(spec: RunSpec) -> Widths | None:
    if spec.malleable is None or spec.group_gpus is None:
        return None
    return Widths(spec.group_gpus, spec.malleable.min_gpus, spec.gpus)


def _decision(state: RunState, entry: int | None) -> str:
    """What an act cites: the outcome that preempts or shrinks a run, else the entry that asked for
    the act; the plan of its start where a checkpoint of an earlier version does not say which."""
    outcome = None if state.reclaim is None or state.stopping else state.reclaim.outcome
    cited = outcome if outcome is not None else entry
    return state.job or "" if cited is None else str(cited)


def _kept_devices(state: RunState) -> tuple[str, ...]:
    gone = set() if state.reclaim is None else state.reclaim.leases.keys()
    kept = [lease for lease in _in_order(state) if lease.is_active and lease.id not in gone]
    return tuple(slot for lease in kept for slot in lease.slots)


def _in_order(state: RunState) -> list[LeaseFact]:
    return sorted(state.leases.values(), key=lambda lease: (lease.group, lease.seq))
