"""The port of the ledger: one append-only log of what was decided, which can show it is unchanged.

    (entry,) = ledger.append([Draft(kind="lease.open", time_ms=now_ms, author="control-plane",
                                    plan_id=plan, effect="open", body={...})])
    head = ledger.head()                                  # hand it out with every reply
    proof = ledger.inclusion(entry.seq, head.head.size)   # and this on request

Sequence numbers count from 1 without a gap; entry `seq` is leaf `seq - 1` of the Merkle tree, and a
head of size n covers the entries 1 to n. The first entry of a ledger is its own, `ledger.created`;
kinds that begin with `ledger.` or `key.` are reserved for it.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol, Self

import msgspec

from fairlead.core.audit import Proof, SignedHead
from fairlead.core.invariant import require
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.schema.border import DOCUMENT_BYTES_MAX

Progress = Callable[[int, int], None]
"""Called from time to time with how many entries are done, of how many."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A document that is kept beside an entry: one line of canonical JSON, compressed as it is
    written, so that a large one is nowhere whole."""

    digest: str
    """SHA-256 of the document in hex."""
    size: int
    """Bytes of the document."""
    packed: bytes = field(repr=False)

    @classmethod
    def of(cls, document: bytes) -> Self:
        return cls.written([document])

    @classmethod
    def written(cls, parts: Iterable[bytes]) -> Self:
        """A document of which a part at a time is in memory."""
        pack, whole, size, packed = zlib.compressobj(_LEVEL), sha256(), 0, list[bytes]()
        for part in parts:
            # Each becomes a line of an export, which must be read back.
            require(b"\n" not in part, "a blob is one line of canonical JSON")
            size += len(part)
            require(size < DOCUMENT_BYTES_MAX, f"a blob has less than {DOCUMENT_BYTES_MAX} bytes")
            whole.update(part)
            packed.append(pack.compress(part))
        return cls(whole.hexdigest(), size, b"".join([*packed, pack.flush()]))

    def document(self) -> bytes:
        return unpacked(self.digest, self.packed)


_LEVEL = 1
"""Of zlib: an order of 12 000 runs, 3.4 MB, becomes a tenth of its size in 8 ms."""
_PACKED = zlib.compress(b"")[:1]
"""With what zlib begins, and no JSON. What former releases stored begins otherwise."""


def unpacked(digest: str, stored: object) -> bytes:
    """The document of a blob as it is stored; raises `Damaged` if it is not that of its digest, or
    not even bytes, which who edits the database may write."""
    if not isinstance(stored, bytes):
        raise Damaged(f"blob {digest} does not have the content of its name")
    data = stored
    if stored.startswith(_PACKED):
        unpack = zlib.decompressobj()
        try:
            data = unpack.decompress(stored, DOCUMENT_BYTES_MAX)
        except zlib.error as error:
            raise Damaged(f"blob {digest} cannot be read: {error}") from error
        if not unpack.eof or unpack.unused_data:
            raise Damaged(f"blob {digest} does not have the content of its name")
    if sha256(data).hexdigest() != digest:
        raise Damaged(f"blob {digest} does not have the content of its name")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is to be recorded."""

    kind: str
    time_ms: int
    author: str
    body: dict[str, Any]
    plan_id: str | None = None
    effect: str | None = None
    """Names one effect of the plan. The second draft with the same plan and effect records nothing
    and is answered with the first one's entry, so that an effect is never recorded twice."""
    input_digest: str | None = None
    """SHA-256 of the canonical bytes of a decision's input, in hex. The input itself is in the body
    under `input`, or among the blobs under this digest."""
    blobs: tuple[Blob, ...] = ()
    """Documents that are too large for the body, or are to be handed out without it, kept with the
    entry, all or nothing. The entry's body then lists the SHA-256 and the bytes of each under
    `blobs`."""
    version: int = 1  # the version of the decision function
    reasons: tuple[str, ...] = ()


BLOBS = "blobs"
"""In the body of an entry with blobs: their digests and sizes."""


class EntryFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The members of an entry's canonical JSON."""

    seq: int
    kind: str
    time_ms: int
    author: str
    body: dict[str, Any]
    plan_id: str | None
    effect: str | None
    input_digest: str | None
    version: int
    reasons: tuple[str, ...]


class Entry(EntryFields, frozen=True, kw_only=True):
    """One recorded fact."""

    data: bytes
    """The canonical JSON of everything above: what is hashed, stored and proved."""

    @property
    def blobs(self) -> Mapping[str, int]:
        """The digests and sizes of what it keeps beside the log."""
        named = self.body.get(BLOBS)
        return named if isinstance(named, dict) else {}


