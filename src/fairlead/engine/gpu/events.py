"""Entries as events for people who watch: what, about which object, whose, and why.

A border: events carry the recorded bodies as they are.
"""

from fairlead.core.units import counted
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.committer import READ_AT_ONCE, Committer
from fairlead.engine.gpu.entries import SYSTEM, Document, decode
from fairlead.engine.gpu.projection import Projection
from fairlead.ports.ledger import Entry
from fairlead.schema.times import format_time

_ABOUT = (("reservation", "Reservation"), ("run", "Run"), ("budget", "Budget"), ("lease", "Lease"))
# Inputs are large, and specs carry commands and environment: users who may see those ask for them.
# A nonce stands in an export beside a pseudonym: with its owner's name it would open that.
_LEFT_OUT = frozenset({"input", "blobs", "spec", "parts", "nonce", "nonce_owners", "rows"})
# Who waits and who is a candidate: rows of all tenants, as many as there are runs or leases.
_WITHOUT_OUTPUT = tuple(
    kind.ENTRY
    for kind in (
        *(entries.DeficitDecision, entries.QueueDecision, entries.BackfillDecision),
        entries.RefundDecision,
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
                events += [_event(projection, entry) for entry in ledger.entries(after, limit)]
            return events

    def wait(self, after: int, timeout_s: float) -> int:
        return self._committer.wait(after, timeout_s)


def _event(projection: Projection, entry: Entry) -> Document:
    """One entry; `object` None for entries of other governors and of the ledger itself."""
    body, about = entry.body, _about(entry)
    left_out = _LEFT_OUT | {"output"} if entry.kind in _WITHOUT_OUTPUT else _LEFT_OUT
    return {
        "seq": entry.seq,
        "time": format_time(entry.time_ms),
        "kind": entry.kind,
        "author": entry.author,
        "object": None if about is None else {"kind": about[0], "name": about[1]},
        "owner": _owner(projection, about, entry),
        "reason": body.get("reason") or (entry.reasons[0] if entry.reasons else None),
        "message": body.get("message") or _resolver_message(entry),
        "body": {key: value for key, value in body.items() if key not in left_out},
    }


def _about(entry: Entry) -> tuple[str, str] | None:
    body = entry.body
    if "kind" in body and "name" in body and entry.kind.startswith("object."):
        return body["kind"], body["name"]
    for key, kind in _ABOUT:
        if body.get(key) is not None:
            return kind, body[key]
    return None


def _resolver_message(entry: Entry) -> str:
    """A sentence for the resolver's steps, whose entries hold no message."""
    body = decode(entry) if entry.kind in _RESOLVER else None
    if isinstance(body, entries.OutcomeCommitted):
        promised, scope = body.commitment, entry.body["scope"]
        where = "".join(f" {key}={value}" for key, value in sorted(scope["location"].items()))
        missing = f"{promised.deficit_gpus} {scope['flavor']} missing{where}"
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


def _owner(projection: Projection, about: tuple[str, str] | None, entry: Entry) -> str | None:
    """Whose event it is; None when the object is gone or has no owner."""
    body = entry.body
    if isinstance(body.get("spec"), dict):
        owner = body["spec"].get("owner")
        return owner if isinstance(owner, str) else None
    if isinstance(body.get("owner"), str):
        return str(body["owner"])
    stored = None if about is None else projection.get(*about)
    if stored is None or entry.time_ms < stored.created_ms:
        return None  # gone; or another object has its name by now, perhaps of another owner
    return projection.owner_of(stored)
