"""The limits as the user had set them, kept from first sight until they are restored or gone."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from fairlead.node.actuator import CgroupActuator
from fairlead.node.cgroups import CgroupFiles
from fairlead.node.kernel_files import Quota
from fairlead.node.sensor import container_path
from fairlead.node.state import ORIGINALS, StateDirectory, quota_from_json, quota_to_json
from fairlead.ports.cpu import Gone, Sighting
from fairlead.ports.faults import Fault


class Original(NamedTuple):
    """One container's own limit and which pod (by identity) it belonged to."""

    identity: str
    quota: Quota


class Originals:
    """Original quotas by (pod, container), frozen at first sight and durable before any write."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._kept: dict[tuple[str, str], Original] = {}
        stored = directory.read(ORIGINALS)
        for entry in (stored or {}).get("containers", []):
            key = (entry["pod"], entry["container"])
            self._kept[key] = Original(entry["identity"], quota_from_json(entry["quota"]))

    def __len__(self) -> int:
        return len(self._kept)

    def freeze(self, sightings: Iterable[Sighting], files: CgroupFiles) -> None:
        """Keep the quota of every container seen for the first time; forget those that went."""
        present: dict[tuple[str, str], Original] = {}
        changed = False
        for sighting in sightings:
            if sighting.opted_out:
                continue
            for container in sighting.containers:
                key = (sighting.uid, container.name)
                known = self._kept.get(key)
                if known is None or known.identity != sighting.identity:
                    quota = _read(files, *key)
                    if quota is None:
                        continue
                    known, changed = Original(sighting.identity, quota), True
                present[key] = known
        if changed or present.keys() != self._kept.keys():
            self._kept = present
            self._store()

    def _store(self) -> None:
        entries = [
            {
                "pod": pod,
                "container": container,
                "identity": original.identity,
                "quota": quota_to_json(original.quota),
            }
            for (pod, container), original in sorted(self._kept.items())
        ]
        self._directory.replace(ORIGINALS, {"version": 1, "containers": entries})

    def restore(self, files: CgroupFiles) -> tuple[list[str], list[str]]:
        """Put every original back, decreases first; returns what was restored and what failed."""
        actuator = CgroupActuator(files)
        restored, failed, kept = [], [], dict(self._kept)
        for (pod, container), original in sorted(self._kept.items(), key=_falling_first(files)):
            path = container_path(pod, container)
            try:
                actuator.put_back(pod, container, original.quota)
                restored.append(path)
            except Gone:
                pass
            except Fault as fault:
                failed.append(str(fault))
                continue
            del kept[pod, container]
        self._kept = kept
        self._store()
        return restored, failed


_Kept = tuple[tuple[str, str], Original]


def _falling_first(files: CgroupFiles) -> Callable[[_Kept], tuple[bool, str, str]]:
    def key(item: _Kept) -> tuple[bool, str, str]:
        (pod, container), original = item
        now, then = _read(files, pod, container), original.quota.millicores
        rises = then is None or (now is not None and (now.millicores or 0) < then)
        return rises, pod, container

    return key


def _read(files: CgroupFiles, pod: str, container: str) -> Quota | None:
    try:
        return files.quota(container_path(pod, container))
    except OSError:
        return None
