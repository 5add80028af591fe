"""Faults: an adapter's environment failed. Only adapters raise these, with the cause chained."""

from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.host.files import TEMPORARY, LockHeld

RETRY_AFTER_MS = 1_000
"""Space or descriptors come back when they are freed: no use in trying sooner."""


class Fault(Exception):
    """The environment did not do what was asked."""


class TemporaryFault(Fault):
    """Trying again may help, not before `retry_after_ms`."""

    def __init__(self, message: str, *, retry_after_ms: int = RETRY_AFTER_MS) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class PermanentFault(Fault):
    """Trying again will not help."""


@contextmanager
def faults(doing: str) -> Iterator[None]:
    """Translate errors of the operating system inside into faults."""
    try:
        yield
    except LockHeld as error:
        raise PermanentFault(str(error)) from error
    except OSError as error:
        message = f"cannot {doing}: {error.strerror or error}"
        if error.errno in TEMPORARY:
            raise TemporaryFault(message) from error
        raise PermanentFault(message) from error
