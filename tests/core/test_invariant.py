"""Promises of our own: what holds passes, what does not stops with its promise."""

import pytest

from fairlead.core.invariant import InvariantBroken, known, of_kind, require


def test_what_holds_passes() -> None:
    """Values come through as they are, also those that are false."""
    require(True, "holds")
    assert known(0, "there") == 0
    assert of_kind("", str, "a string") == ""


def test_what_does_not_hold_stops() -> None:
    """With the promise that was broken."""
    with pytest.raises(InvariantBroken, match="holds"):
        require(False, "holds")
    with pytest.raises(InvariantBroken, match="there"):
        known(None, "there")
    with pytest.raises(InvariantBroken, match="a string"):
        of_kind(7, str, "a string")
