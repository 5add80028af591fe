"""What people are told of a resolve by Events: its odds, beforehand, and what was drawn.

Each team learns of its own runs only: an Event is in its run's namespace.
"""

from typing import NamedTuple

from fairlead.core.units import counted
from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.resolver.preview import without_names
from fairlead.kube.client import Document
from fairlead.kube.conditions import now
from fairlead.kube.kinds import as_named_in
from fairlead.kube.watch import Key
from fairlead.schema.objects import API_VERSION

ANNOUNCED, DECIDED = "PreemptionAnnounced", "PreemptionDecided"
CANDIDATES_MAX = 100
"""Candidates of one outcome that are told of their odds; those that are preempted are all told."""
_ALL = Author("kubernetes-mirror", admin=True)


class Announcement(NamedTuple):
    """One Event, on a Run or a Reservation by its name in the ledger."""

    kind: str
    name: str
    reason: str
    message: str


def announcements(plane: ControlPlane, event: Document) -> list[Announcement]:
    """Of the entry that commits to an outcome, or draws or voids it.

    Raises `Archived` or `Denied` where its entries can be read no more.
    """
    kind, said = event["kind"], event["message"]
    if kind == "gpu.resolve.commit":
        report = plane.outcome_reports.get(event["seq"], author=_ALL)
        tokens, names = report["tokens"], report["names"]
        told = [
            Announcement(
                "Run",
                names[token["token"]],
                ANNOUNCED,
                f"{said}; this run may be preempted, with odds of "
                f"{token['chance'] * 100:.0f} % "
                f"(first draw: {token.get('times', 1)} in {token['one_in']})",
            )
            for token in tokens[:CANDIDATES_MAX]
            if token["token"] in names
        ]
        whole = f"{said}; {counted(len(tokens), 'run')} may be preempted for its run"
        return [*_reserved(report, ANNOUNCED, whole), *told]
    if kind in ("gpu.resolve.draw", "gpu.resolve.void"):
        report = plane.outcome_reports.get(event["body"]["commit_seq"], author=_ALL)
        return _reserved(report, DECIDED, said)
    return []


def _reserved(report: Document, reason: str, message: str) -> list[Announcement]:
    name = report["reservation"]
    return [] if name is None else [Announcement("Reservation", name, reason, message)]


def event_of(kind: str, key: Key, uid: str, event: Document, **told: str) -> Document:
    """The Event on an object that an entry of the ledger is told by; `told`: reason and type."""
    message = without_names(event["message"])
    if key.namespace:
        message = as_named_in(key.namespace, message)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{key.name}.{event['seq']:x}",
            "namespace": key.namespace or "default",
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": kind,
            "name": key.name,
            "namespace": key.namespace,
            "uid": uid,
        },
        "message": f"{message} (ledger entry {event['seq']})",
        **told,
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
        "source": {"component": "fairlead"},
    }
