"""The port between a fast governor and its flight recorder: record, then apply, then mark.

    seq = recorder.append("cpu.govern", version=2, time_ms=now_ms, input=document, output=plan)
    ...                                               # apply the plan
    recorder.mark(seq, "applied", time_ms=now_ms)

A start heals first: each of `unapplied()` is voided, because its snapshot is old.
`head()` is what a ledger anchors. One thread at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Status = Literal["applied", "voided"]


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One recorded decision. Documents are to be looked at only: entries share their parts."""

    seq: int
    time_ms: int
    kind: str
    version: int
    input: Mapping[str, Any]
    output: Mapping[str, Any]
    hash: str  # the chain's hash up to and including this entry, in hex


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of an entry: its plan was applied, or voided for the reason in the note."""

    seq: int
    time_ms: int
    entry_seq: int
    status: Status
    note: str
    hash: str


@dataclass(frozen=True, slots=True)
class RecordHead:
    """The end of the chain. Who holds it elsewhere can tell whether anything before was changed."""

    seq: int
    hash: str


class Recorder(Protocol):
    """A durable, hash-chained record. Raises `TemporaryFault` or `PermanentFault`, and then
    recorded nothing: the next call works as if this one had not been. Sequence numbers grow;
    entries are not the only things that have one."""

    def append(
        self,
        kind: str,
        *,
        version: int,
        time_ms: int,
        input: dict[str, Any],
        output: dict[str, Any],
    ) -> int:
        """Record a decision before it is applied; durable when it returns its sequence number."""

    def begins_segment(self, kind: str) -> bool:
        """Whether the next entry of this kind is the first one of its segment: segments are dropped
        whole, so it holds everything that the later ones leave out."""

    def mark(self, seq: int, status: Status, *, time_ms: int, note: str = "") -> None:
        """Record what became of an entry, once; durable when it returns."""

    def unapplied(self) -> list[RecordEntry]:
        """Entries without a mark, oldest first."""

    def head(self) -> RecordHead: ...
    def close(self) -> None:
        """Let another writer in; closing again does nothing."""


class FlightRecorder(Recorder, Protocol):
    """For a governor of several ticks a second, which must not wait for a slow disk: what was
    recorded outlives the process at once, the machine only from the next `sync` on."""

    def sync(self) -> None: ...

    def tail(self, kind: str) -> list[RecordEntry]:
        """All entries of a kind in the newest segment that has one: from the entry that holds
        everything to the newest, so that a new process can go on from there."""

    def was_applied(self, seq: int) -> bool:
        """Whether an entry is marked as applied; not one that is voided, or has no mark."""
