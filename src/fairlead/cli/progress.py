"""Progress on a terminal while a command waits or works; silent in a pipe."""

import sys
import threading
import time
from typing import Self

import click

WAIT_QUIET_S, WAIT_EVERY_S = 1.0, 0.5
WORK_QUIET_S, WORK_EVERY_S = 0.5, 0.1
_CLEAR = "\r\033[K"


class WaitNotice:
    """Prints how long the command has been waiting: after a second, then twice a second."""

    def __init__(self, doing: str) -> None:
        self._doing, self._done = doing, threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._print, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _print(self) -> None:
        began, wait_s, shown = time.monotonic(), WAIT_QUIET_S, False
        while not self._done.wait(wait_s):
            _write(f"\r{self._doing}, {int(time.monotonic() - began)} s")
            wait_s, shown = WAIT_EVERY_S, True
        if shown:
            _write(_CLEAR)


class Counter:
    """Prints how much of long work is done; called with the count and, if known, the total."""

    def __init__(self, doing: str, unit: str = "entries") -> None:
        self._doing, self._unit, self._shown = doing, unit, False
        self._next = time.monotonic() + WORK_QUIET_S

    def __call__(self, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._shown = now + WORK_EVERY_S, True
        share = "" if total is None else f" of {total}"
        ratio = "" if total is None else f" ({100 * done // max(1, total)} %)"
        click.echo(f"\r{self._doing} {done}{share} {self._unit}{ratio}", err=True, nl=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo(_CLEAR, err=True, nl=False)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
