"""Entries of the ledger from a time on: what reports are made of beyond the present state."""

from collections.abc import Iterator

from fairlead.core.invariant import known
from fairlead.ports.ledger import Entry, Ledger

READ_AT_ONCE = 2_000


def entries_of(ledger: Ledger, kind: str, since_ms: int) -> Iterator[Entry]:
    """Entries of a kind recorded since a time, oldest first, page by page."""
    after = seq_before(ledger, since_ms)
    while True:
        found = ledger.entries(after, READ_AT_ONCE, kind=kind)
        yield from found
        if len(found) < READ_AT_ONCE:
            return
        after = found[-1].seq


def seq_before(ledger: Ledger, time_ms: int) -> int:
    """The last entry recorded before a time, or the last one that was archived.

    By halving: entries are recorded in order of time, so twenty looks find it among a million.
    """
    low, high = ledger.archived_to(), ledger.head().head.size
    while low < high:
        middle = (low + high + 1) // 2
        if _time_ms(ledger, middle) < time_ms:
            low = middle
        else:
            high = middle - 1
    return low


def known_since_ms(ledger: Ledger) -> int:
    """The time of the first entry of those that are all still here in full."""
    return _time_ms(ledger, ledger.archived_to() + 1)


def _time_ms(ledger: Ledger, seq: int) -> int:
    promise = "an entry behind the archive and below the head is there"
    return known(ledger.entry(seq), promise).time_ms
