"""Logs of long-running commands: on stderr, JSON in a pipe, readable on a terminal.

A closed pipe or a full disk does not stop an agent: it keeps governing without its log.
"""

import os
import sys
from typing import Any, TextIO, cast

import structlog

from fairlead.cli.main import silence


class _Lasting:
    """Writes each line whole and at once, so that processes can share one log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a line, if the stream still takes it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            silence(self._stream)
        except (OSError, ValueError):  # a full disk may have room later; closed stays closed
            return

    def flush(self) -> None:
        """Every write flushes."""

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()


def lasting(stream: TextIO) -> TextIO:
    """The same stream; writing to it never raises."""
    return cast("TextIO", _Lasting(stream))


def agent_log(agent: str, stream: TextIO | None = None) -> Any:
    """A logger on stderr; on another stream a closed pipe ends the agent."""
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
