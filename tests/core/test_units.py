"""Fields held to their types and ranges, in plain sentences."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, nan
from typing import Annotated, Any

import pytest

from fairlead.core import units
from fairlead.core.units import FLOAT_MAX, SIZE_MAX, Name, OutOfRange, Range


@dataclass(frozen=True, slots=True)
class Switch:
    """A value with a yes or no."""

    on: bool

    def __post_init__(self) -> None:
        units.check(self)


@pytest.mark.parametrize("given", [1, 0, "yes", None])
def test_only_true_and_false_are_yes_and_no(given: Any) -> None:
    """A 1 is no yes: equal inputs would have unequal bytes."""
    with pytest.raises(OutOfRange) as refused:
        Switch(on=given)
    assert str(refused.value) == f"on: must be true or false, got {given!r}"
    with pytest.raises(OutOfRange) as refused:
        units.refit(Switch, {"on": given})
    assert refused.value.field == "on"
    assert Switch(on=True).on


def test_sentences_count() -> None:
    assert [units.counted(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [units.are(number) for number in (0, 1, 2)] == ["are", "is", "are"]


class Mode(StrEnum):
    """A text of a closed list."""

    OPEN = "open"
    SHUT = "shut"


@dataclass(frozen=True, slots=True)
class Sample:
    """A field of each kind."""

    count: Annotated[int, Range(1, 9)] = 1
    share: Annotated[float, Range(0, 1)] = 0.5
    weight: Annotated[float, Range(0, FLOAT_MAX)] = 1.0
    name: Name = "a"
    note: str = ""
    names: tuple[str, ...] = ()
    mode: Mode = Mode.OPEN
    limit: Annotated[int, Range(0, 5)] | None = None
    alias: Name | None = None
    free: object = None

    def __post_init__(self) -> None:
        units.check(self, "row.")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *[("count", number) for number in (1, 9)],
        *[("share", part) for part in (0.0, 1.0)],
        *[("weight", number) for number in (0.0, FLOAT_MAX)],
        *[("name", text) for text in ("b", "é", " ")],
        *[("note", text) for text in ("", "é")],
        *[("limit", number) for number in (0, 5, None)],
        *[("alias", text) for text in ("b", None)],
        ("names", ("a", "b")),
        ("mode", Mode.SHUT),
        ("free", ["anything"]),
    ],
)
def test_what_a_field_may_hold_stays_as_it_is(field: str, given: Any) -> None:
    """Both ends of a range are inside; a field without a rule checks itself."""
    assert getattr(replace(Sample(), **{field: given}), field) is given


@pytest.mark.parametrize(
    ("field", "given", "made"),
    [
        ("share", 1, 1.0),
        ("weight", 3, 3.0),
        ("names", ["a", "b"], ("a", "b")),
        ("mode", "shut", Mode.SHUT),
    ],
)
def test_what_means_the_same_becomes_it(field: str, given: Any, made: Any) -> None:
    """Equal values have equal bytes: a whole number is a fraction, a list a tuple."""
    found = getattr(replace(Sample(), **{field: given}), field)
    assert (found, type(found)) == (made, type(made))
    assert units.refit(Sample, {**_fields(Sample()), field: given})[field] == made


WHOLE, PART = "must be an integer between 1 and 9, got ", "must be between 0 and 1, got "


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        *[("count", given, f"{WHOLE}{given!r}") for given in (0, 10, True, 2.0, "2", None)],
        *[("share", given, f"{PART}{given!r}") for given in (-0.1, 1.1, nan, True, "1", None)],
        *[
            ("weight", given, f"must be a finite number of at least 0, got {given}")
            for given in (-1, inf)
        ],
        *[("name", given, f"must be a string, got {given!r}") for given in (5, None)],
        ("name", "", "must be a non-empty string, got ''"),
        ("name", "\ud800", "must be valid Unicode, got '\\ud800'"),
        ("note", "\ud800", "must be valid Unicode, got '\\ud800'"),
        ("note", b"", "must be a string, got b''"),
        ("limit", 6, "must be an integer between 0 and 5, got 6"),
        ("alias", "", "must be a non-empty string, got ''"),
    ],
)
def test_what_a_field_may_not_hold_is_refused_by_name(field: str, given: Any, words: str) -> None:
    """The sentence says what is allowed and what was given."""
    with pytest.raises(OutOfRange) as refused:
        replace(Sample(), **{field: given})
    assert (refused.value.field, refused.value.message) == (f"row.{field}", words)
    assert str(refused.value) == f"row.{field}: {words}"
    with pytest.raises(OutOfRange) as refused:
        units.refit(Sample, {**_fields(Sample()), field: given}, "row.")
    assert str(refused.value) == f"row.{field}: {words}"


def _fields(value: Sample) -> dict[str, Any]:
    return {name: getattr(value, name) for name in Sample.__slots__}


def test_sizes_and_weights_are_held_to_their_range() -> None:
    assert [units.size(number, "n") for number in (0, SIZE_MAX)] == [0, SIZE_MAX]
    for number in (-1, SIZE_MAX + 1):
        words = f"n: must be an integer between 0 and 1000000000000, got {number}"
        with pytest.raises(OutOfRange) as refused:
            units.size(number, "n")
        assert str(refused.value) == words
    assert [units.weight(number, "w") for number in (0, 1.5)] == [0.0, 1.5]
    with pytest.raises(OutOfRange) as refused:
        units.weight(-0.5, "w")
    assert str(refused.value) == "w: must be a finite number of at least 0, got -0.5"


def test_every_repeated_name_is_named_with_its_place() -> None:
    faults = units.repeats("leases", "id", ["a", "b", "a", "a"])
    assert [str(fault) for fault in faults] == [
        "leases[2].id: repeats another lease's id, 'a'",
        "leases[3].id: repeats another lease's id, 'a'",
    ]
    assert not list(units.repeats("leases", "id", ["a", "b"]))


def test_a_fraction_is_divided_as_integers_are() -> None:
    """Beyond 2^53 both parts are still whole."""
    assert units.quotient(2**60 + 1, 2**60) == (2**60 + 1) / 2**60
    assert units.quotient(1, 3) == 1 / 3
