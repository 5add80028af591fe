"""Objects: apply (one or several at once), delete, get, list, plan.

Several manifests are checked together, against the objects as all of them would leave them; so
their order never matters, and either all of them are applied or none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from msgspec import UNSET

from fairlead.core.canonical import digest
from fairlead.core.gpu import Budget, cycle_in
from fairlead.engine.gpu.admission import RunAdmission
from fairlead.engine.gpu.checkpoint import imagine, imagined
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.dependencies import check_dependencies
from fairlead.engine.gpu.dry_run import preview
from fairlead.engine.gpu.entries import Document, NewEntry, ObjectApplied, ObjectDeleted
from fairlead.engine.gpu.hosts import refuse_foreign
from fairlead.engine.gpu.in_use import refuse_in_use, refuse_needed, refuse_used_payers
from fairlead.engine.gpu.notice import ReservationRules
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.quota import OwnerQuotas, refuse_second_owner
from fairlead.engine.gpu.resolver.chains import SecretHashes
from fairlead.engine.gpu.resolver.preview import Previews
from fairlead.engine.gpu.settlement import Settlement
from fairlead.engine.gpu.starting import admission
from fairlead.engine.gpu.state import LeaseFact, Phase, Stored
from fairlead.engine.gpu.status import as_document, lease_document, object_document
from fairlead.engine.gpu.utilisation import Utilisation, use_document
from fairlead.engine.gpu.values import Applied, Author, Denied, EditConflict, Forbidden, Refused
from fairlead.engine.gpu.warnings import warnings_of
from fairlead.ports.executor import RESERVED_ENV
from fairlead.schema.border import BadInput
from fairlead.schema.objects import (
    RUN_MUTABLE,
    BudgetManifest,
    Manifest,
    NodeManifest,
    ReservationManifest,
    RunManifest,
    read_manifest,
    spec_document,
    to_budget,
)
from fairlead.schema.times import parse_time


@dataclass(frozen=True, slots=True)
class Submission:
    """One manifest of a batch; `path` is what errors about it begin with."""

    manifest: Manifest
    author: Author
    path: str = ""
    expected_version: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.manifest.kind, self.manifest.metadata.name


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """What one manifest changes; no body: it says what is so already."""

    submission: Submission
    word: Literal["created", "configured", "unchanged"]
    body: ObjectApplied | None
    decisions: tuple[NewEntry, ...] = ()
    """What allowed it, recorded before it."""


# `list` is one of the verbs, so annotations of methods cannot use the builtin by name.
Documents = list[Document]
Results = list[Applied]
Changes = list[ManifestChange]
Entries = list[NewEntry]


class Objects:
    """Budgets, runs, nodes and reservations; leases can be read."""

    def __init__(
        self,
        committer: Committer,
        settlement: Settlement,
        hashes: SecretHashes,
        previews: Previews,
        admission: RunAdmission,
        *,
        utilisation: Utilisation,
    ) -> None:
        self._committer, self._settlement, self._admission = committer, settlement, admission
        self._hashes, self._previews, self._utilisation = hashes, previews, utilisation
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
        submission = _submission(manifest, author, "", expected_version)
        return self._apply([submission], dry_run=dry_run)[0]

    def apply_all(
        self, manifests: Sequence[Document], *, author: Author, dry_run: bool = False
    ) -> Results:
        """Create or change several objects in one step: all of them, or none.

        What one needs another may bring. `BadInput` names the place as `manifests[3].spec…`.
        """
        submissions = [
            _submission(manifest, author, f"manifests[{i}]", None)
            for i, manifest in enumerate(manifests)
        ]
        return self._apply(submissions, dry_run=dry_run) if submissions else []

    def take_all(self, batch: Sequence[tuple[Document, Author]]) -> None:
        """The same where each is its own author's, no place in the batch is named, and nothing is
        shown of what became of them."""
        submissions = [_submission(manifest, author, "", None) for manifest, author in batch]
        if submissions:
            self._record(submissions)

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

    def get(self, kind: str, name: str, *, queued: bool = True) -> Document | None:
        """One object with its status; leases too. `queued`: a run with its place in the queue,
        which moves with every start."""
        with self._committer.current() as projection:
            if kind == "Lease":
                lease = projection.leases.get(name) or next(
                    (lease for lease in reversed(projection.closed) if lease.id == name), None
                )
                return None if lease is None else self._lease(lease)
            stored = projection.get(kind, name)
            return None if stored is None else self.render(stored, queued=queued)

    def list(
        self,
        kind: str,
        *,
        owner: str | None = None,
        label: str | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> Documents:
        """Objects of a kind by name, those after a name; open leases only, which have no labels."""
        key, _, value = (label or "").partition("=")
        with self._committer.current() as projection:
            if kind == "Lease":
                leases = (
                    lease for name, lease in sorted(projection.leases.items()) if name > after
                )
                shown = (lease for lease in leases if owner in (None, lease.owner))
                return [] if label else [self._lease(lease) for lease in islice(shown, limit)]
            found = (
                stored
                for stored in projection.of_kind(kind)
                if stored.name > after
                and (owner is None or projection.owner_of(stored) == owner)
                and (label is None or stored.labels.get(key) == value)
            )
            return [self.render(stored) for stored in islice(found, limit)]

    def plan(self, manifest: Document, *, author: Author) -> Document:
        """What applying a Run would lead to now: cover and placement; nothing is written."""
        run = read_manifest(manifest)
        if not isinstance(run, RunManifest):
            raise BadInput("kind", "must be Run: only runs are planned")
        with self._committer.current() as projection:
            may_apply(projection, author, run, {})
            now_ms, grace = self._committer.now(), self._committer.config.grace
            hints = warnings_of(projection, run.metadata.name, run.spec, now_ms, grace)
            shown = preview(projection, run, now_ms, self._admission.heads)
            return {**shown, "warnings": list(hints)}

    def document(self, kind: str, name: str) -> Document:
        return self.render(self._committer.stored(kind, name))

    def render(self, stored: Stored, *, queued: bool = True) -> Document:
        percent = self._committer.config.near_limit_percent
        found = object_document(self._projection, stored, self._committer.now(), percent)
        host = self._committer.config.host
        if stored.kind == "Node" and host is not None:
            found["status"]["isolation"] = host.isolation
        if stored.kind == "Run":
            if queued:
                found["status"]["queue"] = self._admission.place(stored.name)
            use = self._utilisation.of(self._projection.runs[stored.name])
            found["status"]["use"] = use_document(use)
        return found

    def _lease(self, lease: LeaseFact) -> Document:
        return lease_document(self._projection, lease, self._committer.now())

    def _apply(self, submissions: Sequence[Submission], *, dry_run: bool) -> Results:
        committer = self._committer
        with committer.current() as projection:
            refuse_foreign(committer.config.host, (item.manifest for item in submissions))
            if committer.config.single_owner:
                refuse_second_owner(projection, (item.manifest for item in submissions))
            if dry_run:
                return self._imagine(self._changes(submissions))
            changes = self._record(submissions)
            return [self._applied(item, projection) for item in changes]

    def _record(self, submissions: Sequence[Submission]) -> Changes:
        committer = self._committer
        with committer.current():
            changes, edited = Changes(), list[str]()
            if any(submission.manifest.kind == "Budget" for submission in submissions):
                # Hours that ran out before an edit ran out under the caps before it.
                changes = self._changes(submissions)
                keys = [change.submission.key for change in changes if change.word == "configured"]
                edited = [name for kind, name in keys if kind == "Budget"]
            if edited:
                self._settlement.roll_over(committer.now(), committer.now())
                self._settlement.refund(edited)

            def decide() -> Sequence[NewEntry]:
                nonlocal changes
                changes = self._changes(submissions)
                made = self._entries(changes)
                specs = [item.manifest.spec for item in submissions]
                return [*self._hashes.of(specs), *made] if made else []

            committer.commit(decide)
            if edited:
                self._settlement.refund(edited)
            return changes

    def _changes(self, submissions: Sequence[Submission]) -> Changes:
        projection, config = self._projection, self._committer.config
        rules = ReservationRules(projection, config, self._committer.now())
        return changes_of(projection, submissions, rules, OwnerQuotas(projection, config.quota))

    def _applied(self, change: ManifestChange, projection: Projection) -> Applied:
        document = self.document(*change.submission.key)
        return Applied(document, change.word, warnings=self._warnings(change, projection))

    def _warnings(self, change: ManifestChange, projection: Projection) -> tuple[str, ...]:
        """Of what is said anew; what is so already was warned of."""
        if change.body is None:
            return ()
        name, spec = change.submission.key[1], change.submission.manifest.spec
        committer = self._committer
        return warnings_of(projection, name, spec, committer.now(), committer.config.grace)

    def _entries(self, changes: Changes) -> Entries:
        made: Entries = []
        for change in changes:
            if change.body is not None:
                by = change.submission.author.user
                made += [*change.decisions, self._committer.new(change.body, by)]
        return made

    def _imagine(self, changes: Changes) -> Results:
        """A dry run: each object as it would be, and what it would lead to beside the others. Of
        several runs the first ones take their devices before the others are asked for."""
        now_ms, made = self._committer.now(), self._entries(changes)
        alone = len(changes) == 1
        after = self._projection if alone else imagined(self._projection, made)
        heads = self._admission.heads if alone else None

        def effects(manifest: Manifest) -> Document:
            shown = preview(after, manifest, now_ms, heads)
            if isinstance(manifest, ReservationManifest) and self._previews.possible:
                start_ms = parse_time(manifest.spec.earliest_start, "spec.earliestStart")
                reserved = imagined(self._projection, made)
                at_ms = max(now_ms, start_ms)
                shown["forecast"] = self._previews.of_run(manifest.spec.run, at_ms, reserved)
            name = manifest.metadata.name
            waits = name in after.reserved or after.waits_for_runs(name)
            if not alone and shown.get("starts") and not waits:
                imagine(after, admission(after, name, now_ms))
            return shown

        return [
            Applied(
                self._shown(change),
                change.word,
                effects(change.submission.manifest),
                self._warnings(change, after),
            )
            for change in changes
        ]

    def _shown(self, change: ManifestChange) -> Document:
        body = change.body
        if body is None:
            return self.document(*change.submission.key)
        facts = ("name", "labels", "uid", "generation")
        metadata = {name: getattr(body, name) for name in facts}
        return as_document(body.kind, metadata, body.spec, {})


def _submission(
    manifest: Document, author: Author, path: str, expected_version: int | None
) -> Submission:
    with _located(path):
        read = read_manifest(manifest)
    if expected_version is None:
        expected_version = read.metadata.resource_version
    return Submission(read, author, path, expected_version)


@contextmanager
def _located(path: str) -> Iterator[None]:
    """A refusal in here says where in a batch it is."""
    try:
        yield
    except BadInput as error:
        inside = "" if error.path == "$" else f".{error.path}"
        raise (BadInput(f"{path}{inside}", error.message) if path else error) from None
    except Denied as denied:
        denied.path = path or None
        raise


# -- what manifests come to -----------------------------------------------------------------------


def changes_of(
    projection: Projection,
    submissions: Sequence[Submission],
    rules: ReservationRules,
    quotas: OwnerQuotas,
) -> list[ManifestChange]:
    """What each manifest of a batch changes; raises for the first that cannot be."""
    manifests = [submission.manifest for submission in submissions]
    runs = {run.metadata.name: run for run in manifests if isinstance(run, RunManifest)}
    edited = [budget for budget in manifests if isinstance(budget, BudgetManifest)]
    budgets = {
        **projection.budgets,
        **{item.metadata.name: to_budget(item.metadata.name, item.spec) for item in edited},
    }
    _refuse_repeated(submissions)
    changes = []
    for submission in submissions:
        before = projection.get(*submission.key)
        with _located(submission.path):
            _check_version(projection, submission, before)
            may_apply(projection, submission.author, submission.manifest, runs)
            _check(projection, submission.manifest, before, budgets)
            check_dependencies(projection, submission.manifest, before, runs)
            if isinstance(submission.manifest, RunManifest):
                quotas.check(submission.manifest, before, submission.author)
            decisions: list[NewEntry] = []
            if isinstance(manifest := submission.manifest, ReservationManifest):
                owner = _owner_of(projection, manifest, runs)
                decisions = rules.decide(manifest, before, owner, submission.author)
        body = _body(projection, submission, before, rules.now_ms)
        word: Literal["created", "configured", "unchanged"] = "unchanged"
        if body is not None:
            word = "created" if before is None else "configured"
        changes.append(ManifestChange(submission, word, body, tuple(decisions)))
    return changes


def _check_version(projection: Projection, submission: Submission, before: Stored | None) -> None:
    """An object is edited as it was read; version 0 is of one that is new."""
    expected, (kind, name) = submission.expected_version, submission.key
    if expected is None or expected == (before.version if before else 0):
        return
    if expected or before is None:
        raise EditConflict(f"{kind} {name!r} is not in version {expected} any more")
    message = f"the name {name!r} is taken"
    if kind == "Run":
        phase = projection.runs[name].phase
        message = f"the name {name!r} is taken by a run that is {phase.value}: give another name"
        if phase.ended and submission.author.may_act_for(projection.run_spec(name).owner):
            message += f", or free it with `fairlead delete run/{name}`"
    raise EditConflict(message)


def may_apply(
    projection: Projection, author: Author, manifest: Manifest, runs: Mapping[str, RunManifest]
) -> None:
    """Budgets and nodes are the operator's: a tenant that could edit its budget has none.

    `runs` are those of the same batch: a reservation is its run's owner's.
    """
    if isinstance(manifest, RunManifest | ReservationManifest):
        owner = _owner_of(projection, manifest, runs)
        if not author.may_act_for(owner):
            raise Forbidden(f"{author.user} may not act for owner {owner!r}")
    elif not author.admin:
        raise Forbidden(f"{author.user} may not change a {manifest.kind}")
    before = projection.get(manifest.kind, manifest.metadata.name)
    if before is not None:
        may_touch(projection, author, before)


def _owner_of(
    projection: Projection,
    manifest: RunManifest | ReservationManifest,
    runs: Mapping[str, RunManifest],
) -> str:
    if isinstance(manifest, RunManifest):
        return manifest.spec.owner
    name = manifest.spec.run
    if name in runs:
        return runs[name].spec.owner
    if name not in projection.runs:
        raise BadInput("spec.run", f"names no run, {name!r}")
    return projection.run_spec(name).owner


def may_touch(projection: Projection, author: Author, stored: Stored) -> None:
    """Raises unless this author may change an existing object."""
    owner = projection.owner_of(stored) if stored.kind in ("Run", "Reservation") else None
    if not (author.admin or (owner is not None and author.may_act_for(owner))):
        allowed = "admins only" if owner is None else "its owner and admins only"
        raise Forbidden(f"{author.user} may not change {stored.kind} {stored.name!r}: {allowed}")


def _refuse_repeated(submissions: Sequence[Submission]) -> None:
    seen = set()
    for submission in submissions:
        kind, name = submission.key
        with _located(submission.path):
            if submission.key in seen:
                raise BadInput("metadata.name", f"repeats {kind} {name!r}")
        seen.add(submission.key)


def _check(
    projection: Projection, manifest: Manifest, before: Stored | None, budgets: Mapping[str, Budget]
) -> None:
    name = manifest.metadata.name
    if isinstance(manifest, BudgetManifest):
        circle = cycle_in(budgets.values())
        if circle:
            raise BadInput("spec.parents", f"form a circle: {' > '.join(circle)}")
        if before is not None:
            kept = {envelope.name for envelope in manifest.spec.envelopes}
            refuse_used_payers(projection, name, keeping=kept)
            refuse_needed(projection, name, budgets)
    elif isinstance(manifest, RunManifest) and before is None:
        _check_variables(manifest)
    elif isinstance(manifest, RunManifest) and before is not None:
        after, earlier = spec_document(manifest.spec), spec_document(before.spec)
        for key in sorted(after.keys() | earlier.keys()):
            if key not in RUN_MUTABLE and earlier.get(key) != after.get(key):
                raise BadInput(f"spec.{key}", "cannot be changed; delete the run and submit anew")
    elif isinstance(manifest, ReservationManifest):
        _check_reservation(projection, manifest, before)
    elif isinstance(manifest, NodeManifest) and before is not None:
        taken = projection.taken.get(name, {})
        if taken and (
            manifest.spec.devices <= max(taken) or manifest.spec.flavor != before.document["flavor"]
        ):
            raise Refused("DeviceInUse", f"node {name!r} has leased devices; drain it first")


def _check_variables(manifest: RunManifest) -> None:
    """What the lease decides is refused here, not after admission by the executor."""
    for where, names in (("env", manifest.spec.env), ("secretEnv", manifest.spec.secret_env)):
        for name in sorted(names):
            if name.startswith(RESERVED_ENV):
                raise BadInput(f"spec.{where}.{name}", "is set by Fairlead from the lease")


def _check_reservation(
    projection: Projection, manifest: ReservationManifest, before: Stored | None
) -> None:
    """One reservation per run, made before the run starts; only its time can be changed."""
    run, name = manifest.spec.run, manifest.metadata.name
    if before is not None:
        if before.document["run"] != run:
            raise BadInput("spec.run", "cannot be changed; delete the reservation and make another")
        if not projection.resolver.reservations[name].waits:
            raise Refused("ReservationOver", f"reservation {name!r} was activated already")
        return
    other = projection.reserved.get(run)
    if other is not None and projection.resolver.reservations[other].state != "Released":
        raise Refused("RunReserved", f"run {run!r} is reserved already, by {other!r}")
    state = projection.runs.get(run)
    if state is not None and state.phase is not Phase.PENDING:
        raise Refused("NotPending", f"run {run!r} is {state.phase.value}")


def _body(
    projection: Projection, submission: Submission, before: Stored | None, now_ms: int
) -> ObjectApplied | None:
    manifest, token = submission.manifest, submission.author.token
    document, labels = spec_document(manifest.spec), manifest.metadata.labels
    # As it is read today: fields that came with a later version have their defaults.
    written = None if before is None else spec_document(before.spec)
    if before and (written, before.labels) == (document, labels):
        return None
    kind, name = manifest.kind, manifest.metadata.name
    if before is None:
        uid, generation = digest([kind, name, now_ms, projection.seq])[:32], 1
    else:
        uid = before.uid
        generation = before.generation + int(written != document)
    by = UNSET if token is None else token
    return ObjectApplied(kind, name, uid, generation, labels, document, by)
