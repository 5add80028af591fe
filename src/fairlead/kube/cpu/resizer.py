"""The controller's part for CPU: PodAllocations become resizes, and what is in force conditions.

Which limits, or requests, a pod is to have is decided by `core.cpu.wanted_limits`, which resizes
are sent now by `next_resizes`. Here pods are read, marked with their
original resources and the decision before the first write, resized, and shown. Nothing is kept in
memory that the next leader would miss: what is under way is in the pods' annotations and status.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.core.cpu import (
    PodLimits,
    ResizePod,
    ResizeState,
    ResizeWait,
    newest_capacities,
    next_resizes,
    wanted_limits,
)
from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient, gone
from fairlead.kube.conditions import Conditions, now
from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.cpu.pods import (
    FIELDS,
    GOVERNED,
    LIMITS,
    ORIGINAL,
    REQUESTS,
    RESIZE,
    RESTORE,
    PodResize,
    Resource,
)
from fairlead.kube.kinds import KINDS
from fairlead.kube.watch import Key, Mirrored

KIND = KINDS["PodAllocation"]
FINAL = ("Infeasible", "Refused")
"""What the kubelet or the API server refused is not sent again; another decision is."""
LOOKS = 8
"""Nodes whose pods are counted in one turn, each in two requests; the others have the next ones."""
Verdict = tuple[str, str]
"""Reason and message of the condition `Applied`."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A pod that is resized, or gets its own limits or requests back (`allocation` None)."""

    pod: Document
    resource: Resource
    resize: ResizePod
    allocation: Document | None
    decision: str
    held: bool
    """Its decision asks for limits below its requests."""

    @property
    def state(self) -> ResizeState:
        return self.resize.state

    @property
    def moves(self) -> bool:
        resize = self.resize
        return resize.differs or resize.leaves or self.state is not ResizeState.SETTLED


@dataclass(frozen=True, slots=True)
class _Read:
    """What a pod and its PodAllocation come to, at these versions."""

    versions: tuple[str, str]
    case: _Case | None
    verdict: Verdict
    """Where there is no case, or none of an allocation."""


