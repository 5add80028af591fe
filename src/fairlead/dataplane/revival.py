"""When a proxy or its files fail: what the agent is told, and when it is tried again.

A proxy that died is started again by the next heartbeat, but not in every tick.
"""

import contextlib
import functools
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from fairlead.ports.faults import Fault, TemporaryFault

_PAUSE_S = 5.0
_RETRY_MS = 1_000
_P = ParamSpec("_P")
_T = TypeVar("_T")


def as_fault(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Errors of the machine (a full disk, no memory for a process) as faults that may pass."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except (OSError, subprocess.SubprocessError) as error:
            raise TemporaryFault(str(error), retry_after_ms=_RETRY_MS) from error

    return call


class Pause:
    """Between attempts that failed."""

    def __init__(self) -> None:
        self._until = 0.0
        self._why = ""

    @contextlib.contextmanager
    def over(self) -> Iterator[None]:
        """Refuse for a while after an attempt that failed."""
        left_s = self._until - time.monotonic()
        if left_s > 0:
            raise TemporaryFault(self._why, retry_after_ms=round(left_s * 1000))
        try:
            yield
        except Fault as fault:
            self._until, self._why = time.monotonic() + _PAUSE_S, f"it died, and: {fault}"
            raise
