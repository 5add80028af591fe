"""Reads that are compared with a head which this process verified or signed itself.

The control plane acts on what it reads. A row that was changed in the database while it runs, or
before the last checkpoint, where an opening does not look, would steer it. So a writer's reads go
through here: a run of entries must be the tree's own, without a gap; entries that were looked up by
a name must each be in the tree. (That a lookup by name leaves none out is what `verify` shows.)
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fairlead.core.audit import Frontier, Head, check_consistency, consistency_proof, leaf_hash
from fairlead.core.audit.tree import HASH_BYTES
from fairlead.ledger.bindings import check_included
from fairlead.ledger.store import Execute, Found, read_nodes
from fairlead.ports.ledger import Damaged, Entry

PAGE = 2_000
Covering = Callable[[int], Head]
"""The newest head that was verified, after looking for a newer one if it does not cover this."""


class Witness:
    """Compares what is read with the head."""

    def __init__(self, query: Execute, covering: Covering) -> None:
        self._query, self._covering = query, covering

    def included(self, entries: Sequence[Entry]) -> None:
        if entries:
            last = max(entry.seq for entry in entries)
            check_included(self._query, entries, self._covering(last))

    def run(self, after: int, limit: int) -> list[Found]:
        """Up to `limit` entries above `after`: all there are, as the head covers them."""
        known = self._covering(0).size
        text = "SELECT seq, data, nodes FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = list(self._query(text, after, limit))
        last = rows[-1][0] if rows else after
        if len(rows) < limit and last < known:
            raise Damaged(f"entry {last + 1} is missing", last + 1)
        if not rows:
            return []
        for seq, row in enumerate(rows, start=after + 1):
            if row[0] != seq:
                raise Damaged(f"entry {seq} is missing", seq)
        leaves = (
            nodes[:HASH_BYTES] if data is None else leaf_hash(data) for _, data, nodes in rows
        )
        self._check(after, list(leaves), self._covering(last))
        return [Found(seq, data) for seq, data, _ in rows]

    def all_after(self, after: int) -> Iterator[Found]:
        """Every entry from there to the end, page by page."""
        while rows := self.run(after, PAGE):
            yield from rows
            after = rows[-1].seq

    def _check(self, after: int, leaves: Sequence[bytes], head: Head) -> None:
        """The tree that grows from these leaves begins the tree of the head."""
        last = after + len(leaves)
        if last > head.size:
            raise Damaged(f"entry {head.size + 1} is not covered by the head", head.size + 1)
        stored = partial(read_nodes, self._query)
        grown = Frontier.of(after, stored).extend(leaves).frontier
        if not check_consistency(
            old_size=last,
            old_root=grown.root(),
            new_size=head.size,
            new_root=bytes.fromhex(head.root),
            proof=consistency_proof(last, head.size, stored),
        ):
            raise Damaged(f"the entries {after + 1} to {last} are not those that the head covers")
