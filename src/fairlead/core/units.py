"""Units: checked constructors, and markers that state a field's range and unit once.

The constructors stop a wrong unit or a NaN where it enters; `field` is the name in the message. The
markers stand in `Annotated[…]` at the fields of dataclasses: documents, manifests and JSON Schemas
are derived from them (`fairlead.schema.derive`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated

# Larger than any machine, small enough that 9 007 of them still add up below INTEGER_MAX.
SIZE_MAX = 10**12
# The largest integer that every JSON reader keeps exactly (RFC 8785, I-JSON).
INTEGER_MAX = 2**53 - 1
FLOAT_MAX = 1.7976931348623157e308


HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Range:
    """Marks a number: the values that it may have, both ends included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """Marks a string that has at least one character."""


@dataclass(frozen=True, slots=True)
class Time:
    """Marks milliseconds since 1970; documents write RFC 3339 with a zone."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Marks milliseconds that documents write like `1h30m`."""


@dataclass(frozen=True, slots=True)
class Hours:
    """Marks milliseconds that documents write as decimal hours, rounded down, or `up`."""

    up: bool = False


@dataclass(frozen=True, slots=True)
class Hex:
    """Marks bytes of a fixed length that documents write as hex digits."""

    length: int


@dataclass(frozen=True, slots=True)
class Written:
    """Marks a field that documents call by another name."""

    name: str


Name = Annotated[str, NonEmpty()]
Gpus = Annotated[int, Range(1, SIZE_MAX)]
GpuLimit = Annotated[int, Range(0, SIZE_MAX)]
TimeMs = Annotated[int, Time()]
Count = Annotated[int, Range(0, INTEGER_MAX)]
PositiveCount = Annotated[int, Range(1, INTEGER_MAX)]


class OutOfRange(ValueError):
    """A value that its unit does not allow; `field` says which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def repeats(items: str, key: str, names: Sequence[str]) -> Iterator[OutOfRange]:
    """A fault for every name that a list has a second time."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            noun = items.removesuffix("s")
            yield OutOfRange(f"{items}[{i}].{key}", f"repeats another {noun}'s {key}, {name!r}")
        seen.add(name)


def size(value: int, field: str) -> int:
    """A whole, non-negative quantity (millicores, a count) of at most SIZE_MAX."""
    if type(value) is not int or not 0 <= value <= SIZE_MAX:
        raise OutOfRange(field, f"must be an integer between 0 and {SIZE_MAX}, got {value!r}")
    return value


def size_or_none(value: int | None, field: str) -> int | None:
    """The same, where it may be unknown."""
    return None if value is None else size(value, field)


def ratio(value: float, field: str) -> float:
    """A share between 0 and 1."""
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise OutOfRange(field, f"must be between 0 and 1, got {value!r}")
    return float(value)


def weight(value: float, field: str) -> float:
    """A finite, non-negative number; fractions allowed."""
    if type(value) not in (int, float) or not 0 <= value <= FLOAT_MAX or not isfinite(value):
        raise OutOfRange(field, f"must be a finite number of at least 0, got {value!r}")
    return float(value)


def name(value: str, field: str) -> str:
    """An identifier: any text that can be hashed and written."""
    if type(value) is not str:
        raise OutOfRange(field, f"must be a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OutOfRange(field, f"must be valid Unicode, got {value!r}") from None
    return value
