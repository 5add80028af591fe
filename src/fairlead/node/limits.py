"""Puts limits in force below the agent's root, and the user's own back.

The original quotas are kept as the kernel wrote them, to the microsecond, from first sight until
they are restored or their container is gone: `restore` promises to put back exactly what was found.
"""

import errno
from collections.abc import Iterable

import msgspec

from fairlead.core.cpu import PodSighting
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
    """A `CpuActuator` over real cgroups."""

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


class Original(msgspec.Struct, frozen=True):
    """One container's own limit and which pod (by identity) it belonged to."""

    pod: str
    container: str
    identity: str
    quota: Quota


class Originals:
    """Original quotas by (pod, container), frozen at first sight and durable before any write."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        stored = (directory.read(ORIGINALS) or {}).get("containers", [])
        try:
            kept = convert(stored, list[Original])
        except msgspec.ValidationError as error:
            raise PermanentFault(f"the original limits are damaged: {error}") from error
        self._kept = {(original.pod, original.container): original for original in kept}

    def __len__(self) -> int:
        return len(self._kept)

    def freeze(self, sightings: Iterable[PodSighting], files: CgroupFiles) -> list[PodSighting]:
        """Keep the quota of every container seen for the first time; forget those that went. One
        that is opted out is not frozen, but its limit may still be one of ours; so may that of a
        pod that another pattern found. Returns the pods with their users' own limits."""
        present: dict[tuple[str, str], Original] = {}
        changed, known_pods = False, list[PodSighting]()
        for sighting in sightings:
            for container in sighting.containers:
                key = (sighting.uid, container.name)
                known = self._kept.get(key)
                if known is None or known.identity != sighting.identity:
                    quota = None if sighting.opted_out else _read(files, *key)
                    if quota is None:
                        continue
                    known, changed = Original(*key, sighting.identity, quota), True
                present[key] = known
            found = (present.get((sighting.uid, seen.name)) for seen in sighting.containers)
            limits = {row.container: row.quota.millicores for row in found if row is not None}
            known_pods.append(sighting._replace(originals=limits))
        for key in self._kept.keys() - present.keys():
            if identity_of(files, key[0]) == self._kept[key].identity and _read(files, *key):
                present[key] = self._kept[key]
        if changed or present.keys() != self._kept.keys():
            self._kept = present
            self._store()
        return known_pods

    def _store(self) -> None:
        kept = [self._kept[key] for key in sorted(self._kept)]
        self._directory.replace(ORIGINALS, {"version": 1, "containers": kept})

    def restore(self, files: CgroupFiles) -> tuple[list[str], list[str]]:
        """Put every original back, decreases first; returns what was restored and what failed."""

        def rises(key: tuple[str, str]) -> bool:
            now, then = _read(files, *key), self._kept[key].quota.millicores
            return then is None or (now is not None and (now.millicores or 0) < then)

        restored, failed = [], []
        for key in sorted(self._kept, key=lambda key: (rises(key), key)):
            path = container_path(*key)
            try:
                files.set_quota(path, self._kept[key].quota)
                restored.append(path)
            except OSError as error:
                fault = _fault(path, error)
                if not isinstance(fault, Gone):
                    failed.append(str(fault))
                    continue
            del self._kept[key]
        self._store()
        return restored, failed


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
