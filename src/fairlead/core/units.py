"""Units: markers that state a field's range and unit once, and checks that hold values to them.

The markers stand in `Annotated[…]` at the fields of dataclasses: documents, manifests and JSON
Schemas are derived from them (`fairlead.schema.derive`), and `check` holds a new value to them, so
that a wrong unit or a NaN stops where it enters; `field` is the name in the message.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

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
    text: str | None = None
    """What documents say of it besides."""


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
class Series:
    """Marks (milliseconds, value) pairs that documents write as an object by time."""


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
Integer = Annotated[int, Range(-INTEGER_MAX, INTEGER_MAX)]


class OutOfRange(ValueError):
    """A value that its unit does not allow; `field` says which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def quotient(numerator: int, denominator: int) -> float:
    """The double nearest to a fraction, whatever the size of its parts.

    Compiled code divides integers as doubles, which is the same up to 2^53. This module is never
    compiled: it divides as Python does.
    """
    return numerator / denominator


def counted(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`: how a sentence counts."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def are(number: int, one: str = "is", many: str = "are") -> str:
    """The verb that follows a number."""
    return one if number == 1 else many


def repeats(items: str, key: str, names: Sequence[str]) -> Iterator[OutOfRange]:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            noun = items.removesuffix("s")
            yield OutOfRange(f"{items}[{i}].{key}", f"repeats another {noun}'s {key}, {name!r}")
        seen.add(name)


def size(value: int, field: str) -> int:
    """A whole, non-negative quantity (millicores, a count) of at most SIZE_MAX."""
    return _whole(value, field, 0, SIZE_MAX)


def weight(value: float, field: str) -> float:
    """A finite, non-negative number; fractions allowed."""
    return _real(value, field, 0, FLOAT_MAX)


def _whole(value: Any, field: str, low: float, high: float) -> int:
    if type(value) is not int or not low <= value <= high:
        raise OutOfRange(field, f"must be an integer between {low} and {high}, got {value!r}")
    return value


def _real(value: Any, field: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        limits = f"between {low} and {high}"
        if high == FLOAT_MAX:
            limits = f"a finite number of at least {low}"
        raise OutOfRange(field, f"must be {limits}, got {value!r}")
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


def _non_empty(value: str, field: str) -> str:
    if not name(value, field):
        raise OutOfRange(field, f"must be a non-empty string, got {value!r}")
    return value


def _no_boolean(value: Any, field: str) -> NoReturn:
    raise OutOfRange(field, f"must be true or false, got {value!r}")


def check(value: Any, path: str = "") -> None:
    """Hold a new frozen dataclass to its fields' types and markers; raises `OutOfRange` with the
    name of the field after `path`.

    A whole number where a fraction is declared becomes one, a list a tuple, a text its enum.
    """
    if test_of(value.__class__)(value):
        return
    given = {rule.field: getattr(value, rule.field) for rule in rules(value.__class__)}
    for field, made in refit(value.__class__, given, path).items():
        if made is not given[field]:
            object.__setattr__(value, field, made)


def refit(cls: type, given: dict[str, Any], path: str = "") -> dict[str, Any]:
    """What a constructor was given, as the rules of the fields make it; raises `OutOfRange`.

    A field of a compiled class holds values of its type only: a compiled constructor asks here
    about one of another type, before it is stored.
    """
    made = dict(given)
    for field, kind, low, high, optional, make in rules(cls):
        value = given[field]
        if type(value) is kind and (low is None or low <= value <= high):
            continue
        if value is not None or not optional:
            made[field] = make(value, path + field)
    return made


@cache
def test_of(cls: type) -> Callable[[Any], bool]:
    """Whether nothing is to be said about a value, as one expression over its fields.

    Written as text like the constructor of a dataclass: a fleet has a million pods, and the loop
    takes five times as long.
    """
    parts, names = ["True"], dict[str, Any]()
    for i, (field, kind, low, high, optional, _) in enumerate(rules(cls)):
        names |= {f"kind{i}": kind or str, f"low{i}": low, f"high{i}": high}
        part = f"type(value.{field}) is kind{i}"
        if low is not None:
            part += f" and low{i} <= value.{field} <= high{i}"
        elif kind is None:  # a text: what is not plain is looked at
            part += f" and value.{field} != '' and value.{field}.isascii()"
        parts.append(f"(value.{field} is None or {part})" if optional else part)
    return cast("Callable[[Any], bool]", eval(f"lambda value: {' and '.join(parts)}", names))


class _Rule(NamedTuple):
    """A field: values of `kind` pass, numbers in range; anything else goes through `make`."""

    field: str
    kind: Any
    low: Any
    high: Any
    optional: bool
    make: Callable[[Any, str], Any]


@cache
def rules(cls: type) -> tuple[_Rule, ...]:
    """The fields that are checked, with their ranges."""
    hints = get_type_hints(cls, include_extras=True)
    made = [_rule(field, hint) for field, hint in hints.items()]
    return tuple(rule for rule in made if rule is not None)


def _rule(field: str, hint: Any) -> _Rule | None:
    """The rule of a field; None for those that check themselves."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    optional, hint = NoneType in parts, parts[0]
    base, *markers = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if markers and isinstance(markers[0], Range):
        low, high = markers[0].low, markers[0].high
        number = partial(_whole if base is int else _real, low=low, high=high)
        return _Rule(field, base, low, high, optional, number)
    kind: Any = None
    make: Callable[[Any, str], Any] | None = None
    if base is bool:
        kind, make = bool, _no_boolean
    elif base is str:
        make = _non_empty if markers else name
    elif get_origin(base) is tuple:
        kind, make = tuple, _converted(tuple)
    elif isinstance(base, type) and issubclass(base, Enum):
        kind, make = base, _converted(base)
    return None if make is None else _Rule(field, kind, None, None, optional, make)


def _converted(kind: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda given, _: kind(given)
