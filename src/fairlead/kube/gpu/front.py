"""The front end: what people write as Kubernetes objects becomes requests to the engine.

Nothing is decided here. A run is its namespace's owner's, as an OwnerBinding says; `spec.owner` may
be left out, and is refused when it names another one. What the engine refuses is said in the
condition `Accepted`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.values import Denied
from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.ranks import GPU, pod_name, whole
from fairlead.kube.gpu.template import GRACE_MAX_S, PodTemplate, read_template
from fairlead.kube.kinds import GROUP, KINDS, NAME_MAX, as_named_in, engine_name, kube_name
from fairlead.kube.watch import Key, Sources
from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION
from fairlead.schema.times import format_duration, parse_duration

FINALIZER = f"{GROUP}/ledger"
UID, TEMPLATE = f"{GROUP}/uid", f"{GROUP}/template"
FLAVOR = f"{GROUP}/flavor"
PRODUCT = "nvidia.com/gpu.product"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
LOCATION = {
    "topology.kubernetes.io/region": "region",
    "topology.kubernetes.io/zone": "zone",
    f"{GROUP}/cluster": "cluster",
    f"{GROUP}/fabric": "fabric",
}
RUNS_MAX = 20_000
"""Runs of a namespace that have not ended; the operator may set another."""
TOO_MANY, NO_OWNER, NO_RUN = "TooManyRuns", "NoOwner", "NoRun"
WAITING = frozenset({TOO_MANY, NO_OWNER, NO_RUN})
"""Not taken yet, and taken by itself when what is missing comes: no refusal."""
TEXT_MAX = 1000
"""Of what is said of a refusal: it may name a field that is as long as an object can be."""
ADMIN = Author("kubernetes", admin=True)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of an object's present generation; shown as the condition `Accepted`."""

    accepted: bool
    reason: str
    message: str
    version: tuple[str, int]
    """Uid and generation: one that is made again under its name is another object."""

    @property
    def waits(self) -> bool:
        return not self.accepted and self.reason in WAITING


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
        self._done: dict[tuple[str, Key], tuple[str, int]] = {}
        """Objects whose uid and generation the engine has taken or refused."""
        self._waiting = {kind: self._recorded(kind) for kind in ("Budget", "Run", "Reservation")}
        """Objects to look at in the next turn: at first all of the ledger, because one that had no
        finalizer yet may have been deleted while no controller ran."""
        self._nodes = {Key("", row["metadata"]["name"]) for row in plane.objects.list("Node")}
        """Nodes to look at in the next turn; first those of the ledger, which may be gone."""
        self._bindings_changed = True
        self._failing: dict[str, str] = {}
        """Objects that cannot be followed, and why, as was said."""
        self.verdicts: dict[tuple[str, Key], Acceptance] = {}
        self._judged: set[tuple[str, Key]] = set()
        """Objects that have a new verdict."""
        self.bound: dict[str, Document] = {}
        """The bindings that hold, by namespace."""
        self.lingering: dict[tuple[str, Key], Denied] = {}
        """Objects that are deleted, and why they stay for now."""

    def turn(self) -> None:
        """A fault on the way loses nothing: what is not done is done in the next turn."""
        sources, self._counted = self._sources, None
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
        for kind, waiting in self._waiting.items():
            waiting.update(changed := sources.of(kind).take_keys())
            if kind == "Run" and changed:
                self._waiting["Reservation"] |= self._refused("Reservation", NO_RUN)
            for key in sorted(waiting):
                if self._attempt(f"{kind} {'/'.join(key)}", partial(self._follow, kind, key)):
                    waiting.discard(key)

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

    def take_judged(self) -> set[tuple[str, Key]]:
        """Objects that have a new verdict since the last call."""
        judged, self._judged = self._judged, set()
        return judged

    def find_run(self, name: str) -> RunObject | None:
        """The cluster's object of a run of the ledger, if it is the one that was submitted."""
        stored = self._plane.objects.get("Run", name)
        if stored is None:
            return None
        labels = stored["metadata"]["labels"]
        namespace, _, own = name.partition(".")
        found = self._sources.runs.get(Key(namespace, own))
        if found is None or found["metadata"]["uid"] != labels.get(UID):
            return None
        try:
            template = self._template(found)
        except BadInput:
            return None
        if template.digest != labels.get(TEMPLATE):
            return None  # it was changed after it was recorded
        return RunObject(found["metadata"]["uid"], template.document)

    # -- nodes ------------------------------------------------------------------------------------

    def _follow_node(self, key: Key) -> bool:
        """Whether the engine's node is as the cluster's.

        Positive evidence only: a node has failed when it is deleted, or declared out of service.
        One that is not ready may run its pods, and a cordoned one does.
        """
        document = self._sources.nodes.get(key)
        before = self._plane.objects.get("Node", key.name)
        out = document is None or is_out(document)
        manifest = None if document is None or out else node_manifest(document)
        if before is not None and (out or is_another(before, document)):
            self._plane.verbs.act("Node", key.name, "fail", author=ADMIN)
            before = self._plane.objects.get("Node", key.name)
        if manifest is not None:
            if before is None or not _says(before, manifest):
                self._try_apply(manifest)
        elif before is not None and not out:
            # Its devices are not reported, as after a restart of the kubelet: what runs there may
            # run on, and nothing is added.
            self._plane.verbs.act("Node", key.name, "cordon", author=ADMIN)
        elif before is not None and document is None:
            if before["status"]["leases"]:
                return False
            self._plane.objects.delete("Node", key.name, author=ADMIN)
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
            for (of, key), verdict in self.verdicts.items()
            if of == kind and not verdict.accepted and reason in (None, verdict.reason)
        }

    def _follow(self, kind: str, key: Key) -> bool:
        """Bring one object into the engine; whether there is nothing left to do for it."""
        document = self._sources.of(kind).get(key)
        name = _ledger_name(kind, key)
        if document is None:
            self._done.pop((kind, key), None)
            self.verdicts.pop((kind, key), None)
            self.unheld.discard((kind, key))
            return self._forget(kind, key, None)
        meta = document["metadata"]
        version = (meta["uid"], meta["generation"])
        if "deletionTimestamp" in meta:
            taken = Acceptance(True, "Accepted", "in the ledger", version)
            self.verdicts.setdefault((kind, key), taken)
            return self._forget(kind, key, meta["uid"]) and self._release(kind, key, document)
        if self._done.get((kind, key)) == version and self.verdicts[kind, key].accepted:
            return True
        if not self._forget_other(kind, key, meta["uid"]):
            return False
        try:
            owner = self._apply(kind, key, name, document)
        except BadInput as error:
            verdict = Acceptance(False, "Invalid", _told(key, str(error)), version)
        except Denied as denied:
            verdict = Acceptance(False, denied.reason, _told(key, denied.message), version)
        except MISREAD as error:
            # One object that we misread must not keep the others waiting.
            verdict = Acceptance(False, "Unreadable", repr(error)[:TEXT_MAX], version)
        else:
            message = f"submitted for owner {owner!r}" if owner else "in the ledger"
            verdict = Acceptance(True, "Accepted", message, version)
        self.verdicts[kind, key] = verdict
        self._judged.add((kind, key))
        self._done[kind, key] = version
        return verdict.reason != TOO_MANY  # which is looked at again when others have ended

    def _apply(self, kind: str, key: Key, name: str, document: Document) -> str | None:
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
            refuse_name(key.name, spec["totalGPUs"])
            refuse_grace(spec.get("checkpointGrace"))
            template = self._template(document)
            spec.pop("template", None)
            if not spec.get("command"):
                spec["command"] = template.command
            labels[TEMPLATE] = template.digest
        elif kind == "Reservation":
            spec["run"] = engine_name(key.namespace, wanted := spec["run"])
            if self._plane.objects.get("Run", spec["run"]) is None:
                raise Denied(NO_RUN, f"there is no Run {wanted!r} in its namespace yet")
        if FINALIZER not in meta.get("finalizers", ()):
            self.unheld.add((kind, key))
        manifest = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": {field: value for field, value in spec.items() if value is not None},
        }
        self._plane.objects.apply(manifest, author=author)
        return owner

    def _refuse_many(self, namespace: str, name: str) -> None:
        """One namespace must not fill the ledger and the queue of all."""
        live = self._plane.committer.projection.live
        if self._counted is None:
            self._counted = Counter(run.partition(".")[0] for run in live)
        if name in live or self._plane.objects.get("Run", name) is not None:
            return
        if self._counted[namespace] >= self._runs_max:
            text = f"namespace {namespace!r} has {self._runs_max} runs that have not ended, as many"
            raise Denied(TOO_MANY, f"{text} as the controller's --max-runs allows")
        self._counted[namespace] += 1

    def _owner(self, namespace: str) -> str:
        binding = self.bound.get(namespace)
        if binding is None:
            raise Denied(NO_OWNER, f"no owner is bound to namespace {namespace!r} yet")
        return str(binding["spec"]["owner"])

    def _template(self, document: Document) -> PodTemplate:
        """The run's pod template; of one without, a container that runs its command."""
        spec = document["spec"]
        if spec.get("template") is not None:
            return read_template(spec["template"])
        if self._image is None:
            raise BadInput("spec.template", "is missing, and the controller has no image")
        container = {"name": "run", "image": self._image, "command": spec.get("command") or []}
        return PodTemplate({"spec": {"containers": [container]}})

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
        before = self._plane.objects.get(kind, _ledger_name(kind, key))
        if before is None or before["metadata"]["labels"].get(UID) in (None, uid):
            return True
        return self._forget(kind, key, None)

    def _forget(self, kind: str, key: Key, uid: str | None) -> bool:
        """End and remove an object; whether it is gone. `uid`: only if it is that one."""
        name = _ledger_name(kind, key)
        before = self._plane.objects.get(kind, name)
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


