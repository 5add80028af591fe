"""Requests of the commands, answered by a cluster.

Objects are read and written as Kubernetes objects, with the caller's own rights. What only the
ledger knows is asked by a Query, which the controller answers in its status (docs/decisions/0046).
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import unquote, urlencode

from fairlead.kube.client import ApiError, KubeClient
from fairlead.kube.kinds import KINDS, KubeKind
from fairlead.ports.faults import Fault, TemporaryFault
from fairlead.schema.objects import API_VERSION

Document = dict[str, Any]
WRITTEN = ("Run", "Reservation", "Budget", "OwnerBinding")
READ = {**{kind: kind for kind in WRITTEN}, "Lease": "GPULease"}
_OBJECTS = re.compile(r"/v1/objects/(\w+)(?:/([^/]+))?")
POLL_S, POLL_MAX_S = 0.05, 0.5
_UNKNOWN = re.compile(r'(?:unknown|duplicate) field "([^"]+)"')
_BLANK: dict[str, Document] = {
    "Run": {
        "phase": "Pending",
        "reason": "NotSeen",
        "message": "the controller has not seen it yet",
        "width": 0,
        "paused": False,
        "nominated": False,
        "since": None,
    },
    "Reservation": {
        "state": "Pending",
        "reason": "NotSeen",
        "message": "the controller has not seen it yet",
        "shortfallGPUs": 0,
        "outcome": None,
        "since": None,
    },
    "Budget": {"conditions": []},
    "OwnerBinding": {"conditions": []},
    "GPULease": {"funded": True, "gpuHours": 0.0, "open": True},
}
"""What the columns of a table need, of an object that has no status yet."""


@dataclass(frozen=True, slots=True)
class KubeReply:
    """An answer, as over HTTP."""

    status: int
    data: bytes = b""
    headers: Message = field(default_factory=Message)

    def read(self) -> bytes:
        return self.data

    def chunks(self) -> Iterator[bytes]:
        yield self.data


@dataclass(frozen=True, slots=True)
class ClusterRefusal(Exception):
    """The cluster refused a request."""

    status: int
    code: str
    message: str
    path: str | None = None

    def reply(self) -> KubeReply:
        body = {"error": {"code": self.code, "path": self.path, "message": self.message}}
        return _json(body, self.status)


@dataclass(frozen=True, slots=True)
class KubeTransport:
    """One cluster, and one namespace of it."""

    client: KubeClient
    namespace: str
    where: str
    named: bool = False
    """Whether the caller named the namespace: then manifests may not name another."""

    def proves(self, method: str, path: str) -> bool:
        return not self._is_object(method, path)

    @contextmanager
    def open(
        self, method: str, path: str, query: dict[str, str], body: Any, *, timeout_s: float
    ) -> Iterator[KubeReply]:
        try:
            if self._is_object(method, path):
                reply = self._on_objects(method, path, query, body, timeout_s)
            elif (method, path) == ("POST", "/v1/plan"):
                reply = self._asked_plan(body, timeout_s)
            else:
                reply = self.ask(method, path, query, body, timeout_s)
        except ClusterRefusal as refusal:
            reply = refusal.reply()
        yield reply

    def _is_object(self, method: str, path: str) -> bool:
        if (method, path) == ("POST", "/v1/apply"):
            return True
        match = _OBJECTS.fullmatch(path)
        return match is not None and method in ("GET", "DELETE") and match[1] in READ

    # -- what only the ledger knows ----------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Any,
        timeout_s: float,
        *,
        namespace: str | None = None,
    ) -> KubeReply:
        """Ask the controller; the Query is deleted when it is answered."""
        namespace = namespace or self.namespace
        kind, spec = KINDS["Query"], {"method": method, "path": path, "query": query}
        if body is not None:
            spec["body"] = json.dumps(body)
        document = {
            "apiVersion": API_VERSION,
            "kind": "Query",
            "metadata": {"generateName": "ask-"},
            "spec": spec,
        }
        with refusing():
            made = self.client.create(kind.path(namespace), document)
        one = kind.path(namespace, made["metadata"]["name"])
        try:
            status = self._answered(one, timeout_s)
        finally:
            with contextlib.suppress(Fault):  # the controller deletes it later
                self.client.delete(one)
        headers = Message()
        for name, value in (status.get("headers") or {}).items():
            headers[name] = value
        is_csv = query.get("format") == "csv" and status["code"] < 400
        headers["Content-Type"] = "text/csv" if is_csv else "application/json"
        return KubeReply(status["code"], status["body"].encode(), headers)

    def _answered(self, path: str, timeout_s: float) -> Document:
        deadline, wait_s = time.monotonic() + timeout_s, POLL_S
        while True:
            with refusing():
                found = self.client.get(path)
            status: Document = (found or {}).get("status") or {}
            if "code" in status:
                return status
            if found is None or time.monotonic() > deadline:
                why = "was deleted" if found is None else f"has no answer after {timeout_s:.0f} s"
                raise TemporaryFault(f"the Query {path.rpartition('/')[2]} {why}: {_NO_CONTROLLER}")
            time.sleep(wait_s)  # polling interval, with a deadline
            wait_s = min(2 * wait_s, POLL_MAX_S)

    # -- objects -----------------------------------------------------------------------------------

    def _on_objects(
        self, method: str, path: str, query: dict[str, str], body: Any, timeout_s: float
    ) -> KubeReply:
        match = _OBJECTS.fullmatch(path)
        if match is None:
            return _json({"items": self._apply(body, timeout_s)})
        kind, name = KINDS[READ[match[1]]], unquote(match[2] or "")
        if method == "DELETE":
            return _json(self._delete(kind, name, dry_run=query.get("dry_run") == "true"))
        if name:
            return _json(shown(self.get(kind, name)))
        with refusing():
            items, _ = self.client.list(kind.path(self.namespace))
        wanted, (key, _, value) = query.get("owner"), query.get("label", "").partition("=")
        found = [i for i in map(shown, items) if wanted in (None, i["spec"].get("owner"))]
        if key:
            found = [i for i in found if i["metadata"].get("labels", {}).get(key) == value]
        return _json({"items": found})

    def get(self, kind: KubeKind, name: str) -> Document:
        """One object; raises `ClusterRefusal` 404."""
        name = self._own(name)
        with refusing():
            return self.client.request("GET", kind.path(self.namespace, name))

    def _own(self, name: str) -> str:
        """An object's name in the namespace, also where it is given as the ledger has it."""
        return name.removeprefix(f"{self.namespace}.")

    def _delete(self, kind: KubeKind, name: str, *, dry_run: bool) -> Document:
        before, name = self.get(kind, name), self._own(name)
        options = {"preconditions": {"uid": before["metadata"]["uid"]}}
        more: Document = {"dryRun": ["All"]} if dry_run else {}
        with refusing():
            self.client.request("DELETE", kind.path(self.namespace, name), {**options, **more})
        return {"object": shown(before), "change": "deleted", "preview": None}

    def _apply(self, body: Document, timeout_s: float) -> list[Document]:
        """Every manifest is checked by the server before the first is written."""
        manifests, dry_run = body["manifests"], bool(body["dry_run"])
        read = [self._manifest(i, manifest) for i, manifest in enumerate(manifests)]
        if dry_run or len(read) > 1:
            changes = [self._write(i, one, dry_run=True) for i, one in enumerate(read)]
        if not dry_run:
            return [self._write(i, one, dry_run=False) for i, one in enumerate(read)]
        for change, manifest in zip(changes, read, strict=True):
            if manifest["kind"] == "Run":
                change["preview"] = self._plan(manifest, timeout_s)
        return changes

    def _plan(self, manifest: Document, timeout_s: float) -> Document:
        reply = self._asked_plan(manifest, timeout_s)
        answer: Document = json.loads(reply.data)
        if reply.status >= 400:
            error = answer["error"]
            raise ClusterRefusal(reply.status, error["code"], error["message"], error["path"])
        return answer

    def _asked_plan(self, manifest: Any, timeout_s: float) -> KubeReply:
        """Ask in the Run's namespace: its owner is the one who would pay."""
        meta = manifest.get("metadata") if isinstance(manifest, dict) else None
        namespace = self._namespace_of(meta) if isinstance(meta, dict) else self.namespace
        return self.ask("POST", "/v1/plan", {}, manifest, timeout_s, namespace=namespace)

    def _namespace_of(self, meta: Document, where: str = "") -> str:
        namespace = meta.get("namespace", self.namespace)
        if not isinstance(namespace, str) or not namespace:
            message = f"must be a name, got {namespace!r}"
        elif self.named and namespace != self.namespace:
            message = f"must be {self.namespace!r}, as -n says, got {namespace!r}"
        else:
            return namespace
        raise ClusterRefusal(422, "Invalid", message, f"{where}metadata.namespace")

    def _manifest(self, i: int, manifest: Any) -> Document:
        where = f"manifests[{i}]"
        if not isinstance(manifest, dict) or manifest.get("kind") not in WRITTEN:
            kinds = ", ".join(WRITTEN)
            raise ClusterRefusal(422, "Invalid", f"must be one of {kinds}", f"{where}.kind")
        version = manifest.get("apiVersion", API_VERSION)
        if version != API_VERSION:
            message = f"must be {API_VERSION}, got {version!r}"
            raise ClusterRefusal(422, "Invalid", message, f"{where}.apiVersion")
        meta = manifest.get("metadata")
        if not isinstance(meta, dict) or not isinstance(meta.get("name"), str) or not meta["name"]:
            raise ClusterRefusal(422, "Invalid", "must be a name", f"{where}.metadata.name")
        if isinstance(manifest.get("spec"), dict):
            # What `get -o yaml` shows as null is not set.
            kept = {name: value for name, value in manifest["spec"].items() if value is not None}
            manifest = {**manifest, "spec": kept}
        if not KINDS[manifest["kind"]].namespaced:
            return {**manifest, "apiVersion": version}
        meta = {**meta, "namespace": self._namespace_of(meta, f"{where}.")}
        return {**manifest, "apiVersion": version, "metadata": meta}

    def _write(self, i: int, manifest: Document, *, dry_run: bool) -> Document:
        kind, meta = KINDS[manifest["kind"]], manifest["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        query = {"fieldValidation": "Strict", "fieldManager": "fairlead"}
        tail = "?" + urlencode({**query, **({"dryRun": "All"} if dry_run else {})})
        with refusing(f"manifests[{i}]"):
            before = self.client.get(kind.path(namespace, name))
            if before is None:
                made = self.client.create(kind.path(namespace) + tail, manifest)
                return {"object": shown(made), "change": "created", "preview": None}
            kept = before["metadata"]
            parts = {
                part: {**kept.get(part, {}), **(meta.get(part) or {})}
                for part in ("labels", "annotations")
                if kept.get(part) or meta.get(part)
            }
            same = all(kept.get(part) == value for part, value in parts.items())
            manifest = {**manifest, "spec": _without_shown_owner(before, manifest.get("spec"))}
            if same and before.get("spec") == manifest["spec"]:
                return {"object": shown(before), "change": "unchanged", "preview": None}
            changed = {**manifest, "metadata": {**kept, **parts}, "status": before.get("status")}
            made = self.client.replace(kind.path(namespace, name) + tail, changed)
            return {"object": shown(made), "change": "configured", "preview": None}


_NO_CONTROLLER = "is Fairlead's controller running?"


@contextmanager
def refusing(where: str = "") -> Iterator[None]:
    """What the API server refuses, with the field in question."""
    try:
        yield
    except ApiError as error:
        raise _refusal(error, where) from error


def _refusal(error: ApiError, where: str) -> Exception:
    status, message, path = error.status, error.message, where or None
    if status == 404 and '" not found' not in message:
        return TemporaryFault("the cluster does not have Fairlead's kinds (fairlead kube crds)")
    if status == 401:
        status, message = 403, f"the API server does not accept your credentials: {message}"
    fields = [(name, text) for name, text in error.causes if name and name != "<nil>"]
    unknown = _UNKNOWN.search(message)
    if fields:
        name, text = fields[0]
        path, message = f"{where}.{name}" if where else name, text
    elif unknown:
        path = f"{where}.{unknown[1]}" if where else unknown[1]
        message = "is not a known field"
    return ClusterRefusal(status, error.reason or "Refused", message, path)


def shown(document: Document) -> Document:
    """An object without what only the API server needs, with a status. A Run has an owner in its
    spec, as in embedded mode: where it is not written there, its namespace's."""
    meta = {k: v for k, v in document["metadata"].items() if k not in _NOISE}
    status = {**_BLANK[document["kind"]], **(document.get("status") or {})}
    spec = document["spec"]
    if document["kind"] == "Run":
        spec = {"owner": status.get("owner"), **spec}
    return {**document, "metadata": meta, "spec": spec, "status": status}


def _without_shown_owner(before: Document, spec: Any) -> Any:
    """What `get -o yaml` shows and `apply` takes back is no change."""
    if not isinstance(spec, dict) or before["kind"] != "Run" or "owner" in before["spec"]:
        return spec
    owner = (before.get("status") or {}).get("owner")
    return {k: v for k, v in spec.items() if k != "owner" or v != owner}


_NOISE = ("managedFields", "generation", "finalizers", "resourceVersion", "selfLink")


def _json(value: Any, status: int = 200) -> KubeReply:
    headers = Message()
    headers["Content-Type"] = "application/json"
    return KubeReply(status, json.dumps(value).encode(), headers)
