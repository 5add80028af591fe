"""The agent's directory: what survives it. State, original limits, status, the observe switch.

Every file is replaced whole (write, fsync, rename, fsync the directory), so a kill at any moment
leaves the old or the new one. The original quotas are kept as the kernel wrote them, to the
microsecond, because `restore` promises to put back exactly what was found.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from fairlead.node.kernel_files import Quota
from fairlead.ports.faults import PermanentFault, TemporaryFault

STATE, ORIGINALS, STATUS, OBSERVE, LOCK = (
    "state.json",
    "originals.json",
    "status.json",
    "observe-only",
    "agent.lock",
)
RECORD = "record"
_RETRY_AFTER_MS = 5_000


def default_directory() -> Path:
    """/var/lib for root, the XDG state directory for everybody else."""
    if os.geteuid() == 0:
        return Path("/var/lib/fairlead/node")
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "fairlead" / "node"


class StateDirectory:
    """Reads and replaces the agent's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def create(self) -> None:
        """Make the directory, private to its owner."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PermanentFault(f"{self.path}: {error.strerror}") from error

    def lock(self) -> None:
        """One agent per directory: two would fight over the same limits."""
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise PermanentFault(f"another agent is running on {self.path}") from error
        self._lock = descriptor

    def unlock(self) -> None:
        """Let the next agent in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def running(self) -> bool:
        """Whether an agent holds the directory now."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read(self, name: str) -> dict[str, Any] | None:
        """A file's content; None when it was never written."""
        try:
            data = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PermanentFault(f"{self.path / name}: {error.strerror}") from error
        try:
            value = json.loads(data)
        except ValueError as error:
            raise PermanentFault(f"{self.path / name}: is damaged ({error})") from error
        if not isinstance(value, dict):
            raise PermanentFault(f"{self.path / name}: is damaged (not an object)")
        return value

    def age_ms(self, name: str) -> int:
        """How long ago a file was put in place. By its own time: an agent carries the time of its
        start on, and somebody may have set the machine's clock since."""
        try:
            return max(0, int((time.time() - (self.path / name).stat().st_mtime) * 1000))
        except OSError as error:
            raise PermanentFault(f"{self.path / name}: {error.strerror}") from error

    def replace(self, name: str, value: dict[str, Any], *, durable: bool = True) -> None:
        """Put a new version in place, whole. `durable` waits for the disk."""
        target, fresh = self.path / name, self.path / f".{name}.new"
        try:
            with open(fresh, "wb", opener=_private) as file:
                file.write(json.dumps(value, separators=(",", ":")).encode())
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(fresh, target)
            if durable:
                self._sync()
        except OSError as error:
            text = f"{target}: {error.strerror}"
            raise TemporaryFault(text, retry_after_ms=_RETRY_AFTER_MS) from error

    def forget(self, name: str) -> None:
        """Remove a file for good."""
        (self.path / name).unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @property
    def observe_only(self) -> bool:
        """Whether the switch is set: decide and record, but write no limit."""
        return (self.path / OBSERVE).exists()

    def switch_observe_only(self, *, on: bool) -> None:
        """Set or clear the switch; a running agent obeys from its next clear on."""
        if on:
            (self.path / OBSERVE).touch(mode=0o600)
        else:
            (self.path / OBSERVE).unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def quota_to_json(quota: Quota) -> list[int | None]:
    """[quota_us or null, period_us, burst_us]."""
    return [quota.quota_us, quota.period_us, quota.burst_us]


def quota_from_json(value: Any) -> Quota:
    """The inverse; what is not a quota is damage."""
    match value:
        case [int() | None as quota_us, int() as period_us, int() as burst_us]:
            return Quota(quota_us, period_us, burst_us)
    raise PermanentFault(f"the original limits are damaged: {value!r}")
