"""Runs recorded decisions again and compares bytes: the proof that a decision was what it was."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.ports.recorder import Entry
from fairlead.schema.replay import SHIPPED, Lives, Shipped, Verdict, decide_again


@dataclass(frozen=True, slots=True)
class Replayed:
    """One entry and what came of it."""

    entry: Entry
    verdict: Verdict
    result: Mapping[str, Any] | None = None
    """What is decided now, where anything is."""
    detail: str = ""
    """Why there is no result."""

    @property
    def seq(self) -> int:
        """The entry's sequence number."""
        return self.entry.seq

    @property
    def kind(self) -> str:
        """The kind of decision."""
        return self.entry.kind

    @property
    def version(self) -> int:
        """The version that decided."""
        return self.entry.version


def replay(entries: Iterable[Entry], kinds: Shipped = SHIPPED) -> Iterator[Replayed]:
    """Decide each entry's recorded input again, as this release decides."""
    lives: Lives = {}
    for entry in entries:
        answer = decide_again(
            entry.kind, entry.version, entry.input, entry.output, kinds, lives=lives
        )
        yield Replayed(entry, answer.verdict, answer.result, answer.detail)
