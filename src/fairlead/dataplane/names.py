"""Names of groups and backends as proxies can write them, and back."""

import re

_TAME = re.compile(r"[^A-Za-z0-9.-]")
_ESCAPE = re.compile(r"_([0-9a-f]{2})")


def tame(name: str) -> str:
    """Letters, digits, dots and dashes stay; every other byte becomes `_` and two hex digits.

    So `_` is always followed by two hex digits, and what a plane appends (`_a`, `_soft`) cannot
    make one group's name into another's.
    """
    return _TAME.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), name)


def wild(tamed: str) -> str:
    """The name that was tamed."""
    raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), tamed)
    return raw.encode("latin-1").decode()
