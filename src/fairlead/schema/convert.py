"""Typed values from plain data, in processes of several threads.

msgspec shows what it knows of a class to other threads before it knows all of it: a thread that
converts to a class while another one does so for the first time reads a null pointer, and the
process is gone. Here a type is made known to msgspec by one thread, before anyone converts to it.
"""

import threading
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_known: set[Any] = set()
_first = threading.Lock()


def convert(value: Any, shape: type[T], *, strict: bool = True, from_attributes: bool = False) -> T:
    """As `msgspec.convert`; raises its `ValidationError`."""
    _prepare(shape)
    return msgspec.convert(value, shape, strict=strict, from_attributes=from_attributes)


def decode_json(data: bytes | msgspec.Raw, shape: type[T]) -> T:
    """As `msgspec.json.decode`; raises its `DecodeError`."""
    _prepare(shape)
    return msgspec.json.decode(data, type=shape)


def _prepare(shape: Any) -> None:
    if shape in _known:
        return
    with _first:
        with suppress(msgspec.ValidationError):  # it knows the type then, and None is none of it
            msgspec.convert(None, shape)
        _known.add(shape)
