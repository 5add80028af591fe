"""Objects: apply (one or several at once), delete, get, list, plan."""

from collections.abc import Sequence
from dataclasses import replace

from fairlead.core.invariant import of_kind
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, NewEntry, ObjectApplied, ObjectDeleted
from fairlead.engine.gpu.projection import Projection
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
from fairlead.schema.objects import API_VERSION, ReservationManifest, RunManifest, read_manifest
from fairlead.schema.times import parse_time

# `list` is one of the verbs, so annotations of methods cannot use the builtin by name.
Documents = list[Document]
Results = list[Applied]
Rulings = list[Ruling]


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
                return self._imagine(submissions, rulings)
            # Hours that ran out before an edit ran out under the caps before it.
            edited = [
                submission.manifest.metadata.name
                for submission, ruling in zip(submissions, rulings, strict=True)
                if submission.manifest.kind == "Budget" and ruling.change == "configured"
            ]
            if edited:
                self._settlement.roll_over(committer.now(), committer.now())
                self._settlement.refund(edited)

            def decide() -> Sequence[NewEntry]:
                nonlocal rulings
                rulings = judge(projection, submissions, author, committer.now())
                made = _entries(rulings)
                manifests = [submission.manifest for submission in submissions]
                return [*self._introductions.of(manifests), *made] if made else []

            committer.commit(decide)
            if edited:
                self._settlement.refund(edited)
            return [
                Applied(self.document(*submission.key), ruling.change)
                for submission, ruling in zip(submissions, rulings, strict=True)
            ]

    def _imagine(self, submissions: Sequence[Submission], rulings: Rulings) -> Results:
        """A dry run: each object as it would be, and what it would lead to beside the others."""
        now_ms = self._committer.now()
        alone = len(submissions) == 1
        after = self._projection if alone else imagined(self._projection, _entries(rulings))
        results = [
            Applied(
                self._shown(submission, ruling),
                ruling.change,
                preview(after, submission.manifest, now_ms),
            )
            for submission, ruling in zip(submissions, rulings, strict=True)
        ]
        for at, submission in enumerate(submissions):
            if isinstance(submission.manifest, ReservationManifest) and self._previews.possible:
                after = imagined(self._projection, _entries(rulings))
                forecast = self._of_reservation(after, submission.manifest, now_ms)
                shown = {**(results[at].preview or {}), "forecast": forecast}
                results[at] = replace(results[at], preview=shown)
        return results

    def _of_reservation(
        self, after: Projection, manifest: ReservationManifest, now_ms: int
    ) -> Document:
        start_ms = parse_time(manifest.spec.earliest_start, "spec.earliestStart")
        return self._previews.of_run(manifest.spec.run, max(now_ms, start_ms), after)

    def _shown(self, submission: Submission, ruling: Ruling) -> Document:
        if ruling.entry is None:
            return self.document(*submission.key)
        body = of_kind(ruling.entry.body, ObjectApplied, "a manifest is applied")
        return {
            "apiVersion": API_VERSION,
            "kind": body.kind,
            "metadata": {
                "name": body.name,
                "labels": body.labels,
                "uid": body.uid,
                "generation": body.generation,
            },
            "spec": body.spec,
            "status": {},
        }


def _entries(rulings: Rulings) -> list[NewEntry]:
    return [ruling.entry for ruling in rulings if ruling.entry is not None]


def _submission(manifest: Document, path: str, expected_version: int | None) -> Submission:
    try:
        read = read_manifest(manifest)
    except BadInput as error:
        raise located(path, error) from None
    if expected_version is None:
        expected_version = read.metadata.resource_version
    return Submission(read, path, expected_version)
