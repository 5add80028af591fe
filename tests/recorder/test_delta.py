"""Patches: exact for any two documents, small for the next clearing, refused if they misfit."""

from typing import Any

import pytest
from hypothesis import given

from fairlead.core.canonical import canonical
from fairlead.recorder.delta import BadPatch, diff, diff_documents, patch, patch_documents
from fairlead.recorder.lines import Renderer, parse
from tests.recorder.documents import clearings
from tests.recorder.strategies import json_objects, json_values


def through_json(value: Any) -> Any:
    return parse(canonical(value))


@given(json_values, json_values)
def test_a_patch_is_exact(old: Any, new: Any) -> None:
    """What a reader makes of the old value and the patch is the new value, byte for byte."""
    base = through_json(old)
    before = canonical(base)
    change = diff(base, new)
    if change is None:
        assert canonical(new) == before
        return
    assert canonical(patch(base, through_json(change))) == canonical(new) != before
    assert canonical(base) == before, "nothing is modified in place"


@given(json_objects, json_objects, json_objects)
def test_known_parts_render_as_afresh(first: Any, second: Any, third: Any) -> None:
    """The reader's short cut gives the canonical bytes, along a chain of patched documents."""
    renderer, base = Renderer(), through_json(first)
    assert renderer.render(base) == canonical(base)
    for new in (second, third, third, first):
        base = patch(base, through_json(diff(base, new) or {}))
        assert renderer.render(base) == canonical(new)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": 1}, {"a": True}, {"a": [True]}),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": None, "c": [3]}),
        ({"a": {"b": [1, 2, 3]}}, {"a": {"b": (1, 2, 4)}}, {"a": {"b": {"2": [4]}}}),
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
def test_the_forms_of_a_patch(old: Any, new: Any, expected: Any) -> None:
    """Each form where it is the short one."""
    assert diff(old, new) == expected


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


@pytest.mark.parametrize(
    ("changed", "capacity_millicores", "share"),
    [(0, 50_000, 0.001), (3, 300_000, 0.03), (3, 50_000, 0.10), (110, 50_000, 0.25)],
)
def test_the_next_clearing_of_a_node_is_small(
    changed: int, capacity_millicores: int, share: float
) -> None:
    """110 pods. On a congested node three that change move the grants of all the others."""
    made = clearings(pods=110, changed=changed, capacity_millicores=capacity_millicores)
    (input, output), (next_input, next_output) = next(made), next(made)
    base = through_json({"input": input, "output": output})
    new = {"input": next_input, "output": next_output}
    assert len(canonical(diff_documents(base, new))) < share * len(canonical(new))


def test_a_pod_that_comes_or_goes_is_small() -> None:
    """The neighbours of a newcomer in the middle keep their names, so they are not repeated."""
    made = clearings(pods=110, changed=0, capacity_millicores=300_000)
    whole = next(made)[0]
    without = {**whole, "pods": [pod for index, pod in enumerate(whole["pods"]) if index != 40]}
    for old, new in ((whole, without), (without, whole)):
        assert len(canonical(diff(through_json(old), new))) < 400
