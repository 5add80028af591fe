"""One job of the local executor on disk: what was asked, what its shim is told, how it ended."""

import contextlib
import hashlib
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairlead.executor import confine, peers, shim
from fairlead.host import files, process
from fairlead.host.clock import boot_id
from fairlead.ports.executor import Exit, JobOutput, Keyboard
from fairlead.ports.faults import PermanentFault

_LAUNCH = b"--- launched\n"
# A launch takes 0.05 s; on a machine that swaps it may take long, but not for ever.
_LAUNCH_S_MAX = 60
_SLUG_MAX = 40
_HOW = ("time_ms", "code", "signal", "lost", "interrupted", "reason", "boot", "since_boot_ms")
"""The members of exit.json that an `Exit` has too."""


def key(text: str) -> str:
    """A name for a folder: readable for people, and different for different texts."""
    slug = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:_SLUG_MAX]
    return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class JobFolder:
    """One job on disk. Raises OSError as the disk does.

    job.json      written first; from then on the job exists
    lock          held by the living shim
    shim.json     the shim's identity      command.json   the command's, before it may begin
    stop.json     request to end           paused.json    request to pause
    width.json    how many changes of its width were announced
    exit.json     how it ended             output.log     its output (and output.1.log before it)
    shim.err      a line for each launch of a shim, and what shims say that fail

    Requests name the recorded decision that they carry out.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lock, self.errors = path, path / shim.LOCK, path / "shim.err"
        self._job: dict[str, Any] = {}
        self._exit: Exit | None = None

    @property
    def job(self) -> dict[str, Any]:
        """What was asked; empty when a crash came before it was written."""
        if not self._job:
            self._job = files.read_json(self.path / shim.JOB) or {}
        return self._job

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it has not."""
        if self._exit is None:
            found = files.read_json(self.path / shim.EXIT)
            if found is not None:
                how = {name: found[name] for name in _HOW if name in found}
                self._exit = Exit(self.job["id"], self.job["run"], **how)
        return self._exit

    def write(self, document: dict[str, Any]) -> None:
        files.replace_json(self.path / shim.JOB, document)
        self._job = document

    @property
    def has_begun(self) -> bool:
        """Whether its command was let go."""
        return (self.path / shim.COMMAND).exists()

    def ask(self, name: str, request: dict[str, Any], *, durable: bool = False) -> None:
        """Ask the shim for something; holds even if no shim is alive now."""
        files.replace_json(self.path / name, request, durable=durable)
        self.wake()

    def launches(self) -> int:
        """How many shims were launched, by this executor and those before it."""
        with contextlib.suppress(FileNotFoundError):
            return self.errors.read_bytes().count(_LAUNCH)
        return 0

    def wake(self) -> None:
        # Written first, signalled second; the shim names itself first and looks second.
        confine.send(files.read_json(self.path / shim.SHIM), shim.WAKE)

    def announce_width(self, request: dict[str, Any], decision: str) -> None:
        """Ask the shim to tell the command of its next width."""
        announced = files.read_json(self.path / shim.WIDTH) or {"number": 0}
        self.ask(shim.WIDTH, {"number": announced["number"] + 1, "decision": decision, **request})

    def press(self, keys: Keyboard) -> int:
        """Pass on what the owner types; how many bytes were taken."""
        if keys.interrupt or keys.size is not None:
            before = files.read_json(self.path / shim.KEYS) or {"interrupts": 0, "size": [0, 0]}
            pressed = before["interrupts"] + int(keys.interrupt)
            size = before["size"] if keys.size is None else list(keys.size)
            self.ask(shim.KEYS, {"interrupts": pressed, "size": size})
        return _write_fifo(self.path / shim.TYPED, keys.text)

    def output(self) -> JobOutput:
        """What is kept of its output."""
        parts = (self.path / shim.OLDER_OUTPUT, self.path / shim.OUTPUT)
        dropped = files.read_json(self.path / shim.DROPPED) or {"bytes": 0}
        kept = tuple(part for part in parts if part.exists())
        return JobOutput(self.job["id"], kept, dropped["bytes"])

    def launch(self) -> None:
        """Start a shim and wait until it has left us: it then holds the lock, or has failed."""
        # A Python that is not there, or hangs, is one of the launches that failed.
        failures = (FileNotFoundError, PermissionError, subprocess.TimeoutExpired)
        with self.errors.open("ab", buffering=0) as errors, contextlib.suppress(*failures):
            with contextlib.suppress(OSError):  # a full disk: not counted, and tried again
                errors.write(_LAUNCH)
            process.run_detached(
                [sys.executable, "-I", "-S", "-B", shim.__file__, str(self.path)],
                output=errors,
                env={"LANG": "C.UTF-8"},
                timeout_s=_LAUNCH_S_MAX,
            )

    def require_own(self) -> "JobFolder":
        """Refuses a document that names another job, or a cgroup that is no job's: root would kill
        what is in there."""
        place = Path(self.job["confine"]["path"])
        named = place.parent.name == confine.CGROUP and place.name.endswith(f"-{self.path.name}")
        tree = self.job["confine"]["kind"] == "tree"
        if key(self.job["id"]) != self.path.name or not (named or tree):
            raise PermanentFault(
                f"{self.path / shim.JOB} is not the document of this job: it was changed. Move the "
                "folder away; `fairlead audit verify` compares the others with the ledger"
            )
        return self


def shims_of(folders: Iterable[JobFolder]) -> dict[peers.Identity, str]:
    """The shims that were started since the machine was, and their jobs."""
    found: dict[peers.Identity, str] = {}
    for folder in folders:
        identity = files.read_json(folder.path / shim.SHIM)
        if identity is not None and identity["boot"] == boot_id():
            found[identity["pid"], identity["start_ticks"]] = str(folder.job["id"])
    return found


def _write_fifo(path: Path, data: bytes) -> int:
    """As much as fits; nothing where no process reads it."""
    if not data:
        return 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
    finally:
        os.close(descriptor)


# -- jobs that are forgotten ----------------------------------------------------------------------


_BYTES = 16


class PastJobs:
    """The ids of forgotten jobs: no start is carried out twice, however long ago the first one was.

    Digests, one behind the other, in a file that only grows: a million take 16 MB of disk, none of
    memory, and a look of some milliseconds. Raises OSError as the disk does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, id: str) -> None:
        """Durable when it returns."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            os.lseek(descriptor, size - size % _BYTES, os.SEEK_SET)  # over what a crash cut off
            files.write_all(descriptor, _digest(id))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __contains__(self, id: str) -> bool:
        wanted = _digest(id)
        try:
            with (
                self._path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                at = data.find(wanted)
                while at >= 0 and at % _BYTES:
                    at = data.find(wanted, at + 1)
                return at >= 0
        except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
            return False


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode()).digest()[:_BYTES]
