"""Sees the pods of a Kubernetes node: which there are by its API, their counters by their cgroups.

    <root>/kubepods/burstable/pod<uid>/<container>                               driver cgroupfs
    <root>/kubepods.slice/kubepods-burstable.slice/
        kubepods-burstable-pod<uid with _>.slice/<runtime>-<container>.scope     driver systemd

Only pods of the class Burstable are read: the limits of the others are left alone, and what they
take is in their specs. The kernel's limit is the one in force, whatever the API says meanwhile; a
guarantee is the request that the kubelet says is in force, from which it makes the weight.
"""

from contextlib import suppress
from operator import attrgetter

from fairlead.core.cpu import ContainerSighting, PodSighting
from fairlead.node.cgroups import CgroupFiles, CgroupTree, ContainerFiles
from fairlead.ports.cpu import KnownContainer, KnownPod, PodRoster

_Containers = dict[str, tuple[str, ContainerFiles]]
"""By name: the container's id and its open files."""


class PodSensor:
    """A `CpuSensor` over the cgroups of a kubelet. Keeps descriptors open between samples."""

    def __init__(self, files: CgroupFiles, roster: PodRoster) -> None:
        self._files, self._roster = files, roster
        self._open: dict[str, _Containers] = {}
        """By the pod's uid."""

    def sample(self, now_ms: int) -> list[PodSighting]:
        pods = self._roster.pods()
        for uid in self._open.keys() - {pod.uid for pod in pods if not pod.opted_out}:
            self._forget(uid)
        governed = [pod for pod in pods if not pod.opted_out]
        folders = self._folders(governed)
        sightings = [_left_alone(pod) for pod in pods if pod.opted_out]
        sightings += [self._sight(pod, folders.get(pod.uid)) for pod in governed]
        return sorted(sightings, key=attrgetter("uid"))

    def close(self) -> None:
        for uid in list(self._open):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        for _, files in self._open.pop(uid).values():
            files.close()

    def _folders(self, pods: list[KnownPod]) -> dict[str, str]:
        """The cgroups of pods that have containers which are not open yet."""
        missing = {
            pod.uid
            for pod in pods
            for container in pod.containers
            if container.cgroup and self._id(pod.uid, container.name) != container.cgroup
        }
        if not missing:
            return {}
        return {uid: path for uid, path in pod_cgroups(self._files.cpu).items() if uid in missing}

    def _id(self, uid: str, container: str) -> str | None:
        known = self._open.get(uid, {}).get(container)
        return known[0] if known else None

    def _sight(self, pod: KnownPod, folder: str | None) -> PodSighting:
        first = pod.uid not in self._open
        open_files = self._open.setdefault(pod.uid, {})
        seen = []
        for container in pod.containers:
            self._refresh(open_files, container, folder)
            limit, counters = None, None
            if container.name in open_files:
                files = open_files[container.name][1]
                quota = files.quota()
                limit = None if quota is None else quota.millicores
                # A limit that cannot be read is not "unlimited": the whole reading is missing.
                counters = None if quota is None else files.counters()
            # At first sight the governor freezes the user's own limit, not what we made of it.
            if first and counters is not None and container.original_millicores is not None:
                limit = container.original_millicores
            guarantee = container.guarantee_millicores
            seen.append(ContainerSighting(container.name, limit, counters, guarantee))
        if first and any(container.is_unread for container in seen):
            self._forget(pod.uid)
        return _sighting(pod, tuple(seen))

    def _refresh(
        self, open_files: _Containers, container: KnownContainer, folder: str | None
    ) -> None:
        known = open_files.get(container.name)
        if known is not None and known[0] == container.cgroup:
            return
        if known is not None:
            open_files.pop(container.name)[1].close()
        if folder is None or container.cgroup is None:
            return
        with suppress(OSError):  # not made yet, or gone already: unread
            for name in self._files.cpu.children(folder):
                if container_of(name) == container.cgroup:
                    files = self._files.container(f"{folder}/{name}")
                    open_files[container.name] = (container.cgroup, files)


def _left_alone(pod: KnownPod) -> PodSighting:
    seen = tuple(ContainerSighting(c.name, c.limit_millicores, None) for c in pod.containers)
    return _sighting(pod, seen)


def _sighting(pod: KnownPod, seen: tuple[ContainerSighting, ...]) -> PodSighting:
    return PodSighting(
        pod.name,
        pod.request_millicores,
        tuple(sorted(seen, key=attrgetter("name"))),
        pod.priority,
        pod.opted_out,
        pod.started_ms,
        pod.uid,
    )


def pod_cgroups(tree: CgroupTree) -> dict[str, str]:
    """The cgroups of Burstable pods below a root by the pods' uids."""
    found: dict[str, str] = {}
    for top in _children(tree, ""):
        if not (top == "kubepods" or f"-{top}".endswith("-kubepods.slice")):
            continue
        for group in _children(tree, top):
            if group == "burstable" or group.endswith("-burstable.slice"):
                path = f"{top}/{group}"
                pods = ((pod_of(name), name) for name in _children(tree, path))
                found |= {uid: f"{path}/{name}" for uid, name in pods if uid is not None}
    return found


def _children(tree: CgroupTree, path: str) -> list[str]:
    try:
        return tree.children(path)
    except OSError:
        return []


def pod_of(name: str) -> str | None:
    """The uid of the pod whose cgroup has this name."""
    if name.endswith(".slice"):
        _, marker, uid = name.removesuffix(".slice").rpartition("-pod")
        return uid.replace("_", "-") if marker else None
    return name.removeprefix("pod") if name.startswith("pod") else None


def container_of(name: str) -> str:
    """The id of the container whose cgroup has this name."""
    return name.removesuffix(".scope").rpartition("-")[2] if name.endswith(".scope") else name
