"""Runs the decisions of a ledger again. An input is in the entry's body, or among the blobs.

    replay_ledger(reader)            # every decision, in order
    replay_segment(path)             # those of an export or an archive
    replay(reader, reader.entry(42))

The result of a lottery stands in the entry of its draw; its input, in the one of its commitment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from fairlead.core.canonical import canonical
from fairlead.core.lottery import Commitment, Reveal, check_reveal
from fairlead.ledger.segment import open_segment
from fairlead.ports.ledger import Archived, Entry, LedgerReader
from fairlead.schema.border import BadInput, parse_json
from fairlead.schema.replay import SHIPPED, Replayed, Replayer, Shipped, Verdict

DRAWN = ("gpu.resolve.draw", "gpu.resolve.void")
_PAGE = 500


def replay_ledger(reader: LedgerReader, kinds: Shipped = SHIPPED) -> Iterator[Replayed]:
    """Run every decision of a ledger again; entries that are none, or archived, are left out."""
    seq, size = reader.archived_to(), reader.head().head.size
    while seq < size:
        for entry in reader.entries(seq, min(_PAGE, size - seq)):
            seq = entry.seq
            if is_decision(entry):
                yield replay(reader, entry, kinds)


class EntrySource(Protocol):
    """What a replay reads: other entries, and the documents beside the log."""

    def entry(self, seq: int) -> Entry | None:
        """One entry, None where there is none; raises `Archived`."""

    def blob_get(self, digest: str) -> bytes | None:
        """A document by its SHA-256."""


@dataclass(frozen=True, slots=True)
class _Exported:
    entries: dict[int, Entry]
    blobs: dict[str, bytes]

    def entry(self, seq: int) -> Entry | None:
        return self.entries.get(seq)

    def blob_get(self, digest: str) -> bytes | None:
        return self.blobs.get(digest)


def replay_segment(path: Path, kinds: Shipped = SHIPPED) -> Iterator[Replayed]:
    """Run every decision of an exported or archived segment again; raises BadInput."""
    with open_segment(path) as segment:
        entries = {entry.seq: entry for entry in segment.entries()}
        source = _Exported(entries, {sha256(blob).hexdigest(): blob for blob in segment.blobs()})
    for entry in entries.values():
        if is_decision(entry):
            yield replay(source, entry, kinds)


def is_decision(entry: Entry) -> bool:
    """Whether an entry holds a decision that can be run again."""
    if entry.kind in DRAWN:
        return entry.body.get("seed") is not None
    return isinstance(entry.body.get("output"), dict) and entry.input_digest is not None


def replay(reader: EntrySource, entry: Entry, kinds: Shipped = SHIPPED) -> Replayed:
    """Run an entry's decision again and compare with its recorded output."""

    def answer(verdict: Verdict, detail: str) -> Replayed:
        return Replayed(entry.seq, entry.kind, entry.version, verdict, detail=detail)

    if not is_decision(entry):
        return answer(Verdict.UNKNOWN, f"entry {entry.seq} ({entry.kind}) is no decision")
    try:
        found = (_drawn if entry.kind in DRAWN else _decided)(reader, entry)
    except BadInput as error:
        return answer(Verdict.DIFFERENT, f"its documents cannot be read: {error}")
    if found is None:
        return answer(Verdict.UNKNOWN, f"the documents of entry {entry.seq} are not kept here")
    doubts = _doubts(reader, entry) if entry.kind in DRAWN else ()
    if doubts:
        detail = f"the reveal does not fit its commitment: {', '.join(doubts)}"
        return answer(Verdict.DIFFERENT, detail)
    kind, input, output = found
    if entry.kind not in DRAWN and sha256(canonical(input)).hexdigest() != entry.input_digest:
        return answer(Verdict.DIFFERENT, "its input is not the one of its digest")
    return Replayer(kinds).run(entry.seq, kind, entry.version, input, output)


Found = tuple[str, dict[str, Any], dict[str, Any]]


def _decided(reader: EntrySource, entry: Entry) -> Found | None:
    """Kind, input and output; None where neither body nor blobs have the input."""
    input = entry.body.get("input")
    if input is None and entry.input_digest is not None:
        data = reader.blob_get(entry.input_digest)
        input = None if data is None else parse_json(data)
    return (entry.kind, input, entry.body["output"]) if isinstance(input, dict) else None


def _drawn(reader: EntrySource, entry: Entry) -> Found | None:
    """The conflict that the commitment froze, with the seed that the draw disclosed."""
    try:
        commit = reader.entry(entry.body["commit_seq"])
    except Archived:
        return None
    frozen = None if commit is None else reader.blob_get(commit.body["conflict_digest"])
    result = reader.blob_get(entry.body["result_digest"])
    if frozen is None or result is None:
        return None
    return "gpu.resolve", {**parse_json(frozen), "seed": entry.body["seed"]}, parse_json(result)


def _doubts(reader: EntrySource, entry: Entry) -> tuple[str, ...]:
    """Why a reveal does not fit the commitment before it, as far as both are kept."""
    try:
        commit = reader.entry(entry.body["commit_seq"])
        previous = None if commit is None else reader.entry(commit.body["previous_seq"])
    except Archived:
        return ()
    if commit is None or previous is None:
        return ()
    promised, shown = Commitment.of(commit.body), Reveal.of(entry.body)
    return tuple(check_reveal(promised, shown, previous.body["next_commitment"]))
