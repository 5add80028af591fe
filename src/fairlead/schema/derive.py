"""Documents and manifests derived from core's values: a noun is described once, in core.

    @dataclass(frozen=True, slots=True)              # in core; markers are in core/units.py
    class Window:
        start_ms: Annotated[int, Time(), Written("start")]
        end_ms: Annotated[int, Time(), Written("end")]

    STYLE = Style(strict=False, optional={Envelope: {"recurrence"}})    # at the border
    WindowDocument = STYLE.document(Window)          # a msgspec Struct, for check_shape and schemas
    window = STYLE.to_core(Window, document, "spec.window")     # parsed; `BadInput` with its path
    plain = STYLE.from_core(window)                  # {"start": "2026-…", "end": "2026-…"}

A Style says how a family of documents is written: camelCase or not, which fields may be left out,
the largest sizes. Types: str, int, float, bool, enums, dataclasses, named tuples, `X | None`,
tuples, frozensets, mappings of strings, and unions of dataclasses with a class attribute `TAG`
(written as `"type"`). Markers: those of core/units.py. What no type
can say, a method `faults()` of the value yields as `OutOfRange`, with core's field names; a
constructor may raise one too.
`@STYLE.derived(Budget)` above an empty Struct gives that class its fields, for annotations and
`isinstance`; fields declared in it under TYPE_CHECKING tell mypy which ones are read.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from fairlead.core import units
from fairlead.core.invariant import of_kind
from fairlead.core.units import INTEGER_MAX, SIZE_MAX, NonEmpty, OutOfRange, Range, Written
from fairlead.schema import times
from fairlead.schema.border import BadInput
from fairlead.schema.convert import convert

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_SEGMENT = re.compile(r"([^.\[\]]+)((?:\[\d+\])*)")
Fields = Mapping[type, Set[str]]


class _Codec(NamedTuple):
    """A field's type in documents, and both ways between there and core; None: as it is."""

    type: Any
    read: Callable[[Any, str], Any] | None = None
    write: Callable[[Any], Any] | None = None
    inner: type | None = None
    """The dataclass inside, to find names in the paths of faults."""
    direct: bool = True
    """Whether msgspec can make core's value of the document's by the names of the fields."""
    plain: bool = True
    """Whether msgspec writes core's value as documents have it."""


class _Shape(NamedTuple):
    """A dataclass as a document."""

    struct: type[msgspec.Struct]
    codecs: dict[str, _Codec]
    values: Callable[[Any], tuple[Any, ...]]
    """Those of the codecs' fields."""
    written: dict[str, str]
    in_order: bool
    """Whether they are all that the dataclass has, by position."""
    readers: list[tuple[int, Callable[[Any, str], Any]]]
    """By the position of the field."""
    writers: list[tuple[str, Callable[[Any], Any]]]
    checked: bool
    """Whether the dataclass names faults that no type can show."""
    direct: bool
    plain: bool
    """Both as in a codec."""


