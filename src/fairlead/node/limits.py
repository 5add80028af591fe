"""Puts limits and guarantees in force below the agent's root, and the user's own back.

The original quotas and weights are kept as the kernel wrote them, from first sight until they are
restored or their container is gone: `restore` promises to put back exactly what was found.
"""

import errno
from collections.abc import Iterable

import msgspec

from fairlead.core.cpu import Actuation, PodSighting
from fairlead.core.invariant import require
from fairlead.node.cgroups import CgroupFiles, quota_for
from fairlead.node.kernel_files import Quota
from fairlead.node.sensor import container_path, identity_of
from fairlead.node.state import ORIGINALS, StateDirectory
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.schema.convert import convert

_PASSING = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ENOMEM}


class CgroupActuator:
    """A `CpuActuator` over real cgroups: writes limits."""

    def __init__(self, files: CgroupFiles, *, burst: bool = True) -> None:
        self._files, self._burst = files, burst

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Limit one container, keeping its period where the grant allows; reads the limit back."""
        require(decision >= 0, "a limit is written for a recorded decision")
        path = container_path(uid, container)
        try:
            quota = self._files.quota(path)
            if quota is not None:
                wanted = quota_for(millicores, quota.period_us, burst=self._burst)
                self._files.set_quota(path, wanted)
                quota = self._files.quota(path)
        except OSError as error:
            raise _fault(path, error) from error
        if quota is None or quota.millicores is None:
            raise TemporaryFault(f"{path}: limit unreadable")
        return quota.millicores


class Guarantees:
    """A `CpuActuator` over real cgroups that writes weights, and a `LimitActuator` beside it."""

    def __init__(self, files: CgroupFiles, limits: CgroupActuator, originals: "Originals") -> None:
        self._files, self._limits, self._originals = files, limits, originals
        self._asked: dict[str, tuple[int, int]] = {}
        """By path: the last weight written, and the guarantee that it stands for. v2 rounds."""

    def millicores(self, path: str, weight: int) -> int:
        """The guarantee that a weight in force stands for."""
        asked = self._asked.get(path)
        if asked is None or asked[0] != weight:
            return self._files.weights.millicores(weight)
        return asked[1]

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Guarantee one container this much: its weight among the containers of its pod, and the
        pod's weight, the sum of theirs, among the pods."""
        require(decision >= 0, "a guarantee is written for a recorded decision")
        path, weight = container_path(uid, container), self._files.weights.weight(millicores)
        try:
            self._files.set_weight(path, weight)
            if container:
                self._files.set_weight(uid, self._weight_of_pod(uid))
            if self._files.weight(path) != weight:
                raise TemporaryFault(f"{path}: weight unreadable")
        except OSError as error:
            raise _fault(path, error) from error
        self._asked[path] = (weight, millicores)
        return millicores

    def _weight_of_pod(self, uid: str) -> int:
        names = self._files.cpu.containers(uid)
        weights = [self._files.weight(container_path(uid, name)) or 0 for name in names]
        return min(sum(weights), self._files.weights.most)

    def contain(
        self, decision: int, uid: str, container: str, limit_millicores: int | None
    ) -> None:
        if limit_millicores is not None:
            self._limits.write(decision, uid, container, limit_millicores)
            return
        own = self._originals.quota(uid, container)
        if own is not None:
            try:
                self._files.set_quota(container_path(uid, container), own)
            except OSError as error:
                raise _fault(container_path(uid, container), error) from error


class Original(msgspec.Struct, frozen=True):
    """What was found on one container, and which pod (by identity) it belonged to. Of the cgroup
    above several containers only the weight is ever written, and kept."""

    pod: str
    container: str
    identity: str
    quota: Quota | None
    weight: int | None = None


