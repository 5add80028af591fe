"""Events and reports for many readers: read and encoded once for all who are at the same place.

All readers that follow live are told of the same events at the same moment. Two hundred that each
read the ledger would keep it from writing.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool

from fairlead.api.fleet_history import Kind
from fairlead.engine.gpu import Author

BATCH = 200
KEPT = 16
"""Batches in memory: readers are a little behind each other."""
Document = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
_ALL, _ANYBODY = Author("feed", admin=True), Author("feed")


class FeedEvent(NamedTuple):
    """One event as text: for its owner, and for other readers."""

    seq: int
    owner: str
    own: bytes
    public: bytes

    def text(self, author: Author) -> bytes:
        if self.own is self.public or author.may_act_for(self.owner):
            return self.own
        return self.public


class ReportPlace(NamedTuple):
    """What a reader of reports follows, and the last change that it heard of."""

    kind: Kind | None
    name: str | None
    version: int


class ReportLine(NamedTuple):
    """A node or group as text; the last one of a read is empty and says how far it went."""

    version: int
    text: bytes


class SharedReads(Generic[Key, Item]):
    """What readers at one place get next, read once for all of them. `keep`: also for those who
    come later. A read that found nothing is not kept: the next one may find something."""

    def __init__(self, read: Callable[[Key], list[Item]], *, keep: bool) -> None:
        self._read, self._keep = read, keep
        self.kept: dict[Key, asyncio.Task[list[Item]]] = {}

    async def at(self, key: Key) -> list[Item]:
        task = self.kept.get(key)
        if task is None:
            task = asyncio.create_task(run_in_threadpool(self._read, key))
            self.kept[key] = task
            task.add_done_callback(lambda done: self._settle(key, done))
            while len(self.kept) > KEPT:
                del self.kept[next(iter(self.kept))]
        return await asyncio.shield(task)  # a reader that leaves does not take it from the others

    def _settle(self, key: Key, done: "asyncio.Task[list[Item]]") -> None:
        failed = done.cancelled() or done.exception() is not None
        if (failed or not self._keep or not done.result()) and self.kept.get(key) is done:
            del self.kept[key]


def event_feed(read: Callable[[int, int], list[Document]]) -> SharedReads[int, FeedEvent]:
    """At most `BATCH` events after an entry. One event follows another for good, so what is kept is
    never wrong; it may be short."""
    return SharedReads(lambda seq: [encoded(event) for event in read(seq, BATCH)], keep=True)


def encoded(event: Document) -> FeedEvent:
    """For its owner first: what the others do not see is taken off afterwards."""
    seq, owner = event["seq"], event["owner"] or ""
    own = msgspec.json.encode(visible_event(event, _ALL))
    if event["body"].get("exit_reason") is None:
        return FeedEvent(seq, owner, own, own)
    return FeedEvent(seq, owner, own, msgspec.json.encode(visible_event(event, _ANYBODY)))


def visible_event(event: Document, author: Author) -> Document:
    """An event without token digests, and without what only its owner may see."""
    body, reason = event["body"], event["body"].get("exit_reason")
    body.pop("digest", None)
    if reason is not None and not author.may_act_for(event["owner"] or ""):
        event["message"] = body["message"] = redact(event["message"], reason)
        body["exit_reason"] = None
    return event


def redact(message: str, exit_reason: str | None) -> str:
    """Remove why a command did not start: it names the program, files and variables."""
    return message if exit_reason is None else message.removesuffix(f": {exit_reason}")
