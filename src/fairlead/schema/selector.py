"""Which samples of a Prometheus text an operator means: `http_requests_total{code="5*"}`.

A name, and for some of its labels a value, in which `*` stands for anything. What the samples say
is added up. This is not PromQL: a rate or a quantile is the agent's own work.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from fairlead.schema.border import BadInput

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"\\]*)"\s*(,|$)')


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric's name, and what its labels have to be like."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, path: str) -> Self:
        """Of `name` or `name{label="value",…}`; anything else is bad input at that path."""
        found = _NAME.match(text)
        if found is None:
            raise BadInput(path, f"must begin with the name of a metric, got {text!r}")
        rest = text[found.end() :].strip()
        if not rest:
            return cls(found[0])
        if not (rest.startswith("{") and rest.endswith("}")):
            raise BadInput(path, f'must be like name{{label="value"}}, got {text!r}')
        labels, inside, at = [], rest[1:-1], 0
        while at < len(inside):
            matcher = _MATCHER.match(inside, at)
            if matcher is None:
                raise BadInput(path, f'must be like name{{label="value"}}, got {text!r}')
            labels.append((matcher[1], matcher[2]))
            at = matcher.end()
        return cls(found[0], tuple(labels))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return name == self.name and all(
            fnmatchcase(labels.get(label, ""), wanted) for label, wanted in self.labels
        )
