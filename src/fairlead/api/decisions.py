"""Entries of the ledger and decisions: searched, proved, and decided again.

Who sees what: an entry is shown as the event that it is. Its exact bytes, by which it is proved,
are handed to those from whom the event hides nothing of it; others get its hash, which proves that
it is there. The input of a decision has rows of all tenants: it is an admin's, except the one of a
lottery, which every export has under pseudonyms.
"""

from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from fairlead.api.endpoint import Call, Routes
from fairlead.api.reports import seq_before
from fairlead.api.service import Service
from fairlead.api.shapes import Event, HeadDocument, Positive, Shape
from fairlead.api.streams import read_events
from fairlead.core.audit import leaf_hash
from fairlead.core.canonical import canonical
from fairlead.core.units import INTEGER_MAX
from fairlead.engine.gpu import Author, NotFound
from fairlead.ledger.replay import DRAWN, documents, is_decision, replay
from fairlead.ports.ledger import Entry
from fairlead.schema.replay import explain_difference
from fairlead.schema.times import parse_now

routes = Routes()
READ_AT_ONCE = 500
LOOKED_AT_MAX = 5_000
"""Entries that one search looks at; the next request goes on behind them."""
_PUBLIC = (
    *("ledger.created", "key.rotated", "ledger.epoch"),
    *("gpu.resolve.scope", "gpu.resolve.commit", *DRAWN),
)
"""Kinds whose entries every reader gets as they are, in `GET /v1/ledger` and in exports."""
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class SearchQuery(Shape):
    """Which entries, newest first. `kind` also finds the kinds below it: `gpu.resolve`. `object`
    is a name, or KIND/NAME. `text` is looked for in what is shown. `since` and `until` are RFC 3339
    times. `before`: older than this entry."""

    kind: Word | None = None
    object: Word | None = None
    author: Word | None = None
    text: Word | None = None
    since: str | None = None
    until: str | None = None
    before: Positive | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class FoundEntries(Shape):
    """Entries, newest first. `next`: ask again with it as `before`; null: there are no more.

    A page may be short, or empty, before the end: one request looks at a bounded number of entries.
    """

    items: list[Event]
    next: int | None
    oldest: int
    """What is older than this entry was moved to an archive, or never was."""


class ProvedEntry(Shape):
    """One entry and the proof that it is in the log of the checkpoint."""

    event: Event
    entry: str | None
    """The exact bytes that were hashed; null: part of it is not the caller's to see."""
    leaf: str
    """Their hash in the tree."""
    proof: list[str]
    head: HeadDocument
    decision: bool
    """Whether it can be decided again."""


class LedgerDecision(Shape):
    """A decision in the ledger. What is not the caller's to see is null, and `hidden` names it."""

    event: Event
    kind: str
    version: int
    reasons: list[str]
    input_digest: str | None = field(name="inputDigest")
    input: dict[str, Any] | None
    output: dict[str, Any] | None
    hidden: list[Literal["input", "output"]]


class LedgerReplay(Shape):
    """A decision decided again, compared byte by byte (canonical JSON)."""

    seq: int
    kind: str
    version: int
    verdict: Literal["same", "different", "unknown"]
    detail: str
    """The first field that differs, or why nothing can be said."""
    recorded_sha256: str | None = field(name="recordedSHA256")
    decided_sha256: str | None = field(name="decidedSHA256")
    bytes: int | None
    """The length of what was recorded."""
    decided: dict[str, Any] | None
    """What is decided now; null: not the caller's to see, or nothing was decided."""


@routes("GET /v1/entries", FoundEntries, SearchQuery)
def search_entries(service: Service, call: Call) -> dict[str, Any]:
    """Search the ledger, newest entries first."""
    query: SearchQuery = call.query
    ledger = service.ledger
    first, last = ledger.archived_to(), ledger.head().head.size
    oldest = first + 1
    if query.since is not None:
        first = max(first, seq_before(ledger, parse_now(query.since, "query.since")))
    if query.until is not None:
        last = seq_before(ledger, parse_now(query.until, "query.until") + 1)
    if query.before is not None:
        last = min(last, query.before - 1)
    items: list[dict[str, Any]] = []
    until = max(first, last - LOOKED_AT_MAX)
    while last > until and len(items) < query.limit:
        start = max(until, last - READ_AT_ONCE)
        page = read_events(service, call.author, start, last - start)
        found = [event for event in reversed(page) if _matches(event, query)]
        room = query.limit - len(items)
        items += found[:room]
        last = start if len(found) <= room else items[-1]["seq"] - 1
    return {"items": items, "next": last + 1 if last > first else None, "oldest": oldest}


