"""The operator's word on backends, in a file: it reaches a running agent and outlives all of them.

change_order(directory, "web", "b1", "drain")     # `fairlead traffic drain web b1`
book = OrderBook(directory)
book()                                            # {"web": {"b1": "drain"}}, every tick
"""

import fcntl
import os
from collections.abc import Mapping
from typing import Any, Literal

from fairlead.node.state import StateDirectory
from fairlead.ports.faults import PermanentFault

Order = Literal["isolate", "drain"]
ORDERS, _LOCK = "orders.json", "orders.lock"


def read_orders(directory: StateDirectory) -> dict[str, dict[str, str]]:
    """By group and backend; `PermanentFault` when the file is not one of ours."""
    return _checked(directory.read(ORDERS) or {}, directory)


def change_order(directory: StateDirectory, group: str, backend: str, order: Order | None) -> bool:
    """Give an order, or take it back (None); whether that changed anything."""
    directory.create()
    lock = os.open(directory.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        orders = read_orders(directory)
        before = orders.get(group, {}).get(backend)
        if before == order:
            return False
        here = orders.setdefault(group, {})
        if order is None:
            del here[backend]
        else:
            here[backend] = order
        directory.replace(ORDERS, {name: each for name, each in orders.items() if each})
    finally:
        os.close(lock)
    return True


class OrderBook:
    """Reads the orders again when the file has changed."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._stamp: tuple[int, int] | None = None
        self.current: Mapping[str, Mapping[str, str]] = {}
        self.problem = ""
        """Why the last orders still stand although the file has changed."""

    def __call__(self) -> Mapping[str, Mapping[str, str]]:
        """The orders now. A damaged file changes nothing: nobody is let back by accident."""
        stamp = self._look()
        if stamp != self._stamp:
            try:
                self.current = read_orders(self._directory)
                self._stamp, self.problem = stamp, ""
            except PermanentFault as fault:
                self.problem = str(fault)
        return self.current

    def _look(self) -> tuple[int, int] | None:
        """Every version is a file of its own, so its number tells it from the one before."""
        try:
            found = os.stat(self._directory.path / ORDERS)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def _checked(stored: Mapping[str, Any], directory: StateDirectory) -> dict[str, dict[str, str]]:
    orders: dict[str, dict[str, str]] = {}
    for group, each in stored.items():
        good = isinstance(each, dict) and all(
            word in ("isolate", "drain") for word in each.values()
        )
        if not good:
            raise PermanentFault(f"{directory.path / ORDERS}: is damaged (group {group!r})")
        orders[group] = dict(each)
    return orders
