"""The in-memory plane: the suite of all planes, and what only it has."""

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.memory import MemoryDataplane, RoutingVerdict
from fairlead.ports.dataplane import Backend, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault
from tests.dataplane.conformance import Conformance
from tests.dataplane.tables import table
from tests.dataplane.worlds import MemoryWorld

WEB = RouteGroup(
    "web",
    "10.0.0.1",
    80,
    Proto.TCP,
    tuple(Backend(id, "10.0.0.9", 8000 + index) for index, id in enumerate(("b1", "b2", "b3"))),
)


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestMemory(Conformance):
    """Judged as the real ones are."""


@pytest.fixture
def plane() -> MemoryDataplane:
    made = MemoryDataplane(lambda: 0)
    made.configure([WEB])
    return made


def test_numbers_walk_the_slots_exactly_and_evenly(plane: MemoryDataplane) -> None:
    """Any Σ slots numbers in a row split exactly, and no backend gets a long run of them."""
    plane.apply(table("web", 1, {"b1": 128, "b2": 64, "b3": 64}), decision=1)
    for first in (0, 7, 10**9):
        met = [plane.route("web", number).backend for number in range(first, first + 256)]
        assert [met.count(id) for id in ("b1", "b2", "b3")] == [128, 64, 64]
        assert all(len(set(met[at : at + 4])) > 1 for at in range(252))


def test_the_same_calls_give_the_same_verdicts() -> None:
    """No clock, no chance, no hash seed."""

    def play() -> list[RoutingVerdict]:
        made = MemoryDataplane(lambda: 0)
        made.configure([WEB])
        slots = {"b1": 100, "b2": 100, "b3": 56}
        made.apply(table("web", 1, slots, Admission(AdmissionMode.SOFT, 1.0, 30)), decision=1)
        return [made.route("web", b"flow %d" % number) for number in range(40)]

    verdicts = play()
    assert verdicts == play()
    assert [each.refused for each in verdicts] == [None] * 30 + [AdmissionMode.SOFT] * 10


def test_outcomes_are_counted_and_only_successes_have_a_latency(plane: MemoryDataplane) -> None:
    """A backend that fails fast does not look fast."""
    plane.apply(table("web", 1, {"b1": 1, "b2": 0, "b3": 0}), decision=1)
    for latency_ms in range(1, 101):
        plane.route("web")
        plane.done("web", "b1", latency_ms=float(latency_ms), ok=True)
        plane.route("web")
        plane.done("web", "b1", latency_ms=0.1, ok=False)
    plane.waiting("web", "b1", 7)
    for _ in range(2):
        plane.route("web")
        plane.connect_failed("web", "b1")
    plane.route("web")
    seen = plane.read()["web"].backends["b1"]
    assert (seen.admitted, seen.successes, seen.errors) == (203, 100, 100)
    assert (seen.connect_failures, seen.consecutive_failures) == (2, 2)
    assert (seen.open, seen.queue, seen.p95_ms) == (1, 7, 95.0)


def test_latencies_are_forgotten_after_the_window() -> None:
    """p95 is None then, never 0."""
    now = [0]
    plane = MemoryDataplane(lambda: now[0])
    plane.configure([WEB])
    plane.route("web")
    plane.done("web", "b1", latency_ms=20.0, ok=True)
    now[0] = 4_999
    assert plane.read()["web"].backends["b1"].p95_ms == 20.0
    now[0] = 5_000
    assert plane.read()["web"].backends["b1"].p95_ms is None


ONE, SAME, ANOTHER = Backend("b", "::1", 1), Backend("c", "::1", 1), Backend("b", "::2", 1)


@pytest.mark.parametrize(
    ("group", "path"),
    [
        (RouteGroup("web", "no address", 80, Proto.TCP, ()), "groups[1].vip"),
        (RouteGroup("web", "10.0.0.1", 0, Proto.TCP, ()), "groups[1].port"),
        (RouteGroup("first", "10.0.0.2", 80, Proto.TCP, ()), "groups[1].name"),
        (RouteGroup("web", "10.0.0.3", 80, Proto.TCP, ()), "groups[1].vip"),
        (RouteGroup("web", "10.0.0.2", 80, Proto.TCP, (ONE, ANOTHER)), "groups[1].backends[1].id"),
        (RouteGroup("web", "10.0.0.2", 80, Proto.TCP, (ONE, SAME)), "groups[1].backends[1].host"),
        (
            RouteGroup("web", "10.0.0.2", 80, Proto.TCP, (Backend("b", "localhost", 1),)),
            "groups[1].backends[0].host",
        ),
    ],
)
def test_bad_groups_are_refused_by_their_path(group: RouteGroup, path: str) -> None:
    """Before anything is changed."""
    first = RouteGroup("first", "10.0.0.3", 80, Proto.TCP, ())
    plane = MemoryDataplane(lambda: 0)
    plane.configure([WEB])
    with pytest.raises(PermanentFault) as refused:
        plane.configure([first, group])
    assert str(refused.value).startswith(f"{path}: ")
    assert set(plane.read()) == {"web"}
