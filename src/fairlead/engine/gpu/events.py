"""Entries as events for people who watch: what, about which object, whose, and why.

A border: events carry the recorded bodies as they are.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from fairlead.core.gpu import Scope
from fairlead.core.units import counted
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.committer import READ_AT_ONCE, Committer
from fairlead.engine.gpu.entries import SYSTEM, Document, decode
from fairlead.engine.gpu.projection import Projection
from fairlead.ports.ledger import Entry
from fairlead.schema.convert import convert
from fairlead.schema.times import format_time

T = TypeVar("T", bound=Hashable)
_ABOUT = (("reservation", "Reservation"), ("run", "Run"), ("budget", "Budget"), ("lease", "Lease"))
# Inputs are large, and specs carry commands and environment: users who may see those ask for them.
# A nonce stands in an export beside a pseudonym: with its owner's name it would open that.
_LEFT_OUT = frozenset(
    {"input", "blobs", "spec", "parts", "nonce", "nonce_owners", "signature", "approval", "rows"}
)
# Who waits and who is a candidate: rows of all tenants, as many as there are runs or leases. And
# what an entry of the clock says anyhow.
_WITHOUT_OUTPUT = tuple(
    kind.ENTRY
    for kind in (
        *(entries.DeficitDecision, entries.BackfillDecision, entries.RefundDecision),
        *(entries.QueueDecision, entries.ActivateDecision, entries.GrowDecision),
        *(entries.RankDecision, entries.IdleDecision),
        *(entries.ClockAnchored, entries.ClockHeld),
    )
)
_RESOLVER = frozenset(
    kind.ENTRY
    for kind in (
        *(entries.OutcomeCommitted, entries.OutcomeDrawn, entries.OutcomeVoided),
        *(entries.OutcomeApplied, entries.BudgetRequested, entries.RunReclaimed),
    )
)
"""Kinds whose entries hold no message."""


class EventFeed:
    """What happened, in order."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def read(self, after: int, limit: int) -> list[Document]:
        """What happened after an entry of the ledger, oldest first; at most 1 000 at once.

        Where that begins among archived entries, the first event says which are left out.
        """
        with self._committer.current() as projection:  # it knows whose an event is
            ledger, events = self._committer.ledger, []
            after, limit = max(after, 0), min(max(limit, 1), READ_AT_ONCE)
            moved_to = ledger.archived_to()
            if after < moved_to:
                moved = ledger.last("ledger.archived")
                time_ms = projection.time_ms if moved is None else moved.time_ms
                events.append(_gap(after=after, last=moved_to, time_ms=time_ms))
                after, limit = moved_to, limit - 1
            if limit:
                events += [event_of(projection, entry) for entry in ledger.entries(after, limit)]
            return events

    def follow(
        self, touched: Callable[[Entry], Iterable[T]], told: Callable[[Entry], bool]
    ) -> "EventTail[T]":
        """What happens from now on: what each entry touches, and which are told in full."""
        return EventTail(self._committer, touched, told)

    def wait(self, after: int, timeout_s: float) -> int:
        return self._committer.wait(after, timeout_s)


class EventTail(Generic[T]):
    """What happened since it was last asked, without reading it back from the ledger. Most entries
    are kept as what they touch: a turn may make thousands that are about the same few."""

    def __init__(
        self,
        committer: Committer,
        touched: Callable[[Entry], Iterable[T]],
        told: Callable[[Entry], bool],
    ) -> None:
        self._committer, self._touches, self._is_told = committer, touched, told
        self._touched: set[T] = set()
        self._told: list[Entry] = []
        self.seq = committer.listen(self._note)
        """What happened up to here is not told."""

    def _note(self, entry: Entry) -> None:
        self._touched.update(self._touches(entry))
        if self._is_told(entry):
            self._told.append(entry)

    def take(self) -> tuple[set[T], list[Document]]:
        """What was touched, and the events that are told in full."""
        with self._committer.current() as projection:
            touched, self._touched = self._touched, set()
            told, self._told = self._told, []
            return touched, [event_of(projection, entry) for entry in told]


def event_of(projection: Projection, entry: Entry) -> Document:
    """One entry; `object` None for entries of other governors and of the ledger itself."""
    body, named = entry.body, about(entry)
    left_out = _LEFT_OUT | {"output"} if entry.kind in _WITHOUT_OUTPUT else _LEFT_OUT
    return {
        "seq": entry.seq,
        "time": format_time(entry.time_ms),
        "kind": entry.kind,
        "author": entry.author,
        "object": None if named is None else {"kind": named[0], "name": named[1]},
        "owner": _owner(projection, named, entry),
        "reason": body.get("reason") or (entry.reasons[0] if entry.reasons else None),
        "message": body.get("message") or _resolver_message(entry),
        "body": {key: value for key, value in body.items() if key not in left_out},
    }


def about(entry: Entry) -> tuple[str, str] | None:
    """Kind and name of the object that an entry is about."""
    changed = entries.object_of(entry)
    if changed is not None:
        return changed.kind, changed.name
    named = ((kind, entry.body.get(key)) for key, kind in _ABOUT)
    return next(((kind, name) for kind, name in named if name is not None), None)


def _resolver_message(entry: Entry) -> str:
    """A sentence for the resolver's steps, whose entries hold no message."""
    body = decode(entry) if entry.kind in _RESOLVER else None
    if isinstance(body, entries.OutcomeCommitted):
        promised = body.commitment
        scope = convert(promised.scope, Scope)
        where = "".join(f" {key}={value}" for key, value in sorted(scope.location.items()))
        missing = f"{promised.deficit_gpus} {scope.flavor} missing{where}"
        return f"outcome {entry.seq}: {missing}"
    if isinstance(body, entries.OutcomeDrawn):
        shown = body.reveal
        done = "drawn" if shown.void is None else "voided"
        return f"outcome {shown.commit_seq} is {done}, {shown.label.value}"
    if isinstance(body, entries.OutcomeApplied):
        return f"outcome {body.outcome} is carried out"
    if isinstance(body, entries.BudgetRequested):
        steps = ", ".join(step.name or "the place" for step in body.steps)
        return f"is brought back within its caps, in this order: {steps}"
    if isinstance(body, entries.RunReclaimed):
        by = "as its owner requested" if body.outcome is None else f"to outcome {body.outcome}"
        by = "because its node is out of service" if body.outcome is None and body.preempts else by
        return f"loses {counted(len(body.leases), 'lease')} {by}"
    return ""


def _gap(*, after: int, last: int, time_ms: int) -> Document:
    """Stands for events that were moved to an archive: a watcher goes on behind it."""
    return {
        "seq": last,
        "time": format_time(time_ms),
        "kind": "events.archived",
        "author": SYSTEM,
        "object": None,
        "owner": None,
        "reason": "Archived",
        "message": f"what happened up to {last} was moved to an archive",
        "body": {"first": after + 1, "last": last},
    }


def _owner(projection: Projection, named: tuple[str, str] | None, entry: Entry) -> str | None:
    """Whose event it is; None when the object is gone or has no owner."""
    changed = entries.object_of(entry)
    if isinstance(changed, entries.ObjectApplied):
        owner = changed.spec.get("owner")
        return owner if isinstance(owner, str) else None
    owner = entry.body.get("owner")
    if isinstance(owner, str):
        return owner
    stored = None if named is None else projection.get(*named)
    if stored is None or entry.time_ms < stored.created_ms:
        return None  # gone; or another object has its name by now, perhaps of another owner
    return projection.owner_of(stored)
