"""The controller's parts on an engine, before a server that is a function."""

import threading
from collections.abc import Callable
from typing import Any

from fairlead.engine.gpu import ControlPlane
from fairlead.kube.client import ApiError, Connection, Document, KubeClient
from fairlead.kube.gpu.audit import Auditor
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.front import FrontEnd
from fairlead.kube.gpu.mirror import Mirror
from fairlead.kube.gpu.pods import PodExecutor
from fairlead.kube.gpu.ranks import kept_pod
from fairlead.kube.watch import Mirrored, Sources
from tests.engine.gpu.worlds import START, MemoryLedger
from tests.kube.world import team

Answer = Callable[[str, str, Any], Document | None]


class Server(KubeClient):
    """Answers by a function; what it does not answer is taken as it is sent, patches
    without effect."""

    def __init__(self, answer: Answer = lambda method, path, body: None) -> None:
        super().__init__(Connection("nowhere", 1, None, lambda: None))
        self.answer, self.sent = answer, list[tuple[str, str, Any]]()
        self._version, self._counted = 1000, threading.Lock()

    def request(self, method: str, path: str, body: Any = None, *_: Any, **__: Any) -> Document:
        self.sent.append((method, path, body))
        found = self.answer(method, path, body)
        if found is not None:
            return found
        if method in ("DELETE", "GET"):
            raise ApiError(404, "NotFound", "there is none")
        with self._counted:
            self._version += 1
        return shown(body or {}, version=0 if method == "PATCH" else self._version)


def shown(document: Document, version: int = 1, **meta: Any) -> Document:
    """As the server would show it."""
    named = {"name": "x", "uid": "u", "generation": 1, **document.get("metadata", {}), **meta}
    return {**document, "metadata": {**named, "resourceVersion": str(version)}}


def put(source: Mirrored, *documents: Document, version: int = 1) -> None:
    for document in documents:
        source.put(shown(document, version))


def refusing(status: int, part: str) -> Answer:
    def answer(method: str, path: str, body: Any) -> None:
        if part in path and method != "GET":
            raise ApiError(status, "Refused", f"{part} is refused")

    return answer


class Small:
    """A front end, an executor and a mirror on an engine, before a server of ours."""

    def __init__(self) -> None:
        self.client, self.said = Server(), list[str]()
        made = [Mirrored(self.client, "/", lambda: None, gone=True) for _ in range(7)]
        pods = Mirrored(self.client, "/", lambda: None, shape=kept_pod, gone=True)
        self.sources = Sources(*made, pods)
        self.now_ms = START
        self.executor = PodExecutor(self.client, self.sources, self.find_run, lambda: self.now_ms)
        self.plane = ControlPlane(MemoryLedger(time_ms=START), self.executor, lambda: self.now_ms)
        self.front = FrontEnd(self.client, self.plane, self.sources, say=self.said.append)
        self.auditor = Auditor(self.client, self.plane, self.sources, self.executor)
        self.mirror = Mirror(
            self.client, self.plane, self.sources, self.front, auditor=self.auditor
        )

    def add(self, owner: str, *runs: Document) -> None:
        namespace, binding, budget = team(owner)
        put(self.sources.namespaces, namespace)
        put(self.sources.bindings, binding)
        put(self.sources.budgets, budget)
        put(self.sources.runs, *runs)

    def find_run(self, name: str) -> RunObject | None:
        return self.front.find_run(name)

    def turn(self) -> None:
        self.front.foreign = self.auditor.foreign
        self.front.turn()
        self.plane.reconcile()
        self.auditor.turn()
        self.mirror.turn()
        self.mirror.wait()

    def node(self, name: str) -> Document:
        found = self.plane.objects.get("Node", name)
        assert found is not None
        return found

    def status(self, run: str) -> Document:
        found = self.plane.objects.get("Run", run)
        assert found is not None
        return dict(found["status"])
