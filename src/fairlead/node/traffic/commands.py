"""The operator's commands for backends, in a file: it reaches a running agent and outlives it.

change_command(directory, "web", "b1", "drain")   # `fairlead traffic drain web b1`
commands = CommandFile(directory)
commands()                                        # {"web": {"b1": "drain"}}, every tick
"""

import os
import threading
from collections.abc import Mapping
from typing import Any, Literal

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


# -- orders of the control plane ------------------------------------------------------------------


ORDERS = "control-orders.json"
KNOWN = ("isolate", "drain")


class ControlOrders:
    """Orders that the control plane's reply carries; they outlive it and the agent.

    The agent decides by them as by those of its own operator. An order stays until a reply lifts
    it, so a control plane that is away changes nothing. By group and backend: `take` is called by
    the thread that reports, `__call__` by the tick.
    """

    def __init__(self, directory: StateDirectory) -> None:
        self._directory, self._lock = directory, threading.Lock()
        stored = directory.read(ORDERS) or {}
        if not _is_orders(stored):
            raise PermanentFault(f"{directory.path / ORDERS}: is damaged; move it away")
        self._current: Mapping[str, Mapping[str, str]] = stored

    def __call__(self) -> Mapping[str, Mapping[str, str]]:
        return self._current

    def take(self, reply: Mapping[str, Any]) -> None:
        """The orders of the groups that were reported; groups that a reply leaves out keep theirs.
        Raises ValueError for what are no orders."""
        orders = reply["orders"]
        if not isinstance(orders, dict) or not _is_orders(orders):
            raise ValueError("orders: must be isolate or drain by group and backend")
        with self._lock:
            fresh = {name: kept for name, kept in {**self._current, **orders}.items() if kept}
            if fresh == self._current:
                return
            # Kept before it is followed: a restart must not bring a backend back by accident.
            self._directory.create()
            self._directory.replace(ORDERS, fresh)
            self._current = fresh


def _is_orders(value: Mapping[str, Any]) -> bool:
    return all(
        isinstance(kept, dict) and all(order in KNOWN for order in kept.values())
        for kept in value.values()
    )
