"""The mirror: status, conditions, GPULeases, ResolverOutcomes and Events show what the ledger says.

What is shown follows the ledger's entries; nothing reads it back. After a start everything is
compared once with what the cluster shows.
"""

from collections.abc import Callable

from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.resolver.preview import without_names
from fairlead.engine.gpu.values import Denied
from fairlead.kube.client import ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions, now
from fairlead.kube.gpu.announce import announcements
from fairlead.kube.gpu.audit import Auditor
from fairlead.kube.gpu.front import Acceptance, FrontEnd
from fairlead.kube.kinds import GROUP, KINDS, engine_name, kube_name
from fairlead.kube.watch import Key, Sources
from fairlead.ports.ledger import Archived
from fairlead.schema.objects import API_VERSION
from fairlead.schema.times import format_time

_PUBLIC = Author("kubernetes-mirror")
"""All readers see outcomes: under pseudonyms."""
TOLD = ("Preempted", "NodeFailed", "Drained", "Swapped", "StartFailed", "Lost", "Restarted")
"""Changes of a run that are Events: what its status shows for good needs none."""
SHOWN = 20
"""Outcomes that a new leader shows again: its predecessor may have died before it could."""
RECENT_MS, RECENT_ENTRIES = 300_000, 1_000
"""Entries whose Events a new leader writes again, for the same reason; those that exist stay."""
AS_LEASED = "AsLeased"
EVENTS = {
    "run.cut": ("Preempted", "Warning"),
    "pod.mismatch": ("PodMismatch", "Warning"),
    "lease.unfunded": ("Unfunded", "Warning"),
    "lease.funded": ("Funded", "Normal"),
    "reservation.state": ("ReservationChanged", "Normal"),
}


