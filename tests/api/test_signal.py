"""The bell: one call for the loop for each piece of news, however slow the loop is."""

import asyncio
import threading

from fairlead.api.service import GATHER_S, LANES, GrowthSignal


def test_a_loop_that_is_busy_is_not_rung_again_and_again() -> None:
    """Who waits for news beyond the bell's number sees it as soon as it has rung: else it would
    ring until the loop's pipe is full, and the signal that ends the server would be lost.
    """

    async def ring() -> list[int]:
        bell, seen = GrowthSignal(), []
        bell.attach(asyncio.get_running_loop())
        thread = threading.Thread(target=lambda: (bell.notify(7), seen.append(bell.seq)))
        thread.start()
        thread.join()  # the loop is busy with us meanwhile
        assert await bell.above(6, 5)
        bell.notify(3)
        assert bell.seq == 7
        bell.notify(0, close=True)
        assert not await bell.above(7, 5)
        return seen

    assert asyncio.run(ring()) == [7]


def test_readers_that_follow_are_woken_once_for_all_that_grew_and_not_all_at_once() -> None:
    """A hundred entries in a row cost a reader one wake; the lanes are told one after the other,
    each with the newest number; the end of the server reaches all of them at once."""

    async def follow(signal: GrowthSignal, lane: GrowthSignal, seen: list[int]) -> None:
        after = 0
        while not signal.closed:
            if await lane.above(after, 5):
                after = lane.seq
                seen.append(after)

    async def ring() -> list[list[int]]:
        loop, now_s = asyncio.get_running_loop(), 0.0
        loop.time = lambda: now_s  # type: ignore[method-assign]  # no wait depends on the machine
        signal = GrowthSignal()
        signal.attach(loop)
        seen: list[list[int]] = [[] for _ in range(2 * LANES)]
        following = [asyncio.create_task(follow(signal, signal.lane(), each)) for each in seen]
        for number in range(1, 101):
            signal.notify(number)
        told = []
        for _ in range(LANES + 1):
            for _ in range(10):
                await asyncio.sleep(0)
            told.append(sum(map(bool, seen)))
            now_s += GATHER_S + 1e-6
        assert told == list(range(0, 2 * LANES + 1, 2)), "not all at the same moment"
        signal.notify(0, close=True)
        await asyncio.gather(*following)
        return seen

    assert asyncio.run(ring()) == [[100]] * (2 * LANES)


def test_a_lane_knows_what_was_notified_before_the_server_listened() -> None:
    """Its first reader asked for what was there, and waited until something else grew."""

    async def first() -> bool:
        signal = GrowthSignal()
        signal.notify(7)
        signal.attach(asyncio.get_running_loop())
        return await signal.lane().above(6, 0.2)

    assert asyncio.run(first())
