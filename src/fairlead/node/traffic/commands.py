"""The operator's commands for backends, in a file: it reaches a running agent and outlives it.

change_command(directory, "web", "b1", "drain")   # `fairlead traffic drain web b1`
commands = CommandFile(directory)
commands()                                        # {"web": {"b1": "drain"}}, every tick
"""

import os
from collections.abc import Mapping
from typing import Literal

from fairlead.host.files import holding
from fairlead.node.state import StateDirectory
from fairlead.ports.faults import PermanentFault

BackendCommand = Literal["isolate", "drain"]
COMMANDS, _LOCK = "orders.json", "orders.lock"


def read_commands(directory: StateDirectory) -> dict[str, dict[str, str]]:
    """By group and backend; `PermanentFault` when the file is not one of ours."""
    commands: dict[str, dict[str, str]] = directory.read(COMMANDS) or {}
    for group, kept in commands.items():
        if not isinstance(kept, dict) or not set(kept.values()) <= {"isolate", "drain"}:
            raise PermanentFault(f"{directory.path / COMMANDS}: is damaged (group {group!r})")
    return commands


def change_command(
    directory: StateDirectory, group: str, backend: str, command: BackendCommand | None
) -> bool:
    """Give a command, or take it back (None); whether that changed anything."""
    directory.create()
    with holding(directory.path / _LOCK):
        commands = read_commands(directory)
        here = commands.setdefault(group, {})
        if here.get(backend) == command:
            return False
        if command is None:
            del here[backend]
        else:
            here[backend] = command
        directory.replace(COMMANDS, {name: kept for name, kept in commands.items() if kept})
    return True


class CommandFile:
    """Reads the commands again when the file has changed."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._stamp: tuple[int, int] | None = None
        self.current: Mapping[str, Mapping[str, str]] = {}
        self.problem = ""
        """Why the last commands are still in force although the file has changed."""

    def __call__(self) -> Mapping[str, Mapping[str, str]]:
        """The commands now. A damaged file changes nothing: no backend returns by accident."""
        # Every version is a file of its own, so its number tells it from the one before.
        try:
            status = os.stat(self._directory.path / COMMANDS)
            stamp = status.st_ino, status.st_mtime_ns
        except FileNotFoundError:
            stamp = None
        if stamp != self._stamp:
            try:
                self.current = read_commands(self._directory)
                self._stamp, self.problem = stamp, ""
            except PermanentFault as fault:
                self.problem = str(fault)
        return self.current
