"""The one thread of the traffic agent that waits for the network: scrapes, probes, look-ups.

    poller = Poller()
    task = poller.repeat(1_000, request, phase="web/a")      # `request` is a coroutine function
    poller.once(request)
    poller.check()                                           # raises what must stop the process
    poller.close()

A tick never waits for what happens here. A server that replies late is simply asked less often. A
bug of ours (`InvariantBroken`) ends no thread in silence: the next `check` raises it.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from fairlead.core.invariant import InvariantBroken
from fairlead.core.traffic.admission import fnv1a

Request = Callable[[], Coroutine[Any, Any, None]]


K = TypeVar("K", bound=tuple[Any, ...])


def follow(
    tasks: dict[K, Future[None]], wanted: Collection[K], begin: Callable[..., Future[None]]
) -> None:
    """End the tasks that are not wanted any more, and begin those that are not there yet."""
    for key in tasks.keys() - set(wanted):
        tasks.pop(key).cancel()
    for key in set(wanted) - tasks.keys():
        tasks[key] = begin(*key)


class Poller:
    """An event loop in a daemon thread. It carries out requests once or again and again."""

    def __init__(self) -> None:
        self._broken: InvariantBroken | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._thread.start()

    def repeat(self, every_ms: int, request: Request, *, phase: str) -> Future[None]:
        """Again and again, until the returned future is cancelled. The phase spreads the load."""

        async def again() -> None:
            period_s = every_ms / 1000
            await asyncio.sleep(fnv1a(phase.encode()) % max(1, every_ms) / 1000)
            while True:
                due = self._loop.time() + period_s
                try:
                    await self._carry_out(request)
                except InvariantBroken:
                    raise
                except Exception as error:  # noqa: BLE001 - one bad reply must not be the last
                    self._loop.call_exception_handler(
                        {"message": f"the request {phase} failed", "exception": error}
                    )
                await asyncio.sleep(max(0.0, due - self._loop.time()))

        return asyncio.run_coroutine_threadsafe(again(), self._loop)

    def once(self, request: Request) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self._carry_out(request), self._loop)

    async def _carry_out(self, request: Request) -> None:
        try:
            await request()
        except InvariantBroken as error:
            self._broken = error
            raise

    def check(self) -> None:
        """In the caller's thread: raise the broken invariant that a request came upon, if any."""
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Stop; requests under way are abandoned."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_all())
            self._loop.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
