"""The front end: what people write as Kubernetes objects becomes requests to the engine.

Nothing is decided here. A run is its namespace's owner's, as an OwnerBinding says; `spec.owner` may
be left out, and is refused when it names another one. What the engine refuses is said in the
condition `Accepted`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from sys import intern
from typing import NamedTuple

from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.values import Denied
from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.nodes import UID, is_another, is_as, is_out, node_manifest
from fairlead.kube.gpu.pod_fields import refuse_fields, template_of, without_effect
from fairlead.kube.gpu.run_order import RunOrder
from fairlead.kube.gpu.verdicts import NO_OWNER, NO_RUN, REFUSALS, TOO_MANY, Acceptance, refused
from fairlead.kube.kinds import GROUP, KINDS, NAME_MAX, engine_name, kube_name
from fairlead.kube.watch import Key, Sources
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION
from fairlead.schema.times import format_duration, parse_duration

FINALIZER = f"{GROUP}/ledger"
TEMPLATE, IMAGE = f"{GROUP}/template", f"{GROUP}/image"
"""Labels of the ledger's Run: the digest of its template; of one without a template, the image."""
RUNS_MAX = 20_000
"""Runs of a namespace that have not ended; the operator may set another."""
TAKEN_MAX, AT_ONCE = 200, 100
"""Objects of a kind that one turn takes into the engine, and of these in one step: while it is
taken, an object takes several times the memory that it does afterwards."""
SHARE = 10
"""Objects of a namespace before the next one's."""
ADMIN = Author("kubernetes", admin=True)


class _Manifest(NamedTuple):
    """A new or changed object, as the engine takes it."""

    kind: str
    key: Key
    version: tuple[str, int]
    document: Document
    author: Author
    owner: str | None
    held: bool
    """It has our finalizer."""


