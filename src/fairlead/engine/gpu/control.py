"""The control plane: commands in, entries of the ledger out, objects as the ledger tells them.

One command reads the projection, decides, appends one batch that stands or falls together, folds
it, and only then touches the world. Two replicas race through the ledger's size: the loser catches
up and decides again, so nothing is spent twice. One lock; any thread may call.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.core.canonical import digest
from fairlead.core.gpu import cycle_in
from fairlead.core.gpu.funding import demotions
from fairlead.engine.gpu import checkpoint
from fairlead.engine.gpu.admit import consider
from fairlead.engine.gpu.events import event_document
from fairlead.engine.gpu.projection import parse_slot
from fairlead.engine.gpu.settle import refunding
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.status import NEAR_LIMIT_PERCENT, lease_document, object_document
from fairlead.engine.gpu.values import Applied, Author, Conflict, Forbidden, NotFound, Refused
from fairlead.ports.executor import Executor
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.ledger import Draft, Entry, HeadMoved, Ledger
from fairlead.schema.border import BadInput
from fairlead.schema.objects import (
    RUN_MUTABLE,
    BudgetManifest,
    BudgetSpec,
    Manifest,
    NodeManifest,
    RunManifest,
    read_manifest,
    spec_document,
    to_budget,
)
from fairlead.schema.place import from_placement

READ_AT_ONCE = 1_000
RACES_MAX = 50

# `list` is one of the store's verbs, so its annotations cannot use the builtin by name.
Rows = list[dict[str, Any]]
Drafts = list[Draft]
Names = list[str]


@dataclass(frozen=True, slots=True)
class Config:
    """What an operator can set."""

    grace_ms: int = 30_000
    near_limit_percent: int = NEAR_LIMIT_PERCENT
    checkpoint_every: int = 20_000
    """Entries between checkpoints: a start folds at most about as many."""


class Core:
    """The lock, the ledger and the projection: how every command is carried out."""

    def __init__(
        self, ledger: Ledger, executor: Executor | None, now_ms: Callable[[], int],
        config: Config | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._executor, self._clock = ledger, executor, now_ms
        self.config = config or Config()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._projection = checkpoint.load(ledger)
        self._checkpoint_seq = self._projection.seq
        with self._lock:
            self._catch_up()

    @property
    def seq(self) -> int:
        """The size of the ledger that was folded."""
        return self._projection.seq

    def _now(self) -> int:
        """Never before the last entry: a clock set back must not end leases before their start."""
        return max(self._clock(), self._projection.time_ms)

    def _catch_up(self) -> None:
        """Fold what other writers appended."""
        while True:
            entries = self._ledger.entries(self._projection.seq, READ_AT_ONCE)
            for entry in entries:
                self._projection.apply(entry)
            if entries:
                self._changed.notify_all()
            if len(entries) < READ_AT_ONCE:
                break
        if self._projection.seq - self._checkpoint_seq >= self.config.checkpoint_every:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Keep the projection, so that the next start begins here."""
        with self._lock:
            checkpoint.save(self._ledger, self._projection)
            self._checkpoint_seq = self._projection.seq

    def _commit(self, decide: Callable[[], list[Draft]]) -> list[Entry]:
        """Decide on what is known, append, fold; on a lost race, know more and decide again."""
        for _ in range(RACES_MAX):
            self._catch_up()
            drafts = decide()
            if not drafts:
                return []
            try:
                entries = self._ledger.append(drafts, expected_size=self._projection.seq)
            except HeadMoved:
                continue
            for entry in entries:
                self._projection.apply(entry)
            self._changed.notify_all()
            return entries
        raise TemporaryFault("the ledger is too busy: every attempt lost the race",
                             retry_after_ms=100)  # fmt: skip


