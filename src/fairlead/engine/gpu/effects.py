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

from fairlead.core.gpu.clock import is_of_earlier_boot, seen_in_boot
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import JobGone, JobUnknown, NewEntry
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
        self._looked = False
        """Whether jobs that the ledger did not start were looked for."""
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
            running = self._projection.running
            # Most were started by this process: of thousands only the others are put in order.
            others = [name for name, row in running.items() if row.job not in self._started]
            for name in sorted(others):
                self._try(name, partial(self._look_for, executor, name, running[name], exits))
        return exits

    def _look_for(self, executor: Executor, name: str, state: RunState, exits: list[Exit]) -> None:
        """Add the end of a job that this process did not start, and that is not there any more."""
        job, started_ms = state.job, state.command_ms
        if job is None or job in self._later or not self.has_process(name):
            return
        if self._committer.now() - started_ms < START_MS and not self._was_rebooted(state):
            return  # a crash may have come before it was asked for: it is asked for again
        exit = executor.ended(job, name)
        if exit is not None:
            began_ms = state.started_ms or 0  # a restart that waits has not begun, and has leases
            seen_ms = max(began_ms, exit.time_ms or self._opened_ms)
            time_ms = seen_in_boot(self._projection.boots, began_ms, seen_ms)
            exits.append(replace(exit, time_ms=time_ms))

    def _was_rebooted(self, state: RunState) -> bool:
        """Whether the machine has restarted since a start was recorded. Its leases end with that
        boot, whether it was asked for or not: the time since is charged to none."""
        return is_of_earlier_boot(self._projection.boots, state.started_ms or 0)

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        """They are recorded; when this fails they are reported again, and known."""
        gone, executor = list(exits), self._executor
        if gone and executor is not None:
            self._try("*acknowledge", lambda: executor.acknowledge(gone))

    def look_around(self) -> None:
        """Before this process places its first run: the ledger may have been restored, and a
        process that it does not know may use devices that it takes to be free."""
        if self._executor is not None and not self._looked:
            running = self._running(self._executor)
            if running is not None:
                self._stop_unwanted(self._executor, running)

    def carry_out(self) -> None:
        """Every run's job as the ledger wants it."""
        self._committer.record_boot()
        executor = self._executor
        running = None if executor is None else self._running(executor)
        if executor is None or running is None:
            return
        self.missing.clear()
        leaving = self._stop_unwanted(executor, running)
        for name, state in sorted(self._projection.running.items()):
            if state.job is not None and self.has_process(name):
                self._drive(executor, name, state, running, leaving)

    def _running(self, executor: Executor) -> set[str] | None:
        """None: the executor cannot tell now."""
        running = set[str]()
        known = self._try("*running", lambda: running.update(executor.running()))
        return running if known else None

    def _stop_unwanted(self, executor: Executor, running: set[str]) -> set[str]:
        """Ask jobs to end that the ledger does not want; their runs are the result."""
        self._looked = True
        wanted = {state.job for state in self._projection.running.values() if state.job is not None}
        self._forget_all_but(wanted)
        leaving: set[str] = set()
        for job in sorted(running - wanted):
            run = _run_of(job)
            leaving.add(run)
            self._try(run, partial(self._stop_job, executor, run, job))
        unknown = self._projection.unknown_jobs

        def gone() -> list[NewEntry]:
            jobs = sorted(unknown.keys() - running)
            return [self._committer.new(JobGone(unknown[job].run, job)) for job in jobs]

        if unknown.keys() - running:
            self._committer.commit(gone)
        return leaving

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

    def _stop_job(self, executor: Executor, run: str, job: str) -> None:
        state, stored = self._projection.runs.get(run), self._projection.get("Run", run)
        if state is not None and stored is not None:
            prefix, _, attempt = job.rpartition(".")
            if f"{prefix}." == job_prefix(run, stored.uid) and int(attempt) <= state.attempt:
                decision = job if state.stop_seq is None else str(state.stop_seq)
                executor.stop(run, 0, decision=decision)
                return
        asked_ms = None if stored is None else spec_grace_ms(self._projection.run_spec(run))
        grace_ms = self._config.grace.of(asked_ms)
        known = self._projection.unknown_jobs
        if job not in known:
            message = "the ledger did not start it: it is asked to end, and has its grace"
            devices = tuple(executor.devices_of(run).get(job, ()))
            entry = self._committer.new(JobUnknown(run, job, grace_ms, message, devices))
            self._committer.commit(lambda: [] if job in known else [entry])
        executor.stop(run, grace_ms, decision=str(known[job].seq))

    def _drive(
        self, executor: Executor, name: str, state: RunState, running: set[str], leaving: set[str]
    ) -> None:
        """`leaving`: runs that have a job which is to be gone."""
        job = state.job or ""
        if state.is_ending:
            grace_ms = self._grace_ms(state)
            decision = _decision(state, state.stop_seq)
            self._try(name, lambda: executor.stop(name, grace_ms, decision=decision))
            if job not in running:
                self.missing.add(name)  # ended already, or never started: no exit will come
            return
        fresh = job not in self._started
        if fresh:
            if name in leaving or self._is_used(state):
                return  # its devices changed; the old job has to be gone first
            if self._was_rebooted(state) and job not in running:
                return  # the next turn hears how it ended, or that it did not begin
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

    def _is_used(self, state: RunState) -> bool:
        """Whether a process that the ledger did not start has one of its devices."""
        unknown = self._projection.unknown_jobs.values()
        used = {slot for job in unknown for slot in job.slots}
        return bool(used) and not used.isdisjoint(_kept_devices(state))

    def _grace_ms(self, state: RunState) -> int:
        if state.forced:
            return 0
        cancelled_ms, reclaim = self._config.grace_ms, state.reclaim
        if reclaim is None:
            return cancelled_ms
        return min(reclaim.grace_ms, cancelled_ms) if state.stopping else reclaim.grace_ms

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
        spec, stored = self._projection.run_spec(name), self._projection.objects["Run"][name]
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