class Resizer:
    """A `Part` of the controller. With `restore_only` it puts back and sets nothing."""

    def __init__(
        self,
        client: KubeClient,
        wake: Callable[[], None],
        say: Callable[[str], None],
        *,
        restore_only: bool = False,
    ) -> None:
        self._client, self._say, self._restore_only = client, say, restore_only
        self._allocations = Mirrored(client, KIND.path(), wake)
        self._pods = Mirrored(client, cpu_pods.PODS, wake, selector=GOVERNED)
        self._told: dict[str, str] = {}
        """The decision that an Event was made for, by pod."""
        self._known: dict[str, _Read] = {}
        """What was made of each pod in the last turn; nothing where that failed."""
        self._busy: set[str] = {""}
        """Nodes where something is under way; at first we do not know."""
        self._begun = False
        self._looks, self._looked = 0, dict[str, int]()
        """How often pods were counted, and which time it was for each node."""

    def sources(self) -> Sequence[Mirrored]:
        return (self._allocations, self._pods)

    def turn(self) -> None:
        if not self._begun:  # all that our predecessor sent, before anything is counted
            for source in self.sources():
                source.refresh()
            self._begun = True
        changed = [bool(source.take_keys()) for source in self.sources()]
        if self._busy or any(changed):
            self.resize()

    def resize(self) -> None:
        """Send what may be sent now, on nodes where something changed or is under way."""
        allocations = self._allocations.all()
        read, fresh = self._read(allocations)
        nodes: dict[tuple[str, Resource], list[_Case]] = {}
        for row in read.values():
            if row.case is not None:
                node = row.case.pod["spec"]["nodeName"]
                nodes.setdefault((node, row.case.resource), []).append(row.case)
        verdicts = {uid: read[uid].verdict for uid in fresh}
        due, cases, capacities = set[str](), dict[str, _Case](), _capacities(allocations)
        looks = self._looks + LOOKS
        for node, resource in sorted(nodes, key=lambda key: (self._looked.get(key[0], 0), key)):
            on_it = nodes[node, resource]
            if node not in self._busy and not any(case.resize.uid in fresh for case in on_it):
                continue
            capacity = capacities.get(_scope(node, resource), 0)
            if resource == REQUESTS:
                capacity = min(capacity, self._schedulable(node, on_it, looks))
            plan = next_resizes(capacity, [case.resize for case in on_it])
            due |= set(plan.send)
            for case in on_it:
                cases[case.resize.uid] = case
                if case.allocation is not None:
                    wait = plan.wait.get(case.resize.uid)
                    verdicts[case.resize.uid] = _verdict(case, case.allocation, wait)
        # Until all of this is done.
        self._known, self._busy = {}, {node for node, _ in nodes} | {""}
        try:
            self._client.each(due, lambda uid: self._resize(cases[uid], verdicts))
            self._release(cases)
        finally:
            self._show_all(allocations, cases, verdicts)
        self._known = read
        self._busy = {node for (node, _), rows in nodes.items() if any(row.moves for row in rows)}
        self._told = {uid: told for uid, told in self._told.items() if uid in read}
        here = {node for node, _ in nodes}
        self._looked = {node: look for node, look in self._looked.items() if node in here}

    def _schedulable(self, node: str, cases: Sequence[_Case], looks: int) -> int:
        """What the requests of these pods may come to: with those of all other pods that are bound
        to the node, no more than it has. Asked of the API server, because the scheduler binds pods
        between two decisions; only where a request is to rise, and until there were `looks`."""
        rows = [case.resize for case in cases]
        counted = sum(row.counted for row in rows)
        if not any(row.differs and row.added > 0 for row in rows) or self._looks == looks:
            return counted
        self._looks += 1
        self._looked[node] = self._looks
        found, _ = self._client.list("/api/v1/nodes", fieldSelector=f"metadata.name={node}")
        bound, _ = self._client.list(cpu_pods.PODS, fieldSelector=f"spec.nodeName={node}")
        try:
            taken = sum(cpu_pods.scheduled_millicores(p) for p in bound if not cpu_pods.is_over(p))
            return cpu_pods.millicores(found[0]["status"]["allocatable"]["cpu"]) - taken + counted
        except MISREAD as error:
            self._say(f"no request rises on node {node}: {error!r}")
            return counted

    # -- reading

    def _read(self, allocations: dict[Key, Document]) -> tuple[dict[str, _Read], set[str]]:
        """Every pod that is ours to look at, and those that changed since the last turn."""
        read: dict[str, _Read] = {}
        fresh: set[str] = set()
        governed = {pod["metadata"]["uid"]: pod for pod in self._pods.all().values()}
        by_uid = {document["spec"]["uid"]: document for document in allocations.values()}
        for uid in sorted(governed.keys() | by_uid.keys()):
            versions = _version(governed.get(uid)), _version(by_uid.get(uid))
            before = self._known.get(uid)
            if before is not None and before.versions == versions and uid in governed:
                read[uid] = before
                continue
            try:
                pod = governed.get(uid) or self._find(by_uid[uid])
                read[uid] = _Read(versions, *self._look(pod, by_uid.get(uid)))
                fresh.add(uid)
            except MISREAD as error:
                self._say(f"CPU of pod {uid} is left as it is: {error!r}")
        return read, fresh

    def _look(
        self, pod: Document | None, allocation: Document | None
    ) -> tuple[_Case | None, Verdict]:
        refused = "the pod is gone" if pod is None else _refuse(pod, allocation)
        if refused is not None:
            allocation = None
        case = None
        if pod is not None and pod["spec"].get("nodeName") and not cpu_pods.is_over(pod):
            case = _case(pod, allocation)
        if self._restore_only and case is not None and not case.resize.leaves:
            case = None
        if allocation is not None and case is not None and case.allocation is None:
            return case, (ResizeWait.IN_PROGRESS.value, f"its own {case.resource} come back first")
        return case, ("Ignored", refused or "the pod does not run")

    def _find(self, allocation: Document) -> Document | None:
        """A pod that has no label of ours yet."""
        namespace, spec = allocation["metadata"]["namespace"], allocation["spec"]
        pod = self._client.get(f"/api/v1/namespaces/{namespace}/pods/{spec['pod']}")
        return pod if pod is not None and pod["metadata"]["uid"] == spec["uid"] else None

    # -- writing

    def _resize(self, case: _Case, verdicts: dict[str, Verdict]) -> bool:
        """Mark the pod, then resize it. Both are refused if it changed since it was read: the next
        turn looks again."""
        pod, wanted = case.pod, dict(case.resize.wanted)
        try:
            if not self._restore_only:  # a policy may keep our marks for the controller
                pod = self._client.patch(cpu_pods.path_of(pod), _mark(case))
            if wanted != case.resize.spec:
                patch = cpu_pods.resize_patch(
                    pod, wanted, resource=case.resource, decision=case.decision
                )
                pod = self._client.patch(cpu_pods.path_of(pod, "resize"), patch, "strategic-merge")
            self._pods.put(pod)
        except ApiError as error:
            if gone(error) or error.status == 409:
                return True
            if error.passes:
                raise
            verdicts[case.resize.uid] = ("Refused", error.message)
        if case.held:
            self._tell(case)
        return True

    def _release(self, cases: dict[str, _Case]) -> None:
        """Take our marks from pods that have their own limits or requests again."""
        done = {
            uid
            for uid, case in cases.items()
            if case.resize.leaves
            and case.state is ResizeState.SETTLED
            and case.resize.wanted == case.resize.spec
        }
        self._client.each(done, lambda uid: self._unmark(cases[uid].pod))

    def _unmark(self, pod: Document) -> bool:
        named = {name: pod["metadata"][name] for name in ("uid", "resourceVersion")}
        marks = {"labels": {GOVERNED: None}, "annotations": {ORIGINAL: None, RESIZE: None}}
        try:
            self._client.patch(cpu_pods.path_of(pod), {"metadata": {**named, **marks}})
        except ApiError as error:
            if not (
                gone(error) or error.status == 409 or (self._restore_only and error.status == 403)
            ):
                raise
        return True

    def _tell(self, case: _Case) -> None:
        meta, uid = case.pod["metadata"], case.resize.uid
        if self._told.get(uid) == case.decision:
            return
        self._told[uid] = case.decision
        message = f"decision {case.decision} asks for less CPU than the pod requests"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:200]}.", "namespace": meta["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "uid": uid}
            | {name: meta[name] for name in ("name", "namespace")},
            "reason": "LimitHeldAtRequest",
            "message": f"{message}: its limit stays at the request",
            "type": "Warning",
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
            "source": {"component": "fairlead"},
        }
        self._client.create(f"/api/v1/namespaces/{meta['namespace']}/events", event)

    # -- showing

    def _show_all(
        self,
        allocations: dict[Key, Document],
        cases: dict[str, _Case],
        verdicts: dict[str, Verdict],
    ) -> None:
        changed = set()
        status: dict[Key, Document] = {}
        for key, document in allocations.items():
            verdict, case = (
                verdicts.get(document["spec"]["uid"]),
                cases.get(document["spec"]["uid"]),
            )
            if verdict is None:
                continue
            reason, message = verdict
            rows = Conditions(document)
            row = rows.row("Applied", reason, message, holds=reason == "Applied")
            total = sum(case.resize.actual.values()) if case else None
            status[key] = {"conditions": [row], "millicores": total}
            before = document.get("status", {})
            if any(before.get(name) != value for name, value in status[key].items()):
                changed.add(key)
        self._client.each(changed, lambda key: self._show(key, status[key]))

    def _show(self, key: Key, status: Document) -> bool:
        try:
            self._allocations.put(self._client.patch(KIND.path(*key, "status"), {"status": status}))
        except ApiError as error:
            if not gone(error):
                raise
        return True


