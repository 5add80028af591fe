"""Runs recorded decisions again and compares bytes: the proof that a decision was what it was."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.ports.recorder import Entry
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS, Kind

Shipped = Mapping[tuple[str, int], Kind]

SHIPPED: Shipped = {(name, 1): kind for name, kind in KINDS.items()}
"""The decisions this release can run again, by name and version.

Whoever changes what a kind decides gives it the next number and keeps the old function here under
the old one for as long as records of it are around.
"""


class Verdict(StrEnum):
    """What running an entry again showed."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """This kind, or this version of it, is not shipped any more or not yet: an answer of its own,
    because nothing can be said about the decision."""


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
    names = {name for name, _ in kinds}
    for entry in entries:
        kind = kinds.get((entry.kind, entry.version))
        if kind is not None:
            yield _run(entry, kind)
            continue
        what = f"version {entry.version}" if entry.kind in names else "decision of that name"
        detail = f"{entry.kind}: there is no {what} here"
        yield Replayed(entry, Verdict.UNKNOWN, detail=detail)


def _run(entry: Entry, kind: Kind) -> Replayed:
    """Through the border, as `fairlead decide` would: what was recorded is input like any other."""
    try:
        result = kind.run(canonical(entry.input)).result
    except BadInput as error:
        return Replayed(entry, Verdict.DIFFERENT, detail=f"is refused now: {error}")
    same = canonical(result) == canonical(entry.output)
    return Replayed(entry, Verdict.SAME if same else Verdict.DIFFERENT, result)
