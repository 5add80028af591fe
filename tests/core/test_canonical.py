"""Canonical JSON: RFC 8785's own examples, and a round trip of everything a decision may hold."""

import json
import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import NotCanonical, as_json, canonical, digest, number

# RFC 8785, appendix B: IEEE 754 bits and the expected text.
RFC_NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), RFC_NUMBERS)
def test_numbers_as_rfc_8785_prints_them(bits: str, text: str) -> None:
    """Appendix B, every finite row."""
    assert number(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


def test_keys_are_sorted_by_utf16_code_units() -> None:
    """RFC 8785, section 3.2.3: the sorting example."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    got = list(json.loads(canonical(dict.fromkeys(names, 0))))
    assert got == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_strings_are_escaped_minimally() -> None:
    """Control characters and quotes only; everything else stays itself."""
    assert canonical("€$\x0f\nA'B\"\\/\x7f") == '"€$\\u000f\\nA\'B\\"\\\\/\x7f"'.encode()


def test_whole_documents() -> None:
    """No white space, sorted, tuples as lists, digests of the bytes."""
    assert (
        canonical({"b": [1, 2.0, None], "a": (True, False)}) == b'{"a":[true,false],"b":[1,2,null]}'
    )
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        2**53,
        -(2**53),
        {1: 2},
        {None: 1},
        b"x",
        "\ud800",
        {"\ud800": 1},
        object(),
    ],
)
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    """Never rounded, never guessed."""
    with pytest.raises(NotCanonical):
        canonical(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**53, "integer beyond 2^53 - 1: 9007199254740992"),
        (math.inf, "no JSON form for inf"),
        (b"x", "no JSON form for bytes"),
        ("a\ud800", "a string holds a lone surrogate: '\"a\\ud800\"'"),
        ({1: 2}, "object keys must be strings"),
    ],
)
def test_a_refusal_names_the_value(value: object, words: str) -> None:
    with pytest.raises(NotCanonical) as refused:
        canonical(value)
    assert str(refused.value) == words


def test_the_largest_integers_are_carried() -> None:
    assert canonical([2**53 - 1, 1 - 2**53]) == b"[9007199254740991,-9007199254740991]"


def test_an_exponent_follows_as_many_digits_as_there_are() -> None:
    assert [number(value) for value in (1e300, 1.5e300, -1.25e-9)] == [
        "1e+300",
        "1.5e+300",
        "-1.25e-9",
    ]


class Mode(StrEnum):
    """A string with a name."""

    OPEN = "open"


class Pair(NamedTuple):
    """A tuple with names."""

    low: int
    high: Mode


@dataclass(frozen=True, slots=True)
class Part:
    """A value inside another one."""

    key: bytes
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """What holds it, and a mapping that is no dict."""

    part: Part
    names: MappingProxyType[str, int]


def test_enums_and_named_tuples_are_written_as_what_they_are() -> None:
    """A string and a list, alone and as members of an object."""
    assert canonical([Mode.OPEN, Pair(1, Mode.OPEN)]) == b'["open",[1,"open"]]'
    assert canonical({"mode": Mode.OPEN, "pair": Pair(1, Mode.OPEN)}) == (
        b'{"mode":"open","pair":[1,"open"]}'
    )


def test_values_of_core_are_plain_data() -> None:
    """Dataclasses by field, tuples as lists, bytes in hex, any mapping as an object."""
    whole = Whole(Part(b"\x01\xff", (Pair(1, Mode.OPEN),)), MappingProxyType({"a": 1}))
    plain = as_json(whole)
    assert plain == {"part": {"key": "01ff", "pairs": [[1, "open"]]}, "names": {"a": 1}}
    assert type(plain["names"]) is dict
    assert as_json(None) is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(json_values)
def test_round_trip(value: object) -> None:
    """Any reader of doubles gets the value back, and the text is its own canonical form."""
    text = canonical(value)
    again = json.loads(text, parse_int=float)
    assert again == value
    assert canonical(again) == text
