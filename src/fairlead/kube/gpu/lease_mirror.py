"""GPULeases as the ledger has them: no device is ever shown under two of them."""

from collections.abc import Callable
from functools import partial

from fairlead.engine.gpu import ControlPlane
from fairlead.kube.client import ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions
from fairlead.kube.gpu.audit import Auditor
from fairlead.kube.kinds import GROUP, KINDS, kube_name
from fairlead.kube.watch import Key, Mirrored
from fairlead.schema.objects import API_VERSION

Write = Callable[[], bool]
"""One object brought up to date; whether it is."""
AS_LEASED = "AsLeased"


class LeaseMirror:
    """Shows leases that are open, and removes those that are closed before their devices are shown
    under another one."""

    def __init__(
        self, client: KubeClient, plane: ControlPlane, leases: Mirrored, auditor: Auditor
    ) -> None:
        self._client, self._plane, self._leases, self._auditor = client, plane, leases, auditor
        self._written: dict[str, frozenset[str]] = {}
        """Leases that we asked for, with their devices, until we removed them: one may be there
        before its request is answered, and although we were told that it was refused."""

    def is_open(self, name: str) -> bool:
        return name in self._plane.committer.projection.leases

    def is_over(self, key: Key) -> bool:
        """Whether there is nothing to show, and nothing to remove."""
        shown = key.name in self._written or self._leases.get(key) is not None
        return not shown and not self.is_open(key.name)

    def ending(self) -> set[str]:
        """Devices that are shown, or may be, under leases that are closed."""
        closed = (key for key in self._leases.known() if not self.is_open(key.name))
        shown = (self._leases.get(key) for key in closed)
        known = {slot for lease in shown if lease is not None for slot in lease["spec"]["slots"]}
        written = list(self._written.items())  # at once: writers take from it
        return known.union(*(slots for name, slots in written if not self.is_open(name)))

    def write_of(self, key: Key, ending: set[str]) -> Write | None:
        """How to show a lease as it is now; None: not before others are removed."""
        lease = self._plane.objects.get("Lease", key.name)
        if lease is None or not lease["status"]["open"]:
            return partial(self._try, self._remove, key)
        slots = frozenset(lease["spec"]["slots"])
        if not ending.isdisjoint(slots):
            return None
        self._written[key.name] = slots
        return partial(self._try, self._show, key, lease)

    def _try(self, write: Callable[..., bool], *given: object) -> bool:
        """Whether it is shown as it is. One that is refused, by a quota or because its namespace
        ends, keeps no other one waiting."""
        try:
            return write(*given)
        except ApiError as error:
            return error.status == 404  # its namespace is gone

    def _remove(self, key: Key) -> bool:
        if key.name in self._written or self._leases.get(key) is not None:
            self._client.delete(KINDS["GPULease"].path(*key))
            self._written.pop(key.name, None)
        return True

    def _show(self, key: Key, lease: Document) -> bool:
        if not self.is_open(key.name):
            return False  # it was closed since: it is removed, not shown
        kind, shown = KINDS["GPULease"], self._leases.get(key)
        if shown is None:
            spec = {**lease["spec"], "run": kube_name(lease["spec"]["run"])[1]}
            document = {
                "apiVersion": API_VERSION,
                "kind": "GPULease",
                "metadata": {
                    "name": key.name,
                    "namespace": key.namespace,
                    "labels": {f"{GROUP}/run": spec["run"]},
                },
                "spec": {field: value for field, value in spec.items() if value is not None},
            }
            shown = self._client.create(kind.path(key.namespace), document)
            self._leases.put(shown)
        made, devices = Conditions(shown), self._auditor.devices.get(key.name, ())
        rows = [made.row("Open", lease["spec"]["reason"], "", holds=True)]
        rows += as_leased(self._auditor, made, lease["spec"]["run"])
        status, before = {**lease["status"], "conditions": rows}, shown.get("status", {})
        if devices or "devices" in before:
            status["devices"] = list(devices)
        if any(before.get(field) != value for field, value in status.items()):
            path = kind.path(*key, "status")
            self._leases.put(self._client.patch(path, {"status": status}))
        return True


def as_leased(auditor: Auditor, made: Conditions, run: str) -> list[Document]:
    """Told from the first finding on, and then that it is over."""
    finding = auditor.findings.get(run)
    if finding is not None:
        return [made.row(AS_LEASED, finding.reason, finding.message, holds=False)]
    return [made.row(AS_LEASED, AS_LEASED, "", holds=True)] if made.has(AS_LEASED) else []
