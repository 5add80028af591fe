"""The bell: one call for the loop for each piece of news, however slow the loop is."""

import asyncio
import threading

from fairlead.api.service import GrowthSignal


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