class FrontEnd:
    """Follows the objects of a cluster; `turn` brings the engine up to date with them."""

    def __init__(
        self,
        client: KubeClient,
        plane: ControlPlane,
        sources: Sources,
        *,
        image: str | None = None,
        runs_max: int = RUNS_MAX,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._plane, self._sources = client, plane, sources
        self._image, self._runs_max, self._say = image, runs_max, say
        self._counted: Counter[str] | None = None
        """Runs that have not ended, by namespace, as of this turn."""
        self.unheld: set[tuple[str, Key]] = set()
        """Objects that are in the engine, and still without our finalizer: the mirror gives it."""
        self._waiting = {kind: self._recorded(kind) for kind in ("Budget", "Run", "Reservation")}
        """Objects to look at in the next turn: at first all of the ledger, because one that had no
        finalizer yet may have been deleted while no controller ran."""
        self._nodes = {Key("", row["metadata"]["name"]) for row in plane.objects.list("Node")}
        """Nodes to look at in the next turn; first those of the ledger, which may be gone."""
        self._same_nodes: dict[Key, tuple[int, Document]] = {}
        """Nodes that are in the ledger as the cluster says: most changes are heartbeats."""
        self._bindings_changed = True
        self._failing: dict[str, str] = {}
        """Objects that cannot be followed, and why, as was said."""
        self.verdicts: dict[tuple[str, Key], Acceptance] = {}
        self._turned_away: set[tuple[str, Key]] = set()
        """Objects that are not accepted: a few of thousands."""
        self._judged: set[tuple[str, Key]] = set()
        """Objects that have a new verdict."""
        self._order = RunOrder(plane.committer.projection.runs)
        self.behind = False
        """There are more objects than one turn takes: runs are admitted before the next ones."""
        self.bound: dict[str, Document] = {}
        """The bindings that hold, by namespace."""
        self._foreign: Mapping[str, int] = {}
        """Devices that pods of others hold, by node, as they are in the ledger."""
        self.foreign: Mapping[str, int] = {}
        """The same as was counted last, in another thread."""
        self.lingering: dict[tuple[str, Key], Denied] = {}
        """Objects that are deleted, and why they stay for now."""

    def turn(self) -> None:
        """A fault on the way loses nothing: what is not done is done in the next turn."""
        sources, self._counted = self._sources, None
        self._nodes |= self._counted_anew()
        self._nodes |= sources.nodes.take_changed().keys() | sources.nodes.take_gone().keys()
        for key in sorted(self._nodes):
            if self._attempt(f"node {key.name}", partial(self._follow_node, key)):
                self._nodes.discard(key)
        if sources.bindings.take_changed() or sources.namespaces.take_changed():
            self._bindings_changed = True
        if self._bindings_changed:
            self._bindings_changed = not self._bind()
            self._waiting["Run"] |= self._refused("Run")
            self._waiting["Reservation"] |= self._refused("Reservation")
        self.behind = False
        for kind, waiting in self._waiting.items():
            waiting.update(changed := sources.of(kind).take_keys())
            if kind == "Run":
                waiting.update(self._order.ready())
                if changed:
                    self._waiting["Reservation"] |= self._refused("Reservation", NO_RUN)
            self._follow_all(kind, waiting)
        self.behind = self.behind or bool(self._order.ready())

    def _follow_all(self, kind: str, waiting: set[Key]) -> None:
        """Objects of one kind, new ones in a few steps; what is done is taken from `waiting`."""
        batch: list[_Manifest] = []
        taken = 0

        def take() -> None:
            self._take(batch)
            waiting.difference_update(manifest.key for manifest in batch)
            batch.clear()

        for key in _in_turns(waiting):
            if taken + len(batch) >= TAKEN_MAX:
                self.behind = True
                break
            what = f"{kind} {'/'.join(key)}"
            if self._attempt(what, partial(self._follow, kind, key, batch)):
                waiting.discard(key)
            if len(batch) >= AT_ONCE:
                taken += len(batch)
                take()
        if batch:
            take()

    def _attempt(self, what: str, follow: Callable[[], bool]) -> bool:
        """One object that we misread, or that the engine refuses, keeps no other one waiting."""
        try:
            done = follow()
        except (Denied, *MISREAD) as error:
            if self._failing.get(what) != repr(error):
                self._failing[what] = repr(error)
                self._say(f"{what} is left as it is: {error!r}")
            return False
        self._failing.pop(what, None)
        return done

    def _counted_anew(self) -> set[Key]:
        """Nodes of which pods of others hold another number of devices than before."""
        before, self._foreign = self._foreign, self.foreign
        names = before.keys() | self._foreign.keys()
        return {Key("", name) for name in names if before.get(name) != self._foreign.get(name)}

    def take_judged(self) -> set[tuple[str, Key]]:
        """Objects that have a new verdict since the last call."""
        judged, self._judged = self._judged, set()
        return judged

    def find_run(self, name: str) -> RunObject | None:
        """The cluster's object of a run of the ledger, if it is the one that was submitted. Raises
        `TemporaryFault` where its template is not the one that was recorded."""
        stored = self._plane.objects.get("Run", name, queued=False)
        if stored is None:
            return None
        labels = stored["metadata"]["labels"]
        namespace, _, own = name.partition(".")
        found = self._sources.runs.get(Key(namespace, own))
        if found is None or found["metadata"]["uid"] != labels.get(UID):
            return None
        try:
            template = template_of(found["spec"], labels.get(IMAGE, self._image))
        except BadInput as error:
            raise TemporaryFault(f"run {name}: {error}") from error
        if template.digest != labels.get(TEMPLATE):
            text = "its template is not the one that was accepted: delete the Run, create it anew"
            raise TemporaryFault(f"run {name}: {text}")
        return RunObject(found["metadata"]["uid"], template.document)

    # -- nodes ------------------------------------------------------------------------------------

    def _follow_node(self, key: Key) -> bool:
        """Whether the engine's node is as the cluster's.

        Positive evidence only: a node has failed when it is deleted, or declared out of service.
        One that is not ready may run its pods, and a cordoned one does.
        """
        document = self._sources.nodes.get(key)
        out = document is None or is_out(document)
        held = self._foreign.get(key.name, 0)
        manifest = None if document is None or out else node_manifest(document, held)
        known = self._plane.committer.projection.get("Node", key.name)
        if known and manifest and self._same_nodes.get(key) == (known.version, manifest):
            return True
        before = self._plane.objects.get("Node", key.name)
        if before is not None and (out or is_another(before, document)):
            self._plane.verbs.act("Node", key.name, "fail", author=ADMIN)
            before = self._plane.objects.get("Node", key.name)
        if manifest is not None:
            if before is None or not is_as(before, manifest):
                self._try_apply(manifest)
            elif known is not None:
                self._same_nodes[key] = (known.version, manifest)
        elif before is not None and not out:
            # Its devices are not reported, as after a restart of the kubelet: what runs there may
            # run on, and nothing is added.
            self._plane.verbs.act("Node", key.name, "cordon", author=ADMIN)
        elif before is not None and document is None:
            if before["status"]["leases"]:
                return False
            self._plane.objects.delete("Node", key.name, author=ADMIN)
            self._same_nodes.pop(key, None)
        return True

    def _try_apply(self, manifest: Document) -> None:
        try:
            self._plane.objects.apply(manifest, author=ADMIN)
        except (BadInput, Denied) as error:
            self._say(f"node {manifest['metadata']['name']} is left as it is: {error}")

    # -- whose a namespace is ---------------------------------------------------------------------

    def _bind(self) -> bool:
        """A binding holds for the namespace that it was made for, and not for one that was made
        under the same name afterwards. Returns whether every binding shows it."""
        self.bound, shown = {}, True
        bindings = self._sources.bindings.all().items()
        for key, binding in sorted(bindings, key=_oldest_first):
            name = binding["spec"]["namespace"]
            namespace = self._sources.namespaces.get(Key("", name))
            known = binding.get("status", {}).get("namespaceUID")
            if namespace is None:
                verdict = (False, "NoNamespace", f"there is no namespace {name!r}")
            elif known not in (None, namespace["metadata"]["uid"]):
                message = f"namespace {name!r} was deleted and made again; bind it anew"
                verdict = (False, "NamespaceReplaced", message)
            elif name in self.bound:
                message = f"{name!r} is bound by {self.bound[name]['metadata']['name']}"
                verdict = (False, "BoundTwice", message)
            else:
                self.bound[name] = binding
                known = namespace["metadata"]["uid"]
                verdict = (True, "Bound", f"runs of {name!r} are {binding['spec']['owner']!r}'s")
            try:
                self._show_binding(key, binding, known, verdict)
            except ApiError as error:
                shown = False
                self._say(f"binding {key.name} does not show that it is {verdict[1]}: {error}")
        return shown

    def _show_binding(
        self, key: Key, binding: Document, uid: str | None, verdict: tuple[bool, str, str]
    ) -> None:
        status = binding.get("status", {})
        holds, reason, message = verdict
        rows = [Conditions(binding).row("Bound", reason, message, holds=holds)]
        if rows != status.get("conditions") or status.get("namespaceUID") != uid:
            patch = {"status": {"namespaceUID": uid, "conditions": rows}}
            path = KINDS["OwnerBinding"].path(name=key.name, sub="status")
            self._sources.bindings.put(self._client.patch(path, patch))

    # -- budgets, runs, reservations --------------------------------------------------------------

    def _recorded(self, kind: str) -> set[Key]:
        """Objects of the ledger that were made from objects of the cluster."""
        return {
            Key("", stored.name) if kind == "Budget" else Key(*kube_name(stored.name))
            for stored in self._plane.committer.projection.of_kind(kind)
            if UID in stored.labels
        }

    def _refused(self, kind: str, reason: str | None = None) -> set[Key]:
        return {
            key
            for of, key in self._turned_away
            if of == kind and reason in (None, self.verdicts[of, key].reason)
        }

    def _follow(self, kind: str, key: Key, batch: "list[_Manifest]") -> bool:
        """Bring one object into the engine, with the others of the batch; whether there is nothing
        left to do for it."""
        document = self._sources.of(kind).get(key)
        name = _ledger_name(kind, key)
        if kind == "Run":
            self._order.forget(key)
        if document is None:
            self.verdicts.pop((kind, key), None)
            self._turned_away.discard((kind, key))
            self.unheld.discard((kind, key))
            return self._forget(kind, key, None)
        meta = document["metadata"]
        version = (meta["uid"], meta["generation"])
        if "deletionTimestamp" in meta:
            taken = Acceptance(True, "Accepted", "in the ledger", *version)
            self.verdicts.setdefault((kind, key), taken)
            return self._forget(kind, key, meta["uid"]) and self._release(kind, key, document)
        verdict = self.verdicts.get((kind, key))
        if verdict is not None and verdict.accepted and verdict.version == version:
            return True
        if not self._forget_other(kind, key, meta["uid"]):
            return False
        try:
            batch.append(self._manifest(kind, key, name, document))
        except REFUSALS as error:
            verdict = refused(key, error, version)
            self._judge(kind, key, verdict)
            return verdict.reason != TOO_MANY  # which is looked at again when others have ended
        return False

    def _judge(self, kind: str, key: Key, verdict: Acceptance) -> tuple[str, Key]:
        """Returns the pair under which it is kept: of thousands there is one each."""
        pair = (kind, key)
        if self.verdicts.get(pair) != verdict:
            self.verdicts[pair] = verdict
            self._judged.add(pair)
            (self._turned_away.discard if verdict.accepted else self._turned_away.add)(pair)
        return pair

    def _take(self, batch: "list[_Manifest]") -> None:
        """Several objects in one step. What the engine refuses is found by halves: one object of a
        tenant costs the others a few steps, and not their place."""
        try:
            self._plane.objects.take_all([(each.document, each.author) for each in batch])
        except REFUSALS as error:
            if len(batch) == 1:
                (each,) = batch
                self._judge(each.kind, each.key, refused(each.key, error, each.version))
                return
            middle = len(batch) // 2
            self._take(batch[:middle])
            self._take(batch[middle:])
            return
        for each in batch:
            message = f"submitted for owner {each.owner!r}" if each.owner else "in the ledger"
            if each.kind == "Run":
                message = "; ".join([message, *self._notes(each.document["spec"])])
            verdict = Acceptance(True, "Accepted", intern(message), *each.version)
            pair = self._judge(each.kind, each.key, verdict)
            if not each.held:
                self.unheld.add(pair)

    def _notes(self, spec: Document) -> Iterator[str]:
        """What a Run asked for and does not get."""
        grace, asked = self._plane.config.grace, spec.get("checkpointGrace")
        if asked is not None and grace.cuts(parse_duration(asked, "spec.checkpointGrace")):
            yield f"spec.checkpointGrace is cut to {format_duration(grace.most_ms)}"
        yield from without_effect(spec)

    def _manifest(self, kind: str, key: Key, name: str, document: Document) -> "_Manifest":
        meta, spec = document["metadata"], dict(document["spec"])
        labels = {UID: meta["uid"]}
        author, owner = ADMIN, None
        if kind != "Budget":
            if len(name) > NAME_MAX:
                raise BadInput("metadata.name", f"with its namespace is over {NAME_MAX - 1} long")
            owner = self._owner(key.namespace)
            author = Author(f"kubernetes:{key.namespace}", frozenset({owner}))
        if kind == "Run":
            self._refuse_many(key.namespace, name)
            if spec.setdefault("owner", owner) != owner:
                raise BadInput("spec.owner", f"must be the namespace's owner, {owner!r}")
            refuse_fields(key.name, spec)
            image = self._image_of(name, meta["uid"])
            template = template_of(spec, image)
            if spec.pop("template", None) is None:
                labels[IMAGE] = str(image)
            if not spec.get("command"):
                spec["command"] = template.command
            labels[TEMPLATE] = template.digest
            self._order.name_after(key, spec)
        elif kind == "Reservation":
            spec["run"] = engine_name(key.namespace, wanted := spec["run"])
            if self._plane.objects.get("Run", spec["run"], queued=False) is None:
                raise Denied(NO_RUN, f"there is no Run {wanted!r} in its namespace yet")
        manifest = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": {field: value for field, value in spec.items() if value is not None},
        }
        version = (intern(meta["uid"]), meta["generation"])
        held = FINALIZER in meta.get("finalizers", ())
        return _Manifest(kind, key, version, manifest, author, owner, held)

    def _refuse_many(self, namespace: str, name: str) -> None:
        """One namespace must not fill the ledger and the queue of all."""
        live = self._plane.committer.projection.live
        if self._counted is None:
            self._counted = Counter(run.partition(".")[0] for run in live)
        if name in self._plane.committer.projection.runs:
            return
        if self._counted[namespace] >= self._runs_max:
            text = f"namespace {namespace!r} has {self._runs_max} runs that have not ended, as many"
            raise Denied(TOO_MANY, f"{text} as the controller's --max-runs allows")
        self._counted[namespace] += 1

    def owner_of(self, namespace: str, stored: Document | None) -> str | None:
        """Whose a Run is: as the ledger has it, else as its namespace is bound now."""
        if stored is not None:
            return str(stored["spec"]["owner"])
        binding = self.bound.get(namespace)
        return None if binding is None else str(binding["spec"]["owner"])

    def _owner(self, namespace: str) -> str:
        owner = self.owner_of(namespace, None)
        if owner is None:
            raise Denied(NO_OWNER, f"no owner is bound to namespace {namespace!r} yet")
        return owner

    def _image_of(self, name: str, uid: str) -> str | None:
        """The image of a Run without a template: the one that it was accepted with, also by a
        controller of another image."""
        before = self._plane.committer.projection.get("Run", name)
        labels = {} if before is None else before.labels
        recorded = labels.get(IMAGE) if labels.get(UID) == uid else None
        return self._image if recorded is None else str(recorded)

    def hold(self, kind: str, key: Key) -> bool:
        """An object stays until its accounts are settled."""
        document = self._sources.of(kind).get(key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            return True
        meta = document["metadata"]
        held = meta.get("finalizers", ())
        if FINALIZER in held:
            return True
        patch = {"finalizers": [*held, FINALIZER], "resourceVersion": meta["resourceVersion"]}
        path = KINDS[kind].path(key.namespace, key.name)
        try:
            self._sources.of(kind).put(self._client.patch(path, {"metadata": patch}))
        except ApiError as error:
            if error.status == 409:
                return False  # it changed: again with what the watch tells
            if error.status != 404:
                raise
        return True

    def _release(self, kind: str, key: Key, document: Document) -> bool:
        meta = document["metadata"]
        if FINALIZER not in meta.get("finalizers", ()):
            return True
        kept = [name for name in meta["finalizers"] if name != FINALIZER]
        patch = {"metadata": {"finalizers": kept, "resourceVersion": meta["resourceVersion"]}}
        try:
            self._client.patch(KINDS[kind].path(key.namespace, key.name), patch)
        except ApiError as error:
            return error.status == 404
        return True

    def _forget_other(self, kind: str, key: Key, uid: str) -> bool:
        """Another object had this name before; whether it is gone from the engine."""
        before = self._plane.committer.projection.get(kind, _ledger_name(kind, key))
        if before is None or before.labels.get(UID) in (None, uid):
            return True
        return self._forget(kind, key, None)

    def _forget(self, kind: str, key: Key, uid: str | None) -> bool:
        """End and remove an object; whether it is gone. `uid`: only if it is that one."""
        name = _ledger_name(kind, key)
        before = self._plane.objects.get(kind, name, queued=False)
        if before is None or (uid is not None and before["metadata"]["labels"].get(UID) != uid):
            self.lingering.pop((kind, key), None)
            return True
        if kind == "Run" and before["status"]["phase"] not in ("Completed", "Failed"):
            if not before["status"]["stopping"]:
                self._plane.verbs.act("Run", name, "cancel", author=ADMIN)
            return False
        try:
            self._plane.objects.delete(kind, name, author=ADMIN)
        except Denied as denied:
            known = self.lingering.get((kind, key))
            if known is None or known.message != denied.message:  # tried in every turn
                self.lingering[kind, key] = denied
                self._judged.add((kind, key))
                self._say(f"{kind} {name} stays for now: {denied.message}")
            return False
        self.lingering.pop((kind, key), None)
        return True


def _in_turns(keys: Iterable[Key]) -> list[Key]:
    """By name, but a few of each namespace: one that makes thousands does not come first."""
    seen: Counter[str] = Counter()
    order: list[tuple[int, Key]] = []
    for key in sorted(keys):
        order.append((seen[key.namespace] // SHARE, key))
        seen[key.namespace] += 1
    return [key for _, key in sorted(order)]


def _ledger_name(kind: str, key: Key) -> str:
    return key.name if kind == "Budget" else engine_name(*key)


def _oldest_first(item: tuple[Key, Document]) -> tuple[str, Key]:
    """A second binding of a namespace does not take it from the first."""
    key, document = item
    return document["metadata"].get("creationTimestamp", ""), key
