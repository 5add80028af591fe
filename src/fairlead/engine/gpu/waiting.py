"""Runs that wait, as the order of the queue is decided on them and as it is recorded.

Thousands wait, and most of them are the same from turn to turn: of each is kept what is its own,
and what it asks for is kept once for all that ask for the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from msgspec import json, to_builtins

from fairlead.core import gpu
from fairlead.core.canonical import Rendered, encoded, text
from fairlead.engine.gpu.entries import Document, NewEntry, QueueDecision
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase
from fairlead.ports.ledger import Blob
from fairlead.schema import objects
from fairlead.schema.gpu import STYLE
from fairlead.schema.times import format_time

T = TypeVar("T")
ROWS_AT_ONCE = 100
"""Rows of a recorded order in memory as plain data: they take ten times as much as their text."""
_MARK = Rendered("\0")
"""No text has one as it is written."""

Scope = tuple[object, ...]
"""A flavor and a location: runs of one scope wait for the same devices, and have a head."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run asks for."""

    request: gpu.Request
    alike: str
    """The same for all runs that ask for the same."""
    scope: Scope
    written: tuple[str, ...]
    """Of a run that has no reservation and no promise: what a recorded order has before, between
    and behind its id, the number of its submission, and the two times."""


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A run that waits, as it was when something of it last changed."""

    waiting: gpu.WaitingRun
    asked: Asked
    reserved: tuple[int, bool] | None
    """The version of its reservation, and whether that is to start it."""


class WaitingRows:
    """Every run that waits, by name."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self.by_name: dict[str, WaitingRow] = {}
        self._asked: dict[tuple[str, int], Asked] = {}
        """By the text of the request, and the priority."""

    def look(self) -> tuple[gpu.WaitingRun, ...]:
        """Every run that waits now, by name."""
        projection, before, self.by_name = self._projection, self.by_name, {}
        live, following, reserved = projection.live, projection.following, projection.reserved
        for run in sorted(live):
            state = live[run]
            if state.phase is not Phase.PENDING or state.stopping:
                continue
            if run in following and projection.waits_for_runs(run):
                continue
            slot = None
            if run in reserved:
                version = projection.objects["Reservation"][reserved[run]].version
                slot = (version, projection.waits_for_time(run))
            row = before.get(run)
            if (
                row is None
                or row.waiting.submitted != state.submitted_seq
                or row.waiting.waiting_since_ms != state.since_ms
                or row.reserved != slot
            ):
                row = self._row(run, slot)
            self.by_name[run] = row
        if not self.by_name:
            self._asked.clear()
        return tuple(row.waiting for row in self.by_name.values())

    def _row(self, run: str, slot: tuple[int, bool] | None) -> WaitingRow:
        projection, state = self._projection, self._projection.runs[run]
        spec, stored = projection.run_spec(run), projection.objects["Run"][run]
        request = objects.to_request(spec)
        priority = spec.priority or 0
        # What decides about its start beside the request.
        also = objects.to_shape(spec), objects.max_runtime_ms(spec), spec.funding.allow_unfunded
        alike = repr((request, *also))
        asked = self._asked.get((alike, priority))
        if asked is not None:
            request = asked.request
        waiting = gpu.WaitingRun(
            id=stored.name,
            owner=request.owner,
            flavor=request.flavor,
            gpus=request.gpus,
            submitted=state.submitted_seq,
            waiting_since_ms=state.since_ms,
            min_gpus=request.min_gpus,
            duration_ms=request.duration_ms,
            owner_priority=priority,
            reservation=projection.reserved_start(run),
            submitted_ms=stored.created_ms,
            location=request.location,
        )
        if asked is None:
            scope = (request.flavor, *sorted(request.location.items()))
            asked = Asked(request, alike, scope, _around(waiting))
            self._asked[alike, priority] = asked
        return WaitingRow(waiting, asked, slot)

    def decision(self, queue: gpu.Queue, waiting: gpu.Waiting) -> NewEntry:
        """As `order_decision` of these, written a part at a time: of thousands of rows all of the
        plain data, or the text twice, is never in memory."""
        asked: Document = STYLE.from_core(replace(waiting, runs=()))
        head, tail = text({**asked, "runs": [_MARK]}).split(_MARK)
        rows = (
            "," * bool(first) + ",".join(map(self._written, runs))
            for first, runs in _parts(waiting.runs)
        )
        written = Blob.written(map(encoded, chain([head], rows, [tail])))
        output: Document = STYLE.from_core(replace(queue, order=()))
        # Rows of names and whole numbers, which both write in the same way.
        order = (
            json.encode(to_builtins(part), order="sorted")[1:-1].decode()
            for _, part in _parts(queue.order)
        )
        output["order"] = Rendered(f"[{','.join(order)}]")
        return NewEntry(QueueDecision(output), waiting.now_ms, input=written)

    def _written(self, run: gpu.WaitingRun) -> str:
        if run.promised_ms is not None or run.reservation is not None:
            return text(STYLE.from_core(run))
        begin, after_id, after_number, after_first, end = self.by_name[run.id].asked.written
        number, submitted = run.submitted, _time(run.submitted_ms)
        since_ms = run.waiting_since_ms
        since = submitted if since_ms == run.submitted_ms else _time(since_ms)
        return (
            f"{begin}{text(run.id)}{after_id}{number}{after_number}{submitted}{after_first}"
            f"{since}{end}"
        )


def _around(run: gpu.WaitingRun) -> tuple[str, ...]:
    """What is written of a run, without what is its own."""
    plain = replace(run, reservation=None)
    own = dict.fromkeys(("id", "submitted", "submitted_at", "waiting_since"), _MARK)
    return tuple(text(STYLE.from_core(plain) | own).split(_MARK))


def _time(time_ms: int | None) -> str:
    return "null" if time_ms is None else f'"{format_time(time_ms)}"'


def _parts(rows: Sequence[T]) -> Iterator[tuple[int, Sequence[T]]]:
    """A few hundred rows at a time, each with the place of its first."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        yield first, rows[first : first + ROWS_AT_ONCE]
