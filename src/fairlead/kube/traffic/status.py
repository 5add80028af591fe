"""What became of each RouteGroup, in its status: by whom, how often, and how much.

- Every agent writes the entry of its own node in `status.nodes`, by server-side apply under its own
  name, when it changes: no agent can overwrite another's.
- One agent of a dataplane, by a Lease, writes what is said once: conditions, address, backends, and
  takes away entries of nodes that are gone.
- Scale hints are Events, when they begin and at most every five minutes.

A thread does it; a tick only leaves its result here.
"""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from fairlead.core.canonical import digest
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode
from fairlead.engine.traffic import GroupRound, TickRound
from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions, now
from fairlead.kube.election import Election
from fairlead.kube.kinds import KINDS
from fairlead.kube.traffic.follow import GroupFollower
from fairlead.kube.traffic.groups import GroupVerdict
from fairlead.kube.watch import Key
from fairlead.ports.faults import Fault
from fairlead.schema.objects import API_VERSION

TURN_S = 0.5
SOON_S = 1.0
"""Between two writes about one group when what people act on changed: admission, backends."""
EVENT_EVERY_S = 300.0
NODES_EVERY_S = 300.0
SHOWN_MAX = 16
"""Backends in the entry of a node: a status of a thousand nodes is to fit an object."""
_KIND = KINDS["RouteGroup"]
_HINTS = {
    TrafficReason.TTF: "a machine runs out of a resource in {ttf:.0f} s: add backends, or capacity",
    TrafficReason.MONOPOLY: "the only backend is not enough: add backends",
}


class _Written(NamedTuple):
    """What we wrote about a group last, and when."""

    entry: Document
    at_s: float


