"""Entries as events for people who watch: what, about which object, whose, and why."""

from typing import Any

from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.ledger import Entry
from fairlead.schema.times import format_time

_ABOUT = (("reservation", "Reservation"), ("run", "Run"), ("budget", "Budget"), ("lease", "Lease"))
# Inputs are large, and specs carry commands and environment: whoever may see those asks for them.
# A nonce stands in an export beside a pseudonym: with its owner's name it would open that.
_LEFT_OUT = frozenset({"input", "blobs", "spec", "parts", "nonce", "nonce_owners"})


def event_document(projection: Projection, entry: Entry) -> dict[str, Any]:
    """One entry; `object` None for entries of other governors and of the ledger itself."""
    body = entry.body
    about = None
    if "kind" in body and "name" in body and entry.kind.startswith("object."):
        about = {"kind": body["kind"], "name": body["name"]}
    else:
        for key, kind in _ABOUT:
            if body.get(key) is not None:
                about = {"kind": kind, "name": body[key]}
                break
    return {
        "seq": entry.seq,
        "time": format_time(entry.time_ms),
        "kind": entry.kind,
        "author": entry.author,
        "object": about,
        "owner": _owner(projection, about, entry),
        "reason": body.get("reason") or (entry.reasons[0] if entry.reasons else None),
        "message": body.get("message") or _resolve_message(entry),
        "body": {key: value for key, value in body.items() if key not in _LEFT_OUT},
    }


def _resolve_message(entry: Entry) -> str:
    """A sentence for the resolver's steps, whose entries hold no words."""
    body, kind = entry.body, entry.kind
    if kind == "gpu.resolve.commit":
        scope = body["scope"]
        where = "".join(f" {key}={each}" for key, each in sorted(scope["location"].items()))
        return f"outcome {entry.seq}: {body['deficit_gpus']} {scope['flavor']} missing{where}"
    if kind in ("gpu.resolve.draw", "gpu.resolve.void"):
        what = "drawn" if kind.endswith("draw") else "given up"
        return f"outcome {body['commit_seq']} is {what}, {body['label']}"
    if kind == "gpu.resolve.applied":
        return f"outcome {body['outcome']} is carried out"
    if kind == "gpu.resolve.asked":
        steps = ", ".join(each["name"] or "the place" for each in body["steps"])
        return f"is brought back within its caps, in this order: {steps}"
    if kind == "run.cut":
        by = "its owner's wish" if body["outcome"] is None else f"outcome {body['outcome']}"
        return f"gives up {len(body['leases'])} leases by {by}"
    return ""


def gap_document(*, after: int, last: int, time_ms: int) -> dict[str, Any]:
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


def _owner(projection: Projection, about: dict[str, Any] | None, entry: Entry) -> str | None:
    """Whose event it is; None when the object is gone or is nobody's."""
    body = entry.body
    if isinstance(body.get("spec"), dict):
        found = body["spec"].get("owner")
        return found if isinstance(found, str) else None
    if isinstance(body.get("owner"), str):
        return str(body["owner"])
    stored = None if about is None else projection.get(about["kind"], about["name"])
    if stored is None or entry.time_ms < stored.created_ms:
        return None  # gone; or another one has its name by now, and may be somebody else's
    return projection.owner_of(stored)
