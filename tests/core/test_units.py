"""Fields held to their types and ranges, in plain sentences."""

from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.core import units
from fairlead.core.units import OutOfRange


@dataclass(frozen=True, slots=True)
class Switch:
    """A value with a yes or no."""

    on: bool

    def __post_init__(self) -> None:
        units.check(self)


@pytest.mark.parametrize("given", [1, 0, "yes", None])
def test_only_true_and_false_are_yes_and_no(given: Any) -> None:
    """A 1 is no yes: equal inputs would have unequal bytes."""
    with pytest.raises(OutOfRange, match="must be true or false"):
        Switch(on=given)
    assert Switch(on=True).on


def test_sentences_count() -> None:
    assert [units.counted(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [units.are(number) for number in (0, 1, 2)] == ["are", "is", "are"]
