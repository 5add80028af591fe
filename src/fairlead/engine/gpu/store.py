"""The objects' verbs: apply (one or several at once), delete, get, list, plan, events, wait."""

from collections.abc import Sequence
from typing import Any

from fairlead.engine.gpu.applying import (
    Step,
    Wish,
    imagined,
    judge,
    located,
    may_apply,
    may_touch,
    preview,
    refuse_in_use,
)
from fairlead.engine.gpu.control import READ_AT_ONCE, Core
from fairlead.engine.gpu.events import event_document, gap_document
from fairlead.engine.gpu.projection import parse_slot
from fairlead.engine.gpu.settle import refunding
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.status import lease_document, object_document
from fairlead.engine.gpu.values import Applied, Author
from fairlead.ports.ledger import Draft
from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION, RunManifest, read_manifest

# `list` is one of the verbs, so annotations of methods cannot use the builtin by name.
Rows = list[dict[str, Any]]
Drafts = list[Draft]
Names = list[str]
Outcomes = list[Applied]
Steps = list[Step]


class Store(Core):
    """Objects, as the ledger tells them."""

    def apply(
        self,
        manifest: dict[str, Any],
        *,
        author: Author,
        dry_run: bool = False,
        expected_version: int | None = None,
    ) -> Applied:
        """Create or change an object. `BadInput`, `Forbidden`, `Conflict` or `Refused` if not."""
        wish = _wish(manifest, "", expected_version)
        return self._apply([wish], author, dry_run=dry_run)[0]

    def apply_all(
        self, manifests: Sequence[dict[str, Any]], *, author: Author, dry_run: bool = False
    ) -> Outcomes:
        """Create or change several objects in one step: all of them, or none.

        They are judged together: what one needs another may bring. `BadInput` names the place as
        `manifests[3].spec…`.
        """
        wishes = [_wish(each, f"manifests[{i}]", None) for i, each in enumerate(manifests)]
        return self._apply(wishes, author, dry_run=dry_run) if wishes else []

    def delete(
        self, kind: str, name: str, *, author: Author, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove an object that nothing uses; returns what it was."""
        before: dict[str, Any] = {}

        def decide() -> Drafts:
            nonlocal before
            stored = self._stored(kind, name)
            may_touch(self._projection, author, stored)
            refuse_in_use(self._projection, stored)
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
                return [
                    self._render(stored)
                    for stored in self._projection.of_kind(kind)
                    if owner is None or self._projection.owner_of(stored) == owner
                ]
            return [each for each in found if owner in (None, each["spec"]["owner"])]

    def plan(self, manifest: dict[str, Any], *, author: Author) -> dict[str, Any]:
        """What applying a Run would lead to now: cover and placement; nothing is written."""
        given = read_manifest(manifest)
        if not isinstance(given, RunManifest):
            raise BadInput("kind", "must be Run: only runs are planned")
        with self._lock:
            self._catch_up()
            may_apply(self._projection, author, given, {})
            return preview(self._projection, given, self._now())

    def events(self, after: int, limit: int) -> Rows:
        """What happened after an entry of the ledger, oldest first; at most 1 000 at once.

        Where that begins among archived entries, the first event says which are left out.
        """
        with self._lock:
            self._catch_up()  # whose an event is, the objects say
            after, limit = max(after, 0), min(max(limit, 1), READ_AT_ONCE)
            rows: Rows = []
            moved_to = self._ledger.archived_to()
            if after < moved_to:
                moved = self._ledger.last("ledger.archived")
                time_ms = self._projection.time_ms if moved is None else moved.time_ms
                rows.append(gap_document(after=after, last=moved_to, time_ms=time_ms))
                after, limit = moved_to, limit - 1
            if limit:
                entries = self._ledger.entries(after, limit)
                rows += [event_document(self._projection, entry) for entry in entries]
            return rows

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until there is an entry above `after`, or the time is over; returns the last one."""
        with self._lock:
            self._changed.wait_for(lambda: self._projection.seq > after, timeout_s)
            return self._projection.seq

    # -- what apply is made of ------------------------------------------------------------------

    def _apply(self, wishes: Sequence[Wish], author: Author, *, dry_run: bool) -> Outcomes:
        with self._lock:
            steps = self._judge(wishes, author)
            if dry_run:
                return self._imagine(wishes, steps)
            # Hours that ran out before an edit ran out under the caps before it.
            edited = [
                wish.given.metadata.name
                for wish, step in zip(wishes, steps, strict=True)
                if wish.given.kind == "Budget" and step.change == "configured"
            ]
            if edited:
                self._roll_over(self._now(), self._now())
                self._refund(edited)

            def decide() -> Drafts:
                nonlocal steps
                steps = judge(self._projection, wishes, author, self._now())
                drafts = [step.draft for step in steps if step.draft is not None]
                return [*self._also(wishes), *drafts] if drafts else []

            self._commit(decide)
            if edited:
                self._refund(edited)
            return [
                Applied(self._document(*wish.key), step.change)
                for wish, step in zip(wishes, steps, strict=True)
            ]

    def _also(self, wishes: Sequence[Wish]) -> Drafts:
        """What is recorded before new objects, in the same step."""
        return []

    def _judge(self, wishes: Sequence[Wish], author: Author) -> Steps:
        self._catch_up()
        return judge(self._projection, wishes, author, self._now())

    def _imagine(self, wishes: Sequence[Wish], steps: Steps) -> Outcomes:
        """A dry run: each object as it would be, and what it would lead to beside the others."""
        now_ms = self._now()
        world = self._projection if len(wishes) == 1 else imagined(self._projection, steps)
        return [
            Applied(self._shown(wish, step), step.change, preview(world, wish.given, now_ms))
            for wish, step in zip(wishes, steps, strict=True)
        ]

    def _shown(self, wish: Wish, step: Step) -> dict[str, Any]:
        if step.draft is None:
            return self._document(*wish.key)
        body = step.draft.body
        metadata = {key: body[key] for key in ("name", "labels", "uid", "generation")}
        return {
            "apiVersion": API_VERSION,
            "kind": wish.given.kind,
            "metadata": metadata,
            "spec": body["spec"],
            "status": {},
        }

    def _settle(self, at_ms: int, now_ms: int) -> None:
        self._commit(lambda: refunding(self._projection, self._projection.budgets, at_ms, now_ms))

    def _roll_over(self, until_ms: int, now_ms: int) -> None:
        """After a long absence: what ran out in a period ran out in that one, not in the next."""
        accounts = self._projection.accounts
        while (end_ms := accounts.rolls_over(until_ms)) is not None:
            self._settle(end_ms - 1, now_ms)
            accounts.advance(end_ms)
            self._settle(end_ms, now_ms)

    def _refund(self, budgets: Names) -> None:
        now_ms = self._now()

        def decide() -> Drafts:
            known = self._projection.budgets.keys() & budgets  # another replica may delete one
            return refunding(self._projection, known, now_ms, now_ms)

        self._commit(decide)

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


def _wish(manifest: dict[str, Any], path: str, expected_version: int | None) -> Wish:
    try:
        given = read_manifest(manifest)
    except BadInput as error:
        raise located(path, error) from None
    if expected_version is None:
        expected_version = given.metadata.resource_version
    return Wish(given, path, expected_version)
