"""A sign of life on a terminal while a command waits for something slow."""

import sys
import threading
import time
from typing import Self

QUIET_S, EVERY_S = 1.0, 0.5


class Patience:
    """Says after a second, and twice a second from then on, how long it has been waiting.

    Silent in a pipe: there is nobody who wonders.
    """

    def __init__(self, doing: str) -> None:
        self._doing, self._done = doing, threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._say, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _say(self) -> None:
        began, wait_s, said = time.monotonic(), QUIET_S, False
        while not self._done.wait(wait_s):
            seconds = int(time.monotonic() - began)
            sys.stderr.write(f"\r{self._doing}, {seconds} s")
            sys.stderr.flush()
            wait_s, said = EVERY_S, True
        if said:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
