"""Where everything of the plane lives, and how its documents are replaced."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.dataplane.envoy import deadman
from fairlead.dataplane.names import tame
from fairlead.ports.faults import PermanentFault

Document = dict[str, Any]

# Envoy takes an inotify instance for every file: listeners, clusters and runtime, and for each
# group three files of endpoints and a route.
_WATCHES, _GROUP_WATCHES = 3, 4
_WATCHES_OF_OTHERS = 16  # processes of the same user
_WATCHES_MAX = Path("/proc/sys/fs/inotify/max_user_instances")
_FOLDER_BYTES_MAX = 90  # a socket's path has 107


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything of the plane lives."""

    folder: Path

    def __post_init__(self) -> None:
        if len(str(self.folder).encode()) > _FOLDER_BYTES_MAX:
            raise PermanentFault(f"folder: too long for a socket's path: {self.folder}")

    @property
    def bootstrap(self) -> Path:
        """What Envoy is started with."""
        return self.folder / "bootstrap.json"

    @property
    def listeners(self) -> Path:
        """The groups' addresses."""
        return self.folder / "listeners.json"

    @property
    def clusters(self) -> Path:
        """Three per group."""
        return self.folder / "clusters.json"

    @property
    def runtime(self) -> Path:
        """Which clusters look at what is inside their backends."""
        return self.folder / "runtime.json"

    @property
    def admin(self) -> Path:
        """The socket of Envoy's admin interface."""
        return self.folder / "admin.sock"

    @property
    def log(self) -> Path:
        """A line per request, for latencies."""
        return self.folder / deadman.LOG

    @property
    def said(self) -> Path:
        """Envoy's own log."""
        return self.folder / "envoy.log"

    @property
    def schema(self) -> Path:
        """The version of all this."""
        return self.folder / "schema"

    def ours(self) -> list[Path]:
        """All that may be there, folders last; the folder may be somebody else's too."""
        names = (deadman.BEAT, deadman.ALONE, deadman.LOCK, deadman.LIFE)
        single = [
            self.bootstrap,
            self.listeners,
            self.clusters,
            self.runtime,
            self.admin,
            self.log,
            self.said,
            self.schema,
            *(self.folder / name for name in names),
        ]
        drafts = [path.with_name(path.name + ".draft") for path in single]
        return [*single, *drafts, self.folder / deadman.ROUTES, self.folder / "endpoints"]

    def route(self, group: str, kind: str = deadman.ROUTE_NOW) -> Path:
        """A group's route: in place, of the active table, or for a dead agent."""
        return self.folder / deadman.ROUTES / f"{tame(group)}{kind}"

    def endpoints(self, cluster: str) -> Path:
        """A cluster's endpoints and their weights."""
        return self.folder / "endpoints" / f"{cluster}.json"


def check_watches(groups: int) -> None:
    """Refuse more groups than Envoy can watch files for: it would end itself instead."""
    needed = _WATCHES + _GROUP_WATCHES * groups
    limit = int(_WATCHES_MAX.read_text()) if _WATCHES_MAX.exists() else None
    if limit is not None and needed > limit - _WATCHES_OF_OTHERS:
        raise PermanentFault(
            f"groups: {groups} groups need {needed} inotify instances and {_WATCHES_OF_OTHERS}"
            f" to spare; fs.inotify.max_user_instances is {limit}"
        )


def version() -> str:
    """A name that no earlier document has."""
    return f"{time.monotonic_ns():x}"


def write(path: Path, document: Document) -> None:
    """Replace a document: Envoy takes it up whole."""
    replace(path, json.dumps(document, sort_keys=True))


def replace(path: Path, text: str) -> None:
    """Put a new version in place, whole: a full disk leaves the old one."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    os.replace(draft, path)


def read(path: Path) -> Document | None:
    """A document; None when it is not there. Nobody waits for the disk when they are written, so
    the machine's sudden end may leave an empty one: that is not there either."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("resources") is not None else None


def resources(path: Path) -> list[Document]:
    """What a document holds; nothing when it is not there."""
    found = read(path)
    return list(found["resources"]) if found else []
