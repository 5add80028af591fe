"""Orders for backends that the control plane's reply carries; they outlive it and the agent.

The agent decides by them as by those of its own operator: as an input of its next tick, which is
recorded. An order stays until a reply lifts it, so a control plane that is away changes nothing.
"""

import threading
from collections.abc import Mapping
from typing import Any

from fairlead.node.state import StateDirectory
from fairlead.ports.faults import PermanentFault

ORDERS = "control-orders.json"
KNOWN = ("isolate", "drain")


class ControlOrders:
    """By group and backend. `take` is called by the thread that reports, `__call__` by the tick."""

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
