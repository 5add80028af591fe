"""How much a request computes, counted instead of timed: a busy machine changes no count."""

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(ask: Callable[[], object]) -> int:
    """How many Python functions a request calls: its work, whatever else the machine does."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return calls
