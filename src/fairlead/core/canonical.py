"""Canonical JSON bytes (RFC 8785) and their digests: the form in which decisions are compared.

Accepts what a decision is made of: dict with string keys, list, tuple, str, int, float, bool, None.
Integers beyond 2^53 - 1 are refused rather than rounded: another reader would see another number.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from math import isfinite
from types import NoneType
from typing import Any

from fairlead.core.units import INTEGER_MAX


class NotCanonical(ValueError):
    """A value that canonical JSON cannot carry exactly."""


def canonical(value: object) -> bytes:
    """The one UTF-8 byte string for `value`: sorted keys, no white space, shortest numbers."""
    return encoded(text(value))


def encoded(canonical_text: str) -> bytes:
    """Canonical text as bytes, also where it was joined from pieces."""
    try:
        return canonical_text.encode()
    except UnicodeEncodeError as error:
        raise NotCanonical(f"a string holds a lone surrogate: {error.object!r}") from error


def digest(value: object) -> str:
    return sha256(canonical(value)).hexdigest()


_PLAIN = frozenset({str, int, bool, float, NoneType})


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def as_json(value: Any) -> Any:
    """A value of core as plain data: dataclasses as objects by field, bytes in hex."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    names = _field_names(kind)
    if names is not None:
        return {name: as_json(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return dict(value) if isinstance(value, Mapping) else value


def text(value: Any) -> str:
    """The canonical form before it is encoded."""
    write = _WRITERS.get(type(value))
    if write is None:  # an enum of strings, a named tuple
        write = next((_WRITERS[kind] for kind in _BASES if isinstance(value, kind)), None)
    if write is None:
        raise NotCanonical(f"no JSON form for {type(value).__name__}")
    return write(value)


class Rendered(str):
    """Canonical text of a value that is a part of another one: it is not written twice."""

    __slots__ = ()


def _object(value: dict[str, Any]) -> str:
    # Most objects are rows of a few shapes: their keys are sorted once.
    found = _members if len(value) <= _SHAPE_MAX else _members.__wrapped__
    members = []
    for key, written in found(tuple(value)):
        member = value[key]
        write = _WRITERS.get(type(member), text)
        members.append(written + write(member))
    return "{" + ",".join(members) + "}"


_SHAPE_MAX = 40


@lru_cache(maxsize=2048)
def _members(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """The keys of an object in order, and each as it is written."""
    try:
        plain = "".join(keys).isascii()
    except TypeError:
        raise NotCanonical("object keys must be strings") from None
    order = sorted(keys) if plain else sorted(keys, key=utf16)
    return [(key, f"{encode_basestring(key)}:") for key in order]


def _list(value: Iterable[Any]) -> str:
    return "[" + ",".join(map(text, value)) + "]"


def _integer(value: int) -> str:
    if not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise NotCanonical(f"integer beyond 2^53 - 1: {value}")
    return repr(value)


def utf16(key: str) -> bytes:
    """Sort key: RFC 8785 orders keys by UTF-16 code units, which differs past U+FFFF only."""
    return key.encode("utf-16-be", "surrogatepass")


def number(value: float) -> str:
    """A finite double as ECMAScript prints it: 1.0 as 1, 1e20 in full, 1e-7 as 1e-7."""
    if not isfinite(value):
        raise NotCanonical(f"no JSON form for {value!r}")
    short = repr(value)
    if "e" not in short:
        short = short.removesuffix(".0")
        return "0" if short == "-0" else short
    mantissa, _, exponent_text = short.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    point = int(exponent_text) + 1  # the decimal point stands after this many digits
    if 0 < point <= 21:
        return sign + digits.ljust(point, "0")
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


_BASES = (str, dict, list, tuple)
_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    Rendered: str,
    int: _integer,
    float: number,
    bool: {True: "true", False: "false"}.__getitem__,
    NoneType: {None: "null"}.__getitem__,
    dict: _object,
    list: _list,
    tuple: _list,
}
