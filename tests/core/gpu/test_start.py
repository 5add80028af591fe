"""Cover, then place: a malleable run starts at the widest width that is funded and has devices."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Book,
    Budget,
    Envelope,
    FreeDevices,
    Gang,
    GangShape,
    Node,
    Placement,
    Request,
    RunGrowth,
    Start,
    StartRequest,
    Window,
    start,
)
from fairlead.core.gpu.cover import cover
from fairlead.core.reasons import StartReason
from fairlead.schema.border import BadInput
from fairlead.schema.funding import fund_document
from fairlead.schema.gpu import start_document
from fairlead.schema.kinds import KINDS
from tests.core.gpu.build import NOW, budget, envelope


class Watched:
    """Free devices that remember which widths were placed."""

    def __init__(self, *nodes: Node) -> None:
        self._devices = FreeDevices(nodes)
        self.tried: list[int] = []

    def place(self, gang: Gang) -> Placement:
        self.tried.append(gang.gpus)
        return self._devices.place(gang)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._devices, name)


def decide(request: Request, *, paid: int, free: int, **more: Any) -> tuple[Start, list[int]]:
    """The decision, and the widths that were tried on so many free devices of one node."""
    devices = Watched(Node("n", "H100", {}, tuple(range(free))))
    return start(StartRequest(request, **more), book_of(paid), devices, 0), devices.tried


def book_of(gpus: int) -> Book:
    return Book([Budget("t", "t", envelopes=(Envelope("e", "H100", gpus),))], {})


def rigid(gpus: int) -> Request:
    return Request("t", "H100", gpus)


def malleable(gpus: int, least: int, step: int) -> Request:
    return Request("t", "H100", gpus, min_gpus=least, step_gpus=step)


def test_what_is_not_funded_is_not_placed() -> None:
    found, tried = decide(rigid(5), paid=4, free=8)
    assert (found.reason, found.placement, tried) == (StartReason.NOT_FUNDED, None, [])
    assert found.remedy is not None


def test_a_rigid_run_starts_whole_or_not_at_all() -> None:
    assert decide(rigid(4), paid=4, free=4)[0].starts
    found, tried = decide(rigid(4), paid=4, free=3)
    assert (found.reason, tried) == (StartReason.NO_DEVICES, [4])


def test_a_malleable_run_starts_at_the_widest_step_that_fits() -> None:
    """Of 2, 4, 6 … 100 GPUs, those wider than the seven free devices are not tried."""
    found, tried = decide(malleable(100, 2, 2), paid=100, free=7)
    assert (found.starts, found.plan.gpus, tried) == (True, 6, [100, 6])


def test_a_malleable_run_that_does_not_fit_is_shown_at_its_full_width() -> None:
    found, tried = decide(malleable(8, 4, 4), paid=8, free=3)
    assert (found.reason, found.plan.gpus, tried) == (StartReason.NO_DEVICES, 8, [8])
    grouped = {"shape": GangShape(group_gpus=4)}
    devices = Watched(*(Node(name, "H100", {"domain": name}, (0, 1, 2)) for name in "ab"))
    asked = StartRequest(malleable(8, 4, 4), **grouped)
    found = start(asked, book_of(8), devices, 0)
    assert (found.starts, found.plan.gpus, devices.tried) == (False, 8, [8, 4])


def test_preemption_makes_room_for_the_minimum() -> None:
    """What a run lacks is asked for at its minimum, on what is freed."""
    found, _ = decide(malleable(8, 4, 4), paid=8, free=3, freed=())
    assert (found.reason, found.request.gpus) == (StartReason.NO_DEVICES, 4)
    found, _ = decide(malleable(8, 4, 4), paid=8, free=3, freed=("n#7", "n#9"))
    assert (found.reason, found.request.gpus) == (StartReason.STARTS_LATER, 4)
    assert found.placement is not None
    assert found.placement.groups[0].active == ("n#0", "n#1", "n#2", "n#7")
    assert decide(rigid(8), paid=8, free=3, freed=("gone#0",))[0].reason is StartReason.NO_DEVICES
    assert decide(rigid(9), paid=8, free=3, freed=())[0].reason is StartReason.NOT_FUNDED
    assert decide(rigid(3), paid=8, free=3, freed=("n#7",))[0].starts


def test_cordoned_nodes_and_other_flavors_have_no_free_devices() -> None:
    devices = FreeDevices([Node("a", "H100", {}, (0,), cordoned=True), Node("b", "A100", {}, (0,))])
    assert (devices.gpus("H100"), devices.gpus("A100"), devices.gpus("L4")) == (0, 1, 0)


def grow(growth: RunGrowth, *, free: int, paid: int = 100, shape: GangShape, step: int) -> Start:
    request, nodes = malleable(100, 2, step), Node("n", "H100", {}, tuple(range(free)))
    asked = StartRequest(request, shape, growth)
    return start(asked, book_of(paid), FreeDevices([nodes]), 0)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 5), st.integers(1, 9), st.data())
def test_growth_is_whole_groups_by_whole_steps(
    size: int, step: int, width: int, more: int, data: st.DataObject
) -> None:
    """The lowest numbers first, never wider than it was, and as wide as devices and money allow."""
    has = width * size
    grows_to = has + more
    groups = tuple(range(width))
    free, paid = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))
    found = grow(
        RunGrowth(has, grows_to, groups), free=free, paid=paid, shape=GangShape(size), step=step
    )
    room = min(free, paid)
    if not found.starts:
        assert (found.groups, found.remedy) == ((), None)
        return
    gpus = found.plan.gpus
    assert gpus <= min(room, more)
    assert gpus == more or (gpus % size == 0 and gpus % step == 0)
    placed = found.placement
    assert placed is not None
    assert found.groups == tuple(range(width, width + len(placed.groups)))
    if room >= more:
        assert gpus == more


def test_growth_fills_the_holes_between_groups() -> None:
    found = grow(RunGrowth(4, 8, (0, 3)), free=9, shape=GangShape(2), step=2)
    assert (found.plan.gpus, found.groups) == (4, (1, 2))
    backed = grow(RunGrowth(2, 6, (1,)), free=5, shape=GangShape(2, spares_per_group=1), step=3)
    assert (backed.plan.gpus, backed.groups, backed.reason) == (3, (0,), StartReason.STARTS)


def document(asked: StartRequest, *nodes: Node) -> dict[str, Any]:
    fund = fund_document(0, [], {}, asked.request)
    made = start_document(fund, nodes, asked)
    return {**made, "now": NOW, "budgets": [budget("t", envelope("e", 8))]}


@given(
    st.integers(1, 8),
    st.integers(0, 9),
    st.none() | st.lists(st.integers(0, 9), unique=True).map(tuple),
    st.randoms(use_true_random=False),
)
def test_what_is_left_out_of_the_record_decides_nothing(
    least: int, free: int, freed: tuple[int, ...] | None, chance: Any
) -> None:
    """Decided again from its document it is the same; nodes in any order."""
    nodes = [
        Node("a", "H100", {"domain": "x"}, tuple(range(free))),
        Node("b", "H100", {"domain": "y"}, (0, 1)),
        Node("full", "H100", {"domain": "x"}, ()),
        Node("shut", "H100", {}, (0, 1, 2), cordoned=True),
        Node("other", "A100", {}, (0, 1)),
    ]
    slots = None if freed is None else tuple(f"full#{i}" for i in freed)
    asked = StartRequest(malleable(8, least, 8 - least or 1), GangShape(2), freed=slots)
    found = start(asked, book_of(8), FreeDevices(nodes), 0)
    given = document(asked, *nodes)
    assert {node["name"] for node in given["nodes"]} <= {"a", "b", "full"}
    chance.shuffle(given["nodes"])
    result = KINDS["gpu.start"].run(json.dumps(given).encode())
    assert result.result["reason"] == found.reason.value
    assert result.result["gpus"] == found.request.gpus
    groups = [] if found.placement is None else found.placement.groups
    slots_of = [[*group.active] for group in groups]
    assert [group["active"] for group in (result.result["placement"] or {}).get("groups", [])] == (
        slots_of
    )
    assert result.refused == (found.reason.value in ("NotFunded", "NoDevices"))


def test_bad_input_is_refused_with_its_path() -> None:
    asked = StartRequest(malleable(8, 2, 2), GangShape(2))
    good = document(asked, Node("a", "H100", {}, (0,)))
    growth = {"width": 4, "grows_to": 8, "groups": [0]}
    for change, message in (
        ({"nodes": [*good["nodes"], *good["nodes"]]}, "nodes[1].name: repeats another node's name"),
        ({"freed": ["a"]}, "freed[0]: must be node#ordinal, got 'a'"),
        ({"growth": {**growth, "width": 8}}, "growth.grows_to: must be above the width, 8"),
        (
            {"growth": growth, "shape": {"group_gpus": None, "spares_per_group": 0}},
            "growth: is for a malleable run of groups",
        ),
        (
            {"shape": {"group_gpus": 2, "spares_per_group": 1_000_000}},
            "request.gpus: must leave 1 to 100000 GPUs without the spares",
        ),
        (
            {"growth": growth, "shape": {"group_gpus": 2, "spares_per_group": 3}},
            "request.min_gpus: must leave 1 to 100000 GPUs without the spares",
        ),
        (
            {"request": {**good["request"], "gpus": 10**12}},
            "request.gpus: must leave 1 to 100000 GPUs without the spares",
        ),
        ({"growth": {**growth, "grows_to": 10**12}}, "growth.grows_to: must be at most 100000"),
    ):
        with pytest.raises(BadInput) as refused:
            KINDS["gpu.start"].run(json.dumps({**good, **change}).encode())
        assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("shape", "active", "covered"),
    [
        (GangShape(), 5, 5),
        (GangShape(spares_per_group=2), 5, 7),
        (GangShape(4), 8, 8),
        (GangShape(4, 1), 8, 10),
    ],
)
def test_spares_are_covered_beside_the_active_ones(
    shape: GangShape, active: int, covered: int
) -> None:
    """So many for each group; without groups the run is one."""
    assert shape.with_spares(active) == covered
    assert shape.without_spares(covered) == active


def test_a_group_that_is_not_full_has_its_spares_too() -> None:
    assert GangShape(4, 1).with_spares(9) == 12


def test_what_is_placed_is_what_was_asked_for_where_it_is_paid() -> None:
    """Without its spares; also elsewhere, where an envelope elsewhere pays for a part."""
    west, east = {"region": "w"}, {"region": "e"}
    request = Request("t", "H100", 10, location=west)
    for gpus, elsewhere in ((10, False), (9, True)):
        envelopes = (
            Envelope("here", "H100", gpus, location=west),
            Envelope("there", "H100", 10 - gpus or 1, location=east),
        )
        book = Book([Budget("t", "t", envelopes=envelopes)], {})
        gang = GangShape(4, 1).gang(request, cover(book, request, 0))
        assert gang == Gang("H100", 8, 4, 1, west, elsewhere)


@pytest.mark.parametrize(("now_ms", "reason"), [(5, "Starts"), (15, "NotFunded")])
@pytest.mark.parametrize("growth", [None, RunGrowth(4, 8, (0, 1))])
def test_what_pays_is_asked_at_that_time(
    now_ms: int, reason: str, growth: RunGrowth | None
) -> None:
    """An envelope is open until 10."""
    envelope = Envelope("e", "H100", 8, window=Window(0, 10))
    book = Book([Budget("t", "t", envelopes=(envelope,))], {})
    asked = StartRequest(malleable(8, 2, 2), GangShape(2), growth)
    devices = FreeDevices([Node("n", "H100", {}, tuple(range(8)))])
    assert start(asked, book, devices, now_ms).reason.value == reason


@pytest.mark.parametrize(
    ("grows_to", "least", "gpus"), [(10, 4, 8), (9, None, 7), (12, 4, 8), (3, None, 1)]
)
def test_growth_asks_for_all_that_is_lacking_or_for_whole_steps(
    grows_to: int, least: int | None, gpus: int
) -> None:
    """Groups of 2 by steps of 4: 8 of 8 lacking as steps, 7 of 7 at once or not at all."""
    found = grow(RunGrowth(2, grows_to, (0,)), free=9, shape=GangShape(2), step=4)
    assert found.request == Request("t", "H100", gpus, min_gpus=least, step_gpus=least)
    assert found.plan.gpus == gpus


def test_growth_goes_by_steps_that_are_whole_groups() -> None:
    """Groups of 2 by steps of 7: 14 at a time."""
    found = grow(RunGrowth(2, 16, (0,)), free=14, shape=GangShape(2), step=7)
    assert found.request == Request("t", "H100", 14, min_gpus=14, step_gpus=14)
    assert found.starts
