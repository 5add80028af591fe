"""Runs a decision of the ledger again. Its input is in the body, or among the blobs.

The decision of an outcome stands in its draw; what was decided on, in its commitment.
"""

from hashlib import sha256
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.core.lottery import Commitment, Reveal, check_reveal
from fairlead.ports.ledger import Entry, LedgerReader
from fairlead.schema.border import BadInput, parse_json
from fairlead.schema.replay import SHIPPED, Answer, Shipped, Verdict, decide_again

DRAWN = ("gpu.resolve.draw", "gpu.resolve.void")


def replay(reader: LedgerReader, entry: Entry, kinds: Shipped = SHIPPED) -> Answer:
    """Decide an entry's recorded input again and compare with its recorded output."""
    if entry.kind in DRAWN:
        return _replay_draw(reader, entry, kinds)
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


def _replay_draw(reader: LedgerReader, entry: Entry, kinds: Shipped) -> Answer:
    """An outcome: the conflict that its commitment froze, and the seed that was shown with it."""
    commit = reader.entry(entry.body["commit_seq"])
    if entry.body["seed"] is None or commit is None:
        return Answer(Verdict.UNKNOWN, detail=f"entry {entry.seq} decided nothing")
    frozen = reader.blob_get(commit.body["conflict_digest"])
    result = reader.blob_get(entry.body["result_digest"])
    if frozen is None or result is None:
        return Answer(Verdict.UNKNOWN, detail=f"the documents of entry {entry.seq} are not here")
    try:
        input, output = parse_json(frozen), parse_json(result)
    except BadInput as error:
        return Answer(Verdict.DIFFERENT, detail=f"its documents cannot be read: {error}")
    previous = reader.entry(commit.body["previous_seq"])
    if previous is not None:
        promised, shown = Commitment.of(commit.body), Reveal.of(entry.body)
        doubts = check_reveal(promised, shown, previous.body["next_commitment"])
        if doubts:
            detail = f"the reveal does not fit its commitment: {', '.join(doubts)}"
            return Answer(Verdict.DIFFERENT, detail=detail)
    given = {**input, "seed": entry.body["seed"]}
    return decide_again("gpu.resolve", entry.version, given, output, kinds)


def _input(reader: LedgerReader, entry: Entry) -> dict[str, Any] | None:
    """The input as a document; None where neither body nor blobs have it."""
    given = entry.body.get("input")
    if given is None and entry.input_digest is not None:
        data = reader.blob_get(entry.input_digest)
        given = None if data is None else parse_json(data)
    return given if isinstance(given, dict) else None