def _matches(event: dict[str, Any], query: SearchQuery) -> bool:
    kind, named = event["kind"], event["object"] or {"kind": "", "name": ""}
    if query.kind is not None and kind != query.kind and not kind.startswith(f"{query.kind}."):
        return False
    names = (named["name"], f"{named['kind']}/{named['name']}")
    if query.object is not None and query.object not in names:
        return False
    if query.author is not None and event["author"] != query.author:
        return False
    # In what is shown only: what is hidden must not be found either.
    shown = "" if query.text is None else msgspec.json.encode(event).decode().casefold()
    return query.text is None or query.text.casefold() in shown


@routes("GET /v1/entries/{seq}", ProvedEntry)
def get_entry(service: Service, call: Call) -> dict[str, Any]:
    """Show an entry with its inclusion proof."""
    entry, event = _read(service, call)
    head = service.ledger.head()
    return {
        "event": event,
        "entry": entry.data.decode() if _may_have(call.author, entry, event) else None,
        "leaf": leaf_hash(entry.data).hex(),
        "proof": [step.hex() for step in service.ledger.inclusion(entry.seq, head.head.size)],
        "head": head.as_document(),
        "decision": is_decision(entry),
    }


def _may_have(author: Author, entry: Entry, event: dict[str, Any]) -> bool:
    """Whether the event hides nothing of the entry from this author."""
    if author.admin or entry.kind in _PUBLIC:
        return True
    body = entry.body
    if any(event["body"].get(name) != body[name] for name in body if name != "spec"):
        return False
    is_run = body.get("kind") == "Run"
    owner = event["owner"] or ""
    return "spec" not in body or not is_run or author.may_see(body.get("name", ""), owner)


@routes("GET /v1/decisions/ledger/{seq}", LedgerDecision)
def get_decision(service: Service, call: Call) -> dict[str, Any]:
    """Show a decision of the control plane: input, output and reasons."""
    entry, event = _decision(service, call)
    found = documents(service.ledger, entry)
    shown = _shown(call.author, entry, event)
    return {
        "event": event,
        "kind": entry.kind if found is None else found.kind,
        "version": entry.version,
        "reasons": list(entry.reasons),
        "inputDigest": entry.input_digest,
        "input": None if found is None or "input" not in shown else found.input,
        "output": None if found is None or "output" not in shown else found.output,
        "hidden": [name for name in ("input", "output") if name not in shown],
    }


@routes("GET /v1/decisions/ledger/{seq}/replay", LedgerReplay)
def replay_decision(service: Service, call: Call) -> dict[str, Any]:
    """Decide again, and compare with what was recorded."""
    entry, event = _decision(service, call)
    with service.replaying():
        again = replay(service.ledger, entry)
    recorded = None if again.recorded is None else canonical(again.recorded)
    decided = None if again.result is None else canonical(again.result)
    may_see = "output" in _shown(call.author, entry, event)
    return {
        "seq": entry.seq,
        "kind": again.kind,
        "version": again.version,
        "verdict": str(again.verdict),
        "detail": explain_difference(again) if may_see else again.detail,
        "recordedSHA256": None if recorded is None else sha256(recorded).hexdigest(),
        "decidedSHA256": None if decided is None else sha256(decided).hexdigest(),
        "bytes": None if recorded is None else len(recorded),
        "decided": again.result if may_see else None,
    }


def _shown(author: Author, entry: Entry, event: dict[str, Any]) -> tuple[str, ...]:
    if author.admin or entry.kind in DRAWN:
        return ("input", "output")
    return ("output",) if "output" in event["body"] else ()


def _decision(service: Service, call: Call) -> tuple[Entry, dict[str, Any]]:
    entry, event = _read(service, call)
    if not is_decision(entry):
        raise NotFound("decision", call.path["seq"])
    return entry, event


def _read(service: Service, call: Call) -> tuple[Entry, dict[str, Any]]:
    text = call.path["seq"]
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= INTEGER_MAX):
        raise NotFound("entry", text)
    seq = int(text)
    entry = service.ledger.entry(seq)
    if entry is None:
        raise NotFound("entry", text)
    for event in read_events(service, call.author, seq - 1, 1):
        if event["seq"] == seq:
            return entry, event
    raise NotFound("entry", text)
