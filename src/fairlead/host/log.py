"""Log lines of a long-running process, by structlog.

It is imported with the first line: it takes 8 MiB, and most processes that stay small write none.
"""

from typing import Any


class Log:
    """The log of one part of the program; fields are keywords."""

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        import structlog  # noqa: PLC0415 - 8 MiB that most processes never need

        getattr(structlog.get_logger(self._name), level)(event, **fields)