@dataclass(frozen=True, slots=True)
class ProjectionSnapshot:
    """The state of a projection after entry `seq`, from which it goes on with `entries(seq)`."""

    name: str
    seq: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Coverage:
    """One thing that a verification looked at, or did not; and how, or why not."""

    what: str
    count: int | None
    how: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What following the whole log showed: `size` entries without a problem, or the first entry
    that is not as it was, where that is known."""

    size: int
    root: str
    problem: str = ""
    seq: int | None = None
    covered: tuple[Coverage, ...] = ()
    not_covered: tuple[Coverage, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problem


class HeadMoved(TemporaryFault):
    """The ledger is not at the size that the caller expected: look again and decide again."""

    def __init__(self, *, expected: int, size: int) -> None:
        super().__init__(f"the ledger has {size} entries, not {expected}", retry_after_ms=0)
        self.expected, self.size = expected, size


class Archived(PermanentFault):
    """The entry is known and provable, but its content was moved to an archive segment."""


class Damaged(PermanentFault):
    """What is stored is not what was written: the first such entry, where that is known."""

    def __init__(self, message: str, seq: int | None = None) -> None:
        super().__init__(message)
        self.seq = seq


class LedgerReader(Protocol):
    """Everything that needs no right to write. Any number of readers beside one writer."""

    def entry(self, seq: int) -> Entry | None:
        """The entry of that number; None if there is none; `Archived` if it was moved away."""

    def entries(
        self,
        after: int = 0,
        limit: int = 1_000,
        *,
        kind: str | None = None,
        plan_id: str | None = None,
    ) -> list[Entry]:
        """Up to `limit` entries with a number above `after`, in order."""

    def following(self, after: int, kinds: Sequence[str]) -> Iterator[Entry]:
        """Every entry of these kinds above `after`, in order: none is left out, whatever the
        database says that it has. `Archived` if the content of any is gone."""

    def last(self, kind: str) -> Entry | None: ...
    def archived_to(self) -> int:
        """The last entry whose content was moved to an archive; 0 when none was. The ledger's own
        entries before it are still here, and those that exports of later outcomes prove."""

    def head(self) -> SignedHead:
        """The durable end of the log, signed."""

    def keys(self) -> Mapping[str, bytes]:
        """The public keys that ever signed, by key id, as the log itself introduces them."""

    def inclusion(self, seq: int, size: int) -> Proof:
        """Proof that entry `seq` is in the log of that size."""

    def consistency(self, old_size: int, new_size: int) -> Proof:
        """Proof that the log of the old size begins the one of the new size."""

    def blob_get(self, digest: str) -> bytes | None: ...
    def snapshot_get(self, name: str) -> ProjectionSnapshot | None:
        """The kept state of that name; None if there is none, or one that no entry confirms."""

    def position_get(self, name: str) -> int | None:
        """How far a receiver of that name has got; never further than was put."""

    def verify(
        self, held: Sequence[SignedHead] = (), *, progress: Progress | None = None
    ) -> Verification:
        """Follow the whole log, and compare it with heads that were held elsewhere: without such a
        head, damage is found; a rewriting by a holder of the key is not."""

    def close(self) -> None:
        """Let go of it; closing again does nothing."""


class Ledger(LedgerReader, Protocol):
    """The writing side. Raises `TemporaryFault` or `PermanentFault`, and then recorded nothing;
    across a network a fault may hide a success, so a draft with a plan and an effect can be sent
    again. May be called from several threads."""

    def append(self, drafts: Sequence[Draft], *, expected_size: int | None = None) -> list[Entry]:
        """Record all drafts or none; durable when it returns one entry for each. With
        `expected_size`, only if that is the ledger's size: else `HeadMoved`."""

    def failure(self) -> str | None:
        """Why the last `append` could not be recorded; None after one that was."""

    def blob_put(self, data: bytes) -> str:
        """Keep a blob durably, once; returns its SHA-256 in hex."""

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        """Keep a projection's state durably in place of its last one. An entry records its digest
        first (`ledger.snapshot`), by which it is believed when it is read."""

    def position_put(self, name: str, seq: int) -> None:
        """Keep how far a receiver has got, signed; now and then an entry records it, too, so that
        a position that was changed or put back costs a repetition and no event."""

    def rotate_key(self, *, time_ms: int, author: str) -> Entry:
        """Go on with a new key, introduced by an entry that the old key signed."""

    def begin_epoch(
        self, *, time_ms: int, author: str, reason: str, lost: SignedHead | None = None
    ) -> Entry:
        """Say, signed, that the log was restored from a backup, and what is known to be lost."""