def _ledger_name(kind: str, key: Key) -> str:
    return key.name if kind == "Budget" else engine_name(*key)


def _told(key: Key, message: str) -> str:
    """What is said of an object, with the names of its namespace."""
    return str(as_named_in(key.namespace, message) if key.namespace else message)[:TEXT_MAX]


def _oldest_first(item: tuple[Key, Document]) -> tuple[str, Key]:
    """A second binding of a namespace does not take it from the first."""
    key, document = item
    return document["metadata"].get("creationTimestamp", ""), key


# -- documents ------------------------------------------------------------------------------------


def refuse_name(name: str, ranks: int) -> None:
    """A rank's name is its pod's host name, so a Run's is a part of one."""
    if "." in name:
        raise BadInput("metadata.name", "must not have a dot: it is in its pods' host names")
    if name[:1].isdigit() and ranks > 1:
        raise BadInput("metadata.name", "must begin with a letter: it is its ranks' Service's")
    if len(pod_name(name, ranks - 1)) > NAME_MAX:
        raise BadInput("metadata.name", f"with a rank's number is over {NAME_MAX} long")


def refuse_grace(grace: str | None) -> None:
    """Devices of a run that was preempted are free when its pods are gone."""
    where, most_ms = "spec.checkpointGrace", GRACE_MAX_S * 1000
    if grace is not None and parse_duration(grace, where) > most_ms:
        raise BadInput(where, f"must be at most {format_duration(most_ms)}, got {grace!r}")


