"""Objects: apply (one or several at once), delete, get, list, plan."""

from collections.abc import Sequence

from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, NewEntry, ObjectDeleted
from fairlead.engine.gpu.resolver.chains import Introductions
from fairlead.engine.gpu.resolver.preview import Previews
from fairlead.engine.gpu.settlement import Settlement
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.status import lease_document, object_document
from fairlead.engine.gpu.submissions import (
    Ruling,
    Submission,
    imagined,
    judge,
    located,
    may_apply,
    may_touch,
    preview,
    refuse_in_use,
)
from fairlead.engine.gpu.values import Applied, Author
from fairlead.schema.border import BadInput
from fairlead.schema.objects import (
    API_VERSION,
    Manifest,
    ReservationManifest,
    RunManifest,
    read_manifest,
)
from fairlead.schema.times import parse_time

# `list` is one of the verbs, so annotations of methods cannot use the builtin by name.
Documents = list[Document]
Results = list[Applied]
Rulings = list[Ruling]
Entries = list[NewEntry]


class Objects:
    """Budgets, runs, nodes and reservations; leases can be read."""

    def __init__(
        self,
        committer: Committer,
        settlement: Settlement,
        introductions: Introductions,
        previews: Previews,
    ) -> None:
        self._committer, self._settlement = committer, settlement
        self._introductions, self._previews = introductions, previews
        self._projection = committer.projection

    def apply(
        self,
        manifest: Document,
        *,
        author: Author,
        dry_run: bool = False,
        expected_version: int | None = None,
    ) -> Applied:
        """Create or change an object; raises `BadInput`, `Forbidden`, `EditConflict`, `Refused`."""
        submission = _submission(manifest, "", expected_version)
        return self._apply([submission], author, dry_run=dry_run)[0]

    def apply_all(
        self, manifests: Sequence[Document], *, author: Author, dry_run: bool = False
    ) -> Results:
        """Create or change several objects in one step: all of them, or none.

        They are judged together: what one needs another may bring. `BadInput` names the place as
        `manifests[3].spec…`.
        """
        submissions = [
            _submission(manifest, f"manifests[{i}]", None) for i, manifest in enumerate(manifests)
        ]
        return self._apply(submissions, author, dry_run=dry_run) if submissions else []

    def delete(self, kind: str, name: str, *, author: Author, dry_run: bool = False) -> Document:
        """Remove an object that nothing uses; returns what it was."""
        before: Document = {}

        def decide() -> Sequence[NewEntry]:
            nonlocal before
            stored = self._committer.stored(kind, name)
            may_touch(self._projection, author, stored)
            refuse_in_use(self._projection, stored)
            before = self.render(stored)
            body = ObjectDeleted(kind, name, stored.uid)
            return [] if dry_run else [self._committer.new(body, author.user)]

        self._committer.commit(decide)
        return before

    def get(self, kind: str, name: str) -> Document | None:
        """One object with its status; leases too."""
        with self._committer.current() as projection:
            if kind == "Lease":
                lease = projection.leases.get(name) or next(
                    (lease for lease in reversed(projection.closed) if lease.id == name), None
                )
                now_ms = self._committer.now()
                return None if lease is None else lease_document(projection, lease, now_ms)
            stored = projection.get(kind, name)
            return None if stored is None else self.render(stored)

    def list(self, kind: str, *, owner: str | None = None) -> Documents:
        """All objects of a kind by name; open leases only."""
        with self._committer.current() as projection:
            if kind == "Lease":
                now_ms = self._committer.now()
                return [
                    lease_document(projection, lease, now_ms)
                    for _, lease in sorted(projection.leases.items())
                    if owner in (None, lease.owner)
                ]
            return [
                self.render(stored)
                for stored in projection.of_kind(kind)
                if owner is None or projection.owner_of(stored) == owner
            ]

    def plan(self, manifest: Document, *, author: Author) -> Document:
        """What applying a Run would lead to now: cover and placement; nothing is written."""
        run = read_manifest(manifest)
        if not isinstance(run, RunManifest):
            raise BadInput("kind", "must be Run: only runs are planned")
        with self._committer.current() as projection:
            may_apply(projection, author, run, {})
            return preview(projection, run, self._committer.now())

    def document(self, kind: str, name: str) -> Document:
        return self.render(self._committer.stored(kind, name))

    def render(self, stored: Stored) -> Document:
        percent = self._committer.config.near_limit_percent
        return object_document(self._projection, stored, self._committer.now(), percent)

    def _apply(
        self, submissions: Sequence[Submission], author: Author, *, dry_run: bool
    ) -> Results:
        committer = self._committer
        with committer.current() as projection:
            rulings = judge(projection, submissions, author, committer.now())
            if dry_run:
                return self._imagine(rulings, author)
            # Hours that ran out before an edit ran out under the caps before it.
            changed = [ruling.submission for ruling in rulings if ruling.change == "configured"]
            edited = [item.key[1] for item in changed if item.manifest.kind == "Budget"]
            if edited:
                self._settlement.roll_over(committer.now(), committer.now())
                self._settlement.refund(edited)

            def decide() -> Sequence[NewEntry]:
                nonlocal rulings
                rulings = judge(projection, submissions, author, committer.now())
                made = self._entries(rulings, author)
                specs = [(item.key[1], item.manifest.spec) for item in submissions]
                return [*self._introductions.of(specs), *made] if made else []

            committer.commit(decide)
            if edited:
                self._settlement.refund(edited)
            return [
                Applied(self.document(*ruling.submission.key), ruling.change) for ruling in rulings
            ]

    def _entries(self, rulings: Rulings, author: Author) -> Entries:
        bodies = [ruling.body for ruling in rulings if ruling.body is not None]
        return [self._committer.new(body, author.user) for body in bodies]

    def _imagine(self, rulings: Rulings, author: Author) -> Results:
        """A dry run: each object as it would be, and what it would lead to beside the others."""
        now_ms, made = self._committer.now(), self._entries(rulings, author)
        after = self._projection if len(rulings) == 1 else imagined(self._projection, made)

        def effects(manifest: Manifest) -> Document:
            shown = preview(after, manifest, now_ms)
            if isinstance(manifest, ReservationManifest) and self._previews.possible:
                start_ms = parse_time(manifest.spec.earliest_start, "spec.earliestStart")
                reserved = imagined(self._projection, made)
                at_ms = max(now_ms, start_ms)
                shown["forecast"] = self._previews.of_run(manifest.spec.run, at_ms, reserved)
            return shown

        return [
            Applied(self._shown(ruling), ruling.change, effects(ruling.submission.manifest))
            for ruling in rulings
        ]

    def _shown(self, ruling: Ruling) -> Document:
        body = ruling.body
        if body is None:
            return self.document(*ruling.submission.key)
        facts = ("name", "labels", "uid", "generation")
        return {
            "apiVersion": API_VERSION,
            "kind": body.kind,
            "metadata": {name: getattr(body, name) for name in facts},
            "spec": body.spec,
            "status": {},
        }


def _submission(manifest: Document, path: str, expected_version: int | None) -> Submission:
    try:
        read = read_manifest(manifest)
    except BadInput as error:
        raise located(path, error) from None
    if expected_version is None:
        expected_version = read.metadata.resource_version
    return Submission(read, path, expected_version)
