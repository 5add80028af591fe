"""Heads: which of the runs that wait are first in their scope, and are promised a start.

One for each flavor and location among the runs that are funded and lack devices; among those that
lack funding one for envelopes that could pay for no head before it. Runs whose reservations are due
come first, by time; the others in the order of the queue. At most so many of each kind: each costs
a look at its leases, and a tenant could ask for any location, and name any sponsor.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.gpu.charges import HeadFunding
from fairlead.core.gpu.place import Gang
from fairlead.core.gpu.queue import HeldRun
from fairlead.core.reasons import QueueHold
from fairlead.core.units import Name, Time, Written

HEADS_MAX = 8


@dataclass(frozen=True, slots=True)
class QueueHead:
    """A run that lacks devices or room in envelopes, at the least width that it starts with."""

    run: Name
    gang: Gang
    funding: HeadFunding | None = None
    """None: it is funded whatever else starts."""
    since_ms: Annotated[int, Time(), Written("waiting_since")] | None = None
    envelopes: tuple[Name, ...] = ()
    """Of version 3: those that could pay for it, where it lacks funding; none: it lacks devices."""
    due_ms: Annotated[int, Time(), Written("due_since")] | None = None
    """Of version 3: when its reservation became due."""


def due_first(held: Iterable[HeldRun]) -> list[str]:
    """The runs of a queue whose reservations are due, in the order in which they are heads: runs
    that have just started are no candidates, so that short ones that follow each other would keep
    the devices from a reservation for ever."""
    due = [(row.until_ms or 0, row.run) for row in held if row.reason is QueueHold.RESERVATION_DUE]
    return [run for _, run in sorted(due)]


def is_full(heads: Iterable[QueueHead], heads_max: int, *, funded: bool) -> bool:
    """Whether there are as many heads of a kind as there may be."""
    return sum(funded is not bool(head.envelopes) for head in heads) >= heads_max


def is_first(
    heads: Iterable[QueueHead], location: Mapping[str, str], envelopes: Collection[str] = ()
) -> bool:
    """Whether no head of its kind is before a run: in its location, or with one of the envelopes
    that could pay for it."""
    if envelopes:
        return all(set(envelopes).isdisjoint(head.envelopes) for head in heads)
    return all(head.envelopes or head.gang.location != location for head in heads)


def choose(
    heads: Iterable[QueueHead], heads_max: int | None, promise_ms: Callable[[QueueHead], int | None]
) -> Iterator[tuple[QueueHead, int | None]]:
    """The heads among runs that wait, and what each is promised. One without an earliest start
    keeps no other from being a head. What is passed over changes nothing, and may be left out."""
    leading: list[QueueHead] = []
    if heads_max is not None:
        heads = sorted(heads, key=_place)
    for head in heads:
        if heads_max is not None:
            full = is_full(leading, heads_max, funded=not head.envelopes)
            if full or not is_first(leading, head.gang.location, head.envelopes):
                continue
        start_ms = promise_ms(head)
        if start_ms is not None:
            leading.append(head)
        yield head, start_ms


def _place(head: QueueHead) -> tuple[bool, int, str]:
    """Of those without a reservation the first in the queue is first: the order is stable."""
    if head.due_ms is None:
        return True, 0, ""
    return False, head.due_ms, head.run
