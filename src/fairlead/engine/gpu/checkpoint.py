"""Checkpoints of the projection: kept beside the ledger, read at a start, never the truth.

A checkpoint of another version, or one that cannot be read, is passed over: folding the whole log
gives the same projection, only later.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

import msgspec

from fairlead.core.gpu.accounts import Accounts, AccountState
from fairlead.core.gpu.clock import BootSpan, ClockAnchor, ClockJump, follow_boot
from fairlead.engine.gpu.entries import Document, NewEntry, Stamp
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import (
    Condition,
    LeaseFact,
    ResolverState,
    RunState,
    Stored,
    UnknownJob,
    shared_document,
    shared_labels,
)
from fairlead.ports.ledger import Ledger
from fairlead.schema.convert import decode_json
from fairlead.schema.objects import BudgetSpec, ReservationSpec, to_budget

NAME = "gpu.control"
VERSION = 2
ROWS_AT_ONCE = 200
_TABLES = ("conditions", "charges", "denied", "posted")


class _Object(msgspec.Struct, frozen=True):
    """A `Stored` with its labels in one."""

    kind: str
    name: str
    uid: str
    generation: int
    version: int
    created_ms: int
    labels: dict[str, str]
    document: Document
    user: str
    token: str | None = None

    @classmethod
    def of(cls, stored: Stored) -> Self:
        return cls(**{name: getattr(stored, name) for name in cls.__struct_fields__})

    def stored(self) -> Stored:
        document = shared_document(self.kind, self.document)
        facts = (self.generation, self.version, self.created_ms, *shared_labels(self.labels))
        return Stored(self.kind, self.name, self.uid, *facts, document, self.user, self.token)


class _State(msgspec.Struct, frozen=True):
    version: int
    seq: int
    time_ms: int
    objects: list[_Object]
    runs: dict[str, msgspec.Raw]
    closed: list[LeaseFact]
    accounts: list[tuple[tuple[str, str], AccountState]]
    conditions: list[tuple[tuple[str, str], Condition]]
    charges: list[tuple[tuple[int, str, str, str, str, bool], list[int]]]
    plans: dict[str, int]
    denied: list[tuple[tuple[str, str], int]]
    posted: list[tuple[tuple[str, str], int]]
    resolver: ResolverState = msgspec.field(default_factory=ResolverState)
    orders: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    quarantined: list[str] = msgspec.field(default_factory=list)
    unknown_jobs: dict[str, UnknownJob] = msgspec.field(default_factory=dict)
    clock: ClockAnchor | None = None
    clock_jump: ClockJump | None = None
    boots: tuple[BootSpan, ...] = ()


def export(projection: Projection) -> bytes:
    """The projection as bytes; equal projections give equal bytes."""
    return b"".join(_parts(projection))


def packed(projection: Projection) -> bytes:
    """The same, packed piece by piece: of thousands of runs the whole text is never in memory."""
    pack = zlib.compressobj(1)
    return b"".join([*(pack.compress(part) for part in _parts(projection)), pack.flush()])


def _parts(projection: Projection) -> Iterator[bytes]:
    """JSON of a `_State`, a few hundred rows at a time."""
    rows: dict[str, list[Any]] = {
        "objects": [
            stored for kind in sorted(projection.objects) for stored in projection.of_kind(kind)
        ],
        "runs": sorted(projection.runs.items()),
        "closed": list(projection.closed),
    }
    rest = _State(
        version=VERSION,
        seq=projection.seq,
        time_ms=projection.time_ms,
        objects=[],
        runs={},
        closed=[],
        accounts=projection.accounts.states(),
        plans=dict(sorted(projection.plans.items())),
        **{name: sorted(getattr(projection, name).items()) for name in _TABLES},
        resolver=projection.resolver,
        orders=dict(sorted(projection.orders.items())),
        quarantined=sorted(projection.quarantined),
        unknown_jobs=dict(sorted(projection.unknown_jobs.items())),
        clock=projection.clock,
        clock_jump=projection.clock_jump,
        boots=projection.boots,
    )
    lead = b"{"
    for name in _State.__struct_fields__:
        yield lead + msgspec.json.encode(name) + b":"
        lead = b","
        if name not in rows:
            yield msgspec.json.encode(getattr(rest, name))
            continue
        table = rows[name]
        opening, closing = (b"{", b"}") if name == "runs" else (b"[", b"]")
        for first in range(0, len(table), ROWS_AT_ONCE):
            some = table[first : first + ROWS_AT_ONCE]
            yield (b"," if first else opening) + msgspec.json.encode(_written(name, some))[1:-1]
        yield closing if table else opening + closing
    yield b"}"


def _written(table: str, rows: list[Any]) -> Any:
    if table == "objects":
        return [_Object.of(stored) for stored in rows]
    return {name: run.row() for name, run in rows} if table == "runs" else rows


def restore(data: bytes) -> Projection:
    """The projection of some bytes, packed or not; raises `msgspec.MsgspecError` for anything
    else."""
    if not data.startswith(b"{"):
        try:
            data = zlib.decompress(data)
        except zlib.error as error:
            raise msgspec.ValidationError(f"not a checkpoint: {error}") from error
    state = decode_json(data, _State)
    if state.version != VERSION:
        raise msgspec.ValidationError(f"a checkpoint of version {state.version}")
    projection = Projection()
    projection.seq, projection.time_ms = state.seq, state.time_ms
    for row in state.objects:
        stored = row.stored()
        name, spec = stored.name, stored.spec
        projection.put(stored)
        if isinstance(spec, BudgetSpec):
            projection.set_budget(name, to_budget(name, spec))
        elif isinstance(spec, ReservationSpec):
            projection.reserved[spec.run] = name
    for name, written in state.runs.items():
        run = projection.runs[name] = RunState.of_row(written)
        projection.index_run(name, run)
        for lease in run.leases.values():
            projection.adopt(lease)
    projection.closed.extend(state.closed)
    projection.accounts = Accounts.of_states(state.accounts)
    for name in ("plans", *_TABLES):
        getattr(projection, name).update(getattr(state, name))
    projection.resolver, projection.orders = state.resolver, state.orders
    projection.quarantined.update(state.quarantined)
    projection.unknown_jobs.update(state.unknown_jobs)
    projection.clock, projection.clock_jump = state.clock, state.clock_jump
    projection.boots = state.boots or _last_boot(state.clock)
    return projection


def _last_boot(anchor: ClockAnchor | None) -> tuple[BootSpan, ...]:
    """What a checkpoint of an earlier version knows of the machine's boots."""
    if anchor is None:
        return ()
    return follow_boot((), anchor, anchor.ledger_ms)


def imagined(projection: Projection, made: Iterable[NewEntry]) -> Projection:
    """A copy of the projection in which these entries were recorded; the original is untouched."""
    copy = restore(export(projection))
    imagine(copy, made)
    return copy


def imagine(copy: Projection, made: Iterable[NewEntry]) -> None:
    """Fold entries into a copy as if they were recorded."""
    for entry in made:
        copy.fold(Stamp(copy.seq + 1, entry.time_ms, entry.author), entry.body)


def load(ledger: Ledger) -> Projection:
    snapshot = ledger.snapshot_get(NAME)
    if snapshot is None:
        return Projection()
    try:
        return restore(snapshot.state)
    except msgspec.MsgspecError:
        return Projection()
