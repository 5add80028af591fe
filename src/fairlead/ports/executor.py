"""The port between the control plane and what really runs a Run's command.

    executor.start(job)              # idempotent by job id: a crash may ask twice
    executor.poll()                  # exits that are not acknowledged yet
    executor.acknowledge(exits)      # once they stand in the ledger

Every act names the recorded decision that it carries out: `start` by the job's id, which is the
plan's, the others by `decision`, the plan id (or the sequence number) of a ledger entry.
All raise `TemporaryFault` or `PermanentFault`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

RESERVED_ENV = ("FAIRLEAD_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Prefixes of variables that are set from the lease; a submitter cannot set them."""


@dataclass(frozen=True, slots=True)
class Widths:
    """What the width of a malleable run may become: it loses and regains whole groups."""

    group_gpus: int
    min_gpus: int
    max_gpus: int


@dataclass(frozen=True, slots=True)
class Job:
    """One start of a run's command on its leased devices; another id for the same run is a new
    start after the old one ended."""

    id: str
    run: str
    owner: str
    command: tuple[str, ...]
    devices: tuple[str, ...]
    """Leased devices as `node#ordinal`, active ones only, by group and slot."""
    leases: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    """Files whose contents become variables at start; they never pass through the control plane."""
    user: str | None = None
    working_directory: str | None = None
    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    """None: as much as there is."""
    pids: int | None = None
    """Processes and threads; None: as many as the executor allows."""
    umask: int | None = None
    """None: the executor's own."""
    terminal: bool = False
    """Whether it runs on a terminal (a pty) that its owner types into."""
    warns: bool = False
    """Whether it asked to be told what may happen to it (`warn`)."""
    widths: Widths | None = None
    """None: its width never changes. Else `devices` are whole groups, one behind the other; only
    the last may be smaller."""


@dataclass(frozen=True, slots=True)
class JobOutput:
    """What is kept of a job's output. `dropped`: how many bytes came before the first part."""

    job: str
    parts: tuple[Path, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Keyboard:
    """What the owner of a running job types: text, Ctrl-C, a terminal of another size."""

    text: bytes = b""
    interrupt: bool = False
    size: tuple[int, int] | None = None
    """Rows and columns."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a job ended: an exit code, or the signal that ended it. Neither is given where only the
    end is known, because the machine went down (`lost`)."""

    job: str
    run: str
    time_ms: int
    code: int | None = None
    signal: int | None = None
    lost: bool = False
    interrupted: bool = False
    """Lost with its machine, or with what the executor knew: no fault of its own."""
    reason: str | None = None
    """A sentence where the code alone does not say it: not started and why, or why it was lost."""
    stopped: bool = False
    """It ended after it was asked to, or its executor does not know when: its time, by the clock of
    another machine, does not tell."""
    boot: str = ""
    since_boot_ms: int = 0
    """The same moment by the machine's monotonic clock. Ledger time follows from it, whatever the
    wall clock showed. Empty: only `time_ms` is known."""

    @property
    def succeeded(self) -> bool:
        return self.code == 0


class Executor(Protocol):
    """Starts, stops and watches the commands of runs. Thread-safe; no call waits for a command."""

    pauses: bool
    """Whether it can pause a run; else `pause` is refused when it is asked for."""

    def start(self, job: Job) -> None:
        """Start a job, or do nothing when this id was started before (running or ended)."""

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        """Ask a run's job to end, and end it after the grace; nothing to do when none runs."""

    def pause(self, run: str, *, decision: str) -> None:
        """Stop the run's processes in place; idempotent."""

    def resume(self, run: str, *, decision: str) -> None:
        """Let them go on; idempotent."""

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        """Tell a run's job which devices it keeps, or has by now; idempotent, and it runs on. What
        it gives up it may use for the grace. It is told by the file that FAIRLEAD_WIDTH_FILE names,
        with `devices` and `width` from its start on; a process also by SIGWINCH, because a command
        that does not know that signal ignores it."""

    def warn(
        self, run: str, notice: Mapping[str, object], *, signal: str | None, decision: str
    ) -> None:
        """Tell a run's job what may happen to it, by the file that FAIRLEAD_WARNING_FILE names and,
        where one is given, by a signal; idempotent by decision, and it runs on."""

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        """Whether a run's job still uses any of these devices, which a resize took from it. None:
        that cannot be told of a process, and the end of its grace decides."""

    def poll(self) -> list[Exit]:
        """Exits not acknowledged yet, by time and then run: a control plane that dies between
        receiving and recording one receives it again."""

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        """These stand in the ledger; `poll` need not report them again."""

    def running(self) -> set[str]:
        """Ids of the jobs (not runs) that have started and not ended."""

    def devices_of(self, run: str) -> dict[str, list[str]]:
        """The jobs of a run that are not over, and the devices that each was told to have."""

    def ended(self, job: str, run: str) -> Exit | None:
        """How a job ended that was started by the ledger and is no longer here: as it was reported
        once, or interrupted, at the time at which the executor last saw its jobs (0: it does not
        know). None: it runs, or its end will be reported."""

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        """All that is kept of a run's newest output, oldest first; the last part may grow. `jobs`:
        what the ids of the run's jobs begin with; an earlier run of the name may have had another
        owner."""
