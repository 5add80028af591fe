"""The port between the control plane and what really runs a Run's command.

    executor.start(job)              # idempotent by job id: a crash may ask twice
    executor.poll()                  # exits that are not acknowledged yet
    executor.acknowledge(exits)      # once they stand in the ledger

Every act names the recorded decision that it carries out: `start` by the job's id, which is the
plan's, the others by `decision`, the plan id (or the sequence number) of a ledger entry.
An exit is reported by every `poll` until it is acknowledged, so that a control plane that dies
between receiving and recording it receives it again. All raise `TemporaryFault` or
`PermanentFault` of `fairlead.ports.faults`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

RESERVED_ENV = ("FAIRLEAD_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Prefixes of variables that are set from the lease; a submitter cannot set them."""


@dataclass(frozen=True, slots=True)
class Job:
    """One start of a run's command on its leased devices.

    `id` is the plan id of the start: starting the same id again is starting it once; another id
    for the same run is a new start after the old one ended. `secret_env` names files whose
    contents become variables at start; the contents never pass through the control plane.
    """

    id: str
    run: str
    owner: str
    command: tuple[str, ...]
    devices: tuple[str, ...]
    """Leased devices as `node#ordinal`, active ones only, by group and slot."""
    leases: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    working_directory: str | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How a job ended: an exit code, or the signal that ended it; exactly one is given.

    `lost` marks a job of which only the end is known (the machine went down): neither is given.
    """

    job: str
    run: str
    time_ms: int
    code: int | None = None
    signal: int | None = None
    lost: bool = False
    reason: str | None = None
    """A sentence where the code alone does not say it: not started and why, or why it was lost."""

    @property
    def succeeded(self) -> bool:
        """Whether the command reported success."""
        return self.code == 0


class Executor(Protocol):
    """Starts, stops and watches the commands of runs. Thread-safe; no call waits for a command."""

    def start(self, job: Job) -> None:
        """Start a job, or do nothing when this id was started before (running or ended)."""

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        """Ask a run's job to end, and end it after the grace; nothing to do when none runs."""

    def pause(self, run: str, *, decision: str) -> None:
        """Stop the run's processes in place; idempotent."""

    def resume(self, run: str, *, decision: str) -> None:
        """Let them go on; idempotent."""

    def resize(self, run: str, devices: tuple[str, ...], *, decision: str) -> None:
        """Tell a run's job which devices it keeps, or has by now: by a file and a signal.

        Idempotent, and the job runs on.

        The file is named by FAIRLEAD_WIDTH_FILE in the job's environment and holds
        `{"devices", "visible", "width"}` from its start on. The signal is SIGWINCH, because a
        command that does not know it ignores it.
        """

    def poll(self) -> list[Exit]:
        """Exits not acknowledged yet, by time and then run."""

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        """These stand in the ledger; `poll` need not report them again."""

    def running(self) -> set[str]:
        """Ids of the jobs (not runs) that have started and not ended."""

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        """All that is kept of a run's newest output, oldest first; the last part may grow.

        A part that is full is put aside under another name, as the same file; older ones go.
        `jobs`: what the ids of the run's jobs begin with. Another run that had the name before
        may have had another owner, and its output is not this one's.
        """
