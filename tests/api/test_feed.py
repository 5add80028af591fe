"""Events for many readers: read once, in order, without what only their owner may see."""

import asyncio
import json
from typing import Any

from fairlead.api.feed import BATCH, KEPT, event_feed
from fairlead.engine.gpu import Author


def event(seq: int, *, owner: str = "team-a", reason: str | None = None) -> dict[str, Any]:
    message = "it failed" if reason is None else f"it failed: {reason}"
    body = {"exit_reason": reason, "message": message, "digest": "a secret's"}
    return {"seq": seq, "owner": owner, "message": message, "body": body}


class Source:
    """A ledger of so many events, which counts how often it is read."""

    def __init__(self, size: int, reason: str | None = None) -> None:
        self.size, self.reads, self._reason = size, 0, reason

    def read(self, after: int, limit: int) -> list[dict[str, Any]]:
        self.reads += 1
        numbers = range(after + 1, min(after + limit, self.size) + 1)
        return [event(number, reason=self._reason) for number in numbers]


def test_two_hundred_readers_at_one_entry_read_once() -> None:
    source = Source(5)
    feed = event_feed(source.read)

    async def follow() -> list[list[int]]:
        found = await asyncio.gather(*(feed.at(2) for _ in range(200)))
        return [[each.seq for each in batch] for batch in found]

    assert asyncio.run(follow()) == [[3, 4, 5]] * 200
    assert source.reads == 1


def test_nothing_new_is_not_kept() -> None:
    """A reader that asks before the next event must not be told later that there is none."""
    source = Source(5)
    feed = event_feed(source.read)

    async def follow() -> list[int]:
        assert await feed.at(5) == []
        source.size = 6
        return [each.seq for each in await feed.at(5)]

    assert asyncio.run(follow()) == [6]


def test_a_read_that_fails_fails_its_readers_alone() -> None:
    source = Source(5)

    def read(after: int, limit: int) -> list[dict[str, Any]]:
        if not source.reads:
            source.reads += 1
            raise OSError("busy")
        return source.read(after, limit)

    feed = event_feed(read)

    async def follow() -> list[int]:
        failed = await asyncio.gather(feed.at(0), feed.at(0), return_exceptions=True)
        assert [type(each) for each in failed] == [OSError, OSError]
        return [each.seq for each in await feed.at(0)]

    assert asyncio.run(follow()) == [1, 2, 3, 4, 5]


def test_a_reader_that_leaves_takes_nothing_from_the_others() -> None:
    feed = event_feed(Source(3).read)

    async def follow() -> int:
        first = asyncio.create_task(feed.at(0))
        second = asyncio.create_task(feed.at(0))
        await asyncio.sleep(0)
        first.cancel()
        return len(await second)

    assert asyncio.run(follow()) == 3


def test_memory_is_bounded_whatever_readers_ask_for() -> None:
    feed = event_feed(Source(100 * BATCH).read)

    async def follow() -> None:
        for after in range(0, 100 * BATCH, BATCH):
            assert len(await feed.at(after)) == BATCH
            assert len(feed.kept) <= KEPT

    asyncio.run(follow())


def test_only_an_owner_reads_why_its_command_failed() -> None:
    """One batch for all of them, and each gets its own text; no reader gets a token's digest."""
    feed = event_feed(Source(1, reason="no such file: /home/ada/train.py").read)
    (told,) = asyncio.run(feed.at(0))
    texts = {
        "owner": told.text(Author("ada", frozenset({"team-a"}))),
        "admin": told.text(Author("root", admin=True)),
        "other": told.text(Author("bob", frozenset({"team-b"}))),
    }
    assert b"train.py" in texts["owner"]
    assert texts["admin"] == texts["owner"]
    assert json.loads(texts["other"])["message"] == "it failed"
    assert b"train.py" not in texts["other"]
    assert not any(b"secret" in text for text in texts.values())