class StatusWriter:
    """Writes for one agent. `refused` are groups that its dataplane could not take, with why;
    `unseen` are backends of a group of which the first check or scrape has no result yet."""

    def __init__(
        self,
        client: KubeClient,
        follower: GroupFollower,
        election: Election,
        *,
        dataplane: str,
        every_s: float,
        refused: Callable[[], Mapping[str, str]],
        unseen: Callable[[str], Collection[str]] = lambda _: (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._follower, self._election = client, follower, election
        self._dataplane, self._node, self._every_s = dataplane, follower.node, every_s
        self._refused, self._unseen, self._say = refused, unseen, say
        name = f"fairlead-traffic-{dataplane}-{follower.node}"
        self._manager = name if len(name) <= 128 else f"fairlead-traffic-{digest(name)}"
        self._round: TickRound | None = None
        self._written: dict[Key, _Written] = {}
        self._programmed_as: dict[str, tuple[str, int]] = {}
        """Groups that were in the dataplane and looked at once, and for which uid and generation: a
        fault later on leaves the table before it in force, and backends come and go."""
        self._hinted: dict[tuple[Key, TrafficReason], float] = {}
        self._nodes_s = -NODES_EVERY_S
        self._faults: set[str] = set()
        self._bug: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="route group status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends between two writes."""
        self._stop.set()
        self._thread.join(5)
        self._election.resign()

    def seen(self, round: TickRound) -> None:
        """A tick's result; the newest is what is written about."""
        self._round = round

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._bug is not None:
            raise self._bug

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._bug = error
            raise

    def _write(self) -> None:
        while not self._stop.wait(TURN_S):
            faults: set[str] = set()
            verdicts, round = self._follower.current.verdicts, self._round
            if round is None:
                continue  # nothing can be said before the first tick
            leads = self._election.turn()
            if self._election.fault is not None:
                faults.add(self._election.fault)
            for key, verdict in sorted(verdicts.items()):
                try:
                    self._show(key, verdict, round, leads=leads)
                except (Fault, *MISREAD) as error:  # one of them must not stop the others
                    faults.add(f"status of {key.namespace}/{key.name}: {error}")
            for step in (self._withdraw, self._forget_nodes if leads else lambda: None):
                try:
                    step()
                except (Fault, *MISREAD) as error:
                    faults.add(f"status: {error}")
            for fault in sorted(faults - self._faults):
                self._say(fault)
            self._faults = faults

    def _show(self, key: Key, verdict: GroupVerdict, round: TickRound, *, leads: bool) -> None:
        document = self._follower.route_groups.get(key)
        if document is None or document["metadata"]["uid"] != verdict.uid:
            return
        if verdict.accepted:
            self._hint(key, verdict, round)
        entry = self._entry(verdict, round)
        if self._is_due(key, entry, document):
            self._apply(key, verdict.uid, {"nodes": [entry]}, self._manager)
            self._written[key] = _Written(entry, time.monotonic())
        if leads:
            self._conclude(key, verdict)

    # --- this node

    def _entry(self, verdict: GroupVerdict, round: TickRound) -> Document:
        entry: Document = {
            "node": self._node,
            "dataplane": self._dataplane,
            "observedGeneration": verdict.generation,
            "programmed": False,
            "message": "",
        }
        refused, groups = self._refused(), round.latest
        made = [groups[name] for name in verdict.groups if name in groups]
        problems = [refused[name] for name in verdict.groups if name in refused]
        if not verdict.accepted:
            return {**entry, "message": "not accepted"}
        if problems or len(made) < len(verdict.groups):
            return {**entry, "message": problems[0] if problems else "waits for its first tick"}
        if waits := self._waits(verdict, groups):
            return {**entry, "message": waits}
        return {**entry, "programmed": True, **_summary(made)}

    def _waits(self, verdict: GroupVerdict, groups: Mapping[str, GroupRound]) -> str:
        """Why the groups of a RouteGroup are not in the dataplane and looked at once; empty: they
        are."""
        version = (verdict.uid, verdict.generation)
        for name in verdict.groups:
            if self._programmed_as.get(name) == version:
                continue
            if groups[name].sequence is None or groups[name].fault:
                return groups[name].fault or "its first decision is not recorded yet"
            if unseen := sorted(self._unseen(name)):
                return f"waits for the first look at {len(unseen)} backends: {unseen[0]}"
            self._programmed_as[name] = version
        return ""

    def _is_due(self, key: Key, entry: Document, document: Document) -> bool:
        shown = self._own(document)
        last = self._written.get(key)
        if shown == entry:
            self._written.setdefault(key, _Written(entry, time.monotonic()))
            return False
        if last is None or shown is None:
            return last is None or time.monotonic() - last.at_s >= SOON_S
        rough = {name: value for name, value in entry.items() if name != "slots"}
        was = {name: value for name, value in last.entry.items() if name != "slots"}
        wait_s = SOON_S if rough != was else self._every_s
        return time.monotonic() - last.at_s >= wait_s

    def _own(self, document: Document) -> Document | None:
        for entry in document.get("status", {}).get("nodes") or ():
            if (entry["node"], entry.get("dataplane")) == (self._node, self._dataplane):
                return dict(entry)
        return None

    def _withdraw(self) -> None:
        """Our entry goes from a RouteGroup that is another dataplane's by now."""
        current = self._follower.current.verdicts
        for key, document in self._follower.route_groups.all().items():
            if key in current or self._own(document) is None:
                continue
            if document["spec"].get("dataplane") != self._dataplane:
                self._apply(key, document["metadata"]["uid"], {}, self._manager)
        self._written = {key: last for key, last in self._written.items() if key in current}
        names = {name for verdict in current.values() for name in verdict.groups}
        self._programmed_as = {n: at for n, at in self._programmed_as.items() if n in names}
        self._hinted = {hint: at for hint, at in self._hinted.items() if hint[0] in current}

    # --- what is said once

    def _conclude(self, key: Key, verdict: GroupVerdict) -> None:
        document = self._follower.route_groups.get(key)
        if document is None or document["metadata"]["generation"] != verdict.generation:
            return
        status, conditions = document.get("status", {}), Conditions(document)
        rows = [
            conditions.row("Accepted", verdict.reason, verdict.message, holds=verdict.accepted),
            self._programmed(conditions, verdict, status.get("nodes") or ()),
            _available(conditions, verdict),
        ]
        concluded: Document = {"conditions": rows, "backends": verdict.ready}
        if verdict.address:
            concluded["address"] = verdict.address
        if any(status.get(name) != value for name, value in concluded.items()):
            manager = f"fairlead-traffic-{self._dataplane}"
            self._apply(key, verdict.uid, concluded, manager)

    def _programmed(
        self, conditions: Conditions, verdict: GroupVerdict, entries: Sequence[Document]
    ) -> Document:
        ours = [entry for entry in entries if entry.get("dataplane") == self._dataplane]
        done = [entry for entry in ours if entry.get("programmed")]
        where = f"on {len(done)} of {len(ours)} nodes"
        if not verdict.accepted:
            return conditions.row("Programmed", "NotAccepted", "", holds=False)
        for entry in ours:
            if not entry.get("programmed"):
                message = f"{where}; {entry['node']}: {entry.get('message', '')}"
                return conditions.row("Programmed", "Pending", message, holds=False)
        return conditions.row("Programmed", "Programmed", where, holds=bool(ours))

    def _forget_nodes(self) -> None:
        """Entries of nodes that are gone: their agents cannot take them away."""
        if time.monotonic() - self._nodes_s < NODES_EVERY_S:
            return
        nodes, _ = self._client.list("/api/v1/nodes")
        names = {node["metadata"]["name"] for node in nodes}
        for key in self._follower.current.verdicts:
            document = self._follower.route_groups.get(key) or {}
            entries = document.get("status", {}).get("nodes") or ()
            for index, entry in reversed([*enumerate(entries)]):
                if entry["node"] not in names and entry["node"] != self._node:
                    self._remove_entry(key, index, entry["node"])
        self._nodes_s = time.monotonic()

    def _remove_entry(self, key: Key, index: int, node: str) -> None:
        place = f"/status/nodes/{index}"
        patch = [
            {"op": "test", "path": f"{place}/node", "value": node},
            {"op": "remove", "path": place},
        ]
        path = _KIND.path(key.namespace, key.name, "status")
        self._follower.route_groups.put(self._client.patch(path, patch, "json"))

    def _apply(self, key: Key, uid: str, status: Document, manager: str) -> None:
        document = {
            "apiVersion": API_VERSION,
            "kind": "RouteGroup",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "status": status,
        }
        path = _KIND.path(key.namespace, key.name, "status")
        self._follower.route_groups.put(self._client.apply(path, document, manager=manager))

    # --- hints

    def _hint(self, key: Key, verdict: GroupVerdict, round: TickRound) -> None:
        for name in verdict.groups:
            made = round.latest.get(name)
            reason = None if made is None else made.scale_hint
            if made is None or reason is None:
                continue
            last = self._hinted.get((key, reason))
            if last is not None and time.monotonic() - last < EVENT_EVERY_S:
                continue
            self._event(key, verdict.uid, _HINTS[reason].format(ttf=made.plan.ttf_s or 0.0))
            self._hinted[key, reason] = time.monotonic()

    def _event(self, key: Key, uid: str, message: str) -> None:
        stamp = now()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{key.name}.{uuid.uuid4().hex[:16]}", "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": "RouteGroup",
                "name": key.name,
                "namespace": key.namespace,
                "uid": uid,
            },
            "reason": "ScaleHint",
            "message": f"{message} (node {self._node})",
            "type": "Warning",
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": "fairlead-traffic", "host": self._node},
        }
        try:
            self._client.create(f"/api/v1/namespaces/{key.namespace}/events", body)
        except ApiError as error:
            if error.passes:
                raise


def _available(conditions: Conditions, verdict: GroupVerdict) -> Document:
    if verdict.ready:
        return conditions.row("Available", "Ready", f"{verdict.ready} backends", holds=True)
    reason = "NoBackends" if verdict.accepted else "NotAccepted"
    return conditions.row("Available", reason, "no endpoint is ready", holds=False)


def _summary(made: list[GroupRound]) -> Document:
    """The strictest admission, and the backends with the most slots."""
    slots = {id: count for group in made for id, count in group.plan.slots.items()}
    isolated = {
        id: cause.value for group in made for id, cause in group.decision.observed.isolated.items()
    }
    shown = sorted(slots, key=lambda id: (-slots[id], id))[:SHOWN_MAX]
    modes = [group.plan.admission.mode for group in made]
    strictest = max(modes, key=lambda mode: mode.level, default=AdmissionMode.NORMAL)
    return {
        "admission": strictest.value,
        "backends": len(slots),
        "isolated": {id: isolated[id] for id in sorted(isolated)[:SHOWN_MAX]},
        "slots": {id: slots[id] for id in sorted(shown)},
    }
