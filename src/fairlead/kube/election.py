"""Who decides: one controller of several, by a Lease of Kubernetes.

The lease keeps replicas from working against each other; it is not what makes them safe. A deposed
controller that does not know it yet appends to the ledger at a size that has moved, and is refused.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from fairlead.kube.client import ApiError, Document, KubeClient
from fairlead.kube.kinds import GROUP
from fairlead.ports.faults import Fault, PermanentFault

NAME = "fairlead-controller"
LEDGER = f"{GROUP}/ledger"
"""An annotation of the lease: by which ledger the cluster is led."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a lease lasts without being renewed, and how often it is."""

    duration_s: int = 15
    renew_s: float = 5.0


class Election:
    """Takes and renews the lease. `leads` is False from the moment it may be another's."""

    def __init__(
        self,
        client: KubeClient,
        identity: str,
        *,
        namespace: str,
        name: str = NAME,
        terms: Terms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self.identity, self._namespace = client, identity, namespace
        self._name = name
        self._terms, self._clock = terms or Terms(), clock
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._held_until = 0.0
        self._next = 0.0
        self._seen: tuple[str, float] | None = None
        """Another's renewal, and when we first saw it by our own clock."""
        self.holder: str | None = None
        self.fault: str | None = None
        """Why the last try failed: a Lease that we may not write is told, not waited for."""

    @property
    def leads(self) -> bool:
        return self._clock() < self._held_until

    def turn(self) -> bool:
        """Renew or take the lease when it is time; whether we lead."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._terms.renew_s
            try:
                self._renew()
                self.fault = None
            except Fault as fault:  # no answer: we lead until our time is over
                self._next = self._clock() + 1
                self.fault = f"the Lease {self._namespace}/{self._name}: {fault}"
        return self.leads

    def claim(self, ledger: str) -> None:
        """Write the ledger's id to the lease. Raises `AnotherLedger` where another one stands
        there: by a ledger that does not know them, all pods that run would be ended."""
        found = self._client.get(f"{self._path}/{self._name}")
        known = _annotations(found).get(LEDGER)
        if known not in (None, ledger):
            where = f"annotation {LEDGER} of lease {self._namespace}/{self._name}"
            raise AnotherLedger(
                f"this ledger is {ledger}, and the cluster was led with {known} ({where}): "
                "give the controller that one, or remove the annotation if it is lost for good"
            )
        if found is not None and known is None:
            patch = {"metadata": {"annotations": {LEDGER: ledger}}}
            self._client.patch(f"{self._path}/{self._name}", patch)

    def resign(self) -> None:
        """Let another one lead at once."""
        if self.leads:
            self._held_until = 0.0
            patch = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
            with contextlib.suppress(Fault):  # they wait for our time to be over instead
                self._client.patch(f"{self._path}/{self._name}", patch)

    def _renew(self) -> None:
        began, found = self._clock(), self._client.get(f"{self._path}/{self._name}")
        try:
            if found is None:
                self._client.create(self._path, self._document(None))
            elif self._may_take(found):
                self._client.replace(f"{self._path}/{self._name}", self._document(found))
            else:
                self._held_until, self.holder = 0.0, found["spec"]["holderIdentity"]
                return
        except ApiError as error:
            if error.status != 409:
                raise
            # It changed since we read it. Another one waits for our whole time before it takes it.
            self._next = self._clock()
            return
        # Counted from before the request: the lease of another begins after it.
        self._held_until, self.holder = began + self._terms.duration_s, self.identity

    def _may_take(self, found: Document) -> bool:
        """Ours, given up, or not renewed for its whole time by our own clock."""
        spec = found.get("spec", {})
        holder = spec.get("holderIdentity")
        if holder in ("", None, self.identity):
            return True
        version = found["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
            return False
        return self._clock() - self._seen[1] > int(spec.get("leaseDurationSeconds", 15))

    def _document(self, found: Document | None) -> Document:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = {} if found is None else found.get("spec", {})
        ours = before.get("holderIdentity") == self.identity
        metadata: Document = {"name": self._name, "namespace": self._namespace}
        if found is not None:
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
            metadata["annotations"] = _annotations(found)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self._terms.duration_s,
                "acquireTime": before.get("acquireTime", stamp) if ours else stamp,
                "renewTime": stamp,
                "leaseTransitions": before.get("leaseTransitions", 0) + (not ours),
            },
        }


def _annotations(found: Document | None) -> dict[str, str]:
    return {} if found is None else found["metadata"].get("annotations") or {}


class AnotherLedger(PermanentFault):
    """The cluster belongs to another ledger than this controller's."""
