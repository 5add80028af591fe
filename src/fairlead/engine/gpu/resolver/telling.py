"""What is told of outcomes: to whoever looks, under pseudonyms; to their owners, by name."""

from typing import Any

from fairlead.core.lottery import OwnerWeighting
from fairlead.core.lottery.pseudonym import outcome_key, pseudonym
from fairlead.engine.gpu.resolver.export import Record, export_outcome
from fairlead.engine.gpu.resolver.verbs import ResolverVerbs
from fairlead.engine.gpu.values import Author, Forbidden, Refused
from fairlead.ports.ledger import Archived
from fairlead.schema.border import BadInput
from fairlead.schema.times import format_time


class OutcomeReports(ResolverVerbs):
    """Questions about outcomes."""

    def outcome(self, seq: int, *, author: Author) -> dict[str, Any]:
        """One outcome from beginning to end; names of others stay hidden."""
        with self._lock:
            self._catch_up()
            record = Record(self._ledger, seq)
            known = self._projection.resolver.outcomes.get(seq)
            final, commit = record.final, record.commit
            case = {} if record.case is None else record.case.body
            stage = "committed" if final is None else "void" if record.void else "drawn"
            return {
                "outcome": seq,
                "stage": stage if known is None else known.stage.value,
                "chain": record.chain,
                "k": record.k,
                "committed": format_time(commit.time_ms),
                "answered": None if final is None else format_time(final.time_ms),
                "finalSeq": None if final is None else final.seq,
                "cause": case.get("cause"),
                "run": self._if_mine(author, case.get("run")),
                "reservation": case.get("reservation"),
                "scope": commit.body["scope"],
                "deficitGPUs": commit.body["deficit_gpus"],
                "beacon": commit.body["beacon"],
                "ownerWeighting": commit.body.get("owner_weighting", OwnerWeighting.OWNERS.value),
                "label": None if final is None else final.body["label"],
                "seed": None if final is None else final.body["seed"],
                "reason": None if record.void is None else record.void.body["reason"],
                "tokens": record.notice()["tokens"],
                "result": record.result(),
                "names": self._names(record, author),
            }

    def outcomes(self) -> list[dict[str, Any]]:
        """Outcomes that are kept at hand, oldest first."""
        with self._lock:
            self._catch_up()
            return [
                {
                    "outcome": each.seq,
                    "stage": each.stage.value,
                    "flavor": each.flavor,
                    "k": each.k,
                    "cause": each.cause,
                    "deficitGPUs": each.deficit_gpus,
                    "label": each.label or None,
                    "committed": format_time(each.time_ms),
                }
                for _, each in sorted(self._projection.resolver.outcomes.items())
            ]

    def oldest_open_outcome(self) -> int | None:
        """The first outcome that is not over; its entries and documents are still needed."""
        with self._lock:
            self._catch_up()
            return min(self._projection.resolver.open_seqs.values(), default=None)

    def export_outcome(
        self,
        seq: int,
        *,
        author: Author,
        owner: str | None = None,
        public: bool = False,
        heads: tuple[tuple[int, str], ...] = (),
    ) -> bytes:
        """The file that `verify/` checks. `owner`: whose names it opens; `public`: nobody's."""
        if owner is not None and not author.may_act_for(owner):
            raise Forbidden(f"{author.user} may not open the names of {owner!r}")
        owners = [] if public else [owner] if owner is not None else sorted(author.owners)
        if not public and not owners:
            raise BadInput("owner", "say whose names to open, or ask for a public export")
        with self._lock:
            self._catch_up()
            if self._chance is None:
                raise Refused("NoChance", "this control plane has no master secret")
            return export_outcome(
                self._ledger,
                self._chance,
                seq,
                owners=owners,
                heads=heads,
                introduced=self._projection.resolver.owners,
            )

    def why_cut(self, run: str) -> dict[str, Any] | None:
        """What the last outcome that cut a run did to it, and with which odds; for `explain`."""
        state = self._projection.runs[run]
        if state.last_outcome is None or self._chance is None:
            return None
        try:
            record = Record(self._ledger, state.last_outcome)
            owner = self._projection.run_spec(run).owner
            key = outcome_key(self._chance.owner_secret(owner), record.chain, record.k)
            me = pseudonym(key, "run", (run,))
            result = record.result() or {"actions": [], "draws": []}
            tokens = record.notice()["tokens"]
        except Archived:
            return {"outcome": state.last_outcome, "archived": True}
        odds = next((each["one_in"] for each in tokens if each["token"] == me), None)
        return {
            "outcome": state.last_outcome,
            "kinds": sorted({each["kind"] for each in result["actions"] if each["run"] == me}),
            "drawn": any(each["token"] == me for each in result["draws"]),
            "oneIn": odds,
            "deficitGPUs": record.commit.body["deficit_gpus"],
            "label": None if record.final is None else record.final.body["label"],
        }

    def _if_mine(self, author: Author, run: str | None) -> str | None:
        stored = None if run is None else self._projection.get("Run", run)
        owner = None if stored is None else self._projection.owner_of(stored)
        return run if owner is not None and author.may_act_for(owner) else None

    def _names(self, record: Record, author: Author) -> dict[str, str]:
        """Pseudonyms that this author may have opened: the names of its own owners."""
        if self._chance is None:
            return {}
        found: dict[str, str] = {}
        for owner, kinds in record.clear().items():
            if author.may_act_for(owner):
                key = outcome_key(self._chance.owner_secret(owner), record.chain, record.k)
                found[pseudonym(key, "owner", (owner,))] = owner
                for kind, names in kinds.items():
                    found |= {pseudonym(key, kind, parts): "/".join(parts) for parts in names}
        return found
