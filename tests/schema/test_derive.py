"""Documents that follow from dataclasses: names, units, defaults, both ways, and refusals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import pytest

from fairlead.core.units import (
    SIZE_MAX,
    Duration,
    Hex,
    Hours,
    Name,
    OutOfRange,
    Range,
    Time,
    Written,
)
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.derive import Style


class Colour(StrEnum):
    """Of a part."""

    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    """Two numbers, of which the second may be left out."""

    first: int
    second: int = 7


FIRST = Pair(1)


@dataclass(frozen=True, slots=True)
class Square:
    """A figure."""

    TAG: ClassVar[str] = "square"
    side: Annotated[int, Range(1, SIZE_MAX)]


@dataclass(frozen=True, slots=True)
class Circle:
    """Another figure."""

    TAG: ClassVar[str] = "circle"
    radius: Annotated[float, Range(0, 1)]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a thing."""

    name: Name
    colour: Colour = Colour.RED
    size_gpus: Annotated[int, Range(0, SIZE_MAX)] = 1

    def faults(self) -> Iterator[OutOfRange]:
        """A part may not be called like nothing."""
        if self.name == "nothing":
            yield OutOfRange("name", "must be something")


@dataclass(frozen=True, slots=True)
class Thing:
    """Everything that a document can hold."""

    id: Name
    made_ms: Annotated[int, Time(), Written("made")]
    used_ms: Annotated[int, Hours(), Written("used_gpu_hours")] | None
    grace_ms: Annotated[int, Duration(), Written("grace")]
    key: Annotated[bytes, Hex(2)]
    figure: Square | Circle
    parts: tuple[Part, ...] = ()
    pair: Pair = FIRST
    tags: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    main: Part = Part("m")
    spares: tuple[Part, ...] = (Part("s"),)

    def faults(self) -> Iterator[OutOfRange]:
        """Repeated names of parts."""
        seen: set[str] = set()
        for i, part in enumerate(self.parts):
            if part.name in seen:
                yield OutOfRange(f"parts[{i}].name", "is given twice")
            seen.add(part.name)


THING = Thing(
    id="a",
    made_ms=1_000,
    used_ms=5_400_000,
    grace_ms=90_000,
    key=b"\x01\xff",
    figure=Circle(0.5),
    parts=(Part("x", Colour.BLUE), Part("y")),
    tags=frozenset({"q", "p"}),
    labels={"k": "v"},
)
DOCUMENT: dict[str, Any] = {
    "id": "a",
    "made": "1970-01-01T00:00:01Z",
    "used_gpu_hours": 1.5,
    "grace": "1m30s",
    "key": "01ff",
    "figure": {"type": "circle", "radius": 0.5},
    "parts": [
        {"name": "x", "colour": "blue", "size_gpus": 1},
        {"name": "y", "colour": "red", "size_gpus": 1},
    ],
    "pair": {"first": 1, "second": 7},
    "tags": ["p", "q"],
    "labels": {"k": "v"},
    "main": {"name": "m", "colour": "red", "size_gpus": 1},
    "spares": [{"name": "s", "colour": "red", "size_gpus": 1}],
}


def test_there_and_back() -> None:
    """Strict: every field is written and required."""
    style = Style()
    assert style.from_core(THING) == DOCUMENT
    assert style.to_core(Thing, check_shape(DOCUMENT, style.document(Thing))) == THING
    with pytest.raises(BadInput, match="parts: is required"):
        check_shape(
            {key: DOCUMENT[key] for key in DOCUMENT if key != "parts"}, style.document(Thing)
        )


def test_defaults_are_cores() -> None:
    """Lenient: what has a default in core may be left out."""
    style = Style(strict=False, required={Part: {"colour"}})
    wanted = ("id", "made", "used_gpu_hours", "grace", "key", "figure")
    small = {key: DOCUMENT[key] for key in wanted}
    made = style.to_core(Thing, check_shape(small, style.document(Thing)))
    assert (made.parts, made.pair, made.tags, made.labels) == ((), Pair(1), frozenset(), {})
    assert (made.main, made.spares) == (Part("m"), (Part("s"),))
    with pytest.raises(BadInput, match=r"parts\[0\]\.colour: is required"):
        check_shape({**small, "parts": [{"name": "x"}]}, style.document(Thing))


