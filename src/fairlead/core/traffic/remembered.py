"""Holds a state to what a tick can have left behind: in every tick, so it is plain and compiled.

`fairlead.core.traffic.state` calls it. Each field's own range is checked by its marker.
"""

from math import inf
from typing import TYPE_CHECKING

from fairlead.core import units
from fairlead.core.traffic.config import SLOTS_MAX
from fairlead.core.units import OutOfRange

if TYPE_CHECKING:  # state imports this module
    from fairlead.core.traffic.state import BackendMemory, NodeMemory, State, Trail


def check_state(state: "State") -> None:
    """Backends and nodes by id, times that have been, all slots handed out."""
    clock_ms = state.clock_ms
    _check_backends(state.backends, clock_ms)
    slots = sum([backend.slots for backend in state.backends])
    if slots != (state.s_total if state.backends else 0):
        raise OutOfRange("backends", f"must hold s_total slots together, got {slots}")
    if not state.backends and not state.parked:
        raise OutOfRange("parked", "must be true where there is no backend")
    _ascending_names([node.id for node in state.nodes], "nodes", "id")
    for index, node in enumerate(state.nodes):
        try:
            _check_node(node, state.samples, clock_ms)
        except OutOfRange as fault:
            raise OutOfRange(f"nodes[{index}].{fault.field}", fault.message) from None
    within(state.gate.since_ms, "gate.since_ms", clock_ms)
    if state.gate.stepping and state.gate.since_ms is None:
        raise OutOfRange("gate.since_ms", "must be known while slots are stepping")
    within(state.guard.since_ms, "guard.since_ms", clock_ms)


def _check_backends(backends: "tuple[BackendMemory, ...]", clock_ms: int) -> None:
    _ascending_names([backend.id for backend in backends], "backends", "id")
    for index, memory in enumerate(backends):
        if _plain(memory, clock_ms):
            continue
        try:
            units.check(memory)
            if (memory.error_ms is None) is not (memory.error_rate is None):
                raise OutOfRange("error_ms", "must be given together with error_rate")
            within(memory.error_ms, "error_ms", clock_ms)
        except OutOfRange as fault:
            raise OutOfRange(f"backends[{index}].{fault.field}", fault.message) from None


def _plain(memory: "BackendMemory", clock_ms: int) -> bool:
    """Whether nothing is to be said about it: what is not plain is looked at field by field."""
    slots, weight, rate, error_ms = memory.slots, memory.weight, memory.error_rate, memory.error_ms
    if type(slots) is not int or not 0 <= slots <= SLOTS_MAX:
        return False
    if type(weight) is not float or not 0 <= weight <= 1:
        return False
    if rate is None or error_ms is None:
        return rate is None and error_ms is None and _plain_text(memory.id)
    if type(rate) is not float or not 0 <= rate <= 1:
        return False
    return type(error_ms) is int and 0 <= error_ms <= clock_ms and _plain_text(memory.id)


def _plain_text(name: str) -> bool:
    return type(name) is str and name != "" and name.isascii()


def _check_node(node: "NodeMemory", samples: int, clock_ms: int) -> None:
    _ascending(list(node.stalled), "stalled")
    for place, ordinal in enumerate(node.stalled):
        within(ordinal, f"stalled[{place}]", samples, low=1)
    _ascending_names([trail.name for trail in node.trails], "trails", "name")
    for place, trail in enumerate(node.trails):
        try:
            units.check(trail)
            _check_history(trail, clock_ms)
        except OutOfRange as fault:
            raise OutOfRange(f"trails[{place}].{fault.field}", fault.message) from None


def _check_history(trail: "Trail", clock_ms: int) -> None:
    if not trail.history:
        raise OutOfRange("history", "must not be empty")
    _ascending([at for at, _ in trail.history], "history")
    for at, value in trail.history:
        if type(at) is int and 0 <= at <= clock_ms and type(value) is float and 0 <= value < inf:
            continue
        within(at, f"history.{at}", clock_ms)
        units.weight(value, f"history.{at}")


def within(value: object, field: str, high: int, *, low: int = 0) -> None:
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise OutOfRange(field, f"must be an integer between {low} and {high}, got {value!r}")


def _ascending_names(names: list[str], field: str, what: str) -> None:
    for index in range(1, len(names)):
        if not names[index - 1] < names[index]:
            raise OutOfRange(f"{field}[{index}].{what}", "must be above the one before it")


def _ascending(numbers: list[int], field: str) -> None:
    for index in range(1, len(numbers)):
        if not numbers[index - 1] < numbers[index]:
            raise OutOfRange(field, "must be above the one before it")
