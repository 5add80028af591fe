"""Threads that make writes, the most important one first: what is handed over later overtakes."""

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future

Write = Callable[[], bool]
Rank = tuple[int, ...]
"""The smallest is written first; of one rank, the one that was handed over first."""


class RankedWriters:
    """A pool of threads, which are started when there is something to write."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._waiting: list[tuple[Rank, int, Write, Future[bool]]] = []
        self._numbers = itertools.count()
        self._idle, self._closed = 0, False

    def submit(self, write: Write, rank: Rank) -> Future[bool]:
        """After `close` it is cancelled at once."""
        future: Future[bool] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            heapq.heappush(self._waiting, (rank, next(self._numbers), write, future))
            if len(self._waiting) > self._idle and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return future

    def close(self) -> None:
        """What is not begun is cancelled; what is under way is waited for."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for *_, future in waiting:
            future.cancel()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._idle -= 1
                if self._closed:
                    return
                *_, write, future = heapq.heappop(self._waiting)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(write())
                except BaseException as error:  # noqa: BLE001 - who waits for it is told
                    future.set_exception(error)
