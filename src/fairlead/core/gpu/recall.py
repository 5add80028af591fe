"""Recall: an owner's own envelope is never locked by its family or by borrowers.

A request that is not covered, because others use its owner's own envelopes, takes the funding of
their leases: these are unfunded from then on, and so the first to be preempted where devices are
missing. Nothing is recalled that does not help, and nothing for a request that is covered.

    order    borrowed leases, then those of cousins, of children, of siblings; in each the youngest
             first, then by id
    fewest   recalled in this order until the request is covered; then every one without which it
             would still be covered keeps its funding, the one that ranks last first
    room     nothing is recalled for a request that would not be placed if every lease had ended: it
             would take the funding of others for as long as it waits
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated

from fairlead.core.gpu.cover import Book, cover
from fairlead.core.gpu.devices import FreeDevices
from fairlead.core.gpu.family import COUSIN, PARENT, SIBLING, Families
from fairlead.core.gpu.model import Request
from fairlead.core.gpu.place import Gang, Node
from fairlead.core.gpu.start import GangShape
from fairlead.core.gpu.usage import Key, Usage
from fairlead.core.reasons import RecallReason
from fairlead.core.units import Count, Gpus, Name, Time, Written


@dataclass(frozen=True, slots=True)
class LentLease:
    """A funded lease of another owner on an envelope of the request's owner."""

    id: Name
    run: Name
    owner: Name
    relation: RecallReason
    """Whether it is borrowed, or how its owner reaches the envelope."""
    budget: Name
    envelope: Name
    gpus: Gpus
    start_ms: Annotated[int, Time(), Written("start")]
    held_ms: Count
    """GPU-milliseconds of this period that are promised to it."""

    @property
    def key(self) -> Key:
        return (self.budget, self.envelope)


@dataclass(frozen=True, slots=True)
class RecallRoom:
    """The devices as if every lease had ended, and how the request is placed on them."""

    nodes: tuple[Node, ...]
    shape: GangShape

    def fits(self, book: Book, request: Request, now_ms: int) -> bool:
        """Whether a request that is covered would be placed at its minimum."""
        return FreeDevices(self.nodes).place(self._least(book, request, now_ms)).placed

    def deciding(self, book: Book, request: Request, now_ms: int) -> "RecallRoom":
        """The same with the nodes that decide it, and no others."""
        gang = self._least(book, request, now_ms)
        return replace(self, nodes=tuple(FreeDevices(self.nodes).candidates(gang)))

    def _least(self, book: Book, request: Request, now_ms: int) -> Gang:
        gang = self.shape.gang(request, cover(book, request, now_ms))
        return replace(gang, gpus=self.shape.without_spares(request.enough_gpus))


@dataclass(frozen=True, slots=True)
class RecalledLease:
    """A lease that is unfunded from now on, and why it was chosen."""

    lease: str
    run: str
    gpus: int
    reason: RecallReason


@dataclass(frozen=True, slots=True)
class Recall:
    """Leases that lose their funding, in order of recall; none: it is covered, or cannot be, or
    would find no room."""

    leases: tuple[RecalledLease, ...] = ()
    gpus: int = 0


_ORDER = (RecallReason.BORROWED, RecallReason.COUSIN, RecallReason.CHILD, RecallReason.SIBLING)


def relation_of(families: Families, lessee: str, payer: str, *, borrowed: bool) -> RecallReason:
    """How a lease's owner came to use an envelope of the payer."""
    if borrowed:
        return RecallReason.BORROWED
    kin = families.kin(lessee).get(payer, COUSIN)  # families may have changed since
    by_kin = {SIBLING: RecallReason.SIBLING, PARENT: RecallReason.CHILD}
    return by_kin.get(kin, RecallReason.COUSIN)


def recall(
    book: Book,
    request: Request,
    leases: Iterable[LentLease],
    now_ms: int,
    room: RecallRoom | None = None,
) -> Recall:
    """`room` None: as in version 1, devices do not count."""
    order = sorted(
        leases, key=lambda lease: (_ORDER.index(lease.relation), -lease.start_ms, lease.id)
    )

    def covers(recalled: Iterable[LentLease]) -> bool:
        return cover(without(book, recalled), request, now_ms).funded

    if covers(()) or not covers(order):
        return Recall()
    count = next(n for n in range(1, len(order) + 1) if covers(order[:n]))
    chosen = order[:count]
    for lease in list(_from_the_last(chosen)):
        rest = [other for other in chosen if other.id != lease.id]
        if covers(rest):
            chosen = rest
    if room is not None and not room.fits(without(book, chosen), request, now_ms):
        return Recall()
    rows = tuple(RecalledLease(row.id, row.run, row.gpus, row.relation) for row in chosen)
    return Recall(rows, sum(row.gpus for row in rows))


def _from_the_last(chosen: list[LentLease]) -> Iterator[LentLease]:
    """All but the last one, which was needed."""
    return reversed(chosen[:-1])


def without(book: Book, recalled: Iterable[LentLease]) -> Book:
    """The same budgets, as if these leases were not paid for."""
    changed: dict[Key, Usage] = {}
    for lease in recalled:
        used = changed.get(lease.key) or book.used(*lease.key)
        lent = lease.relation is RecallReason.BORROWED
        changed[lease.key] = used._replace(
            gpus=used.gpus - lease.gpus,
            held_ms=used.held_ms - lease.held_ms,
            lent_gpus=used.lent_gpus - lease.gpus * lent,
            lent_held_ms=used.lent_held_ms - lease.held_ms * lent,
        )
    made = copy(book)
    made.usage = ChainMap(changed, book.usage)  # type: ignore[arg-type]  # read only
    return made
