"""Who a bearer token is, and what that user may do: the API server says it, we keep no users."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.kube.client import Document, KubeClient
from fairlead.kube.kinds import GROUP

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KEPT_S = 10.0
"""A token that is revoked, or a role that is taken away, holds this long."""
KEPT_MAX = 1000
READ: Document = {"resourceAttributes": {"group": GROUP, "resource": "runs", "verb": "list"}}
ADMINISTER: Document = {
    "resourceAttributes": {"group": GROUP, "resource": "budgets", "verb": "update"}
}
SCRAPE: Document = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
REPORT: Document = {"nonResourceAttributes": {"path": "/v1/reports", "verb": "post"}}
NODE = "authentication.kubernetes.io/node-name"
"""What the API server says of a token that it gave to a pod: the pod's node."""


@dataclass(frozen=True, slots=True)
class Rights:
    """A user that the API server knows, and what it may do in the whole cluster."""

    user: str
    reads: bool
    """`list` on runs.fairlead.dev in all namespaces: it may read the HTTP API."""
    administers: bool
    """`update` on budgets.fairlead.dev: it may act as an admin."""
    scrapes: bool
    """`get` on the path /metrics."""
    reports: bool = False
    """`post` on the path /v1/reports: it is an agent."""
    node: str | None = None
    """The node of its pod, where it is one."""


class Reviews:
    """Asks the API server, and remembers its answer for a few seconds."""

    def __init__(self, client: KubeClient, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock_s = client, clock_s
        self._kept: dict[bytes, tuple[float, Rights | None]] = {}
        self._lock = threading.Lock()

    def of(self, token: str) -> Rights | None:
        """None for a token that the API server does not know."""
        digest, now_s = hashlib.sha256(token.encode()).digest(), self._clock_s()
        with self._lock:
            kept = self._kept.get(digest)
        if kept is not None and now_s - kept[0] < KEPT_S:
            return kept[1]
        rights = self._ask(token)
        with self._lock:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[digest] = (now_s, rights)
        return rights

    def _ask(self, token: str) -> Rights | None:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        status = self._client.create(TOKEN_REVIEWS, review).get("status", {})
        if not status.get("authenticated"):
            return None
        user = status["user"]
        reads, administers, scrapes, reports = (
            self._may(user, about) for about in (READ, ADMINISTER, SCRAPE, REPORT)
        )
        node = next(iter((user.get("extra") or {}).get(NODE) or ()), None)
        return Rights(user["username"], reads, administers, scrapes, reports, node)

    def _may(self, user: Document, about: Document) -> bool:
        spec = {
            "user": user["username"],
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            **about,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        status = self._client.create(ACCESS_REVIEWS, review).get("status", {})
        return bool(status.get("allowed")) and not status.get("denied")