def is_out(document: Document) -> bool:
    """Whether a node is declared out of service, or is being deleted."""
    taints = {taint["key"] for taint in document.get("spec", {}).get("taints") or ()}
    return OUT_OF_SERVICE in taints or "deletionTimestamp" in document["metadata"]


def is_another(before: Document, document: Document | None) -> bool:
    """Whether a node of the ledger was deleted, and one made under its name, perhaps while no
    controller ran: what ran on the one does not run on the other."""
    known = before["metadata"]["labels"].get(UID)
    return document is not None and known not in (None, document["metadata"]["uid"])


def _says(before: Document, manifest: Document) -> bool:
    """Whether the ledger's node is what the manifest says."""
    same = before["metadata"]["labels"] == manifest["metadata"]["labels"]
    return bool(same and before["spec"] == {**before["spec"], **manifest["spec"]})


def node_manifest(document: Document) -> Document | None:
    """A node of the cluster as the engine's; None without GPUs."""
    meta, spec = document["metadata"], document.get("spec", {})
    devices = whole(document.get("status", {}).get("allocatable", {}).get(GPU, "0"))
    if not devices:
        return None
    labels = meta.get("labels", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "Node",
        "metadata": {"name": meta["name"], "labels": {UID: meta["uid"]}},
        "spec": {
            "flavor": labels.get(FLAVOR) or labels.get(PRODUCT) or "gpu",
            "devices": devices,
            "location": {
                name: labels[label] for label, name in LOCATION.items() if labels.get(label)
            },
            "cordoned": bool(spec.get("unschedulable", False)),
        },
    }
