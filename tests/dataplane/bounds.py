"""How much may be inside a group, and what becomes of a backend that keeps what it gets."""

import pytest

from fairlead.core.traffic.alone import UNLEARNED_EACH
from fairlead.core.traffic.sighting import Liveness
from fairlead.ports.faults import PermanentFault
from tests.dataplane.clients import SOFT
from tests.dataplane.tables import IDS, only, opened
from tests.dataplane.worlds import World

EVEN = dict.fromkeys(IDS, 64)


class Rooms:
    """For every plane, one that drives a proxy of its operator's included where it can bound."""

    def test_a_backend_that_keeps_what_it_gets_is_passed_over(self, world: World) -> None:
        """A quarter of 100 without a bound; within one, hardly more than its part of the moment."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=20)
        with world.holding(group, ("b1",)) as held:
            words = []
            for _ in range(25):
                world.tick()
                words += [held.add() for _ in range(4)]
        assert set(words) == {None, *IDS[1:]}
        assert words.count(None) <= 12

    def test_a_bound_of_nothing_is_refused(self, world: World) -> None:
        """It would be a closed door without a drip."""
        opened(world)
        with pytest.raises(PermanentFault, match="inside_max: must be at least 1, got 0"):
            world.apply("web", EVEN, epoch=1, inside_max=0)


class Bounds(Rooms):
    """For planes that reject what exceeds a bound."""

    def test_what_is_inside_is_bounded(self, world: World) -> None:
        """Six may be inside; the seventh is told to try again, and one may come when one leaves."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=6)
        with world.holding(group, IDS) as held:
            assert [held.add() for _ in range(8)] == [None] * 6 + [SOFT] * 2
        seen = world.plane.read()["web"]
        assert (seen.refused_soft, seen.refused_hard) == (2, 0)
        world.until(lambda: world.send(group, 1)[0] in IDS, "there is room again")
        assert world.plane.read()["web"].admitted >= 7

    def test_a_bound_goes_with_the_next_table(self, world: World) -> None:
        """A table without one bounds nothing."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=2)
        with world.holding(group, IDS) as held:
            assert [held.add() for _ in range(3)] == [None, None, SOFT]
            world.apply("web", EVEN, epoch=2)
            assert [held.add() for _ in range(4)] == [None] * 4

    def test_who_is_the_only_one_is_never_passed_over(self, world: World) -> None:
        """Up to the bound of the group: there is nobody else."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1, inside_max=10)
        with world.holding(group, ("b1",)) as held:
            world.tick()
            assert [held.add() for _ in range(11)] == [None] * 10 + [SOFT]

    def test_without_an_agent_the_last_bound_stays(self, world: World) -> None:
        """The next one is told to try again, and may come when one leaves."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=6)
        world.abandon(Liveness.FALLBACK)
        with world.holding(group, IDS) as held:
            assert [held.add() for _ in range(8)] == [None] * 6 + [SOFT] * 2
        world.until(lambda: world.send(group, 1)[0] in IDS, "there is room again")

    def test_without_an_agent_a_backend_that_keeps_what_it_gets_is_passed_over(
        self, world: World
    ) -> None:
        """Hashing would fill the bound with what one stalled backend holds, and the group stops."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=12)
        world.abandon(Liveness.FALLBACK)
        with world.holding(group, ("b1",)) as held:
            words = [held.add() for _ in range(100)]
        assert set(words) == {None, *IDS[1:]}
        assert words.count(None) <= 6

    def test_without_an_agent_and_a_bound_there_is_a_bound_all_the_same(self, world: World) -> None:
        """Before anything was learnt: so many for each backend."""
        opened(world)
        world.apply("web", EVEN, epoch=1)
        bound = world.tables["web"].limits.fallback.bound
        assert bound.inside_max == UNLEARNED_EACH * len(IDS)

    def test_without_an_agent_the_bound_relaxes_while_requests_succeed(self, world: World) -> None:
        """A step a period, from 1 on; with the agent the table's own bound is back."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=1)
        world.abandon(Liveness.FALLBACK)
        room = 1

        def grown() -> bool:
            nonlocal room
            world.send(group, 100)
            with world.holding(group, IDS) as held:
                room = [held.add() for _ in range(3)].count(None)
            return room >= 2

        world.until(grown, "the bound is relaxed")
        world.apply("web", EVEN, epoch=2, inside_max=1)
        with world.holding(group, IDS) as held:
            assert [held.add() for _ in range(2)] == [None, SOFT]
