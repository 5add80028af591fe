"""Samples of metrics: what was counted, and which of a text are meant. `exposition` writes them."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Self

from fairlead.schema.border import BadInput

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"\\]*)"\s*(,|$)')


class Histogram:
    """Counts of what was observed since the process began, by upper bound; one writer."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, with how many are at most as much."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


Value = float | Histogram
Series = Sequence[tuple[Mapping[str, str], Value]]
Samples = Mapping[str, Series]
"""Labels and value of each series, by metric."""


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