class Mirror:
    """Writes what changed; `turn` after every turn of the engine."""

    def __init__(
        self,
        client: KubeClient,
        plane: ControlPlane,
        sources: Sources,
        front: FrontEnd,
        *,
        auditor: Auditor,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._client, self._plane, self._sources = client, plane, sources
        self._front, self._auditor, self._leases = front, auditor, sources.leases
        self._seq: int | None = None
        """The last entry that was looked at; None: nothing was compared yet."""
        self._objects: set[tuple[str, Key]] = set()
        self._lease_names: set[str] = set()
        self._outcomes: set[int] = set()
        """What is to be shown; it stays here until it is."""
        self._verdicts: dict[tuple[str, Key], Acceptance] = {}
        """Those that are shown."""

    def turn(self) -> None:
        self._look()
        for pair, verdict in self._front.verdicts.items():
            if self._verdicts.get(pair) != verdict:
                self._objects.add(pair)
        for pair in self._verdicts.keys() - self._front.verdicts.keys():
            del self._verdicts[pair]
        self._take_audited()
        self._client.each(self._objects, lambda pair: self._show(*pair))
        found = {name: self._plane.objects.get("Lease", name) for name in self._lease_names}
        closed = {name for name, lease in found.items() if not _is_open(lease)}
        # Those that are closed first: no device is ever shown under two leases.
        opened = self._lease_names - closed
        try:
            self._client.each(closed, lambda name: self._show_lease(name, found[name]))
            self._client.each(opened, lambda name: self._show_lease(name, found[name]))
        finally:
            self._lease_names = closed | opened
        self._client.each(self._outcomes, self._show_outcome)

    def _take_audited(self) -> None:
        changed, self._auditor.changed = self._auditor.changed, set()
        for run in changed:
            self._objects.add(("Run", Key(*kube_name(run))))
            state = self._plane.committer.projection.live.get(run)
            self._lease_names |= set() if state is None else state.leases.keys()

    def _as_leased(self, made: Conditions, run: str) -> list[Document]:
        """Told from the first finding on, and then that it is over."""
        finding = self._auditor.findings.get(run)
        if finding is not None:
            return [made.row(AS_LEASED, finding.reason, finding.message, holds=False)]
        return [made.row(AS_LEASED, AS_LEASED, "", holds=True)] if made.has(AS_LEASED) else []

    def _look(self) -> None:
        """What entries are about since the last turn; after a start, everything."""
        plane, last = self._plane, self._plane.seq
        if self._seq is None:
            for kind in ("Budget", "Run", "Reservation"):
                self._objects |= {(kind, key) for key in self._sources.of(kind).all()}
            self._lease_names |= {row["metadata"]["name"] for row in plane.objects.list("Lease")}
            self._lease_names |= {key.name for key in self._leases.all()}
            self._outcomes |= set(sorted(plane.committer.projection.resolver.outcomes)[-SHOWN:])
            self._seq = self._told_to(last)
        # One that was made although we were told otherwise is seen after its lease was closed.
        for key in self._leases.take_changed():
            if not _is_open(plane.objects.get("Lease", key.name)):
                self._lease_names.add(key.name)
        while self._seq < last and (page := plane.events.read(self._seq, 1000)):
            for event in page:
                self._note(event)
                self._seq = event["seq"]

    def _told_to(self, last: int) -> int:
        """Up to which entry Events are told for sure."""
        since = format_time(self._plane.committer.now() - RECENT_MS)
        recent = self._plane.events.read(max(0, last - RECENT_ENTRIES), RECENT_ENTRIES)
        return next((event["seq"] - 1 for event in recent if event["time"] >= since), last)

    def _note(self, event: Document) -> None:
        about, kind, body = event["object"], event["kind"], event["body"]
        if kind in ("lease.open", "lease.close", "lease.unfunded", "lease.funded"):
            self._lease_names.add(body["lease"])
            if "run" in body:
                self._objects.add(("Run", Key(*kube_name(body["run"]))))
        if kind.startswith("gpu.resolve."):
            seq = event["seq"] if kind == "gpu.resolve.commit" else body.get("outcome")
            seq = body.get("commit_seq", seq)
            if isinstance(seq, int):
                self._outcomes.add(seq)
            self._announce(event)
        if about is None or about["kind"] not in KINDS:
            return
        name = about["name"]
        key = Key("", name) if about["kind"] == "Budget" else Key(*kube_name(name))
        self._objects.add((about["kind"], key))
        if kind in EVENTS:
            reason, type = EVENTS[kind]
            self._event(about["kind"], key, event["reason"] or reason, type, event)
        elif kind == "run.phase" and event["reason"] in TOLD:
            self._event("Run", key, event["reason"], "Warning", event)

    def _announce(self, event: Document) -> None:
        try:
            found = announcements(self._plane, event)
        except (Archived, Denied) as error:  # its entries can be read no more
            self._say(f"entry {event['seq']} is not told: {error}")
            return
        for announcement in found:
            told = {**event, "message": announcement.message}
            key = Key(*kube_name(announcement.name))
            self._event(announcement.kind, key, announcement.reason, "Warning", told)

    def _show(self, kind: str, key: Key) -> bool:
        """Whether the object shows its state now."""
        document = self._sources.of(kind).get(key)
        if document is None:
            return True
        name = key.name if kind == "Budget" else engine_name(*key)
        stored = self._plane.objects.get(kind, name)
        verdict = self._front.verdicts.get((kind, key))
        if verdict is None:
            return False
        made = Conditions(document)
        rows = [made.row("Accepted", verdict.reason, verdict.message, holds=verdict.accepted)]
        status: Document = {}
        if stored is not None:
            status = dict(stored["status"])
            if kind == "Reservation":  # a tenant reads it
                status["message"] = without_names(status["message"] or "")
            rows += status.get("conditions", ())
            if kind == "Run":
                rows += [*made.of_run(status), *self._as_leased(made, name)]
            elif kind == "Reservation":
                rows.append(made.of_reservation(status))
        elif not verdict.accepted:
            status = {"phase": "Refused", "reason": verdict.reason, "message": verdict.message}
        status |= {"observedGeneration": document["metadata"]["generation"], "conditions": rows}
        self._verdicts[kind, key] = verdict
        if all(document.get("status", {}).get(field) == value for field, value in status.items()):
            return True
        path = KINDS[kind].path(key.namespace, key.name, "status")
        try:
            self._sources.of(kind).put(self._client.patch(path, {"status": status}))
        except ApiError as error:
            return error.status == 404
        return True

    def _show_lease(self, name: str, lease: Document | None) -> bool:
        """Whether it is shown as it is. One that is refused, by a quota or because its namespace
        ends, keeps no other one waiting."""
        try:
            self._write_lease(name, lease)
        except ApiError as error:
            return error.status == 404  # its namespace is gone
        return True

    def _write_lease(self, name: str, lease: Document | None) -> None:
        namespace = kube_name(name)[0]
        kind, key = KINDS["GPULease"], Key(namespace, name)
        shown = self._leases.get(key)
        if lease is None or not _is_open(lease):
            if shown is not None:
                self._client.delete(kind.path(namespace, name))
            return
        if shown is None:
            spec = {**lease["spec"], "run": kube_name(lease["spec"]["run"])[1]}
            document = {
                "apiVersion": API_VERSION,
                "kind": "GPULease",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "labels": {f"{GROUP}/run": spec["run"]},
                },
                "spec": {field: value for field, value in spec.items() if value is not None},
            }
            shown = self._client.create(kind.path(namespace), document)
        made, devices = Conditions(shown), self._auditor.devices.get(name, ())
        rows = [made.row("Open", lease["spec"]["reason"], "", holds=True)]
        rows += self._as_leased(made, lease["spec"]["run"])
        status, before = {**lease["status"], "conditions": rows}, shown.get("status", {})
        if devices or "devices" in before:
            status["devices"] = list(devices)
        if any(before.get(field) != value for field, value in status.items()):
            path = kind.path(namespace, name, "status")
            self._leases.put(self._client.patch(path, {"status": status}))

    def _show_outcome(self, seq: int) -> bool:
        try:
            self._write_outcome(seq)
        except ApiError:
            return False
        except (Archived, Denied) as error:  # its entries can be read no more
            self._say(f"outcome {seq} is not shown: {error}")
        return True

    def _write_outcome(self, seq: int) -> None:
        report = self._plane.outcome_reports.get(seq, author=_PUBLIC)
        kind, name = KINDS["ResolverOutcome"], f"outcome-{seq}"
        spec = {"outcome": seq, "chain": report["chain"], "k": report["k"]}
        spec |= {"cause": report["cause"] or "", "deficitGPUs": report["deficitGPUs"]}
        shown = self._client.get(kind.path(name=name))
        if shown is None:
            document = {
                "apiVersion": API_VERSION,
                "kind": "ResolverOutcome",
                "metadata": {"name": name},
                "spec": spec,
            }
            shown = self._client.create(kind.path(), document)
        stage = report["stage"]
        rows = [Conditions(shown).row("Applied", stage.title(), "", holds=stage == "applied")]
        status = {"stage": stage, "label": report.get("label"), "conditions": rows}
        self._client.patch(kind.path(name=name, sub="status"), {"status": status})

    def _event(self, kind: str, key: Key, reason: str, type: str, event: Document) -> None:
        document = self._sources.of(kind).get(key)
        if document is None:
            return
        namespace = key.namespace or "default"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{key.name}.{event['seq']:x}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": kind,
                "name": key.name,
                "namespace": key.namespace,
                "uid": document["metadata"]["uid"],
            },
            "reason": reason,
            "message": f"{without_names(event['message'])} (ledger entry {event['seq']})",
            "type": type,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
            "source": {"component": "fairlead"},
        }
        try:
            self._client.create(f"/api/v1/namespaces/{namespace}/events", body)
        except ApiError as error:
            # It is there, or refused for good (its namespace ends, a policy): what follows in the
            # ledger is shown all the same.
            if error.passes:
                raise


def _is_open(lease: Document | None) -> bool:
    return lease is not None and bool(lease["status"]["open"])
