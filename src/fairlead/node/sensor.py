"""Sees pods in a cgroup tree: which there are, their containers, counters and limits.

A pod is a cgroup that matches the pattern. Its child cgroups are its containers; without any it is
its own only container, named "". Throttling is counted where the limit is, so containers are read
one by one: a pod's own cpu.stat stays at zero while its containers are throttled.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from fairlead.core.cpu import ContainerSighting, PodSighting
from fairlead.node.cgroups import CgroupFiles, ContainerFiles
from fairlead.schema.node import PodRule

_NO_RULE = PodRule(match="*")


@dataclass(slots=True)
class _Pod:
    """A pod under watch: its identity and its containers' open files."""

    identity: str
    started_ms: int
    rule: PodRule
    containers: dict[str, ContainerFiles | None]
    """None: its files cannot be opened yet."""

    def forget(self, name: str) -> None:
        files = self.containers.pop(name)
        if files is not None:
            files.close()

    def close(self) -> None:
        for name in list(self.containers):
            self.forget(name)


class CgroupSensor:
    """A `CpuSensor` over real cgroups. Keeps descriptors open between samples."""

    def __init__(
        self,
        files: CgroupFiles,
        pattern: str,
        rules: Sequence[PodRule] = (),
        *,
        discover_ms: int = 0,
    ) -> None:
        self._files, self._pattern, self._rules = files, pattern, rules
        # Looking for newcomers costs as much as reading a third of all counters.
        self._discover_ms = discover_ms
        self._discovered_ms: int | None = None
        self._pods: dict[str, _Pod] = {}
        self.guarantee: Callable[[str, int], int] = lambda _, weight: files.weights.millicores(
            weight
        )
        """The guarantee that a container's weight in force stands for, given its path, too."""
        self.first: Callable[[list[PodSighting]], list[PodSighting]] = lambda sightings: sightings
        """Is given each sample before the governor, and so the actuator, knows of its pods; returns
        it with what is known of them from before."""

    def sample(self, now_ms: int) -> list[PodSighting]:
        last = self._discovered_ms
        if last is None or now_ms < last or now_ms - last >= self._discover_ms:
            self._discovered_ms = now_ms
            self._discover(now_ms)
        # One whose containers could not be listed has no limit that is known, rather than none.
        seen = ((uid, pod) for uid, pod in sorted(self._pods.items()) if pod.containers)
        sightings = [self._sight(uid, pod) for uid, pod in seen]
        return self.first(sightings)

    def close(self) -> None:
        for pod in self._pods.values():
            pod.close()
        self._pods.clear()

    def _discover(self, now_ms: int) -> None:
        here = set(self._files.cpu.matching(self._pattern))
        for uid in sorted(self._pods.keys() - here):
            self._pods.pop(uid).close()
        for uid in sorted(here):
            try:
                self._refresh(uid, now_ms)
            except OSError:
                continue  # it went away while we looked: the next sample sees that

    def _refresh(self, uid: str, now_ms: int) -> None:
        with self._files.cpu.directory(uid) as descriptor:
            stat = os.fstat(descriptor)
        pod = self._pods.get(uid)
        identity = f"{_boot_id()}/{stat.st_ino}"
        if pod is None or pod.identity != identity:
            if pod is not None:
                pod.close()
            age_ms = max(0, int((time.time() - stat.st_ctime) * 1000))
            rules = (rule for rule in self._rules if fnmatchcase(uid, rule.match))
            rule = next(rules, _NO_RULE)
            pod = self._pods[uid] = _Pod(identity, now_ms - age_ms, rule, {})
        # The link count of a cgroup directory is 2 plus its children: no scan when it says none.
        names = self._files.cpu.containers(uid) if stat.st_nlink != 2 else []
        wanted = names or [""]
        for name in pod.containers.keys() - set(wanted):
            pod.forget(name)
        for name in wanted:
            if pod.containers.get(name) is None:
                pod.containers[name] = self._open(container_path(uid, name))

    def _open(self, path: str) -> ContainerFiles | None:
        try:
            return self._files.container(path)
        except OSError:  # not made yet in the other hierarchy, gone already, or no descriptor left
            return None

    def _sight(self, uid: str, pod: _Pod) -> PodSighting:
        containers = []
        for name in sorted(pod.containers):
            files = pod.containers[name]
            if files is None:
                containers.append(ContainerSighting(name, None, None))
                continue
            quota = files.quota()
            limit = None if quota is None else quota.millicores
            # A limit that cannot be read is not "unlimited": the whole reading is missing.
            counters = None if quota is None else files.counters()
            guarantee = None
            if self._files.with_weights:
                weight = files.weight()
                if weight is None:  # nor is a weight that cannot be read none at all
                    limit = counters = None
                else:
                    guarantee = self.guarantee(container_path(uid, name), weight)
            containers.append(ContainerSighting(name, limit, counters, guarantee))
        rule = pod.rule
        return PodSighting(
            uid,
            rule.request_millicores,
            tuple(containers),
            rule.priority,
            rule.opted_out,
            pod.started_ms,
            pod.identity,
            latency_target_ms=rule.latency_target_ms,
        )


@cache
def _boot_id() -> str:
    """Inode numbers of cgroups start again at every boot: only with its id they identify a pod."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identity_of(files: CgroupFiles, uid: str) -> str | None:
    """What tells a pod's cgroup from a later one of the same name; None: it is gone."""
    try:
        with files.cpu.directory(uid) as descriptor:
            return f"{_boot_id()}/{os.fstat(descriptor).st_ino}"
    except OSError:
        return None


def container_path(uid: str, container: str) -> str:
    return f"{uid}/{container}" if container else uid
