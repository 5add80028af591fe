"""Runs a decision of the ledger again. Its input is in the body, or among the blobs."""

from hashlib import sha256
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.ports.ledger import Entry, LedgerReader
from fairlead.schema.border import BadInput, parse_json
from fairlead.schema.replay import SHIPPED, Answer, Shipped, Verdict, decide_again


def replay(reader: LedgerReader, entry: Entry, kinds: Shipped = SHIPPED) -> Answer:
    """Decide an entry's recorded input again and compare with its recorded output."""
    output = entry.body.get("output")
    if not isinstance(output, dict) or entry.input_digest is None:
        return Answer(Verdict.UNKNOWN, detail=f"entry {entry.seq} ({entry.kind}) is no decision")
    try:
        input = _input(reader, entry)
    except BadInput as error:
        return Answer(Verdict.DIFFERENT, detail=f"its input cannot be read: {error}")
    if input is None:
        return Answer(Verdict.UNKNOWN, detail=f"the input of entry {entry.seq} is not kept here")
    if sha256(canonical(input)).hexdigest() != entry.input_digest:
        return Answer(Verdict.DIFFERENT, detail="its input is not the one of its digest")
    return decide_again(entry.kind, entry.version, input, output, kinds)


def _input(reader: LedgerReader, entry: Entry) -> dict[str, Any] | None:
    """The input as a document; None where neither body nor blobs have it."""
    given = entry.body.get("input")
    if given is None and entry.input_digest is not None:
        data = reader.blob_get(entry.input_digest)
        given = None if data is None else parse_json(data)
    return given if isinstance(given, dict) else None