class Style:
    """How the documents of one family are written."""

    def __init__(
        self,
        *,
        camel: bool = False,
        strict: bool | Set[type] = True,
        optional: Fields | None = None,
        required: Fields | None = None,
        left_out: Fields | None = None,
        plain: Fields | None = None,
        computed: Fields | None = None,
        not_null: Fields | None = None,
        described: Mapping[type, Mapping[str, str]] | None = None,
        size_max: int = SIZE_MAX,
        text_max: int | None = None,
        hours_max: int = SIZE_MAX,
        suffix: str = "Document",
    ) -> None:
        """`strict`: every field is required (of these classes), but for `optional` ones; else those
        without a default and `required` ones. `left_out` fields are given to `to_core` by name, or
        keep their defaults; `plain` ones are in milliseconds, as core has them. `computed` are
        properties that are written like fields, and not read. `not_null` fields may be left out,
        and are None in core then, but not be null. A size that ends at SIZE_MAX ends at `size_max`.
        """
        self._camel, self._strict, self._suffix = camel, strict, suffix
        self._optional, self._required = optional or {}, required or {}
        self._left_out, self._bare, self._computed = left_out or {}, plain or {}, computed or {}
        self._not_null, self._described = not_null or {}, described or {}
        self._size_max, self._text_max, self._hours_max = size_max, text_max, hours_max
        self._shapes: dict[type, _Shape] = {}

    def document(self, cls: type, name: str | None = None) -> type[msgspec.Struct]:
        return self._shape(cls, None, name).struct

    def derived(self, cls: type) -> Callable[[type[S]], type[S]]:
        """Decorates a Struct, which gets the fields of a dataclass; its own, that core does not
        have, stand before them, or behind where they have defaults."""

        def fill(declared: type[S]) -> type[S]:
            shape = self._shape(cls, declared, declared.__name__)
            return shape.struct  # type: ignore[return-value]  # the declared class, with fields

        return fill

    def to_core(self, cls: type[T], document: Any, path: str = "", **given: Any) -> T:
        """Core's value of a document that was checked; `given` are the fields left out of it."""
        shape = self._shape(cls)
        if shape.direct and not given:
            return cast("T", self._converted(document, cls, cls, path))
        values, place = list(shape.values(document)), 0
        try:  # a path is written only where a value is refused
            for place, read in shape.readers:
                values[place] = read(values[place], "")
        except BadInput as error:
            at = _join(path, shape.written[list(shape.codecs)[place]])
            raise BadInput(_join(at, error.path), error.message) from None
        try:
            if shape.in_order and not given:
                made = cls(*values)
            else:
                made = cls(**dict(zip(shape.codecs, values, strict=True)), **given)
            if shape.checked:
                for fault in made.faults():  # type: ignore[attr-defined]  # as `checked` says
                    raise fault
        except OutOfRange as fault:
            raise BadInput(_join(path, self._path(cls, fault.field)), fault.message) from None
        return made

    def _converted(self, value: Any, hint: Any, cls: type | None, path: str) -> Any:
        """A value of core by the names of its fields, in one call: a document may hold thousands.

        Every type was checked before, so what is refused here a constructor refused.
        """
        try:
            return convert(value, hint, from_attributes=True)
        except msgspec.ValidationError as error:
            fault = of_kind(error.__cause__, OutOfRange, f"documents fit core's types: {error}")
            at = str(error).rpartition(" - at `$")[2].removesuffix("`") if "`" in str(error) else ""
            index = at[: at.find("]") + 1] if at.startswith("[") else ""
            field = _join(at.removeprefix(index), fault.field)
            raise BadInput(_join(path + index, self._path(cls, field)), fault.message) from None

    def restyled(self, cls: type, document: Any, **given: Any) -> msgspec.Struct:
        """The document of another style in this one, every value as it was written there."""
        shape = self._shape(cls)
        for name, codec in shape.codecs.items():
            if name not in given:
                value = getattr(document, name)
                if codec.inner is not None:
                    value = convert(value, codec.type, from_attributes=True)
                given[name] = value
        return shape.struct(**given)

    def from_core(self, value: Any) -> dict[str, Any]:
        """The document of a value of core, as plain data with every field."""
        shape = self._shape(type(value))
        if shape.plain:
            return cast("dict[str, Any]", msgspec.to_builtins(value))
        plain = {written: getattr(value, name) for name, written in shape.written.items()}
        for written, write in shape.writers:
            plain[written] = write(plain[written])
        return plain

    # -- shapes -----------------------------------------------------------------------------------

    def _shape(
        self,
        cls: type,
        declared: type[msgspec.Struct] | None = None,
        name: str | None = None,
        tag: str | None = None,
    ) -> _Shape:
        if cls not in self._shapes:
            self._shapes[cls] = self._made(cls, declared, name, tag)
        return self._shapes[cls]

    def _made(
        self, cls: type, declared: type[msgspec.Struct] | None, name: str | None, tag: str | None
    ) -> _Shape:
        codecs, written, members = self._members(cls)
        for own in () if declared is None else msgspec.structs.fields(declared):
            place = 0 if own.required else len(members)
            members.insert(place, (own.name, own.type, msgspec.field(default=own.default)))
        struct = msgspec.defstruct(
            name or f"{cls.__name__}{self._suffix}",
            members,
            namespace={"__doc__": (declared or cls).__doc__},
            module=cls.__module__,
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,  # documents hold no cycles; a hundred thousand of them would be visited
            tag=tag,
            tag_field=None if tag is None else "type",
        )
        readers = [(place, codec.read) for place, codec in enumerate(codecs.values()) if codec.read]
        writers = [(written[name], codec.write) for name, codec in codecs.items() if codec.write]
        checked = hasattr(cls, "faults")
        left_out = [default for field, default in _fields(cls) if field not in codecs]
        whole = dataclasses.is_dataclass(cls) and dataclasses.MISSING not in left_out
        direct = whole and not checked and all(codec.direct for codec in codecs.values())
        plain = (
            whole
            and [field for field, _ in _fields(cls)] == list(written.values())
            and all(codec.plain for codec in codecs.values())
        )
        names = list(codecs)
        return _Shape(
            *(struct, codecs, _values(names), written, names == _by_position(cls)),
            *(readers, writers, checked, direct, plain),
        )

    def _members(
        self, cls: type
    ) -> tuple[dict[str, _Codec], dict[str, str], list[tuple[str, Any, Any]]]:
        """The codecs of a dataclass's fields, their names in documents, and the Struct's fields."""
        hints = get_type_hints(cls, include_extras=True)
        codecs: dict[str, _Codec] = {}
        written: dict[str, str] = {}
        members: list[tuple[str, Any, Any]] = []
        for field, default in _fields(cls):
            if field in self._left_out.get(cls, ()):
                continue
            hint = hints[field] if field not in self._bare.get(cls, ()) else _bare(hints[field])
            written[field] = self._name(field, hint)
            if field in self._not_null.get(cls, ()):
                codec = self._codec(get_args(hint)[0])
                options: dict[str, Any] = {"default_factory": NoneType}
            else:
                codec = self._codec(hint)
                options = self._default(cls, field, default, codec)
            text = self._described.get(cls, {}).get(field)
            if text is not None:
                codec = codec._replace(type=Annotated[codec.type, Meta(description=text)])
            codecs[field] = codec
            members.append((field, codec.type, msgspec.field(name=written[field], **options)))
        for field in sorted(self._computed.get(cls, ())):
            written[field] = self._name(field, None)
            result = get_type_hints(getattr(cls, field).fget)["return"]
            members.append((field, result, msgspec.field(name=written[field])))
        return codecs, written, members

    def _default(self, cls: type, field: str, default: Any, codec: _Codec) -> dict[str, Any]:
        if self._strict is True or (self._strict and cls in self._strict):
            required = all(field not in self._optional.get(base, ()) for base in cls.__mro__)
        else:
            required = field in self._required.get(cls, ())
        if required or default is dataclasses.MISSING:
            return {}
        plain = default if codec.write is None else codec.write(default)
        if isinstance(plain, list | dict) and not plain:
            return {"default_factory": type(plain)}
        made = convert(plain, codec.type)
        return {"default_factory": made.copy} if isinstance(plain, list) else {"default": made}

    def _name(self, name: str, hint: Any) -> str:
        for marker in _markers(hint):
            if isinstance(marker, Written):
                name = marker.name
        if not self._camel:
            return name
        first, *rest = name.split("_")
        return first + "".join(_UPPER.get(part, part.capitalize()) for part in rest)

    # -- fields -----------------------------------------------------------------------------------

    def _codec(self, hint: Any) -> _Codec:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._marked(arguments[0], hint.__metadata__)
        if origin in (Union, UnionType):
            return self._union([part for part in arguments if part is not NoneType])
        if origin in (tuple, frozenset):
            codec = _many(self._codec(arguments[0]), origin)
            if not codec.direct or codec.inner is None:
                return codec
            return codec._replace(
                read=lambda value, path: self._converted(value, hint, codec.inner, path)
            )
        if isinstance(origin, type) and issubclass(origin, Mapping):
            shape = dict[str, self._codec(arguments[1]).type]  # type: ignore[misc, valid-type]  # a hint
            return _Codec(shape, None, dict)
        return self._plain(hint)

    def _plain(self, hint: Any) -> _Codec:
        if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
            return self._nested(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _Codec(hint, None, attrgetter("_value_"))  # `value` is a property, and slow
        return _Codec(hint)

    def _nested(self, cls: Any, tag: str | None = None) -> _Codec:
        def read(value: Any, path: str) -> Any:
            return self.to_core(cls, value, path)

        shape = self._shape(cls, tag=tag)
        return _Codec(shape.struct, read, self.from_core, cls, shape.direct, shape.plain)

    def _union(self, parts: list[Any]) -> _Codec:
        """`X | None`, or several dataclasses that are told apart by their TAG."""
        if len(parts) == 1:
            codec = self._codec(parts[0])
            read, write = codec.read, codec.write
            return codec._replace(
                type=codec.type | None,
                read=read and (lambda value, path: None if value is None else read(value, path)),
                write=write and (lambda value: None if value is None else write(value)),
            )
        codecs = {part: self._nested(part, part.TAG) for part in parts}
        by_struct = {codec.type: part for part, codec in codecs.items()}
        return _Codec(
            Union[tuple(codec.type for codec in codecs.values())],  # noqa: UP007 - made of a list
            lambda value, path: self.to_core(by_struct[type(value)], value, path),
            lambda value: {"type": value.TAG, **self.from_core(value)},
            direct=False,
            plain=False,
        )

    def _marked(self, base: Any, markers: tuple[Any, ...]) -> _Codec:
        codec = self._codec(base)
        for marker in markers:
            if isinstance(marker, Range):
                size = base is int and marker.high == SIZE_MAX
                high = self._size_max if size else marker.high
                meta = Meta(ge=marker.low, le=high, description=marker.text)
                codec = codec._replace(type=Annotated[base, meta])
            elif isinstance(marker, NonEmpty):
                meta = Meta(min_length=1, max_length=self._text_max)
                codec = codec._replace(type=Annotated[base, meta])
            elif isinstance(marker, units.Hex):
                codec = _hex(marker.length * 2)
            elif isinstance(marker, units.Time):
                codec = _parsed(times.TimeText, times.parse_time, times.format_time)
            elif isinstance(marker, units.Duration):
                codec = _parsed(times.DurationText, times.parse_duration, times.format_duration)
            elif isinstance(marker, units.Hours):
                codec = _hours(times.duration_ms if marker.up else times.cap_ms, self._hours_max)
            elif isinstance(marker, units.Series):
                codec = _parsed(dict[str, Any], _read_series, _write_series)
        return codec

    def _path(self, cls: type | None, field: str) -> str:
        """The path of a fault in the words of the document."""
        found = []
        for segment in _SEGMENT.finditer(field):
            shape = None if cls is None else self._shape(cls)
            name, index = segment.groups()
            found.append((name if shape is None else shape.written.get(name, name)) + index)
            codec = None if shape is None else shape.codecs.get(name)
            cls = None if codec is None else codec.inner
        return ".".join(found)


_UPPER = {"gpu": "GPU", "gpus": "GPUs"}


def _by_position(cls: Any) -> list[str]:
    """The fields that a constructor takes by their positions."""
    if hasattr(cls, "_fields"):
        return list(cls._fields)
    return [field.name for field in dataclasses.fields(cls) if field.init and not field.kw_only]


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The attributes of these names; `attrgetter` gives a tuple from two names on."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda document: tuple(getattr(document, name) for name in names)


def _fields(cls: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass or named tuple, each with its default or MISSING."""
    missing = dataclasses.MISSING
    if hasattr(cls, "_fields"):
        return [(name, cls._field_defaults.get(name, missing)) for name in cls._fields]
    return [
        (field.name, field.default if field.default_factory is missing else field.default_factory())
        for field in dataclasses.fields(cls)
    ]


def _parsed(shape: Any, read: Callable[[Any, str], Any], write: Callable[[Any], Any]) -> _Codec:
    """A value that documents write otherwise than core has it."""
    return _Codec(shape, read, write, direct=False, plain=False)


def _hex(digits: int) -> _Codec:
    # The pattern is for readers of the schema; the sentence is ours.
    pattern = f"^[0-9a-fA-F]{{{digits}}}$"

    def read(value: str, path: str) -> bytes:
        if not re.fullmatch(pattern.strip("^$"), value):
            raise BadInput(path, f"must be {digits} hex digits")
        return bytes.fromhex(value)

    shape = Annotated[str, Meta(extra_json_schema={"pattern": pattern})]
    return _parsed(shape, read, bytes.hex)


def _read_series(document: dict[str, Any], path: str) -> tuple[tuple[int, float], ...]:
    """By number, not by text: "9800" comes before "10000"."""
    for key, value in document.items():
        # Only the plain form: "007" would be the same time as "7".
        if not (key.isascii() and key.isdigit() and len(key) <= 16 and str(int(key)) == key):
            raise BadInput(_join(path, key), "must be named by a time in milliseconds")
        if type(value) not in (int, float):
            raise BadInput(_join(path, key), f"must be a number, got {value!r}")
    try:
        return tuple((at, float(document[str(at)])) for at in sorted(map(int, document)))
    except OverflowError:
        raise BadInput(path, "must hold finite numbers") from None


def _write_series(pairs: Iterable[tuple[int, float]]) -> dict[str, float]:
    return {str(at): value for at, value in pairs}


def _hours(to_ms: Callable[[float], int], hours_max: int) -> _Codec:
    shape = Annotated[float, Meta(ge=0, le=hours_max)]
    return _parsed(shape, lambda value, _: to_ms(value), times.hours)


def _many(codec: _Codec, make: Callable[[Any], Any]) -> _Codec:
    read, write = codec.read, codec.write

    def read_all(values: list[Any], path: str) -> Any:
        if read is None:
            return make(values)
        done = 0  # the index in a path is written only where a value is refused
        try:
            items = []
            for done, value in enumerate(values):  # noqa: B007 - used by the handler
                items.append(read(value, ""))
        except BadInput as error:
            raise BadInput(_join(f"{path}[{done}]", error.path), error.message) from None
        return make(items)

    def write_all(values: Any) -> list[Any]:
        if codec.plain and codec.inner is not None:
            return cast("list[Any]", msgspec.to_builtins(list(values)))
        ordered = sorted(values) if make is frozenset else values
        return list(ordered) if write is None else [write(value) for value in ordered]

    shape = list[codec.type]  # type: ignore[name-defined]  # a hint
    return _Codec(shape, read_all, write_all, codec.inner, codec.direct, plain=False)


def _bare(hint: Any) -> Any:
    """A number as core has it, without the markers of its unit and name."""
    number = Annotated[int, Range(0, INTEGER_MAX)]
    return number | None if NoneType in get_args(hint) else number


def _markers(hint: Any) -> tuple[Any, ...]:
    """The markers of a field, also inside `… | None`."""
    if get_origin(hint) is Annotated:
        return tuple(hint.__metadata__)
    if get_origin(hint) in (Union, UnionType):
        return tuple(marker for part in get_args(hint) for marker in _markers(part))
    return ()


def _join(path: str, name: str) -> str:
    if name.startswith("["):
        return path + name
    return f"{path}.{name}" if path and name else path or name
