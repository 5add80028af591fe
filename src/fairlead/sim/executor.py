"""An executor in virtual time: commands are behaviours, processes are entries in a table.

    machine = SimMachine(clock, lambda job: Behaviour(duration_ms=60_000))
    executor = SimExecutor(machine)

The machine outlives its executors, as a real one does, so a control plane may die and come back.
It passes the same conformance suite as the local executor. Where its boots have names, exits say by
the monotonic clock when they were, as those of a real machine do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

from fairlead.core.invariant import known
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import TemporaryFault
from fairlead.sim.clock import Turn, VirtualClock

_RETRY_AFTER_MS = 1_000


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a command does when it is left alone, and when it gets SIGTERM."""

    duration_ms: int | None = 0
    """None: it runs until it is stopped."""
    code: int = 0
    signal: int | None = None
    """Ends by this signal instead of a code."""
    output: str = ""
    checkpoint_ms: int | None = 0
    """How long after SIGTERM it ends; None ignores SIGTERM."""
    cannot_start: str | None = None
    """Why it cannot be started; `code` says the rest."""


class SimProcess:
    """One started job."""

    def __init__(self, job: Job, does: Behaviour) -> None:
        self.job, self.does = job, does
        self.started_ms = 0
        self.left_ms = does.duration_ms
        self.since_ms: int | None = None  # None while paused
        self.epoch = 0  # an appointment made in an earlier epoch is void
        self.stopping = False
        self.exit: Exit | None = None
        self.acknowledged = False
        self.kept = job.devices  # the devices of its last resize


class SimMachine:
    """The processes of a machine, and what their commands do."""

    def __init__(self, clock: VirtualClock, behaves: Callable[[Job], Behaviour]) -> None:
        self.clock, self._behaves = clock, behaves
        self.processes: dict[str, SimProcess] = {}
        self.starts: list[str] = []
        """Ids in the order in which their commands really began."""
        self.boot, self.booted_ms = "", clock.now_ms
        self.seen_ms: int | None = None
        """When an executor last looked after the jobs in this boot."""

    def live(self) -> list[SimProcess]:
        return [process for process in self.processes.values() if process.exit is None]

    def power_off(self) -> None:
        """The machine goes down: its processes end, and are reported as interrupted. Of when they
        did, only the last look at them, or their start, is known."""
        for process in self.live():
            self._end(process, lost=True)
            known_ms = max(process.started_ms, self.seen_ms or 0)
            since_ms = known_ms - self.booted_ms
            process.exit = replace(known(process.exit, "it ended"), since_boot_ms=since_ms)

    def power_on(self, boot: str) -> None:
        self.boot, self.booted_ms, self.seen_ms = boot, self.clock.now_ms, None

    def start(self, job: Job) -> None:
        process = self.processes[job.id] = SimProcess(job, self._behaves(job))
        does = process.does
        if does.cannot_start is not None:
            self._end(process, code=does.code, reason=does.cannot_start)
            return
        self.starts.append(job.id)
        process.started_ms = self.clock.now_ms
        self.proceed(process)

    def proceed(self, process: SimProcess) -> None:
        """Run on for what is left of its time."""
        process.since_ms = self.clock.now_ms
        does = process.does
        if process.left_ms is not None:
            code = does.code if does.signal is None else None
            self._later(process, process.left_ms, code=code, signal=does.signal)

    def hold(self, process: SimProcess) -> None:
        """Stand still; the time does not count."""
        if process.since_ms is not None and process.left_ms is not None:
            process.left_ms -= self.clock.now_ms - process.since_ms
        process.since_ms = None
        process.epoch += 1

    def stop(self, process: SimProcess, grace_ms: int) -> None:
        """SIGTERM, and SIGKILL after the grace; what is paused goes on first."""
        if process.since_ms is None:
            self.proceed(process)
        if not process.stopping:
            process.stopping = True
            if process.does.checkpoint_ms is not None:
                self._later(process, process.does.checkpoint_ms, signal=int(SIGTERM))
        self._later(process, grace_ms, signal=int(SIGKILL))

    def _later(
        self, process: SimProcess, delay_ms: int, *, signal: int | None, code: int | None = None
    ) -> None:
        epoch = process.epoch

        def end() -> None:
            if process.exit is None and process.epoch == epoch:
                self._end(process, code=code, signal=signal)

        self.clock.at(self.clock.now_ms + delay_ms, Turn.SCENARIO, end)

    def _end(
        self,
        process: SimProcess,
        *,
        code: int | None = None,
        signal: int | None = None,
        reason: str | None = None,
        lost: bool = False,
    ) -> None:
        job = process.job
        process.exit = Exit(
            job.id,
            job.run,
            self.clock.now_ms,
            code=code,
            signal=signal,
            reason=reason,
            lost=lost,
            interrupted=lost,
            boot=self.boot,
            since_boot_ms=self.clock.now_ms - self.booted_ms,
        )


class SimExecutor:
    """An `Executor` on a simulated machine; outputs go to `folder` when there is one."""

    pauses = True

    def __init__(self, machine: SimMachine, folder: Path | None = None) -> None:
        self._machine, self._folder = machine, folder

    def start(self, job: Job) -> None:
        if job.id in self._machine.processes:
            return
        if self._of(job.run):
            raise TemporaryFault(f"{job.run} is still running", retry_after_ms=_RETRY_AFTER_MS)
        self._machine.start(job)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        for process in self._of(run):
            self._machine.stop(process, grace_ms)

    def pause(self, run: str, *, decision: str) -> None:
        """Stop the run's processes in place; one that is stopping is not held up."""
        for process in self._of(run):
            if process.since_ms is not None and not process.stopping:
                self._machine.hold(process)

    def resume(self, run: str, *, decision: str) -> None:
        for process in self._of(run):
            if process.since_ms is None:
                self._machine.proceed(process)

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        for process in self._of(run):
            process.kept = devices

    def ended(self, job: str, run: str) -> Exit | None:
        process = self._machine.processes.get(job)
        if process is None:
            return Exit(job, run, 0, lost=True, interrupted=True)
        return process.exit if process.acknowledged else None

    def warn(self, run: str, notice: object, *, signal: str | None, decision: str) -> None:
        """Its commands have no such file."""

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        return None

    def poll(self) -> list[Exit]:
        """Exits not acknowledged yet, by time and then run."""
        ended = (
            process.exit
            for process in self._machine.processes.values()
            if process.exit is not None and not process.acknowledged
        )
        return sorted(ended, key=lambda exit: (exit.time_ms, exit.run, exit.job))

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        for exit in exits:
            process = self._machine.processes.get(exit.job)
            if process is not None and process.exit is not None:
                process.acknowledged = True

    def running(self) -> set[str]:
        self._machine.seen_ms = self._machine.clock.now_ms
        return {process.job.id for process in self._machine.live()}

    def devices_of(self, run: str) -> dict[str, list[str]]:
        live = (process.job for process in self._machine.live())
        return {job.id: list(job.devices) for job in live if job.run == run}

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        """A file with the newest output of a run; none without a folder, or before its start."""
        started = [
            process for process in self._machine.processes.values() if process.job.run == run
        ]
        if not started or self._folder is None or not started[-1].job.id.startswith(jobs):
            return []
        newest = started[-1]
        path = self._folder / f"{newest.job.id.replace('/', '_')}.log"
        path.write_text(newest.does.output)
        return [path]

    def _of(self, run: str) -> list[SimProcess]:
        return [process for process in self._machine.live() if process.job.run == run]
