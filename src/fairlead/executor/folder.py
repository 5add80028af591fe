"""A job's folder on disk, as the executor sees it: the request, its processes, how it ended.

job.json      written first; from then on the job exists
lock          held by the living shim
shim.json     the shim's identity      command.json   the command's, before it may begin
stop.json     request to end           paused.json    request to pause
width.json    how many changes of its width were announced
exit.json     how it ended             output.log     its output (and output.1.log before it)

Requests name the recorded decision that they carry out.
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.executor import confine, identity, shim
from fairlead.host import files
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
        self.log = path / shim.OUTPUT
        self.lock = str(path / shim.LOCK)
        self._job: dict[str, Any] | None = None
        self._exit: Exit | None = None

    @property
    def job(self) -> dict[str, Any] | None:
        """What was asked; None when a crash came before it was written."""
        if self._job is None:
            self._job = files.read_json(self.path / shim.JOB)
        return self._job

    @property
    def id(self) -> str:
        return str(self.document()["id"])

    @property
    def run(self) -> str:
        return str(self.document()["run"])

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it has not."""
        if self._exit is None:
            found = files.read_json(self.path / shim.EXIT)
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
        return [part for part in (self.path / shim.OLDER_OUTPUT, self.log) if part.exists()]

    def create(self, job: Mapping[str, Any]) -> None:
        """Write down what is asked, once; a folder left half made by a crash is completed."""
        if self.job is not None:
            return
        self.path.mkdir(mode=0o700, exist_ok=True)
        files.replace_json(self.path / shim.JOB, dict(job))
        files.sync_directory(self.path.parent)

    def end(self, time_ms: int, **how: Any) -> None:
        """Write down an end that no shim can write."""
        files.replace_json(self.path / shim.EXIT, {"time_ms": time_ms, **how})

    def begun(self) -> dict[str, Any] | None:
        """The identity of the command; None when none was ever allowed to begin."""
        return files.read_json(self.path / shim.COMMAND)

    def stopping(self) -> bool:
        return (self.path / shim.STOP).exists()

    def ask_stop(self, grace_ms: int, decision: str) -> None:
        """Ask the shim to end the command; holds even if no shim is alive now."""
        request = {"grace_ms": grace_ms, "decision": decision}
        files.replace_json(self.path / shim.STOP, request)
        self._wake()

    def ask_pause(self, decision: str, *, paused: bool) -> None:
        """Ask the shim to hold the command, or to let it go on."""
        path = self.path / shim.PAUSED
        if paused:
            files.replace_json(path, {"decision": decision}, durable=False)
        else:
            path.unlink(missing_ok=True)
        self._wake()

    def announce_width(self, decision: str) -> None:
        """Have the shim signal the command that its width file has changed."""
        path = self.path / shim.WIDTH
        before = files.read_json(path) or {"number": 0}
        request = {"number": before["number"] + 1, "decision": decision}
        files.replace_json(path, request, durable=False)
        self._wake()

    def confinement(self) -> confine.Confinement:
        return confine.described(self.document())

    def move(self, target: Path) -> None:
        """Put the folder elsewhere, in one step."""
        source = self.path.parent
        self.path.rename(target / self.path.name)
        files.sync_directory(target)
        files.sync_directory(source)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)

    def _wake(self) -> None:
        # Written first, signalled second; the shim names itself first and looks second.
        identity.send(files.read_json(self.path / shim.SHIM), shim.WAKE)

    def document(self) -> dict[str, Any]:
        """What was asked; FileNotFoundError when there is nothing."""
        if self.job is None:
            raise FileNotFoundError(str(self.path / shim.JOB))
        return self.job
