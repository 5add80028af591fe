"""Where the agents' log lines go: stderr, as JSON in a pipe, readable on a terminal."""

import contextlib
import os
import sys
from typing import Any, TextIO

import structlog


class Lasting:
    """A stream whose reader may go away: an agent goes on governing without being heard."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As much as anybody takes."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Likewise."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def agent_log(agent: str, stream: TextIO | None = None) -> Any:
    """A logger on stderr, or on a stream that ends the agent with its reader."""
    last: Any = structlog.processors.JSONRenderer()
    if (stream or sys.stderr).isatty():
        last = structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))
    return structlog.wrap_logger(
        structlog.PrintLogger(stream or Lasting(sys.stderr)),  # type: ignore[arg-type] # print() needs no more
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            last,
        ],
    ).bind(agent=agent)
