"""An agent's directory: what survives it. State, original limits, status, the observe switch.

Every file is replaced whole, so a kill at any moment leaves the old or the new one.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from fairlead.host import files
from fairlead.host.clock import now_ms
from fairlead.ports.faults import PermanentFault, TemporaryFault, faults

STATE, ORIGINALS, STATUS = "state.json", "originals.json", "status.json"
OBSERVE, LOCK, RECORD = "observe-only", "agent.lock", "record"
RUNNING = "an agent is running on {}: stop it first"
_RETRY_AFTER_MS = 5_000


def fields(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value, for a status document; all None where there is no value."""
    return {name: None if value is None else getattr(value, name) for name in names}


class StateDirectory:
    """Reads and replaces the agent's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def create(self) -> None:
        with faults(f"make {self.path}"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock(self, refusal: str = "another agent is running on {}") -> None:
        """One agent per directory: two would fight over the same limits."""
        self._lock = files.try_lock(self.path / LOCK)
        if self._lock is None:
            raise PermanentFault(refusal.format(self.path))

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def running(self) -> bool:
        try:
            return files.locked(self.path / LOCK)
        except OSError:
            return False

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            return files.read_json(self.path / name)
        except OSError as error:
            raise PermanentFault(f"{self.path / name}: {error.strerror}") from error

    def age_ms(self, name: str) -> int:
        """How long ago a file was put in place. By its own time: an agent carries the time of its
        start on, and the machine's clock may have been set since."""
        with faults(f"read {self.path / name}"):
            return max(0, now_ms() - int((self.path / name).stat().st_mtime * 1000))

    def replace(self, name: str, value: object, *, durable: bool = True) -> None:
        """Put a new version in place, whole. `durable` waits for the disk."""
        # Not `sorted`: see `schema.rendering`. The state of 110 pods is 100 kB.
        data = msgspec.json.encode(value, order="deterministic")
        try:
            files.replace(self.path / name, data, durable=durable)
        except OSError as error:  # also a read-only file system: it may be mounted again
            text = f"{self.path / name}: {error.strerror}"
            raise TemporaryFault(text, retry_after_ms=_RETRY_AFTER_MS) from error

    def forget(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        files.sync_directory(self.path)

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
