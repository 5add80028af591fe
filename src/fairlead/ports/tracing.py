"""Traces: how long requests, turns, decisions and what follows from them take, told elsewhere."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Attribute = str | int | bool


class Tracer(Protocol):
    """Tells spans to a collector. It never raises, and nothing waits for it."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        """A span as long as the block; spans inside are its children."""


class NoTracer:
    """Tells nothing."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        return nullcontext()
