"""One watch on the workloads of either side: when each was created, admitted, finished.

As Kueue's own recorder does: the time is ours, when the event arrives.
"""

import contextlib
import http.client
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

import msgspec

from fairlead.kube.client import Connection


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    resourceVersion: str = ""  # noqa: N815 - the API's name


class _Object(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Object


@dataclass(slots=True)
class Seen:
    """What was seen of one workload, in seconds of the monotonic clock."""

    of: str
    created_s: float
    admitted_s: float | None = None
    finished_s: float | None = None


@dataclass(slots=True)
class Observer:
    """Follows the objects of `path` in a thread of its own until `stop`."""

    to: Connection
    path: str
    class_label: str
    finished: str
    """The condition that says so: `Finished` of Kueue's, `Completed` of ours."""
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    events: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def counts(self) -> tuple[int, int, int]:
        """Created, admitted, finished."""
        rows = list(self.seen.values())
        admitted = sum(row.admitted_s is not None for row in rows)
        return len(rows), admitted, sum(row.finished_s is not None for row in rows)

    def _follow(self) -> None:
        version = "0"
        while not self._stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                version = self._watch(version)
            self._stop.wait(0.05)  # a watch that was cut is not begun again at once

    def _watch(self, version: str) -> str:
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        made = http.client.HTTPSConnection(
            self.to.host, self.to.port, timeout=600, context=self.to.tls
        )
        decoder = msgspec.json.Decoder(_Event)
        with contextlib.closing(made):
            made.request("GET", f"{self.path}?{urlencode(query)}")
            response = made.getresponse()
            if response.status != 200:
                return version  # a kind that was just made is served a moment later
            while not self._stop.is_set() and (line := response.readline()):
                now = time.monotonic()
                event = decoder.decode(line)
                version = event.object.metadata.resourceVersion
                if event.type in ("ADDED", "MODIFIED"):
                    self.events += 1
                    self._note(event.object, now)
        return version

    def _note(self, document: _Object, now: float) -> None:
        meta = document.metadata
        key = (meta.namespace, meta.name)
        row = self.seen.get(key)
        if row is None:
            row = self.seen[key] = Seen(meta.labels.get(self.class_label, ""), now)
        held: Mapping[str, str] = {each.type: each.status for each in document.status.conditions}
        if row.admitted_s is None and held.get("Admitted") == "True":
            row.admitted_s = now
        if row.finished_s is None and held.get(self.finished) == "True":
            row.finished_s = now
