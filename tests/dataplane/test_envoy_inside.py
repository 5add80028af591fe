"""How the Envoy plane bounds what is inside a group: over flips and deaths, and in what words."""

from collections import Counter
from collections.abc import Iterator

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from tests.dataplane.bounds import EVEN
from tests.dataplane.clients import SOFT
from tests.dataplane.proxies import answer
from tests.dataplane.proxy_worlds import EnvoyWorld
from tests.dataplane.tables import IDS, only, opened

pytestmark = pytest.mark.component("envoy")


@pytest.fixture
def world() -> Iterator[EnvoyWorld]:
    made = EnvoyWorld()
    yield made
    made.close()


def test_what_a_flip_left_behind_is_inside(world: EnvoyWorld) -> None:
    """A flip sends what is new to another cluster; what the old one still holds is counted too."""
    group = opened(world)
    world.apply("web", EVEN, epoch=1, inside_max=4)
    with world.holding(group, IDS) as held:
        assert [held.add() for _ in range(3)] == [None] * 3
        world.apply("web", only("b2"), epoch=2, inside_max=4)
        assert [held.add() for _ in range(2)] == [None, SOFT]
        world.apply("web", EVEN, epoch=3, inside_max=3)
        assert held.add() == SOFT
        world.apply("web", only("b1"), epoch=4, inside_max=6)
        assert [held.add() for _ in range(3)] == [None, None, SOFT]


def test_what_came_in_fallback_is_inside_when_the_agent_is_back(world: EnvoyWorld) -> None:
    """And leaves no room for more than the table's bound."""
    group = opened(world)
    world.apply("web", EVEN, epoch=1, inside_max=2)
    world.abandon(Liveness.FALLBACK)
    with world.holding(group, IDS) as held:
        assert [held.add() for _ in range(3)] == [None, None, SOFT]
        world.apply("web", EVEN, epoch=2, inside_max=3)
        assert [held.add() for _ in range(2)] == [None, SOFT]


def test_a_client_cannot_relax_the_bound(world: EnvoyWorld) -> None:
    """The header by which the scripts tell each other is theirs alone, and no backend sees it."""
    group = opened(world)
    world.apply("web", EVEN, epoch=1, inside_max=1)
    world.abandon(Liveness.FALLBACK)
    with world.holding(group, IDS) as held:
        assert held.add() is None
        head = answer(group.port, "X-Fairlead-Inside-Max: 9")
        assert head.startswith(b"http/1.1 429 ")
    world.until(lambda: world.send(group, 1)[0] in IDS, "there is room again")


def test_a_bound_outlives_the_agent_and_envoy(world: EnvoyWorld) -> None:
    """It stands in the route, and so in its file."""
    group = opened(world)
    world.apply("web", EVEN, epoch=1, inside_max=2)
    world.reopen()
    for died in (False, True):
        if died:
            world.kill()
            world.plane.heartbeat()
        else:
            world.plane.configure([group])
        with world.holding(group, IDS) as held:
            assert [held.add() for _ in range(3)] == [None, None, SOFT]


def test_who_finds_it_full_is_refused_and_nobodys_error(world: EnvoyWorld) -> None:
    """Counted once, as refused; told as the soft door tells; no backend hears of it."""
    group = opened(world)
    world.apply("web", EVEN, epoch=1, inside_max=2)
    with world.holding(group, IDS) as held:
        assert [held.add() for _ in range(2)] == [None, None]
        head = answer(group.port)
    assert head.startswith(b"http/1.1 429 ")
    assert b"\r\nfairlead-refused: soft\r\n" in head
    assert b"\r\nretry-after: 1\r\n" in head
    seen = world.plane.read()["web"]
    assert (seen.admitted, seen.refused_soft, seen.refused_hard) == (2, 1, 0)
    assert {each.errors for each in seen.backends.values()} == {0}
    assert sum(each.admitted for each in seen.backends.values()) == 2


def test_who_finds_it_full_takes_no_token(world: EnvoyWorld) -> None:
    """The budget of a soft door is for those who come in."""
    group = opened(world)
    world.apply("web", EVEN, Admission(AdmissionMode.SOFT, 0.0, 5.0), epoch=1, inside_max=2)
    with world.holding(group, IDS) as held:
        assert [held.add() for _ in range(6)] == [None] * 2 + [SOFT] * 4
    world.until(lambda: not _open(world), "there is room again")
    assert Counter(word == SOFT for word in world.send(group, 6)) == {False: 3, True: 3}
    assert world.plane.read()["web"].refused_soft == 7


def test_without_a_bound_nobody_is_passed_over(world: EnvoyWorld) -> None:
    """A backend that keeps what it gets has its quarter, whatever the tables before were like."""
    group = opened(world)
    for epoch, inside_max in enumerate((None, 500, 500, 500, None, None), start=1):
        world.apply("web", EVEN, epoch=epoch, inside_max=inside_max)
        with world.holding(group, ("b1",)) as held:
            kept = [held.add() for _ in range(60)].count(None)
        assert abs(kept - 15) <= 1 if inside_max is None else kept <= 9, (epoch, kept)


def _open(world: EnvoyWorld) -> int:
    return sum(each.open or 0 for each in world.plane.read()["web"].backends.values())
