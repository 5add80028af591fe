"""Where those who run for long say what they do: stderr, as JSON in a pipe, readable on a terminal.

Its reader may go away: whoever governs goes on without being heard.
"""

import os
import sys
from typing import Any, TextIO, cast

import structlog

from fairlead.cli.main import silence


class _Lasting:
    """Every write goes out whole and at once, so that processes that share a log do not write into
    each other's lines.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """A line, if anybody takes it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            silence(self._stream)
        except (OSError, ValueError):  # a full disk may be emptied again; closed is closed
            return

    def flush(self) -> None:
        """Every write does."""

    def isatty(self) -> bool:
        """Whether people read it."""
        return self._stream.isatty()


def lasting(stream: TextIO) -> TextIO:
    """The same stream, on which no line ends the program."""
    return cast("TextIO", _Lasting(stream))


def agent_log(agent: str, stream: TextIO | None = None) -> Any:
    """A logger on stderr, or on a stream that ends the agent with its reader."""
    last: Any = structlog.processors.JSONRenderer()
    if (stream or sys.stderr).isatty():
        last = structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))
    return structlog.wrap_logger(
        structlog.WriteLogger(stream or lasting(sys.stderr)),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            last,
        ],
    ).bind(agent=agent)
