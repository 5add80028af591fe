"""Runs the decisions of a ledger again. An input is in the entry's body, or among the blobs.

The result of a lottery stands in the entry of its draw; its input, in the one of its commitment.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.core.canonical import canonical
from fairlead.core.lottery import Commitment, Reveal, check_reveal
from fairlead.ledger.segment import open_segment
from fairlead.ports.ledger import Archived, Entry, LedgerReader
from fairlead.ports.recorder import RecordHead
from fairlead.schema.border import BadInput, parse_json
from fairlead.schema.replay import SHIPPED, Replayed, Replayer, Shipped, Verdict

DRAWN = ("gpu.resolve.draw", "gpu.resolve.void")
_PAGE = 500
Anchors = Mapping[str, Mapping[str, list[RecordHead]]]
"""Ends of records by group and agent: two agents may serve groups of one name."""


def replay_ledger(reader: LedgerReader, kinds: Shipped = SHIPPED) -> Iterator[Replayed]:
    """Run every decision of a ledger again; entries that are none, or archived, are left out."""
    seq, size = reader.archived_to(), reader.head().head.size
    while seq < size:
        for entry in reader.entries(seq, min(_PAGE, size - seq)):
            seq = entry.seq
            if is_decision(entry):
                yield replay(reader, entry, kinds)


class _Exported(NamedTuple):
    """What a replay reads of a segment."""

    entry: Callable[[int], Entry | None]
    blob_get: Callable[[str], bytes | None]


EntrySource = LedgerReader | _Exported


def replay_segment(path: Path, kinds: Shipped = SHIPPED) -> Iterator[Replayed]:
    """Run every decision of an exported or archived segment again; raises BadInput."""
    with open_segment(path) as segment:
        entries = {entry.seq: entry for entry in segment.entries()}
        blobs = {sha256(blob).hexdigest(): blob for blob in segment.blobs()}
    for entry in entries.values():
        if is_decision(entry):
            yield replay(_Exported(entries.get, blobs.get), entry, kinds)


def is_decision(entry: Entry) -> bool:
    """Whether an entry holds a decision that can be run again."""
    if entry.kind in DRAWN:
        return entry.body.get("seed") is not None
    return isinstance(entry.body.get("output"), dict) and entry.input_digest is not None


def replay(reader: EntrySource, entry: Entry, kinds: Shipped = SHIPPED) -> Replayed:
    """Run an entry's decision again and compare with its recorded output."""
    answer = partial(Replayed, entry.seq, entry.kind, entry.version)
    if not is_decision(entry):
        detail = f"entry {entry.seq} ({entry.kind}) is no decision"
        return answer(Verdict.UNKNOWN, detail=detail)
    try:
        found = documents(reader, entry)
    except BadInput as error:
        return answer(Verdict.DIFFERENT, detail=f"its documents cannot be read: {error}")
    if found is None:
        detail = f"the documents of entry {entry.seq} are not kept here"
        return answer(Verdict.UNKNOWN, detail=detail)
    if found.problem:
        return answer(Verdict.DIFFERENT, detail=found.problem)
    return Replayer(kinds).run(entry.seq, found.kind, entry.version, found.input, found.output)


class Documents(NamedTuple):
    """What a decision was made from, what it came to, and what is wrong with them."""

    kind: str
    input: dict[str, Any]
    output: dict[str, Any]
    problem: str


def documents(reader: EntrySource, entry: Entry) -> Documents | None:
    """Those of an entry's decision; None where they are not kept here. Raises BadInput."""
    return (_drawn if entry.kind in DRAWN else _decided)(reader, entry)


def _decided(reader: EntrySource, entry: Entry) -> Documents | None:
    input = entry.body.get("input")
    if input is None and entry.input_digest is not None:
        data = reader.blob_get(entry.input_digest)
        input = None if data is None else parse_json(data)
    if not isinstance(input, dict):
        return None
    same = sha256(canonical(input)).hexdigest() == entry.input_digest
    problem = "" if same else "its input is not the one of its digest"
    return Documents(entry.kind, input, entry.body["output"], problem)


def _drawn(reader: EntrySource, entry: Entry) -> Documents | None:
    """The conflict that the commitment froze, with the seed that the draw disclosed."""
    try:
        commit = reader.entry(entry.body["commit_seq"])
    except Archived:
        return None
    frozen = None if commit is None else reader.blob_get(commit.body["conflict_digest"])
    result = reader.blob_get(entry.body["result_digest"])
    if commit is None or frozen is None or result is None:
        return None
    doubts: Sequence[str] = ()
    with suppress(Archived):  # as far as what the reveal must fit is kept
        if (previous := reader.entry(commit.body["previous_seq"])) is not None:
            promised, shown = Commitment.of(commit.body), Reveal.of(entry.body)
            doubts = check_reveal(promised, shown, previous.body["next_commitment"])
    problem = f"the reveal does not fit its commitment: {', '.join(doubts)}" if doubts else ""
    input = {**parse_json(frozen), "seed": entry.body["seed"]}
    return Documents("gpu.resolve", input, parse_json(result), problem)


def read_anchors(reader: LedgerReader) -> Anchors:
    """What the ledger anchored of the records of traffic agents."""
    anchors: dict[str, dict[str, list[RecordHead]]] = {}
    for entry in reader.following(reader.archived_to(), ["traffic.anchor"]):
        for group, head in entry.body["heads"].items():
            heads = anchors.setdefault(group, {}).setdefault(entry.body["agent"], [])
            heads.append(RecordHead(head["seq"], head["hash"]))
    return anchors
