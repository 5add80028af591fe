"""The ranks of a run, and pods that are read as such.

A run of fixed width has one rank for each node of its devices. A malleable one has one for each
node of each group: it gives up whole groups, and a pod keeps its devices until it ends.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from sys import intern

from fairlead.kube.client import Document
from fairlead.kube.kinds import GROUP, engine_name
from fairlead.ports.executor import Job

JOB, RANKS, LEASES = f"{GROUP}/job", f"{GROUP}/ranks", f"{GROUP}/leases"
SLOTS, MEMBERS = f"{GROUP}/slots", f"{GROUP}/members"
DECISION, RELEASED = f"{GROUP}/decision", f"{GROUP}/released"
RUN, RANK = f"{GROUP}/run", f"{GROUP}/rank"
GPU = "nvidia.com/gpu"
ENDED = ("Succeeded", "Failed")
_COUNT = re.compile("[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Rank:
    """One pod of a run: its number, its node, and its devices there."""

    number: int
    node: str
    slots: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class RankPod:
    """A pod of ours: which rank of which start it is."""

    job: str
    run: str
    rank: int
    ranks: int
    """Of how many, as it was told last."""
    document: Document

    @property
    def phase(self) -> str:
        return str(self.document.get("status", {}).get("phase", "Pending"))

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def leaving(self) -> bool:
        return "deletionTimestamp" in self.document["metadata"]

    @property
    def stopped(self) -> bool:
        """Whether it ended after it was asked to, or its status does not say when. Times are whole
        seconds: within one it counts as stopped."""
        meta, end_ms = self.document["metadata"], ended_ms(self.document)
        if end_ms is None or not self.leaving:
            return end_ms is None
        granted_s = int(meta.get("deletionGracePeriodSeconds", 0))
        return end_ms >= parse_ms(meta["deletionTimestamp"]) - 1000 * granted_s

    @property
    def begun(self) -> bool:
        """Whether its gate was lifted: then every rank that it was told of has existed."""
        return not self.document["spec"].get("schedulingGates")

    @property
    def released(self) -> bool:
        """Whether its devices are given up, while the run goes on."""
        return RELEASED in self.document["metadata"].get("annotations", {})

    @property
    def slots(self) -> tuple[str, ...]:
        named = self.document["metadata"].get("annotations", {}).get(SLOTS, "")
        return tuple(filter(None, named.split(",")))

    @property
    def members(self) -> Collection[int]:
        """The ranks that it was told of; their number is its user's to change: none is stored."""
        told = self.document["metadata"].get("annotations", {}).get(MEMBERS)
        if told is None:
            return range(self.ranks)
        return frozenset(int(rank) for rank in told.split(",") if _COUNT.fullmatch(rank))

    def leaving_within(self, grace_ms: int) -> bool:
        """Whether it was asked to end, and no later than it is asked to now."""
        granted = self.document["metadata"].get("deletionGracePeriodSeconds", 0)
        return self.leaving and granted <= grace_s(grace_ms)


def pod_name(run: str, rank: int) -> str:
    return f"{run}-{rank}"


def ranks_of(job: Job, pods: Iterable[RankPod] = ()) -> list[Rank]:
    """The ranks of a job on its present devices, by number.

    Of a malleable one, those that have a pod keep its number, and new ones get the lowest free.
    """
    if job.widths is None:
        return [Rank(number, *part) for number, part in enumerate(_by_node(job.devices))]
    kept = {
        frozenset(pod.slots): pod.rank for pod in pods if pod.job == job.id and not pod.released
    }
    group = job.widths.group_gpus
    parts = [
        part
        for first in range(0, len(job.devices), group)
        for part in _by_node(job.devices[first : first + group])
    ]
    numbers = [kept.get(frozenset(slots)) for _, slots in parts]
    free = (number for number in range(2 * len(parts)) if number not in numbers)
    found = [
        Rank(next(free) if number is None else number, *part)
        for number, part in zip(numbers, parts, strict=True)
    ]
    return sorted(found, key=lambda rank: rank.number)