class Store(Core):
    """Objects: apply, delete, get, list, watch."""

    def apply(
        self, manifest: dict[str, Any], *, author: Author, dry_run: bool = False,
        expected_version: int | None = None,
    ) -> Applied:  # fmt: skip
        """Create or change an object. `BadInput`, `Forbidden`, `Conflict` or `Refused` if not."""
        given = read_manifest(manifest)
        if expected_version is None:
            expected_version = given.metadata.resource_version
        kind, name = given.kind, given.metadata.name
        change = "unchanged"

        def decide() -> Drafts:
            nonlocal change
            before = self._projection.get(kind, name)
            self._may_apply(author, given, before)
            if expected_version is not None and expected_version != (
                before.version if before else 0
            ):
                raise Conflict(f"{kind} {name!r} is not in version {expected_version} any more")
            draft = self._applied_draft(given, before, author)
            if draft is None:
                change = "unchanged"
                return []
            change = "created" if before is None else "configured"
            return [draft]

        with self._lock:
            if dry_run:
                self._catch_up()
                drafts = decide()
                return Applied(self._preview_object(given, drafts), change, self._preview(given))  # type: ignore[arg-type]
            before = self._projection.get(kind, name)
            if kind == "Budget" and before is not None:
                self._may_apply(author, given, before)
                self._refund([name])  # hours that ran out before the edit ran out under its caps
            self._commit(decide)
            if change == "configured" and kind == "Budget":
                self._refund([name])
            return Applied(self._document(kind, name), change)  # type: ignore[arg-type]

    def delete(
        self, kind: str, name: str, *, author: Author, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove an object that nothing uses; returns what it was."""
        before: dict[str, Any] = {}

        def decide() -> Drafts:
            nonlocal before
            stored = self._stored(kind, name)
            self._may_touch(author, stored)
            self._refuse_in_use(stored)
            before = self._render(stored)
            body = {"kind": kind, "name": name, "uid": stored.uid}
            return [self._draft("object.deleted", author.user, body)]

        with self._lock:
            if dry_run:
                self._catch_up()
                decide()
            else:
                self._commit(decide)
            return before

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object with its status; leases too."""
        with self._lock:
            self._catch_up()
            if kind == "Lease":
                lease = self._projection.leases.get(name) or next(
                    (each for each in reversed(self._projection.closed) if each.id == name), None
                )
                now_ms = self._now()
                return None if lease is None else lease_document(self._projection, lease, now_ms)
            stored = self._projection.get(kind, name)
            return None if stored is None else self._document(kind, name)

    def list(self, kind: str, *, owner: str | None = None) -> Rows:
        """All objects of a kind by name; open leases only."""
        with self._lock:
            self._catch_up()
            now_ms = self._now()
            if kind == "Lease":
                found = [
                    lease_document(self._projection, lease, now_ms)
                    for _, lease in sorted(self._projection.leases.items())
                ]
            else:
                found = [self._render(stored) for stored in self._projection.of_kind(kind)]
            return [each for each in found if owner is None or each["spec"].get("owner") == owner]

    def plan(self, manifest: dict[str, Any], *, author: Author) -> dict[str, Any]:
        """What applying a Run would lead to now: cover and placement; nothing is written."""
        given = read_manifest(manifest)
        if not isinstance(given, RunManifest):
            raise BadInput("kind", "must be Run: only runs are planned")
        with self._lock:
            self._catch_up()
            self._may_apply(author, given, self._projection.get("Run", given.metadata.name))
            return self._preview(given)

    def events(self, after: int, limit: int) -> Rows:
        """What happened after an entry of the ledger, oldest first; at most 1 000 at once."""
        with self._lock:
            self._catch_up()  # whose an event is, the objects say
            limit = min(max(limit, 1), READ_AT_ONCE)
            return [
                event_document(self._projection, entry)
                for entry in self._ledger.entries(max(after, 0), limit)
            ]

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until there is an entry above `after`, or the time is over; returns the last one."""
        with self._lock:
            self._changed.wait_for(lambda: self._projection.seq > after, timeout_s)
            return self._projection.seq

    # -- what apply is made of ------------------------------------------------------------------

    def _may_apply(self, author: Author, given: Manifest, before: Stored | None) -> None:
        """Budgets and nodes are the operator's: a tenant that could edit its budget has none."""
        if isinstance(given, RunManifest):
            if not author.may_act_for(given.spec.owner):
                raise Forbidden(f"{author.user} may not act for owner {given.spec.owner!r}")
        elif not author.admin:
            raise Forbidden(f"{author.user} may not change a {given.kind}")
        if before is not None:
            self._may_touch(author, before)

    def _may_touch(self, author: Author, stored: Stored) -> None:
        owner = getattr(stored.spec, "owner", None) if stored.kind == "Run" else None
        if not (author.admin or (owner is not None and author.may_act_for(owner))):
            raise Forbidden(f"{author.user} may not touch {stored.kind} {stored.name!r}")

    def _applied_draft(
        self, given: Manifest, before: Stored | None, author: Author
    ) -> Draft | None:
        document = spec_document(given.spec)
        self._check(given, before, document)
        if before and (before.document, before.labels) == (document, given.metadata.labels):
            return None
        kind, name = given.kind, given.metadata.name
        if before is None:
            uid = digest([kind, name, self._now(), self._projection.seq])[:32]
            generation = 1
        else:
            uid = before.uid
            generation = before.generation + int(before.document != document)
        body = {
            "kind": kind, "name": name, "uid": uid, "generation": generation,
            "labels": given.metadata.labels, "spec": document,
        }  # fmt: skip
        return self._draft("object.applied", author.user, body)

    def _check(self, given: Manifest, before: Stored | None, document: dict[str, Any]) -> None:
        """What depends on the other objects."""
        name = given.metadata.name
        if isinstance(given, BudgetManifest):
            others = {**self._projection.budgets, name: to_budget(name, given.spec)}
            circle = cycle_in(others.values())
            if circle:
                raise BadInput("spec.parents", f"form a circle: {' > '.join(circle)}")
            if before is not None:
                kept = {envelope.name for envelope in given.spec.envelopes}
                self._refuse_used_payers(name, keeping=kept)
        elif isinstance(given, RunManifest) and before is not None:
            for key, value in document.items():
                if key not in RUN_MUTABLE and before.document[key] != value:
                    raise BadInput(
                        f"spec.{key}", "cannot be changed; delete the run and submit anew"
                    )
        elif isinstance(given, NodeManifest) and before is not None:
            taken = self._projection.taken.get(name, {})
            if taken and (
                given.spec.devices <= max(taken) or given.spec.flavor != before.document["flavor"]
            ):
                raise Refused("DeviceInUse", f"node {name!r} has leased devices; drain it first")

    def _refuse_in_use(self, stored: Stored) -> None:
        if stored.kind == "Budget":
            self._refuse_used_payers(stored.name, keeping=set())
        elif stored.kind == "Run" and self._projection.runs[stored.name].leases:
            raise Refused("RunActive", f"run {stored.name!r} is running; cancel it first")
        elif stored.kind == "Node" and self._projection.taken.get(stored.name):
            raise Refused("DeviceInUse", f"node {stored.name!r} has leased devices; drain it first")

    def _refuse_used_payers(self, budget: str, *, keeping: set[str]) -> None:
        spec = self._projection.objects["Budget", budget].spec
        for envelope in spec.envelopes if isinstance(spec, BudgetSpec) else ():
            account = self._projection.accounts.get(budget, envelope.name)
            if envelope.name not in keeping and account is not None and account.leases:
                raise Refused(
                    "EnvelopeInUse", f"envelope {budget}/{envelope.name} pays for open leases"
                )

    def _preview(self, given: Manifest) -> dict[str, Any]:
        """What a manifest would lead to if it were applied now."""
        now_ms, name = self._now(), given.metadata.name
        if isinstance(given, RunManifest):
            verdict = consider(self._projection, given.spec, now_ms)
            place = None if verdict.placement is None else from_placement(verdict.placement)
            return {**verdict.output, "placement": place, "starts": verdict.starts}
        if isinstance(given, BudgetManifest):
            lost = demotions(to_budget(name, given.spec), self._projection.accounts, now_ms)
            return {"unfunded": sorted(each.lease for each in lost)}
        leases = set(self._projection.taken.get(name, {}).values())
        return {"leases": sorted(leases)}

    def _preview_object(self, given: Manifest, drafts: Drafts) -> dict[str, Any]:
        stored = self._projection.get(given.kind, given.metadata.name)
        if not drafts and stored is not None:
            return self._render(stored)
        body = drafts[0].body
        metadata = {key: body[key] for key in ("name", "labels", "uid", "generation")}
        return {
            "apiVersion": given.api_version, "kind": given.kind, "metadata": metadata,
            "spec": body["spec"], "status": {},
        }  # fmt: skip

    def _refund(self, budgets: Names) -> None:
        now_ms = self._now()
        self._commit(lambda: refunding(self._projection, budgets, now_ms, now_ms))

    def _draft(self, kind: str, user: str, body: dict[str, Any]) -> Draft:
        return Draft(kind=kind, time_ms=self._now(), author=user, body=body)

    def _stored(self, kind: str, name: str) -> Stored:
        stored = self._projection.get(kind, name)
        if stored is None:
            raise NotFound(kind, name)
        return stored

    def _document(self, kind: str, name: str) -> dict[str, Any]:
        return self._render(self._stored(kind, name))

    def _render(self, stored: Stored) -> dict[str, Any]:
        percent = self.config.near_limit_percent
        return object_document(self._projection, stored, self._now(), percent)

    def _runs_on(self, node: str) -> Names:
        return sorted(
            {
                lease.run
                for lease in self._projection.leases.values()
                if any(parse_slot(slot)[0] == node for slot in lease.slots)
            }
        )
