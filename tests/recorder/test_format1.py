"""Patches of format 1 are read as they were written; those that fit nothing are refused."""

from typing import Any

import pytest

from fairlead.recorder.format1 import BadPatch, patch, patch_documents


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ({"a": 1}, {"a": True}, {"a": [True]}),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": None, "c": [3]}),
        ({"a": {"b": [1, 2, 3]}}, {"a": {"b": [1, 2, 4]}}, {"a": {"b": {"2": [4]}}}),
        ([1, 2], [3, 4], [[3, 4]]),
        ([1], [1, 2], [[1, 2]]),
        ([{"id": "x", "q": 1}], [{"id": "x", "q": 2}], {"x": {"q": [2]}}),
        ([{"id": "x"}, {"id": "y"}], [{"id": "y"}], {"x": None}),
        ([{"id": "y"}], [{"id": "x"}, {"id": "y"}], {"x": [{"id": "x"}, 0]}),
        ([{"id": "x"}, {"id": "y"}], [{"id": "y"}, {"id": "x"}], [[{"id": "y"}, {"id": "x"}]]),
        ([{"id": "x"}, {"id": "x"}], [{"id": "x"}, {"id": "z"}], {"1": {"id": ["z"]}}),
        (dict.fromkeys("abcd", 0), dict.fromkeys("abcd", 1), [[1, 1, 1, 1], "values"]),
        (
            [{"id": name, "q": 0} for name in "abcd"],
            [{"id": name, "q": 7} for name in "abcd"],
            [{"q": [7, 7, 7, 7]}, "each"],
        ),
        (
            {name: {"q": 0, "r": [0]} for name in "abcd"},
            {name: {"q": 7, "r": [0]} for name in "abcd"},
            [{"q": [7, 7, 7, 7]}, "each"],
        ),
    ],
)
def test_the_forms_of_a_patch(old: Any, new: Any, change: Any) -> None:
    """Each form that the writer of format 1 used; nothing is modified in place."""
    before = repr(old)
    assert patch(old, change) == new
    assert repr(old) == before


@pytest.mark.parametrize(
    ("old", "change"),
    [
        (1, {}),
        (1, 2),
        (1, None),
        ({}, []),
        ({}, [1, 2, 3]),
        ({}, {"a": None}),
        ({}, {"a": {"b": [1]}}),
        ({"a": 1}, [[1, 2], "values"]),
        ({"a": 1}, [1, "values"]),
        ([1], [[2], "values"]),
        ({"a": 1}, [{"q": [1]}, "each"]),
        ([{"a": 1}], [{"q": [1, 2]}, "each"]),
        (1, [{"q": [1]}, "each"]),
        ([1], {"1": [2]}),
        ([1], {"00": [2]}),
        ([{"id": "x"}], {"y": None}),
        ([{"id": "x"}], {"y": [{"id": "y"}]}),
        ([{"id": "x"}], {"y": [{"id": "y"}, True]}),
        ([{"id": "x"}], {"y": [{"id": "y"}, 2]}),
        ([{"id": "x"}], {"y": [{"id": "y"}, -1]}),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(old: Any, change: Any) -> None:
    """Never guessed, and no other error: a reader shows it as corruption."""
    with pytest.raises(BadPatch):
        patch(old, change)


def test_documents_stay_documents() -> None:
    """An entry has an input and an output, each an object, whatever a line says."""
    old: dict[str, Any] = {"input": {}, "output": {}}
    assert patch_documents(old, {}) == old
    misfits: list[dict[str, Any]] = [{"extra": [{}]}, {"input": [1]}]
    for bad in misfits:
        with pytest.raises(BadPatch):
            patch_documents(old, bad)
