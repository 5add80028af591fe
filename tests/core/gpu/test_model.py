"""What no type can say of budgets and requests: each fault with the field that it is about."""

import pytest

from fairlead.core.gpu import AggregateCap, Budget, Envelope, Request, Window

WEST, EAST = Envelope("west", "H100", 4), Envelope("east", "A100", 4)


def cap(name: str, *envelopes: str, flavor: str = "H100") -> AggregateCap:
    return AggregateCap(name, flavor, envelopes)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Window(5, 5), "end_ms"),
        (Budget("b", "a", (), (WEST, WEST)), "envelopes[1].name"),
        (Budget("b", "a", (), (WEST,), (cap("c"), cap("c"))), "aggregate_caps[1].name"),
        (Budget("b", "a", (), (WEST,), (cap("c", "gone"),)), "aggregate_caps[0].envelopes[0]"),
        (
            Budget("b", "a", (), (WEST, EAST), (cap("c", "west", "east"),)),
            "aggregate_caps[0].envelopes[1]",
        ),
        (Request("a", "H100", 4, min_gpus=2), "step_gpus"),
        (Request("a", "H100", 4, step_gpus=2), "min_gpus"),
        (Request("a", "H100", 4, min_gpus=6, step_gpus=1), "min_gpus"),
        (Request("a", "H100", 5, min_gpus=2, step_gpus=2), "gpus"),
    ],
)
def test_a_fault_names_its_field(value: Window | Budget | Request, field: str) -> None:
    """In core's words; the border says it in the document's."""
    assert [fault.field for fault in value.faults()] == [field]


def test_sound_values_have_no_faults() -> None:
    """An envelope may be named twice in a cap: it counts once."""
    assert not list(Window(0, 1).faults())
    assert not list(Budget("b", "a", (), (WEST, EAST), (cap("c", "west", "west"),)).faults())
    assert not list(Request("a", "H100", 6, min_gpus=2, step_gpus=2).faults())
