"""The one YAML loader: plain JSON-like data out, or `BadInput` with the path of the offender.

PyYAML only tokenises here; the data is built from its events, so that what a "safe" loader still
lets through never arrives: anchors and aliases (alias bombs), tags, repeated keys, keys that are
not strings, documents too large or too deep, and the surprises of YAML 1.1: `no`, `012`, `1_000`
and `12:30` are strings, as JSON would have to write them.
"""

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import yaml
from yaml import events

from fairlead.schema.border import BadInput, decoded, long_integer, refuse_nul

YAML_BYTES_MAX = 4 * 2**20
DEPTH_MAX = 32
NODES_MAX = 100_000

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


def parse_yaml(data: bytes) -> Any:
    documents = parse_yaml_documents(data)
    if len(documents) != 1:
        raise BadInput("$", f"must be one YAML document, got {len(documents)}")
    return documents[0]


def read_settings(data: bytes, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration file (YAML or JSON) with flags and environment laid over it."""
    settings = parse_yaml(data) if data.strip() else {}
    if not isinstance(settings, dict):
        raise BadInput("$", "must be a mapping of settings")
    refuse_nul(settings)
    return {**settings, **overrides}


def parse_yaml_documents(data: bytes) -> list[Any]:
    """All documents of a YAML stream (separated by `---`)."""
    text = decoded(data, YAML_BYTES_MAX)
    try:
        return _Builder(text).documents()
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark
        place = f" at line {where.line + 1}, column {where.column + 1}" if where else ""
        raise BadInput("$", f"must be YAML: {error.problem or error.context}{place}") from error
    except yaml.YAMLError as error:
        raise BadInput("$", f"must be YAML: {str(error).splitlines()[0]}") from error


class _Builder:
    """Builds plain data from a stream of events, counting what it is made of."""

    def __init__(self, text: str) -> None:
        # The C tokeniser where it is built in; both yield the same events.
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[events.Event] = iter(yaml.parse(text, Loader=loader))
        self._nodes = 0

    def documents(self) -> list[Any]:
        found = []
        for event in self._events:
            if isinstance(event, events.DocumentStartEvent):
                if event.tags:
                    raise BadInput("$", f"must not declare tags{_line(event)}")
                found.append(self._node(next(self._events), "", 0))
        return found

    def _node(self, event: events.Event, path: str, depth: int) -> Any:
        self._admit(event, path, depth)
        if isinstance(event, events.ScalarEvent):
            return _scalar(event, path)
        if isinstance(event, events.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(following := next(self._events), events.SequenceEndEvent):
                items.append(self._node(following, f"{path}[{len(items)}]", depth + 1))
            return items
        members: dict[str, Any] = {}
        while not isinstance(following := next(self._events), events.MappingEndEvent):
            key = self._key(following, path, depth + 1)
            here = f"{path}.{key}" if path else key
            if key in members:
                raise BadInput(here, f"is given twice{_line(following)}")
            members[key] = self._node(next(self._events), here, depth + 1)
        return members

    def _key(self, event: events.Event, path: str, depth: int) -> str:
        self._admit(event, path, depth)
        key = _scalar(event, path) if isinstance(event, events.ScalarEvent) else None
        if not isinstance(key, str):
            raise BadInput(path or "$", f"must have strings as keys{_line(event)}")
        return key

    def _admit(self, event: events.Event, path: str, depth: int) -> None:
        """What every node has to satisfy before anything is built from it."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise BadInput("$", f"must have at most {NODES_MAX} values and keys")
        if depth > DEPTH_MAX:
            raise BadInput("$", f"is nested too deeply{_line(event)}")
        if isinstance(event, events.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise BadInput(path or "$", f"must not use anchors or aliases{_line(event)}")
        # "!" alone only says "not plain"; anything else asks for another type than it looks like.
        if getattr(event, "tag", None) not in (None, "!"):
            raise BadInput(path or "$", f"must not use tags{_line(event)}")


def _scalar(event: events.ScalarEvent, path: str) -> Any:
    """A quoted or block scalar is a string; a plain one reads as JSON would read it."""
    text: str = event.value
    if not event.implicit[0] or event.tag is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return long_integer(text)
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if not isfinite(number):
        raise BadInput(path or "$", f"must be a finite number, got {text[:40]}{_line(event)}")
    return number


def _line(event: events.Event) -> str:
    return f" (line {event.start_mark.line + 1})" if event.start_mark else ""
