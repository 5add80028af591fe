"""Outcomes as people see them: a report under pseudonyms, and a file to check without Fairlead.

docs/reference/outcome-export.md is the form of the file; `verify/` holds what checks it. Clear
names are shown only to the authors who may act for their owners.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from fairlead.core.audit import SignedHead
from fairlead.core.canonical import canonical
from fairlead.core.gpu import total_odds
from fairlead.core.lottery import SEED_BYTES, plan_id
from fairlead.core.lottery.pseudonym import Clear, outcome_key, pseudonym
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, decode
from fairlead.engine.gpu.leases import drained_node
from fairlead.engine.gpu.state import Outcome
from fairlead.engine.gpu.values import Author, Forbidden, NotFound, Refused
from fairlead.ports.entropy import EntropySource
from fairlead.ports.ledger import Archived, Damaged, Entry, LedgerReader
from fairlead.schema.border import BadInput, check_shape, parse_json
from fairlead.schema.gpu import ResolveDocument, to_conflict
from fairlead.schema.times import format_time

FORMAT = "fairlead-outcome/2"
_CHANGES = ("key.rotated", "ledger.epoch")


class OutcomeRecord:
    """All entries of one outcome, and the documents that they name."""

    def __init__(self, ledger: LedgerReader, seq: int) -> None:
        entry = ledger.entry(seq)
        if entry is None or entry.kind != entries.OutcomeCommitted.ENTRY:
            raise NotFound("outcome", str(seq))
        self._ledger, self.seq, self.entry = ledger, seq, entry
        self.commitment = entries.OutcomeCommitted.of(entry.body).commitment
        self.chain, self.k = self.commitment.chain, self.commitment.k
        found = ledger.entries(0, plan_id=plan_id(self.chain, self.k))
        self.case: entries.OutcomeCase | None = None
        self.final: entries.OutcomeDrawn | None = None
        """The draw or the void."""
        self._case_entry: Entry | None = None
        self.final_entry: Entry | None = None
        for other in found:
            body = decode(other)
            if isinstance(body, entries.OutcomeCase):
                self.case, self._case_entry = body, other
            elif isinstance(body, entries.OutcomeDrawn):
                self.final, self.final_entry = body, other
        self._documents: dict[str, Document] = {}

    @property
    def voided(self) -> str | None:
        return None if self.final is None else self.final.reveal.void

    def conflict(self) -> Document:
        return self._document(self.commitment.conflict_digest)

    def notice(self) -> Document:
        return self._document(self.commitment.notice_digest)

    def tokens(self) -> list[Document]:
        """The tokens of the notice, with the odds of all draws together."""
        written = {**self.conflict(), "seed": "00" * SEED_BYTES}
        conflict = to_conflict(check_shape(written, ResolveDocument))
        weighting = self.commitment.owner_weighting
        found = {row.run: row for row in total_odds(conflict, owner_weighting=weighting)}
        return [
            {
                **token,
                "chance": found[token["token"]].chance,
                "chance_error": found[token["token"]].error,
            }
            for token in self.notice()["tokens"]
        ]

    def result(self) -> Document | None:
        digest = None if self.final is None else self.final.reveal.result_digest
        return None if digest is None else self._document(digest)

    def clear(self) -> Clear:
        if self._case_entry is None:
            return {}
        (digest,) = self._case_entry.blobs
        return self._document(digest)

    def reclaimed(self) -> Iterator[str]:
        """Leases that the draw took, run by run; recorded right behind it."""
        if self.final_entry is None or self.voided is not None:
            return
        after = self.final_entry.seq
        while page := self._ledger.entries(after):
            for entry in page:
                body = decode(entry)
                if not isinstance(body, entries.RunReclaimed) or body.outcome != self.seq:
                    return
                yield from body.leases
            after = page[-1].seq

    def _document(self, digest: str) -> Document:
        if digest not in self._documents:
            data = self._ledger.blob_get(digest)
            if data is None:
                raise Damaged(f"a document of outcome {self.seq} is missing: {digest}")
            self._documents[digest] = dict(parse_json(data))
        return self._documents[digest]

    def export(
        self,
        chance: EntropySource,
        owners: Sequence[str],
        introduced: Mapping[str, int],
        heads: Sequence[tuple[int, str]],
    ) -> bytes:
        """The file. `introduced`: entries of owners' secrets; `heads`: sizes and roots kept."""
        ledger, head = self._ledger, self._ledger.head()

        def proved(entry: Entry | None) -> Document:
            if entry is None:
                raise Damaged(f"an entry that outcome {self.seq} cites is missing")
            proof = ledger.inclusion(entry.seq, head.head.size)
            return {"entry": parse_json(entry.data), "proof": [step.hex() for step in proof]}

        final = None if self.final_entry is None else proved(self.final_entry)
        opened = sorted(set(owners) & self.clear().keys())
        document = {
            "format": FORMAT,
            "chain": self.chain,
            "k": self.k,
            "scope": self.commitment.scope,
            "previous": proved(ledger.entry(self.commitment.previous_seq)),
            "commit": proved(self.entry),
            "draw": final if self.voided is None else None,
            "void": final if self.voided is not None else None,
            "conflict": self.conflict(),
            "notice": self.notice(),
            "result": self.result(),
            "closures": [proved(entry) for entry in self._closures(owners)],
            "openings": [
                {
                    "entry": proved(ledger.entry(introduced[owner])),
                    "nonce": self._nonce(chance, owner, proved),
                    **self._opening(chance, owner),
                }
                for owner in opened
            ],
            "head": head.as_document(),
            "keys": self._keys(head),
            "changes": [proved(entry) for entry in self._changes()],
            "consistency": list(self._links(head, heads)),
        }
        return canonical(document) + b"\n"

    def _opening(self, chance: EntropySource, owner: str) -> Document:
        """An owner's names that occur, and the secret that they follow from."""
        secret = chance.owner_secret(owner)
        key = outcome_key(secret, self.chain, self.commitment.entropy_index)
        said = canonical([self.conflict(), self.notice()])
        names = [
            {"kind": kind, "parts": list(parts)}
            for kind, known in self.clear()[owner].items()
            for parts in {tuple(name) for name in known}
            if pseudonym(key, kind, parts).encode() in said
        ]
        names.sort(key=lambda name: (name["kind"], name["parts"]))
        return {"owner": owner, "secret": secret.hex(), "names": names}

    def _nonce(
        self, chance: EntropySource, owner: str, proved: Callable[[Entry], Document]
    ) -> Document | None:
        """The entry in which an owner signed its nonce, and that of its key; None: it gave none."""
        index = self.commitment.entropy_index
        me = pseudonym(
            outcome_key(chance.owner_secret(owner), self.chain, index), "owner", (owner,)
        )
        used = self.commitment.nonces.get(me)
        if used is None or self.commitment.turn is None:
            return None
        key = given = None
        for entry in self._ledger.entries(0, plan_id=f"owner.{owner}"):
            body = decode(entry)
            if isinstance(body, entries.OwnerKey) and given is None:
                key = entry
            elif isinstance(body, entries.NonceGiven) and body.nonce == used.hex():
                given = entry
        if key is None or given is None:
            raise Damaged(f"the nonce of {owner!r} in outcome {self.seq} is missing")
        return {"entry": proved(given), "key": proved(key)}

    def _changes(self) -> list[Entry]:
        """The ledger's own entries since the commitment's head: other keys, other epochs."""
        if self.final is None:
            return []
        size = self.final.commit_head["size"]
        found = [self._ledger.entries(size, kind=kind) for kind in _CHANGES]
        return sorted((entry for part in found for entry in part), key=lambda entry: entry.seq)

    def _closures(self, owners: Sequence[str]) -> list[Entry]:
        clear = self.clear()
        theirs = {parts[0] for owner in owners for parts in clear.get(owner, {}).get("lease", ())}
        closed = []
        for lease in theirs.intersection(self.reclaimed()):
            for entry in self._ledger.entries(0, plan_id=lease):
                body = decode(entry)
                if isinstance(body, entries.LeaseClose) and body.outcome == self.seq:
                    closed.append(entry)
        return sorted(closed, key=lambda entry: entry.seq)

    def _keys(self, head: SignedHead) -> dict[str, str]:
        known, used = self._ledger.keys(), {head.head.key_id}
        if self.final is not None:
            used.add(self.final.commit_head["key_id"])
        return {name: known[name].hex() for name in sorted(used)}

    def _links(self, head: SignedHead, heads: Sequence[tuple[int, str]]) -> Iterator[Document]:
        """That the log of each other head begins the log of this one."""
        olds, new_size = list(heads), head.head.size
        if self.final is not None:
            then = self.final.commit_head
            olds.insert(0, (then["size"], then["root"]))
        for size, root in dict.fromkeys(olds):
            if size > new_size:
                raise Refused("HeadUnknown", f"the ledger has {new_size} entries, not {size}")
            proof = self._ledger.consistency(size, new_size)
            yield {
                "old_size": size,
                "old_root": root,
                "new_size": new_size,
                "new_root": head.head.root,
                "proof": [step.hex() for step in proof],
            }


