"""What the mirror shows: items, those that an entry touches, and what is told by Events."""

from collections.abc import Iterator
from enum import StrEnum
from sys import intern
from typing import NamedTuple

from fairlead.engine.gpu.events import about
from fairlead.kube.kinds import KINDS, kube_name
from fairlead.kube.watch import Key
from fairlead.ports.ledger import Entry

TOLD = ("Preempted", "NodeFailed", "Drained", "Swapped", "StartFailed", "Lost", "Restarted")
"""Changes of a run that are Events: what its status shows for good needs none."""
EVENTS = {
    "run.cut": ("Preempted", "Warning"),
    "run.warned": ("PreemptionPossible", "Warning"),
    "pod.mismatch": ("PodMismatch", "Warning"),
    "lease.unfunded": ("Unfunded", "Warning"),
    "lease.funded": ("Funded", "Normal"),
    "reservation.state": ("ReservationChanged", "Normal"),
}


class ItemPart(StrEnum):
    """What an item of the mirror is about."""

    OBJECT = "object"
    FINALIZER = "finalizer"
    LEASE = "lease"
    OUTCOME = "outcome"
    EVENT = "event"


class Item(NamedTuple):
    """Something that the cluster is to show."""

    part: ItemPart
    kind: str
    key: Key


def items_of(entry: Entry) -> Iterator[Item]:
    """What is to be shown because of an entry. What was decided about a run is followed by what
    became of it."""
    kind, body = entry.kind, entry.body
    if kind.startswith("gpu.") and not kind.startswith("gpu.resolve."):
        return
    if kind in ("lease.open", "lease.close", "lease.unfunded", "lease.funded"):
        yield lease_item(body["lease"])
        if "run" in body:
            yield Item(ItemPart.OBJECT, "Run", Key(*kube_name(body["run"])))
    if kind.startswith("gpu.resolve."):
        seq = entry.seq if kind == "gpu.resolve.commit" else body.get("outcome")
        seq = body.get("commit_seq", seq)
        if isinstance(seq, int):
            yield outcome_item(seq)
    named = about(entry)
    if named is not None and named[0] in KINDS:
        yield Item(ItemPart.OBJECT, intern(named[0]), key_named(*named))


def is_told(entry: Entry) -> bool:
    """Whether people are told of an entry by Events."""
    kind = entry.kind
    if kind == "run.phase":
        return entry.body.get("reason") in TOLD
    return kind in EVENTS or kind.startswith("gpu.resolve.")


def key_named(kind: str, name: str) -> Key:
    return Key("", intern(name)) if kind == "Budget" else Key(*kube_name(name))


def lease_item(name: str) -> Item:
    return Item(ItemPart.LEASE, "GPULease", Key(kube_name(name)[0], name))


def outcome_item(seq: int) -> Item:
    return Item(ItemPart.OUTCOME, "ResolverOutcome", Key("", str(seq)))
