"""Units and their checked constructors: millicores, GPU-milliseconds, counts, ratios, weights.

Every value of core passes through one of these, so a wrong unit or a NaN stops where it enters.
`field` is the name in the message. The schema border states the same limits as JSON Schema.
"""

from math import isfinite

# Larger than any machine, small enough that 9 007 of them still add up below INTEGER_MAX.
SIZE_MAX = 10**12
# The largest integer that every JSON reader keeps exactly (RFC 8785, I-JSON).
INTEGER_MAX = 2**53 - 1
FLOAT_MAX = 1.7976931348623157e308


class OutOfRange(ValueError):
    """A value that its unit does not allow; `field` says which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


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
