"""The writing half of the port, made of one act: number these drafts and store them, or none."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic

from fairlead.core.audit import Frontier, Head, SignedHead
from fairlead.core.invariant import require
from fairlead.ledger import store
from fairlead.ledger.bindings import (
    POSITION_EVERY,
    SnapshotBinding,
    check_archived,
    newest_binding,
    seal_position,
)
from fairlead.ledger.entries import Numbered, Position, Prepared, entry_of, first_entry, prepare
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.reading import StoreReader, identity_at
from fairlead.ledger.statements import ARCHIVED, EPOCH, KEPT, ROTATED, LedgerIdentity, statement
from fairlead.ledger.store import C, SqlSession
from fairlead.ledger.verify import LedgerWalk
from fairlead.ledger.witness import Witness
from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Blob, Damaged, Draft, Entry, HeadMoved


class StoreWriter(StoreReader, ABC, Generic[C]):
    """A `Ledger` over any database that can record. Takes over `resources`."""

    def __init__(
        self,
        session: SqlSession[C],
        source: SqlSession[C],
        keys: KeyDirectory,
        resources: ExitStack,
    ) -> None:
        super().__init__(source)
        self._session, self._signers = session, keys
        self._position = check_opening(source, keys)
        self._witness = Witness(source.query, self._covering)
        self._failure: str | None = None
        self._resources = resources.pop_all()

    @abstractmethod
    def _covering(self, seq: int) -> Head:
        """The newest head that this process verified or signed; if it does not cover `seq`, after
        looking for what was appended meanwhile. What the head still does not cover is foreign."""

    @abstractmethod
    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[store.Found]:
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
        entries = [entry_of(found) for found in recorded]
        known = []
        for draft, entry in zip(prepared, entries, strict=True):
            if entry.data == draft.data(entry.seq):
                continue
            effect = (entry.plan_id, entry.effect)
            if draft.effect is None or (draft.plan_id, draft.effect) != effect:
                raise Damaged(f"entry {entry.seq} is not what was appended", entry.seq)
            known.append(entry)  # an effect that was recorded before
        self._witnessed(known)
        return entries

    def failure(self) -> str | None:
        return self._failure

    def rotate_key(self, *, time_ms: int, author: str) -> Entry:
        new = self._signers.create()
        body = {"new_key_id": new.key_id, "public_key": new.public_key.hex()}
        return self._state(ROTATED, lambda _: body, time_ms=time_ms, author=author)

    def begin_epoch(
        self, *, time_ms: int, author: str, reason: str, lost: SignedHead | None = None
    ) -> Entry:
        def body(head: Head) -> dict[str, Any]:  # where the backup ends, and the epoch begins
            place = {"epoch": head.epoch + 1, "size": head.size, "root": head.root}
            return {**place, "reason": reason, "lost": lost.as_document() if lost else None}

        return self._state(EPOCH, body, time_ms=time_ms, author=author)

    def archive(self, directory: Path, *, last: int, time_ms: int, author: str) -> Path:
        """Move the content of the entries up to `last` into a segment; returns its file.

        Their places in the tree stay, so everything still proves and verifies. Kinds that are
        never moved are in both.
        """
        signed, archived_to = store.read_kept(self._query)
        first, head = archived_to + 1, signed.head
        require(first <= last <= head.size, f"what is archived lies in {first} to {head.size}")
        path = directory / f"{head.ledger}-{first:012d}-{last:012d}.jsonl"
        self.export(path, first=first, last=last)
        body = {"segment": path.name, "first": first, "last": last}
        # Said before it is done: a crash in between leaves the content in both places.
        self._state(ARCHIVED, lambda _: body, time_ms=time_ms, author=author)
        self._change("archive entries", partial(store.drop_content, last=last, kinds=KEPT))
        return path

    def blob_put(self, data: bytes) -> str:
        blob = Blob.of(data)
        row = (blob.digest, blob.packed)
        self._change("keep a blob", lambda execute: execute(store.KEEP_BLOB, *row))
        return blob.digest

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        # Said before it is kept: a crash in between leaves the last one, which an entry confirms.
        draft = SnapshotBinding.of(name, seq, state).draft(self.head().head.time_ms)
        self._record([prepare(draft, own=True)], time_ms=draft.time_ms, expected_size=None)
        row = (name, seq, state)
        self._change("keep a snapshot", lambda execute: execute(store.KEEP_SNAPSHOT, *row))

    def snapshots_drop(self) -> None:
        """Forget all of them: states are made again from the entries."""
        self._change("drop snapshots", lambda execute: execute("DELETE FROM snapshots"))

    def position_put(self, name: str, seq: int) -> None:
        head = self.head().head
        bound = newest_binding(self._query, name, head)
        if bound is None or seq - bound >= POSITION_EVERY:
            draft = SnapshotBinding.of(name, seq, b"").draft(head.time_ms)
            self._record([prepare(draft, own=True)], time_ms=draft.time_ms, expected_size=None)
        seal = seal_position(head.ledger, name, seq, self._signers.load(head.key_id))
        self._change(
            "keep a position", lambda execute: execute(store.KEEP_SNAPSHOT, name, seq, seal)
        )

    def _state(
        self, kind: str, body: Callable[[Head], dict[str, Any]], *, time_ms: int, author: str
    ) -> Entry:
        """Record a statement about the head as it is; if others were quicker, about theirs."""
        while True:
            head = self.head().head
            key = self._signers.load(head.key_id)
            draft = statement(kind, head.ledger, body(head), key, time_ms=time_ms, author=author)
            try:
                (recorded,) = self._record(
                    [prepare(draft, own=True)], time_ms=draft.time_ms, expected_size=head.size
                )
            except HeadMoved:
                continue
            return entry_of(recorded)

    def _change(self, doing: str, work: Callable[[store.Execute], object]) -> None:
        """Change something else than entries, in a transaction of its own."""

        def change(connection: C) -> None:
            with self._session.changing(connection) as execute:
                work(execute)

        self._session.run(doing, change)

    def close(self) -> None:
        self._resources.close()


def begin(
    session: SqlSession[C],
    keys: KeyDirectory,
    first: Callable[[KeyDirectory], Numbered] = first_entry,
) -> None:
    """Store the first entry, unless there is one, or another replica is quicker."""
    begun = "SELECT 1 FROM kept"

    def start(connection: C) -> None:
        with session.changing(connection) as execute:
            if not list(execute(begun)):
                session.store(connection, first(keys))

    if not session.query(begun):
        session.run("begin a ledger", start)


def check_opening(source: SqlSession[C], signers: KeyDirectory) -> Position:
    """Verify what came since the last checkpoint, and find where to go on appending.

    About 10 µs for each entry since then, whatever the length of the log; what lies before is what
    `fairlead audit verify` is for. Raises `Damaged`, or a `PermanentFault` without the key.
    """
    nodes = partial(store.read_nodes, source.query)
    with source.view() as view:
        signed, archived_to = view.kept()
        head = signed.head
        checkpoints = [kept for kept in view.checkpoints(above=0) if kept.head.size <= head.size]
        frontier, identity = Frontier(), LedgerIdentity()
        if checkpoints:
            start = checkpoints[-1]
            frontier = Frontier.of(start.head.size, nodes)
            identity = identity_at(source.query, start.head.size)
            if start.head.root != frontier.root().hex():
                raise Damaged(f"the tree is not that of the checkpoint of size {start.head.size}")
            if problem := identity.check(start):
                raise Damaged(f"the checkpoint of size {start.head.size} {problem}")
        found = LedgerWalk(view, start=(frontier, identity)).run()
    if not found.ok:
        raise Damaged(f"the ledger does not verify: {found.problem}")
    signers.load(head.key_id)
    check_archived(source.query, archived_to, head)
    return Position(signed, Frontier.of(head.size, nodes))
