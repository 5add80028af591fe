"""The fast way to canonical text writes the same bytes as the slow one."""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import NotCanonical, canonical
from fairlead.schema.rendering import rendered

numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1000, 1000),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.sampled_from([0.0, -0.0, 1.0, 1e-7, 1e21, 1e22, 1e16, 5e-324, 0.00001, 2.0**53, 1e15]),
)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
documents: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


@given(documents)
def test_the_bytes_are_those_of_canonical(document: Any) -> None:
    """Numbers, escapes and the order of keys, whatever they are."""
    assert rendered(document).encode() == canonical(document)


@given(documents)
def test_rendered_parts_are_written_as_they_are(document: Any) -> None:
    """A part that was rendered before gives the same whole."""
    assert canonical({"part": rendered(document)}) == canonical({"part": document})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2**53, {1: 2}])
def test_what_json_cannot_carry_is_refused(bad: Any) -> None:
    """A NaN does not become null, nor a number another one."""
    with pytest.raises((NotCanonical, TypeError)):
        rendered({"deep": [bad]})


@dataclass(frozen=True, slots=True)
class Row:
    """A value as core has them."""

    name: str
    share: float
    parts: tuple[int, ...] = ()


def test_values_of_core_are_objects_by_field() -> None:
    """Keys in order, tuples as lists, whole floats without a fraction."""
    assert rendered([Row("b", 1.0, (1, 2)), None]) == '[{"name":"b","parts":[1,2],"share":1},null]'


FRESH = """
from dataclasses import dataclass
from fairlead.schema.rendering import rendered

@dataclass(slots=True)
class Row:
    name: object
    share: object

row = Row(None, None)
for number, name in enumerate(("name", "share")):
    setattr(Row, name, property(lambda self, n=number: (1.5 + n, "text" * (n + 9))))
print(rendered([row]))
"""


def test_fields_that_are_made_anew_with_every_read_are_written_as_they_are() -> None:
    """A compiled value holds numbers and pairs unboxed. msgspec let go of such a field's value
    before it wrote it, where it was to sort the fields: agents crashed, or recorded rubbish. With
    this allocator freed memory is overwritten, so that this shows at once."""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    command = [sys.executable, "-c", FRESH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    expected = f'[{{"name":[1.5,"{"text" * 9}"],"share":[2.5,"{"text" * 10}"]}}]\n'
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
