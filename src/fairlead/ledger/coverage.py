"""What a verification covered, and what it did not: an answer that names its own limits."""

from fairlead.ports.ledger import Coverage


class CoverageList:
    """Grows while a ledger is followed."""

    def __init__(self) -> None:
        self._done, self._left_out = list[Coverage](), list[Coverage]()

    @property
    def done(self) -> tuple[Coverage, ...]:
        return tuple(self._done)

    @property
    def left_out(self) -> tuple[Coverage, ...]:
        return tuple(self._left_out)

    def log(self, entries: int, archived_to: int, heads: int, keys: int) -> None:
        self._covers("entries", entries, "bytes, numbers and names against the Merkle tree")
        self._covers("checkpoints", heads, "signature, and root against the tree")
        self._covers("keys", keys, "each introduced by an entry that the key before it signed")
        self._covers("archive mark", archived_to, "against the ledger.archived entries")
        if archived_to:
            self.leaves_out(
                "archived entries",
                archived_to,
                "their hashes are; segments and names with --archive",
            )

    def beside(self, blobs: int) -> None:
        self._covers("blobs", blobs, "SHA-256, and size where an entry names one")
        self._covers("schema", None, "no table, trigger, view or index but this release's")

    def snapshot(self, name: str, seq: int, *, confirmed: bool, sealed: bool) -> None:
        if confirmed:
            self._covers(f"snapshot {name}", seq, "SHA-256 in a ledger.snapshot entry")
        elif sealed:
            self._covers(f"position {name}", seq, "signature; an older one causes repetition only")
        else:
            how = "no entry confirms it, so it is not used: the state is made from the entries"
            self.leaves_out(f"snapshot {name}", seq, how)

    def _covers(self, what: str, count: int | None, how: str) -> None:
        self._done.append(Coverage(what, count, how))

    def leaves_out(self, what: str, count: int | None, how: str) -> None:
        self._left_out.append(Coverage(what, count, how))
