"""Strict JSON in, typed documents out, every refusal with the path of the offending field.

msgspec reads the text and checks the shape. What it does not like, and what could hide a repeated
key or half a character, is read again by the standard library's parser, which lets us say what is
wrong and where. `BadInput` is the only exception that leaves this module.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

from fairlead.core.units import FLOAT_MAX
from fairlead.schema.convert import convert

T = TypeVar("T")

# A document is read into memory whole: 64 MiB holds 300 000 pods.
DOCUMENT_BYTES_MAX = 64 * 2**20
_NUMBER_DIGITS_MAX = 400  # more cannot be a double, and int() of more is slow on purpose
_SHOWN_CHARACTERS_MAX = 60

_FIELD = re.compile(
    r"^Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`$", re.DOTALL
)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")

_NOUNS: dict[type, str] = {
    inspect.StrType: "a string",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
}


class BadInput(ValueError):
    """Input that never gets past the border: a path and a sentence."""

    def __init__(self, path: str, message: str) -> None:
        # A hostile key may hold a lone surrogate; the refusal must be printable all the same.
        self.path = path.encode("utf-8", "backslashreplace").decode()
        # Keys and values may hold anything, a terminal's orders too. A path is one line.
        self.message = printable(message.encode("utf-8", "backslashreplace").decode(), "\n")
        super().__init__(f"{printable(self.path)}: {self.message}")


def printable(text: str, besides: str = "") -> str:
    """With what is no printable character escaped, but for those in `besides`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in besides else ascii(c)[1:-1] for c in text)


class _RepeatedKey(Exception):
    pass


def parse_json(data: bytes) -> Any:
    """Parse one JSON text. Repeated keys, bad UTF-8, rubbish and over-deep nesting are refused."""
    text = decoded(data, DOCUMENT_BYTES_MAX)
    if "\\u" not in text:
        with suppress(msgspec.MsgspecError, RecursionError, OverflowError, ValueError):
            value = msgspec.json.decode(data)
            # Each member has a colon, and a repeated key loses it; only an escape could add one.
            if msgspec.json.encode(value).count(b":") == data.count(b":"):
                return value
    value = _loads(text)
    if "\\u" in text:  # only an escape can smuggle in half a character
        _refuse_surrogates(value, "")
    return value