def _version(document: Document | None) -> str:
    return "" if document is None else str(document["metadata"]["resourceVersion"])


def _refuse(pod: Document, allocation: Document | None) -> str | None:
    """Why an allocation is not applied; a pod that was resized before gets its own limits back."""
    if allocation is None:
        return None
    named, where = allocation["spec"], pod["spec"].get("nodeName")
    if named["node"] != where:
        return f"spec.node is {named['node']!r}, the pod is on {where!r}"
    if (named["pod"], allocation["metadata"]["namespace"]) != tuple(
        pod["metadata"][name] for name in ("name", "namespace")
    ):
        return f"spec.pod is {named['pod']!r}, the pod of that uid is {pod['metadata']['name']!r}"
    return cpu_pods.left_alone(pod, _resource(allocation))


def _resource(allocation: Document) -> Resource:
    requested = [FIELDS[REQUESTS] in row for row in allocation["spec"]["containers"]]
    return REQUESTS if all(requested) else LIMITS


def _case(pod: Document, allocation: Document | None) -> _Case | None:
    """None: there is nothing to do with this pod."""
    meta, resource = pod["metadata"], cpu_pods.resized(pod)
    marked = GOVERNED in (meta.get("labels") or {})
    if allocation is not None and _resource(allocation) != resource:
        if marked and cpu_pods.originals(pod, resource) is not None:
            allocation = None  # Other means begin with what was found.
        else:
            resource = _resource(allocation)
    own, last = cpu_pods.originals(pod, resource), cpu_pods.last_resize(pod)
    adopted = marked and own is not None
    ends = "deletionTimestamp" in meta
    if not adopted and (ends or allocation is None):
        return None
    wanted = wanted_limits(_bounded(pod, resource, own, allocation))
    unseen = last.unseen if last and not cpu_pods.is_seen(pod) else {}
    # The requests that a user gave a pod count from the first: the scheduler counts them.
    adopted = adopted or resource == REQUESTS
    first = last is not None and last.first
    spec, actual = cpu_pods.asked(pod, resource), cpu_pods.in_force(pod, resource)
    state = cpu_pods.resize_state(pod, resource)
    resize = ResizePod(
        *(meta["uid"], wanted.limits, spec, actual, state, adopted, first, unseen, wanted.leaves),
        marked=marked,
    )
    decision = RESTORE
    if allocation is not None:
        decision = f"{allocation['spec']['node']}/{allocation['spec']['decision']}"
    held = wanted.held and resource == LIMITS
    return _Case(pod, resource, resize, allocation, decision, held)


