"""What reaches a terminal: names and messages come from users, from containers and from servers,
and a control character in one must not move the cursor or set a title.

`guard` stands before stdout and stderr of every command, so that no command has to think of it.
Colours and progress of our own are written to the stream behind it (`raw`). Bytes (`logs`, exports,
canonical documents in a pipe) pass as they are.
"""

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

REPLACED = "\N{REPLACEMENT CHARACTER}"
_ACTIVE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]|\r(?!\n)"
)
"""In a pipe, behind which a terminal or a log may be: controls of both kinds, what turns a text
around, hides or breaks it. Halves of pairs are bytes of names and arguments that are not UTF-8; a
stream could not encode them. JSON and YAML escape all of these (`table.show`)."""


def printable(text: str, *, kept: str = "\n\t") -> str:
    """A text without characters that a terminal would act on."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else REPLACED for char in text)


class _Guarded:
    """A text stream that writes what is printable."""

    def __init__(self, stream: TextIO) -> None:
        self.raw_stream = stream

    def write(self, text: str) -> int:
        clean = printable(text) if self.raw_stream.isatty() else _ACTIVE.sub(REPLACED, text)
        return self.raw_stream.write(clean)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw_stream, name)


def guard() -> None:
    """From now on stdout and stderr are clean."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, _Guarded):
            setattr(sys, name, _Guarded(stream))


def raw(stream: TextIO) -> TextIO:
    """The stream itself, for what we make ourselves: colours, progress."""
    return cast("TextIO", getattr(stream, "raw_stream", stream))