def decoded(data: bytes, bytes_max: int) -> str:
    if len(data) > bytes_max:
        raise BadInput("$", f"must be at most {bytes_max} bytes, got {len(data)}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput("$", f"must be UTF-8: {error.reason} at byte {error.start}") from error


def _loads(text: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    try:
        return json.loads(text, object_pairs_hook=hook or _object, parse_int=long_integer)
    except _RepeatedKey:
        # Once more, keeping the pairs, to name the path; a text that breaks off later says so.
        value = _loads(text, _Pairs)
        raise BadInput(next(_repeated(value, ""), "$"), "is given twice") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").partition(" (")[0]
        raise BadInput("$", f"must be JSON: {what} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise BadInput("$", "is nested too deeply") from error


def read_document(data: bytes, shape: type[T]) -> T:
    return check_shape(parse_json(data), shape)


def check_shape(value: Any, shape: type[T]) -> T:
    """Check parsed data against a msgspec Struct, with our paths and sentences."""
    if not isinstance(value, dict):
        raise BadInput("$", f"must be an object, got {_shown(value)}")
    try:
        return convert(value, shape)
    except msgspec.ValidationError as error:
        raise _explain(str(error), value, shape) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _RepeatedKey
    return result


def long_integer(text: str) -> int:
    """The integer; of one with too many digits the first, which every range refuses as well."""
    return int(text[:_NUMBER_DIGITS_MAX])


def _refuse_surrogates(value: Any, path: str) -> None:
    """Half of a surrogate pair is not a character: it can be neither written nor hashed."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise BadInput(path or "$", f"must be valid Unicode, got {value!r}")
    elif isinstance(value, dict):
        for key, member in value.items():
            here = f"{path}.{key}" if path else key
            _refuse_surrogates(key, here)
            _refuse_surrogates(member, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_surrogates(item, f"{path}[{index}]")


def refuse_nul(value: Any, path: str = "") -> None:
    """No text of the ledger, of an environment, a path or a command line can hold a NUL."""
    if isinstance(value, str) and "\0" in value:
        raise BadInput(path or "$", "must not contain a NUL character")
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_nul(key, path)
            refuse_nul(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            refuse_nul(item, f"{path}[{index}]")


class _Pairs(list[tuple[str, Any]]):
    """An object with its repeated keys."""


def _repeated(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen = set()
        for key, member in value:
            here = f"{path}.{key}" if path else key
            if key in seen:
                yield here
            seen.add(key)
            yield from _repeated(member, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, f"{path}[{index}]")


def _explain(text: str, document: Any, shape: type) -> BadInput:
    """Turn msgspec's message into our path and sentence, with the value that was given."""
    what, where = _split(text, document)
    path, value, kind = _look_up(where, document, shape)
    field = _FIELD.match(what)
    if field:
        name = _named(field["name"])
        at = f"{path}.{name}" if path else name
        known = field["how"] == "missing required"
        return BadInput(at, "is required" if known else unknown_field(kind, field["name"]))
    counted = isinstance(value, list) and "of length" in what
    shown = str(len(value)) if counted else _shown(value)
    return BadInput(path or "$", f"{_expectation(kind, what)}, got {shown}")


def _split(text: str, document: dict[str, Any]) -> tuple[str, str]:
    """What is wrong, and where. A key may hold what looks like a place: msgspec's own is last, and
    it names none for a field of the document itself."""
    field = _FIELD.match(text)
    if field and field["name"] in document:
        return text, ""
    what, at, where = text.rpartition(" - at `$")
    return (what, where.removesuffix("`")) if at else (text, "")


def unknown_field(kind: inspect.Type | None, name: str) -> str:
    """What is said of a field that does not exist, with the one that was probably meant."""
    struct = _without_null(kind)
    fields = struct.fields if isinstance(struct, inspect.StructType) else ()
    names = {one.encode_name.lower(): one.encode_name for one in fields}
    short = {one.name: one.encode_name for one in fields}  # `gpus` of `totalGPUs`
    close = get_close_matches(name.lower(), names, 1)
    meant = short.get(name.lower()) or (names[close[0]] if close else None)
    return "is not a known field" + (f"; did you mean {meant}?" if meant else "")


def _look_up(where: str, document: Any, shape: type) -> tuple[str, Any, inspect.Type | None]:
    """What stands at msgspec's path: ours, the value there and the type that was expected."""
    path, value = "", document
    kind: inspect.Type | None = inspect.type_info(shape)
    for step in _STEP.finditer(where):
        name, index = step.group(1), step.group(2)
        kind = _chosen(_without_null(kind), value)
        tags = _tags(kind)
        if name in tags:
            return (
                f"{path}.{name}".removeprefix("."),
                value.get(name),
                inspect.LiteralType(tags[name]),
            )
        if name is not None:
            path += f".{name}"
            value = value.get(name) if isinstance(value, dict) else None
            fields = kind.fields if isinstance(kind, inspect.StructType) else ()
            kind = next((f.type for f in fields if f.encode_name == name), None)
        elif index is not None:
            path += f"[{index}]"
            value = value[int(index)]
            kind = kind.item_type if isinstance(kind, inspect.ListType) else None
        else:
            inside = _without_null(kind.value_type if isinstance(kind, inspect.DictType) else None)
            key = _culprit(value, inside)
            if key is None:
                return path.removeprefix(".") + "[...]", value, None
            path, value, kind = f"{path}.{_named(key)}", value[key], inside
    return path.removeprefix("."), value, kind


def _named(key: str) -> str:
    return key or '""'


def _chosen(kind: inspect.Type | None, value: Any) -> inspect.Type | None:
    """Of several structs, the one that the value's tag names."""
    for struct in kind.types if isinstance(kind, inspect.UnionType) else ():
        if (
            isinstance(struct, inspect.StructType)
            and isinstance(value, dict)
            and value.get(struct.tag_field) == struct.tag
        ):
            return struct
    return kind


def _tags(kind: inspect.Type | None) -> dict[str, tuple[str, ...]]:
    """The field that tells several structs apart, and the values that it may have."""
    found: dict[str, tuple[str, ...]] = {}
    for struct in kind.types if isinstance(kind, inspect.UnionType) else ():
        if isinstance(struct, inspect.StructType) and struct.tag_field is not None:
            known = found.get(struct.tag_field, ())
            found[struct.tag_field] = tuple(sorted((*known, str(struct.tag))))
    return found


def _culprit(members: Any, kind: inspect.Type | None) -> str | None:
    """msgspec does not name the key of a free-form object: the first that does not convert."""
    wanted: Any = str if isinstance(kind, inspect.StrType) else None
    if isinstance(kind, inspect.StructType):
        wanted = kind.cls
    if isinstance(kind, inspect.IntType):
        wanted = Annotated[int, msgspec.Meta(ge=kind.ge, le=kind.le)]
    for key, member in members.items() if wanted is not None else ():
        try:
            convert(member, wanted)
        except msgspec.ValidationError:
            return str(key)
    return None


def _without_null(kind: inspect.Type | None) -> inspect.Type | None:
    """The type behind its description and its `| null`."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        rest = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
        return _without_null(rest[0]) if len(rest) == 1 else kind
    return kind


def _description(kind: inspect.Type | None) -> str | None:
    while isinstance(kind, inspect.Metadata):
        words = (kind.extra_json_schema or {}).get("description")
        if words is not None:
            return str(words)
        kind = kind.type
    return None


def _expectation(described: inspect.Type | None, what: str) -> str:
    kind = _without_null(described)
    if isinstance(kind, inspect.StrType) and "regex" in what:
        return f"must be {_description(described) or f'of the form {kind.pattern}'}"
    if isinstance(kind, inspect.StrType | inspect.ListType) and "of length" in what:
        return _length(kind, what)
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return f"must be {_range(kind)}"
    choices = _choices(kind)
    if choices:
        return f"must be one of {', '.join(choices)}"
    if isinstance(kind, inspect.StrType) and kind.min_length:
        return "must be a non-empty string"
    noun = _NOUNS.get(type(kind))
    return f"must be {noun}" if noun else what[:1].lower() + what[1:]


def _choices(kind: inspect.Type | None) -> list[str]:
    if isinstance(kind, inspect.EnumType):
        return [str(member.value) for member in kind.cls]
    return list(map(str, kind.values)) if isinstance(kind, inspect.LiteralType) else []


def _length(kind: inspect.StrType | inspect.ListType, what: str) -> str:
    text = isinstance(kind, inspect.StrType)
    if "<=" in what:
        return f"must have at most {kind.max_length} {'characters' if text else 'items'}"
    if text:
        return "must be a non-empty string"
    return f"must have at least {kind.min_length} item{'s' if kind.min_length != 1 else ''}"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    whole = isinstance(kind, inspect.IntType)
    low, high = kind.ge, kind.le
    if low is None or high is None:
        return "an integer" if whole else "a number"
    if high >= FLOAT_MAX:
        return f"a finite number of at least {_plain(low)}"
    return f"{'an integer ' if whole else ''}between {_plain(low)} and {_plain(high)}"


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _shown(value: Any) -> str:
    """A value as the user wrote it, short enough for one line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, float):
        return repr(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
