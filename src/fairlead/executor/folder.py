"""A job's folder on disk, as the executor sees it: what was asked, who runs, how it ended.

job.json      written first; from then on the job exists
lock          held by the living shim
shim.json     who the shim is          command.json   who the command is, before it may begin
stop.json     asked to end             paused.json    asked to pause
width.json    how often it was told another width
exit.json     how it ended             output.log     what it said (and output.1.log before it)
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.executor import confine, durable, identity, shim
from fairlead.executor.output import NAME, OLDER
from fairlead.ports.executor import Exit

_SLUG_MAX = 40


def key(text: str) -> str:
    """A name for a folder: readable for people, and different for different texts."""
    slug = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:_SLUG_MAX]
    return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class JobFolder:
    """One job. Raises OSError as the disk does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / NAME
        self.lock = str(path / shim.LOCK)
        self._job: dict[str, Any] | None = None
        self._exit: Exit | None = None

    @property
    def job(self) -> dict[str, Any] | None:
        """What was asked; None when a crash came before it was written."""
        if self._job is None:
            self._job = durable.read(str(self.path / shim.JOB))
        return self._job

    @property
    def id(self) -> str:
        """The job's id; only of a folder that holds a job."""
        return str(self._asked()["id"])

    @property
    def run(self) -> str:
        """The run it is a start of; only of a folder that holds a job."""
        return str(self._asked()["run"])

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it has not."""
        if self._exit is None:
            found = durable.read(str(self.path / shim.EXIT))
            if found is not None:
                self._exit = Exit(
                    job=self.id,
                    run=self.run,
                    time_ms=found["time_ms"],
                    code=found.get("code"),
                    signal=found.get("signal"),
                    lost=found.get("lost", False),
                    reason=found.get("reason"),
                )
        return self._exit

    def log_parts(self) -> list[Path]:
        """The parts of its output that are there, oldest first."""
        return [part for part in (self.path / OLDER, self.log) if part.exists()]

    def create(self, job: Mapping[str, Any]) -> None:
        """Write down what is asked, once; a folder left half made by a crash is completed."""
        if self.job is not None:
            return
        self.path.mkdir(mode=0o700, exist_ok=True)
        durable.write(str(self.path / shim.JOB), dict(job))
        durable.sync_folder(str(self.path.parent))

    def end(self, time_ms: int, **how: Any) -> None:
        """Write down an end that no shim can write."""
        durable.write(str(self.path / shim.EXIT), {"time_ms": time_ms, **how})

    def begun(self) -> dict[str, Any] | None:
        """The identity of the command; None when none was ever allowed to begin."""
        return durable.read(str(self.path / shim.COMMAND))

    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return (self.path / shim.STOP).exists()

    def ask_stop(self, grace_ms: int) -> None:
        """Ask the shim to end the command; holds even if nobody lives to hear it now."""
        durable.write(str(self.path / shim.STOP), {"grace_ms": grace_ms})
        self._wake()

    def ask_pause(self, *, paused: bool) -> None:
        """Ask the shim to hold the command, or to let it go on."""
        path = self.path / shim.PAUSED
        if paused:
            durable.write(str(path), {}, lasting=False)
        else:
            path.unlink(missing_ok=True)
        self._wake()

    def tell_width(self) -> None:
        """Have the shim tell the command that its width file says something else."""
        path = str(self.path / shim.WIDTH)
        before = durable.read(path) or {"number": 0}
        durable.write(path, {"number": before["number"] + 1}, lasting=False)
        self._wake()

    def confinement(self) -> confine.Confinement:
        """What holds its processes."""
        return confine.described(self._asked())

    def move(self, target: Path) -> None:
        """Put the folder elsewhere, in one step."""
        source = self.path.parent
        self.path.rename(target / self.path.name)
        durable.sync_folder(str(target))
        durable.sync_folder(str(source))

    def remove(self) -> None:
        """Forget the job and its output."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)

    def _wake(self) -> None:
        # Written first, signalled second; the shim names itself first and looks second.
        identity.send(durable.read(str(self.path / shim.SHIM)), shim.WAKE)

    def _asked(self) -> dict[str, Any]:
        if self.job is None:
            raise FileNotFoundError(str(self.path / shim.JOB))
        return self.job
