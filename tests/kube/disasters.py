"""What befalls a cluster beside the faults of its network: each comes, and is over again."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.host.process import free_port
from fairlead.kube.kinds import crds
from tests.kube.replicas import Replicas
from tests.kube.world import Document, World, node, until

Between = Callable[[float], None]
"""Lets so many seconds pass, while runs meet their fate."""


class Disasters:
    """Named acts on a world; `between` is what goes on while one lasts."""

    def __init__(
        self,
        world: World,
        replicas: Replicas,
        chance: random.Random,
        between: Between,
        namespace: str,
    ) -> None:
        """`namespace`: whose quota refuses."""
        self._namespace = namespace
        self.note: Callable[[str], None] = lambda _: None
        self._world, self._replicas, self._chance, self._between = world, replicas, chance, between
        self._lasting: dict[str, Callable[[], Any]] = {
            "a webhook of another is down": self._webhook,
            "a quota refuses": self._quota,
            "kinds are upgraded": self._upgrade,
            "a node is away": self._node,
        }
        self._at_once: dict[str, Callable[[], Any]] = {
            "the API server is killed": lambda: self._restart("kube-apiserver"),
            "etcd is killed": lambda: self._restart("etcd"),
            "the leader is killed": self._kill,
            "a node is replaced": self._replace_node,
        }

    def names(self, *, replicas: bool) -> list[str]:
        """`replicas`: a second one can take over while the first one lives."""
        return [*self._lasting, *self._at_once, *(["the leader is halted"] if replicas else [])]

    def strike(self, name: str, *others: str) -> None:
        """One, and while it lasts the others."""
        self.note(f"-- {name}")
        if name == "the leader is halted":
            self._replicas.halt_leader()
        elif name in self._at_once:
            self._at_once[name]()
        else:
            with self._lasting[name]():
                self._between(self._chance.uniform(0, 2))
                if others:
                    self.strike(*others)
                self._between(self._chance.uniform(0, 2))
            self.note(f"-- {name}: over")
            return
        self.note(f"-- {name}: over")
        if others:
            self.strike(*others)

    def _restart(self, name: str) -> None:
        """KWOK gives up a pod whose deletion failed meanwhile; a kubelet does not."""
        self._world.cluster.restart(name)
        self._world.cluster.restart("kwok")

    def _kill(self) -> None:
        self._replicas.leader.kill()
        self._replicas.start(skew_ms=self._chance.randint(-2000, 2000))

    @contextmanager
    def _webhook(self) -> Iterator[None]:
        """It has to be asked before a pod is made, and nobody answers."""
        hook = {
            "name": "nobody.test.fairlead.dev",
            "clientConfig": {"url": f"https://127.0.0.1:{free_port()}/"},
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }
            ],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        kind = "ValidatingWebhookConfiguration"
        made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind}
        self._world.apply({**made, "metadata": {"name": "nobody"}, "webhooks": [hook]})
        try:
            yield
        finally:
            self._world.kubectl("delete", kind.lower(), "nobody")

    @contextmanager
    def _quota(self) -> Iterator[None]:
        hard = {"pods": "0", "count/gpuleases.fairlead.dev": "0"}
        meta = {"name": "none", "namespace": self._namespace}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta}
        self._world.apply({**quota, "spec": {"hard": hard}})
        try:
            yield
        finally:
            self._world.kubectl("-n", self._namespace, "delete", "resourcequota", "none")

    @contextmanager
    def _upgrade(self) -> Iterator[None]:
        """The kinds of a later release: a further field and a further column; then back."""
        later = [_later(document) for document in crds()]
        self._world.cluster.apply(later)
        try:
            yield
        finally:
            self._world.cluster.apply(crds())

    @contextmanager
    def _node(self) -> Iterator[None]:
        name = self._chance.choice(("n1", "n2", "n3", "n4"))
        self._world.kubectl("delete", "node", name)
        try:
            yield
        finally:
            self._return_node(name)

    def _replace_node(self) -> None:
        """At once: the name is there before anybody has seen that it was gone. One that is away
        already comes back."""
        name = self._chance.choice(("n1", "n2", "n3", "n4"))
        self._world.kubectl("delete", "node", name, "--ignore-not-found")
        self._return_node(name)

    def _return_node(self, name: str) -> None:
        self._world.apply(node(name, gpus=4))

        def is_ready() -> bool:
            rows = self._world.get("node", name).get("status", {}).get("conditions", ())
            return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)

        until(is_ready, f"{name} is back", 60)


def _later(document: Document) -> Document:
    made = copy.deepcopy(document)
    (version,) = made["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"].setdefault("properties", {})["later"] = {"type": "string"}
    column = {"name": "Later", "type": "string", "jsonPath": ".spec.later"}
    version.setdefault("additionalPrinterColumns", []).append(column)
    return made
