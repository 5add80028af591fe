"""How much may be inside a group, and what becomes of a backend that keeps what it gets."""

import pytest

from fairlead.core.traffic.sighting import Liveness
from fairlead.ports.faults import PermanentFault
from tests.dataplane.clients import SOFT
from tests.dataplane.tables import IDS, only, opened
from tests.dataplane.worlds import World

EVEN = dict.fromkeys(IDS, 64)


class Bounds:
    """For every plane."""

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

    def test_who_is_the_only_one_is_never_passed_over(self, world: World) -> None:
        """Up to the bound of the group: there is nobody else."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1, inside_max=10)
        with world.holding(group, ("b1",)) as held:
            world.tick()
            assert [held.add() for _ in range(11)] == [None] * 10 + [SOFT]

    def test_nothing_is_bounded_in_fallback(self, world: World) -> None:
        """What a dead agent had learnt may be long out of date."""
        group = opened(world)
        world.apply("web", EVEN, epoch=1, inside_max=2)
        world.abandon(Liveness.FALLBACK)
        with world.holding(group, IDS) as held:
            assert [held.add() for _ in range(6)] == [None] * 6

    def test_a_bound_of_nothing_is_refused(self, world: World) -> None:
        """It would be a closed door without a drip."""
        opened(world)
        with pytest.raises(PermanentFault, match="inside_max: must be at least 1, got 0"):
            world.apply("web", EVEN, epoch=1, inside_max=0)
