"""The third kind of "no": a broken promise of our own, which stops the process."""

from typing import TypeVar

_T = TypeVar("_T")


class InvariantBroken(Exception):
    """A decision broke its own promise. A bug: no loop swallows it, the CLI exits with 70."""


def require(holds: bool, promise: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Stop unless `holds`. Always on: unlike `assert` it survives `python -O`."""
    if not holds:
        raise InvariantBroken(promise)


def known(value: _T | None, promise: str) -> _T:
    if value is None:
        raise InvariantBroken(promise)
    return value


def of_kind(value: object, kind: type[_T], promise: str) -> _T:
    if not isinstance(value, kind):
        raise InvariantBroken(promise)
    return value
