"""Border types of the audit: heads held elsewhere, and the first line of a segment."""

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from fairlead.core.audit import Head, SignedHead
from fairlead.core.units import INTEGER_MAX
from fairlead.schema.border import BadInput, read_document

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Signature = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]
KeyId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]

SEGMENT_FORMAT = 2
"""1: entries alone. 2: after them the blobs that they name, a line each."""


class HeadDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A signed head, as `fairlead audit head -o json` prints it."""

    ledger: Annotated[str, Meta(min_length=1)]
    epoch: Count
    size: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    root: Hash
    time_ms: Count
    key_id: KeyId
    signature: Signature

    def to_head(self) -> SignedHead:
        fields = asdict(self)
        signature = fields.pop("signature")
        return SignedHead(Head(**fields), signature)


class SegmentDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The first line of a segment: which entries follow, and what shows that they are the log's."""

    format: Annotated[int, Meta(ge=1, le=SEGMENT_FORMAT)]
    first: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    last: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    before: list[Hash]
    """The frontier of the tree before the first entry."""
    head: HeadDocument
    consistency: list[Hash]
    """Proof that the log up to the last entry begins the log of the head."""
    keys: dict[KeyId, Hash]
    """Public keys by id; an Ed25519 key has as many bytes as a SHA-256."""


def read_head(data: bytes) -> SignedHead:
    return read_document(data, HeadDocument).to_head()


def read_segment_header(line: bytes) -> SegmentDocument:
    document = read_document(line, SegmentDocument)
    if not document.first <= document.last <= document.head.size:
        raise BadInput("last", f"must lie between {document.first} and {document.head.size}")
    if len(document.before) != (document.first - 1).bit_count():
        raise BadInput("before", f"must be the frontier of {document.first - 1} entries")
    return document
