"""What `cpu.govern` and `traffic.govern` share: entries that follow from one another.

A life replays from its record alone. The first entry, and the first of each segment, holds the
memory that the decision starts from; the others leave it out, because it follows from the entry
before. An entry that holds it and follows from one is checked against that.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

from fairlead.schema.border import BadInput

M = TypeVar("M")
_DIGEST_BYTES = 16


def digest(text: bytes) -> str:
    """Of what is remembered: stands in the output, so that a replay proves it."""
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def begin(held: M | None, led: M | None, text: Callable[[M], bytes]) -> M:
    """The memory that an entry starts from: what it holds, or what the one before it led to."""
    if held is None and led is None:
        raise BadInput("memory", "is left out, and so is the entry that it follows from")
    if held is not None and led is not None and text(led) != text(held):
        raise BadInput("memory", "is not what the entries before it lead to")
    return held if held is not None else led  # type: ignore[return-value]  # one of them is there
