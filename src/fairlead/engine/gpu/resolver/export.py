"""An outcome as a file that a tenant can check without Fairlead: entries, proofs, documents, keys.

docs/reference/outcome-export.md is the form; `verify/` holds what checks it. Clear names are in it
for those owners alone whom it is made for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.core.audit import SignedHead
from fairlead.core.canonical import canonical
from fairlead.core.lottery.pseudonym import outcome_key, pseudonym
from fairlead.engine.gpu.resolver.protocol import plan_id
from fairlead.engine.gpu.values import NotFound, Refused
from fairlead.ports.chance import Chance
from fairlead.ports.ledger import Damaged, Entry, LedgerReader
from fairlead.schema.border import parse_json

FORMAT = "fairlead-outcome/1"
Clear = Mapping[str, Mapping[str, Sequence[Sequence[str]]]]
"""Names in clear: by owner and kind, the parts of each."""


class Record:
    """All entries of one outcome, and the documents that they name."""

    def __init__(self, ledger: LedgerReader, seq: int) -> None:
        self._ledger = ledger
        commit = ledger.entry(seq)
        if commit is None or commit.kind != "gpu.resolve.commit":
            raise NotFound("outcome", str(seq))
        self.commit, self.seq = commit, seq
        self.chain: str = commit.body["chain"]
        self.k: int = commit.body["k"]
        found = ledger.entries(0, plan_id=plan_id(self.chain, self.k))
        self.case = next((each for each in found if each.kind == "gpu.resolve.case"), None)
        self.draw = next((each for each in found if each.kind == "gpu.resolve.draw"), None)
        self.void = next((each for each in found if each.kind == "gpu.resolve.void"), None)
        self._known: dict[str, dict[str, Any]] = {}

    @property
    def final(self) -> Entry | None:
        """The draw or the void."""
        return self.draw or self.void

    def conflict(self) -> dict[str, Any]:
        """What was frozen."""
        return self._document(self.commit.body["conflict_digest"])

    def notice(self) -> dict[str, Any]:
        """What was announced."""
        return self._document(self.commit.body["notice_digest"])

    def result(self) -> dict[str, Any] | None:
        """What was decided, or would have been."""
        name = None if self.final is None else self.final.body["result_digest"]
        return None if name is None else self._document(name)

    def clear(self) -> Clear:
        """The names behind the pseudonyms."""
        if self.case is None:
            return {}
        (name,) = self.case.body["blobs"]
        return self._document(name)

    def cuts(self) -> Iterator[Entry]:
        """What the draw took from whom, run by run; recorded right behind it."""
        after = 0 if self.draw is None else self.draw.seq
        while self.draw is not None:
            page = self._ledger.entries(after)
            for entry in page:
                if entry.kind != "run.cut" or entry.body["outcome"] != self.seq:
                    return
                yield entry
            if not page:
                return
            after = page[-1].seq

    def _document(self, digest: str) -> dict[str, Any]:
        if digest not in self._known:
            data = self._ledger.blob_get(digest)
            if data is None:
                raise Damaged(f"a document of outcome {self.seq} is missing: {digest}")
            self._known[digest] = dict(parse_json(data))
        return self._known[digest]


def export_outcome(
    ledger: LedgerReader,
    chance: Chance,
    seq: int,
    *,
    owners: Sequence[str],
    introduced: Mapping[str, int],
    heads: Sequence[tuple[int, str]] = (),
) -> bytes:
    """The file. `introduced`: the entry of each owner's secret; `heads`: sizes and roots kept."""
    record, head = Record(ledger, seq), ledger.head()
    size = head.head.size

    def proved(entry: Entry) -> dict[str, Any]:
        proof = ledger.inclusion(entry.seq, size)
        return {"entry": parse_json(entry.data), "proof": [each.hex() for each in proof]}

    previous = _entry(ledger, record.commit.body["previous_seq"])
    openings = [
        {"entry": proved(_entry(ledger, introduced[owner])), **_opening(record, chance, owner)}
        for owner in sorted(set(owners) & record.clear().keys())
    ]
    document = {
        "format": FORMAT,
        "chain": record.chain,
        "k": record.k,
        "scope": record.commit.body["scope"],
        "previous": proved(previous),
        "commit": proved(record.commit),
        "draw": None if record.draw is None else proved(record.draw),
        "void": None if record.void is None else proved(record.void),
        "conflict": record.conflict(),
        "notice": record.notice(),
        "result": record.result(),
        "closures": [proved(entry) for entry in _closures(ledger, record, owners)],
        "openings": openings,
        "head": head.as_document(),
        "keys": _keys(ledger, record, head),
        "consistency": list(_links(ledger, record, head, heads)),
    }
    return canonical(document) + b"\n"


def _entry(ledger: LedgerReader, seq: int) -> Entry:
    found = ledger.entry(seq)
    if found is None:
        raise Damaged(f"entry {seq} is missing")
    return found


def _opening(record: Record, chance: Chance, owner: str) -> dict[str, Any]:
    """An owner's names that occur, and the secret that they follow from."""
    secret = chance.owner_secret(owner)
    key = outcome_key(secret, record.chain, record.k)
    said = canonical([record.conflict(), record.notice()])
    names = [
        {"kind": kind, "parts": list(parts)}
        for kind, found in record.clear()[owner].items()
        for parts in {tuple(each) for each in found}
        if pseudonym(key, kind, parts).encode() in said
    ]
    names.sort(key=lambda each: (each["kind"], each["parts"]))
    return {"owner": owner, "secret": secret.hex(), "names": names}


def _closures(ledger: LedgerReader, record: Record, owners: Sequence[str]) -> list[Entry]:
    """Leases of these owners that were closed by this outcome."""
    clear = record.clear()
    mine = {parts[0] for owner in owners for parts in clear.get(owner, {}).get("lease", ())}
    found = [
        entry
        for cut in record.cuts()
        for lease in cut.body["leases"]
        if lease in mine
        for entry in ledger.entries(0, plan_id=lease)
        if entry.kind == "lease.close" and entry.body.get("outcome") == record.seq
    ]
    return sorted(found, key=lambda entry: entry.seq)


def _keys(ledger: LedgerReader, record: Record, head: SignedHead) -> dict[str, str]:
    known, used = ledger.keys(), {head.head.key_id}
    if record.final is not None:
        used.add(record.final.body["commit_head"]["key_id"])
    return {name: known[name].hex() for name in sorted(used)}


def _links(
    ledger: LedgerReader, record: Record, head: SignedHead, heads: Sequence[tuple[int, str]]
) -> Iterator[dict[str, Any]]:
    """That the log of each other head begins the log of this one."""
    olds = list(heads)
    if record.final is not None:
        then = record.final.body["commit_head"]
        olds.insert(0, (then["size"], then["root"]))
    for size, root in dict.fromkeys(olds):
        if size > head.head.size:
            raise Refused("HeadUnknown", f"the ledger has {head.head.size} entries, not {size}")
        proof = ledger.consistency(size, head.head.size)
        yield {
            "old_size": size,
            "old_root": root,
            "new_size": head.head.size,
            "new_root": head.head.root,
            "proof": [each.hex() for each in proof],
        }
