"""Where the agents' log lines go: stderr, as JSON in a pipe, readable on a terminal."""

import contextlib
import os
import sys
from typing import Any, TextIO

import structlog


class _Lasting:
    """Prints for a reader who may go away: an agent goes on governing without being heard."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def info(self, message: str) -> None:
        """One line, if anybody takes it."""
        with contextlib.suppress(OSError, ValueError):
            print(message, file=self._stream, flush=True)

    warning = info


def agent_log(agent: str, stream: TextIO | None = None) -> Any:
    """A logger on stderr, or on a stream that ends the agent with its reader."""
    last: Any = structlog.processors.JSONRenderer()
    if (stream or sys.stderr).isatty():
        last = structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))
    return structlog.wrap_logger(
        structlog.PrintLogger(stream) if stream else _Lasting(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            last,
        ],
    ).bind(agent=agent)