class Originals:
    """Original quotas and weights by (pod, container), frozen at first sight and durable before any
    write."""

    def __init__(self, directory: StateDirectory, actuate: Actuation = Actuation.LIMITS) -> None:
        self._directory, self._weights = directory, actuate is not Actuation.LIMITS
        self._actuate = actuate
        stored = directory.read(ORIGINALS) or {}
        self._written_by = stored.get("actuate", Actuation.LIMITS.value)
        try:
            kept = convert(stored.get("containers", []), list[Original])
        except msgspec.ValidationError as error:
            raise PermanentFault(f"the original limits are damaged: {error}") from error
        self._kept = {(original.pod, original.container): original for original in kept}

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, files: CgroupFiles) -> None:
        """Put everything back where the agent before this one governed by other means: what it
        wrote is none of ours."""
        if self._kept and self._written_by != self._actuate.value:
            self.restore(files)

    def quota(self, uid: str, container: str) -> Quota | None:
        known = self._kept.get((uid, container))
        return None if known is None else known.quota

    def freeze(self, sightings: Iterable[PodSighting], files: CgroupFiles) -> list[PodSighting]:
        """Keep the quota of every container seen for the first time; forget those that went. One
        that is opted out is not frozen, but its limit may still be one of ours; so may that of a
        pod that another pattern found. Returns the pods with their users' own limits."""
        present: dict[tuple[str, str], Original] = {}
        changed, known_pods = False, list[PodSighting]()
        for sighting in sightings:
            for name in self._names(sighting):
                key = (sighting.uid, name)
                known = self._kept.get(key)
                if known is None or known.identity != sighting.identity:
                    found = None if sighting.opted_out else self._find(files, sighting, name)
                    if found is None:
                        continue
                    known, changed = found, True
                present[key] = known
            rows = (present.get((sighting.uid, seen.name)) for seen in sighting.containers)
            limits = {row.container: row.quota.millicores for row in rows if row and row.quota}
            known_pods.append(sighting._replace(originals=limits))
        for key in self._kept.keys() - present.keys():
            if identity_of(files, key[0]) == self._kept[key].identity and _read(files, *key):
                present[key] = self._kept[key]
        if changed or present.keys() != self._kept.keys():
            self._kept = present
            self._store()
        return known_pods

    def _names(self, sighting: PodSighting) -> list[str]:
        names = [container.name for container in sighting.containers]
        return [*names, ""] if self._weights and "" not in names else names

    def _find(self, files: CgroupFiles, sighting: PodSighting, name: str) -> Original | None:
        quota = _read(files, sighting.uid, name)
        if quota is None:
            return None
        above = not any(container.name == name for container in sighting.containers)
        weight = _read_weight(files, sighting.uid, name) if self._weights else None
        if self._weights and weight is None:
            return None
        kept = None if above else quota
        return Original(sighting.uid, name, sighting.identity, kept, weight)

    def _store(self) -> None:
        kept = [self._kept[key] for key in sorted(self._kept)]
        document = {"version": 1, "actuate": self._actuate.value, "containers": kept}
        self._directory.replace(ORIGINALS, document)

    def restore(self, files: CgroupFiles) -> tuple[list[str], list[str]]:
        """Put every original back, decreases first; returns what was restored and what failed."""

        def rises(key: tuple[str, str]) -> bool:
            now, own = _read(files, *key), self._kept[key].quota
            then = None if own is None else own.millicores
            return then is None or (now is not None and (now.millicores or 0) < then)

        restored, failed = [], []
        for key in sorted(self._kept, key=lambda key: (rises(key), key)):
            path, own = container_path(*key), self._kept[key]
            try:
                if own.quota is not None:
                    files.set_quota(path, own.quota)
                if own.weight is not None:
                    files.set_weight(path, own.weight)
                restored.append(path)
            except OSError as error:
                fault = _fault(path, error)
                if not isinstance(fault, Gone):
                    failed.append(str(fault))
                    continue
            del self._kept[key]
        self._store()
        return restored, failed


def _read_weight(files: CgroupFiles, pod: str, container: str) -> int | None:
    try:
        return files.weight(container_path(pod, container))
    except OSError:
        return None


def _read(files: CgroupFiles, pod: str, container: str) -> Quota | None:
    try:
        return files.quota(container_path(pod, container))
    except OSError:
        return None


def _fault(path: str, error: OSError) -> Fault:
    text = f"{path}: {error.strerror or error}"
    if error.errno in (errno.ENOENT, errno.ENODEV):
        return Gone(text)
    if error.errno in _PASSING:
        return TemporaryFault(text)
    return PermanentFault(text)