def test_manifests_are_camel_case_with_limits_of_their_own() -> None:
    """Sizes, texts and hours end earlier; some fields come from elsewhere, some stay plain."""
    style = Style(
        camel=True,
        strict=False,
        left_out={Thing: {"id"}},
        plain={Thing: {"used_ms", "made_ms"}},
        size_max=8,
        text_max=3,
        suffix="Spec",
    )
    shape = style.document(Thing)
    spec = {"made_ms": 1_000, "usedMs": 5}
    document = {"madeMs": 1_000, "usedMs": 5, "grace": "1m30s", "key": "01FF"}
    document["figure"] = {"type": "square", "side": 8}
    made = style.to_core(Thing, check_shape(document, shape), "spec", id="outside")
    assert (made.id, made.used_ms, made.figure) == ("outside", spec["usedMs"], Square(8))
    for part, message in (
        ({"name": "long"}, 'parts[0].name: must have at most 3 characters, got "long"'),
        (
            {"name": "x", "sizeGPUs": 9},
            "parts[0].sizeGPUs: must be an integer between 0 and 8, got 9",
        ),
    ):
        with pytest.raises(BadInput) as refused:
            check_shape({**document, "parts": [part]}, shape)
        assert str(refused.value) == message
    assert shape.__name__ == "ThingSpec"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"made": "noon"}, "thing.made: must be a time like 2026-01-01T00:00:00Z, got 'noon'"),
        ({"grace": "soon"}, "thing.grace: must be a duration like 90m, 2h or 1h30m, got 'soon'"),
        ({"key": "01"}, "thing.key: must be 4 hex digits"),
        ({"parts": [{"name": "nothing"}]}, "thing.parts[0].name: must be something"),
        ({"parts": [{"name": "x"}, {"name": "x"}]}, "thing.parts[1].name: is given twice"),
    ],
)
def test_refusals_name_the_documents_own_path(change: dict[str, Any], message: str) -> None:
    """Of a unit, of a value inside, and of the whole."""
    style = Style(strict=False)
    document = check_shape({**DOCUMENT, **change}, style.document(Thing))
    with pytest.raises(BadInput) as refused:
        style.to_core(Thing, document, "thing")
    assert str(refused.value) == message


def test_paths_of_faults_are_in_the_words_of_the_style() -> None:
    """Core says used_ms, a manifest says usedGPUHours; what is unknown stays as it is."""
    style = Style(camel=True)
    assert style._path(Thing, "used_ms") == "usedGPUHours"
    assert style._path(Thing, "parts[3].size_gpus") == "parts[3].sizeGPUs"
    assert style._path(Thing, "labels.some_key") == "labels.some_key"


def test_another_style_keeps_what_was_written() -> None:
    """Hours and times are not read and written again, only the names change."""
    camel, plain = Style(camel=True, strict=False, left_out={Thing: {"id"}}), Style()
    document = {key: DOCUMENT[key] for key in DOCUMENT if key not in ("id", "used_gpu_hours")}
    written = {**document, "made": "1970-01-01T01:00:01+01:00", "usedGPUHours": 1.0000000001}
    written["parts"] = [{"name": "x", "sizeGPUs": 2}]
    written["main"], written["spares"] = {"name": "m"}, []
    spec = check_shape(written, camel.document(Thing))
    again = msgspec.to_builtins(plain.restyled(Thing, spec, id="a"))
    assert (again["made"], again["used_gpu_hours"]) == (written["made"], 1.0000000001)
    assert again["parts"] == [{"name": "x", "colour": "red", "size_gpus": 2}]
    assert again["id"] == "a"


def test_the_schema_says_what_the_dataclass_says() -> None:
    """Descriptions, ranges, units and tags."""
    shapes = msgspec.json.schema(Style().document(Thing))["$defs"]
    thing = shapes["ThingDocument"]["properties"]
    assert shapes["PartDocument"]["description"] == "A part of a thing."
    assert "RFC 3339" in thing["made"]["description"]
    assert thing["key"]["pattern"] == "^[0-9a-fA-F]{4}$"
    assert shapes["SquareDocument"]["properties"]["side"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": SIZE_MAX,
    }
    assert shapes["CircleDocument"]["properties"]["type"] == {"enum": ["circle"]}
