"""A kept copy of the API server's objects of one path, and what changed of them since last asked.

The copy is what the server said last; it may be behind. Nothing is decided on it: it says which
objects to look at, and what our own pods report.
"""

import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from sys import intern
from typing import NamedTuple

import msgspec

from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient, decode
from fairlead.ports.faults import Fault

BACKOFF_S, BACKOFF_MAX_S = 0.2, 10.0
GONE_MAX = 10_000
"""Objects that went since the last list, and are remembered by their names."""
LIKE_EVERY, LIKE_MAX, WINDOW_BITS = 500, 8_192, 13
"""Objects that are packed by what differs from one of them, how much of that one is used, and how
far back it is looked for: a few kilobytes, with little to set up."""


class Key(NamedTuple):
    """An object of one kind; cluster-wide ones have no namespace."""

    namespace: str
    name: str


def key_of(document: Document) -> Key:
    meta = document["metadata"]
    return Key(intern(meta.get("namespace", "")), intern(meta["name"]))


class Mirrored:
    """Lists and watches one path in a thread of its own; `wake` is called after each change."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        wake: Callable[[], None],
        *,
        selector: str = "",
        fields: str = "",
        packed: bool = False,
        shape: Callable[[Document], Document] = lambda document: document,
        gone: bool = False,
    ) -> None:
        """Of a kind with thousands of objects, either `packed`, where they are looked at now and
        then, or `shape`: what is kept of one, its name and version included. `gone`: what went away
        is kept for `take_gone`, which has to be called now and then."""
        self._client, self.path, self._wake = client, path, wake
        chosen = {"labelSelector": selector, "fieldSelector": fields}
        self._query = {name: value for name, value in chosen.items() if value}
        self._lock = threading.Lock()
        self._packed, self._shape, self._keeps_gone = packed, shape, gone
        self._like, self._like_count = b"", 0
        self._objects: dict[Key, _Kept] = {}
        self._changed: set[Key] = set()
        self._followers: list[set[Key]] = []
        self._seen = 0
        """The newest version that the server told us of."""
        self._listed = 0
        """The version of the last list: events up to it are in it."""
        self._deleted: dict[Key, int] = {}
        """Versions at which objects went since the last list; what is older of them is no news."""
        self._last: dict[Key, _Kept] = {}
        """Objects that are gone, as they were last, until they are taken."""
        self._synced, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)
        self.fault: str | None = None
        """Why it is behind."""
        self.lists = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It ends with its process; a watch that is silent is not waited for, and who waits for the
        first list goes on."""
        self._stop.set()
        self._synced.set()

    def wait(self, timeout_s: float) -> bool:
        """Until it was listed once, or is stopped; False where that takes longer."""
        return self._synced.wait(timeout_s)

    def get(self, key: Key) -> Document | None:
        with self._lock:
            kept = self._objects.get(key)
        return None if kept is None else kept.document()

    def same(self, key: Key) -> Key:
        """An equal one that others have, too: of thousands one each is enough."""
        kept = self._objects.get(key)
        return key if kept is None else kept.key

    def known(self) -> list[Key]:
        with self._lock:
            return list(self._objects)

    def all(self) -> dict[Key, Document]:
        with self._lock:
            kept = dict(self._objects)
        return {key: each.document() for key, each in kept.items()}

    def take_keys(self) -> set[Key]:
        """What changed since the last call, or is gone."""
        with self._lock:
            changed, self._changed = self._changed, set()
        return changed

    def follow(self) -> Callable[[], set[Key]]:
        """Another one that wants to know what changed since it last asked; at first, everything."""
        with self._lock:
            mine = set(self._objects)
            self._followers.append(mine)

        def take() -> set[Key]:
            with self._lock:
                taken = set(mine)
                mine.clear()
            return taken

        return take

    def take_changed(self) -> dict[Key, Document | None]:
        """What changed since the last call; None: it is gone."""
        return {key: self.get(key) for key in self.take_keys()}

    def take_gone(self) -> Mapping[Key, Document]:
        """What went away since the last call, as it was last; with `gone` only."""
        with self._lock:
            last, self._last = self._last, {}
        return {key: each.document() for key, each in last.items()}

    def refresh(self) -> None:
        """Know everything that the server knew when this was called, wherever the watch is."""
        self._list()

    def put(self, document: Document) -> None:
        """What the server answered to a write of ours: known before the watch tells it."""
        with self._lock:
            key = key_of(document)
            if key in self._objects or _version(document) > self._seen:  # else it is gone again
                self._put(key, document)

    def _follow(self) -> None:
        backoff_s = BACKOFF_S
        while not self._stop.is_set():
            try:
                version = self._list()
                backoff_s, self.fault = BACKOFF_S, None
                while not self._stop.is_set():
                    version = self._watch(version)
            except ApiError as error:
                if error.status == 410:
                    continue  # too old to go on from: list again, at once
                self.fault = error.message
            except Fault as fault:
                self.fault = str(fault)
            except MISREAD as error:
                # A thread that ended would leave us with what was, for ever.
                self.fault = f"misread: {error!r}"
            self._stop.wait(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def _list(self) -> str:
        items, version = self._client.list(self.path, **self._query)
        found = {key_of(item): item for item in items}
        with self._lock:
            self.lists, self._seen = self.lists + 1, max(self._seen, int(version))
            if int(version) >= self._listed:  # else a list that was asked for later was faster
                self._take_list(found, int(version))
        self._synced.set()
        self._wake()
        return version

    def _take_list(self, found: Mapping[Key, Document], version: int) -> None:
        """A write of ours, or the watch beside us, may have told what is newer than the list: what
        came after it is not gone, and what went after it does not come back."""
        self._listed = version
        self._deleted = {key: at for key, at in self._deleted.items() if at > version}
        for key in self._objects.keys() - found.keys():
            if self._objects[key].version <= version:
                self._drop(key)
        for key, item in found.items():
            self._put(key, item)

    def _watch(self, version: str) -> str:
        for event in self._client.watch(self.path, version, **self._query):
            item = event["object"]
            version = item["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            with self._lock:
                key, self._seen = key_of(item), max(self._seen, int(version))
                if int(version) <= self._listed:
                    continue  # it came late, or we listed meanwhile
                if event["type"] == "DELETED":
                    self._end(key, item)
                else:
                    self._put(key, item)
            self._wake()
        return version

    def _end(self, key: Key, item: Document) -> None:
        before, version = self._objects.get(key), _version(item)
        self._deleted[key] = max(version, self._deleted.pop(key, 0))
        if len(self._deleted) > GONE_MAX:  # of the oldest no write of ours is under way any more
            del self._deleted[next(iter(self._deleted))]
        if before is not None and before.version <= version:
            self._objects[key] = self._keep(before.key, item)
            self._drop(before.key)

    def _put(self, key: Key, item: Document) -> None:
        if self._deleted.get(key, 0) >= _version(item):
            return
        before = self._objects.get(key)
        if before is not None and before.version >= _version(item):
            return  # we know it already, or better: from a write of ours
        if before is not None and before.uid != item["metadata"]["uid"]:
            self._went(key, before)
        key = key if before is None else before.key
        self._objects[key] = self._keep(key, item)
        self._note(key)

    def _drop(self, key: Key) -> None:
        self._went(key, self._objects.pop(key))
        self._note(key)

    def _note(self, key: Key) -> None:
        self._changed.add(key)
        for follower in self._followers:
            follower.add(key)

    def _went(self, key: Key, last: "_Kept") -> None:
        if self._keeps_gone:
            self._last[key] = last
            if len(self._last) > GONE_MAX:  # a replica that does not lead takes none
                del self._last[next(iter(self._last))]

    def _keep(self, key: Key, item: Document) -> "_Kept":
        meta = item["metadata"]
        meta.pop("managedFields", None)  # who wrote which field: a third of an object
        uid = intern(meta["uid"])
        if not self._packed:
            return _Kept(key, _version(item), uid, self._shape(item))
        data = msgspec.json.encode(item)
        if self._like_count % LIKE_EVERY == 0:
            self._like = data[:LIKE_MAX]
        self._like_count += 1
        return _Kept(key, _version(item), uid, _packed(data, self._like), self._like)


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """An object as it was last told; packed, it takes a fiftieth of the memory."""

    key: Key
    """The same for all who ask for it: thousands of items are about these objects."""
    version: int
    uid: str
    content: Document | bytes
    like: bytes = b""
    """An object that many others are like: of a packed one, what differs from it is kept."""

    def document(self) -> Document:
        content = self.content
        if isinstance(content, bytes):
            unpack = zlib.decompressobj(-WINDOW_BITS, zdict=self.like)
            return dict(decode(unpack.decompress(content)))
        return content


def _packed(data: bytes, like: bytes) -> bytes:
    pack = zlib.compressobj(1, wbits=-WINDOW_BITS, memLevel=5, zdict=like)
    return pack.compress(data) + pack.flush()


def _version(item: Document) -> int:
    """Versions of one kind count upwards, says the API since 1.35; a gap in them means nothing."""
    return int(item["metadata"]["resourceVersion"])


@dataclass(frozen=True, slots=True)
class Sources:
    """The kept copies that the controller reads."""

    nodes: Mirrored
    namespaces: Mirrored
    bindings: Mirrored
    budgets: Mirrored
    runs: Mirrored
    reservations: Mirrored
    leases: Mirrored
    pods: Mirrored

    def of(self, kind: str) -> Mirrored:
        named = {"Budget": self.budgets, "Run": self.runs, "Reservation": self.reservations}
        return named[kind]

    def all(self) -> list[Mirrored]:
        return [getattr(self, field.name) for field in fields(self)]