def _by_node(devices: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """In the order of the leases."""
    nodes: dict[str, list[str]] = {}
    for slot in devices:
        nodes.setdefault(slot.partition("#")[0], []).append(slot)
    for node, slots in nodes.items():
        yield node, tuple(slots)


def lost_ranks(pods: Iterable[RankPod]) -> set[int]:
    """Ranks of a job that have begun and have no pod any more, as far as the others were told."""
    found = {pod.rank: pod for pod in pods}
    begun = [pod.members for pod in found.values() if pod.begun and not pod.released]
    fewest = min(begun, key=len, default=())
    return {rank for rank in fewest if rank not in found and all(rank in told for told in begun)}


def read_pod(document: Document) -> RankPod | None:
    """None for a pod that is not what we make: users can write our labels, in their namespaces."""
    meta = document["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    job, name = annotations.get(JOB, ""), labels.get(RUN, "")
    rank, ranks = labels.get(RANK, ""), annotations.get(RANKS, "")
    run = engine_name(meta["namespace"], name)
    if job.rsplit(".", 2)[0] != run or not (_COUNT.fullmatch(rank) and _COUNT.fullmatch(ranks)):
        return None
    if meta["name"] != pod_name(name, int(rank)):
        return None
    found = RankPod(job, run, int(rank), int(ranks), document)
    return found if found.released or found.rank in found.members else None


_META = (
    *("name", "namespace", "uid", "resourceVersion", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)


def kept_pod(document: Document) -> Document:
    """What is kept of a pod: what we read of it. A cluster has thousands, of 8 KB each."""
    meta, spec = document["metadata"], document.get("spec") or {}
    status = document.get("status") or {}
    kept: Document = {field: meta[field] for field in _META if field in meta}
    kept["labels"] = _ours(meta.get("labels"))
    kept["annotations"] = _ours(meta.get("annotations"))
    made: Document = {
        field: spec[field] for field in ("nodeName", "schedulingGates") if field in spec
    }
    for field in ("containers", "initContainers"):
        if asked := [_asks(container) for container in spec.get(field) or ()]:
            made[field] = _same(tuple(asked))
    shown = {field: status[field] for field in ("phase", "message", "reason") if field in status}
    containers = status.get("containerStatuses") or ()
    told = [row for row in map(_told, containers) if row]
    return {
        "metadata": kept,
        "spec": made,
        "status": {**shown, "containerStatuses": told} if told else shown,
    }


def _ours(texts: dict[str, str] | None) -> dict[str, str]:
    return {
        intern(key): intern(text)
        for key, text in (texts or {}).items()
        if key.startswith(GROUP) and isinstance(text, str)
    }


def _asks(container: Document) -> str | None:
    """GPUs, as they are written."""
    found = ((container.get("resources") or {}).get("limits") or {}).get(GPU)
    return None if found is None else str(found)


@lru_cache(1024)
def _same(asked: tuple[str | None, ...]) -> list[Document]:
    """One for all pods that ask for the same; it is not changed."""
    return [{} if gpus is None else {"resources": {"limits": {GPU: gpus}}} for gpus in asked]


def _told(status: Document) -> Document:
    """How a container ended, and which devices it has."""
    ended = (status.get("state") or {}).get("terminated")
    found: Document = {} if ended is None else {"state": {"terminated": ended}}
    devices = status.get("allocatedResourcesStatus")
    return found if not devices else {**found, "allocatedResourcesStatus": devices}


def grace_s(grace_ms: int) -> int:
    """At least a second: with none the server forgets the pod while it may still run."""
    return max(1, -(-grace_ms // 1000))


def exit_code(document: Document) -> int | None:
    codes = [state["exitCode"] for state in _terminated(document)]
    return next((code for code in codes if code), codes[0] if codes else None)


def ended_ms(document: Document) -> int | None:
    """None where it is not said, or is no time that Python has: in Go there is a year 0."""
    ends = [state["finishedAt"] for state in _terminated(document) if state.get("finishedAt")]
    try:
        return max(map(parse_ms, ends), default=None)
    except (ValueError, OverflowError):
        return None


def _terminated(document: Document) -> list[Document]:
    found = [
        status.get("state", {}).get("terminated")
        for status in document.get("status", {}).get("containerStatuses") or ()
    ]
    return [state for state in found if state]


def parse_ms(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)


def whole(quantity: str) -> int:
    """A quantity of Kubernetes that counts things: "8", "8k", "1e3". Raises `ValueError`."""
    found = re.fullmatch(r"([0-9]{1,18})(|k|M|[eE][0-9]|[eE]1[0-2])", quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is no number of devices")
    number, scale = found.groups()
    zeros = {"": 0, "k": 3, "M": 6}.get(scale)
    return int(number + "0" * (int(scale[1:]) if zeros is None else zeros))