def _bounded(
    pod: Document, resource: Resource, own: dict[str, int] | None, allocation: Document | None
) -> PodLimits:
    """What was decided for a pod, and between which bounds: a limit stays above the request, and a
    request between the user's own and the limit."""
    spec = cpu_pods.asked(pod, resource)
    own = own or spec
    rows, floors, tops = None, dict[str, int](), own
    if allocation is not None:
        parts = allocation["spec"]["containers"]
        rows = {row["name"]: row[FIELDS[resource]] for row in parts}
        floors = cpu_pods.floors(pod)
        if resource == REQUESTS:
            floors, tops = own, cpu_pods.ceilings(pod, own)
    return PodLimits(
        spec,
        cpu_pods.in_force(pod, resource),
        own,
        floors,
        rows,
        cpu_pods.resize_state(pod, resource),
        ends="deletionTimestamp" in pod["metadata"],
        refused=allocation is not None and _is_final(allocation),
        tops=tops,
    )


def _is_final(allocation: Document) -> bool:
    """Whether this very decision was refused."""
    for row in allocation.get("status", {}).get("conditions") or ():
        if row["type"] == "Applied":
            seen = row.get("observedGeneration") == allocation["metadata"]["generation"]
            return seen and row["reason"] in FINAL
    return False


def _capacities(allocations: dict[Key, Document]) -> dict[str, int]:
    """By `_scope`."""
    rows = [(document["spec"], _resource(document)) for document in allocations.values()]
    return newest_capacities(
        (_scope(spec["node"], resource), spec["decision"], spec["capacityMillicores"])
        for spec, resource in rows
    )


def _scope(node: str, resource: Resource) -> str:
    return f"{node} {resource}"


def _verdict(case: _Case, allocation: Document, wait: ResizeWait | None) -> Verdict:
    if case.state in (ResizeState.INFEASIBLE, ResizeState.DEFERRED):
        return case.state.value.title(), _pending(case.pod)
    if _is_final(allocation):
        (row,) = allocation["status"]["conditions"]
        return row["reason"], row["message"]
    if wait is ResizeWait.ROOM:
        return wait.value, "other pods of the node have not given up their part yet"
    if case.state is ResizeState.SETTLED and not case.resize.differs:
        return "Applied", "limits stay at the requests" if case.held else ""
    return ResizeWait.IN_PROGRESS.value, ""


def _pending(pod: Document) -> str:
    rows = pod["status"].get("conditions") or ()
    found = [row.get("message", "") for row in rows if row["type"] == "PodResizePending"]
    return found[0] if found else ""


def _mark(case: _Case) -> Document:
    """Written before the resize: the user's own resources, once; the decision; what may still come
    into force."""
    meta, resize = case.pod["metadata"], case.resize
    settled = resize.state is ResizeState.SETTLED
    first = not resize.adopted or (resize.newcomer and not settled)
    mark = PodResize(case.decision, resize.ceilings, first, case.resource)
    annotations = {RESIZE: mark.text()}
    if cpu_pods.originals(case.pod, case.resource) is None:
        annotations[ORIGINAL] = cpu_pods.original_text(case.pod)
    named = {name: meta[name] for name in ("uid", "resourceVersion")}
    return {"metadata": {**named, "labels": {GOVERNED: "true"}, "annotations": annotations}}