class OutcomeReports:
    """Questions about outcomes."""

    def __init__(self, committer: Committer, chance: EntropySource | None) -> None:
        self._committer, self._chance = committer, chance
        self._projection = committer.projection

    def get(self, seq: int, *, author: Author) -> Document:
        """One outcome from beginning to end; names of other owners stay hidden."""
        with self._committer.current() as projection:
            record = OutcomeRecord(self._committer.ledger, seq)
            known = projection.resolver.outcomes.get(seq)
            promised, case, entry = record.commitment, record.case, record.final_entry
            shown = None if record.final is None else record.final.reveal
            stage = "committed" if shown is None else "drawn" if shown.void is None else "void"
            seed = None if shown is None else shown.seed
            run = None if case is None else self._if_allowed(author, case.run)
            return {
                "outcome": seq,
                "stage": stage if known is None else known.stage.value,
                "chain": record.chain,
                "k": record.k,
                "voids": record.k - promised.entropy_index,
                "committed": format_time(record.entry.time_ms),
                "answered": None if entry is None else format_time(entry.time_ms),
                "finalSeq": None if entry is None else entry.seq,
                "cause": None if case is None else case.cause,
                "run": run,
                "reservation": None if case is None or run is None else case.reservation,
                "scope": promised.scope,
                "deficitGPUs": promised.deficit_gpus,
                "beacon": None if promised.beacon is None else promised.beacon.document(),
                "ownerWeighting": promised.owner_weighting.value,
                "label": None if shown is None else shown.label.value,
                "seed": None if seed is None else seed.hex(),
                "reason": record.voided,
                "tokens": record.tokens(),
                "result": record.result(),
                "names": self._names(record, author),
            }

    def page(self, limit: int, before: int | None = None) -> Document:
        """Newest first, from the one before `before` on; `next` goes on from there."""
        with self._committer.current() as projection:
            kept = projection.resolver.outcomes
            seqs = sorted((seq for seq in kept if before is None or seq < before), reverse=True)
            return {
                "items": [_row(kept[seq]) for seq in seqs[:limit]],
                "total": len(kept),
                "next": seqs[limit - 1] if len(seqs) > limit else None,
            }

    def oldest_open(self) -> int | None:
        """The first outcome that is not over; its entries and documents are still needed."""
        with self._committer.current() as projection:
            return min(projection.resolver.open_seqs.values(), default=None)

    def export(
        self,
        seq: int,
        *,
        author: Author,
        owner: str | None = None,
        public: bool = False,
        heads: tuple[tuple[int, str], ...] = (),
    ) -> bytes:
        """The file that `verify/` checks. `owner`: whose names it opens; `public`: no names."""
        if owner is not None and not author.may_act_for(owner):
            raise Forbidden(f"{author.user} may not open the names of {owner!r}")
        owners = [] if public else [owner] if owner is not None else sorted(author.owners)
        if not public and not owners:
            raise BadInput("owner", "say whose names to open, or ask for a public export")
        with self._committer.current() as projection:
            if self._chance is None:
                raise Refused("NoChance", "this control plane has no master secret")
            record = OutcomeRecord(self._committer.ledger, seq)
            return record.export(self._chance, owners, projection.resolver.owners, heads)

    def last_loss(self, run: str) -> Document | None:
        """What the last outcome took from a run, and with which odds; for `explain`."""
        state = self._projection.runs[run]
        if state.last_outcome is None or self._chance is None:
            return None
        if state.left is not None and state.left.outcome != state.last_outcome:
            return None  # it waits for another reason since
        try:
            record = OutcomeRecord(self._committer.ledger, state.last_outcome)
            owner = self._projection.run_spec(run).owner
            index = record.commitment.entropy_index
            key = outcome_key(self._chance.owner_secret(owner), record.chain, index)
            name = pseudonym(key, "run", (run,))
            result = record.result() or {"actions": [], "draws": []}
            tokens = record.tokens()
        except Archived:
            return {"outcome": state.last_outcome, "archived": True}
        odds = next((token for token in tokens if token["token"] == name), {})
        return {
            "outcome": state.last_outcome,
            "kinds": sorted(
                {action["kind"] for action in result["actions"] if action["run"] == name}
            ),
            "drawn": any(draw["token"] == name for draw in result["draws"]),
            "oneIn": odds.get("one_in"),
            **({"times": odds["times"]} if "times" in odds else {}),
            "chance": odds.get("chance"),
            "chanceError": odds.get("chance_error"),
            "deficitGPUs": record.commitment.deficit_gpus,
            "drained": drained_node(self._projection, state.last_outcome),
            "label": None if record.final is None else record.final.reveal.label.value,
        }

    def _if_allowed(self, author: Author, run: str | None) -> str | None:
        stored = None if run is None else self._projection.get("Run", run)
        owner = None if stored is None else self._projection.owner_of(stored)
        return run if owner is not None and author.may_act_for(owner) else None

    def _names(self, record: OutcomeRecord, author: Author) -> dict[str, str]:
        """Pseudonyms that this author may have opened: the names of its own owners."""
        if self._chance is None:
            return {}
        names: dict[str, str] = {}
        for owner, kinds in record.clear().items():
            if author.may_act_for(owner):
                index = record.commitment.entropy_index
                key = outcome_key(self._chance.owner_secret(owner), record.chain, index)
                names[pseudonym(key, "owner", (owner,))] = owner
                for kind, known in kinds.items():
                    names |= {pseudonym(key, kind, parts): "/".join(parts) for parts in known}
        return names


def _row(outcome: Outcome) -> Document:
    return {
        "outcome": outcome.seq,
        "stage": outcome.stage.value,
        "flavor": outcome.flavor,
        "k": outcome.k,
        "cause": outcome.cause,
        "deficitGPUs": outcome.deficit_gpus,
        "label": outcome.label or None,
        "committed": format_time(outcome.time_ms),
    }
