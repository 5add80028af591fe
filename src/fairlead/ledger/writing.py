"""The writing half of the port, made of one act: number these drafts and store them, or none."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.core.audit import Frontier, Head, SignedHead
from fairlead.core.invariant import require
from fairlead.ledger.entries import Position, Prepared, prepare
from fairlead.ledger.keys import Signers
from fairlead.ledger.reading import StoreReader, entry_of, identity_at
from fairlead.ledger.segment import segment_name
from fairlead.ledger.statements import LedgerIdentity, archived, restored, rotated
from fairlead.ledger.store import Found, Store
from fairlead.ledger.verify import verify_tail
from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Damaged, Draft, Entry, HeadMoved

StatementMaker = Callable[[Head], Draft]


class StoreWriter(StoreReader, ABC):
    """A `Ledger` over any store that can record."""

    def __init__(self, store: Store, signers: Signers) -> None:
        super().__init__(store)
        self._signers = signers
        self._failure: str | None = None

    @abstractmethod
    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[Found]:
        """Number and store, all or none, durably; `HeadMoved` if the size is another."""

    def append(self, drafts: Sequence[Draft], *, expected_size: int | None = None) -> list[Entry]:
        require(len(drafts) > 0, "there is something to append")
        prepared = [prepare(draft) for draft in drafts]
        time_ms = drafts[-1].time_ms
        try:
            recorded = self._record(prepared, time_ms=time_ms, expected_size=expected_size)
        except HeadMoved:
            raise  # others are recorded: it says nothing of whether this could be
        except Fault as fault:
            self._failure = str(fault)
            raise
        self._failure = None
        # Read back from the bytes: what a projection sees now is what it will see at a replay.
        return [entry_of(found) for found in recorded]

    def failure(self) -> str | None:
        return self._failure

    def rotate_key(self, *, time_ms: int, author: str) -> Entry:
        new = self._signers.create()

        def introduce(head: Head) -> Draft:
            old = self._signers.load(head.key_id)
            return rotated(head.ledger, old, new, time_ms=time_ms, author=author)

        return self._state(introduce)

    def begin_epoch(
        self, *, time_ms: int, author: str, reason: str, lost: SignedHead | None = None
    ) -> Entry:

        def begin(head: Head) -> Draft:
            key = self._signers.load(head.key_id)
            return restored(head, key, time_ms=time_ms, author=author, reason=reason, lost=lost)

        return self._state(begin)

    def archive(self, directory: Path, *, last: int, time_ms: int, author: str) -> Path:
        """Move the content of the entries up to `last` into a segment; returns its file.

        Their places in the tree stay, so everything still proves and verifies; so do their plans
        and effects. Kinds that are never moved are in the segment too, but are kept.
        """
        kept = self._store.kept()
        first, head = kept.archived_to + 1, kept.head.head
        require(first <= last <= head.size, f"what is archived lies in {first} to {head.size}")
        path = directory / segment_name(head.ledger, first, last)
        self.export_file(path, first=first, last=last)
        # Said before it is done: a crash in between leaves the content in both places.
        self._state(
            lambda _: archived(path.name, first=first, last=last, time_ms=time_ms, author=author)
        )
        self._drop_content(last)
        return path

    @abstractmethod
    def _drop_content(self, last: int) -> None:
        """Forget the bytes of entries up to `last`, but the ledger's own."""

    def _state(self, make: StatementMaker) -> Entry:
        """Record a statement about the head as it is; if others were quicker, about theirs."""
        while True:
            head = self.head().head
            draft = make(head)
            try:
                (recorded,) = self._record(
                    [prepare(draft, own=True)], time_ms=draft.time_ms, expected_size=head.size
                )
            except HeadMoved:
                continue
            return entry_of(recorded)


def check_opening(store: Store, signers: Signers) -> Position:
    """Verify what came since the last checkpoint, and find where to go on appending.

    A log of any length opens in the time that the entries since then take, about 10 µs each; what
    lies before is what `fairlead audit verify` is for. Raises `Damaged`, or a `PermanentFault`
    without the key.
    """
    with store.view() as view:
        head = view.kept().head.head
        checkpoints = [kept for kept in view.checkpoints(above=0) if kept.head.size <= head.size]
        frontier, identity = Frontier(), LedgerIdentity()
        if checkpoints:
            start = checkpoints[-1]
            frontier = Frontier.of(start.head.size, store.nodes)
            identity = identity_at(store, start.head.size)
            if start.head.root != frontier.root().hex():
                raise Damaged(f"the tree is not that of the checkpoint of size {start.head.size}")
            if problem := identity.check(start):
                raise Damaged(f"the checkpoint of size {start.head.size} {problem}")
        found = verify_tail(view, frontier, identity)
    if not found.ok:
        raise Damaged(f"the ledger does not verify: {found.problem}")
    signers.load(head.key_id)
    return Position(head.ledger, head.epoch, head.key_id, Frontier.of(head.size, store.nodes))
