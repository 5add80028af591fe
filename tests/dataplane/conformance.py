"""What every plane promises: one suite, run against each world.

A plane's own test file says

    @pytest.fixture
    def world(): ...

    class TestThatPlane(RealConformance): ...

The suite asks the client: what was sent, who answered, what was refused and how. Its parts about
tables, about what is inside and about the agent's death are in `flips`, `bounds` and `failsafe`.
"""

import time
from collections import Counter

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import RouteGroup, Stale
from fairlead.ports.faults import PermanentFault
from tests.dataplane.bounds import Bounds
from tests.dataplane.clients import FAILED, HARD, SOFT
from tests.dataplane.failsafe import Failsafe, Killed
from tests.dataplane.flips import Flips, Weights
from tests.dataplane.tables import CLOSED, IDS, only, opened
from tests.dataplane.worlds import World


class Driven(Weights):
    """What also a proxy promises whose listeners and admission are its operator's."""

    def test_a_drained_backend_gets_nothing_and_comes_back_with_slots(self, world: World) -> None:
        """Nobody fails on the way."""
        group = opened(world)
        world.apply("web", {**only("b1"), "b2": 256}, epoch=1)
        with world.load(group, clients=2) as load:
            load.wait(10)
            world.apply("web", only("b1"), epoch=2)
            world.plane.drain("web", "b2", decision=2)
            load.wait(10)
            assert set(world.send(group, 20)) == {"b1"}
            world.until(lambda: not world.plane.read()["web"].backends["b2"].open, "b2 is empty")
            world.apply("web", only("b2"), epoch=3)
            assert set(world.send(group, 20)) == {"b2"}
            assert {each.word for each in load.sent} == {"b1", "b2"}
        for name, backend in (("web", "b9"), ("elsewhere", "b1")):
            with pytest.raises(PermanentFault):
                world.plane.drain(name, backend, decision=3)

    def test_remove_leaves_nothing(self, world: World) -> None:
        """No process, no file, nobody who listens; done twice it is still done."""
        opened(world)
        world.plane.remove()
        assert world.left() == []
        world.plane.remove()


class Conformance(Driven, Flips, Bounds, Failsafe):
    """For every plane of ours."""

    @pytest.mark.parametrize("mode", [AdmissionMode.SOFT, AdmissionMode.HARD])
    def test_what_is_admitted_is_delivered_and_the_rest_is_told(
        self, world: World, mode: AdmissionMode
    ) -> None:
        """A full bucket of 5 that never refills lets 5 in; everybody else hears the right no."""
        group = opened(world)
        world.apply("web", only("b1"), Admission(mode, 0.0, 5.0), epoch=1)
        words = Counter(world.send(group, 20))
        assert words == {"b1": 5, str(mode): 15}
        seen = world.plane.read()["web"]
        assert seen.admitted == seen.backends["b1"].admitted == 5
        assert (seen.refused_soft, seen.refused_hard) == ((15, 0) if mode == SOFT else (0, 15))
        assert seen.mode == mode

    def test_the_bucket_refills_at_its_rate(self, world: World) -> None:
        """Never more than burst + rate × time, and again something after a while."""
        group = opened(world)
        admission = Admission(AdmissionMode.SOFT, 20.0, 2.0)
        began = time.monotonic()
        world.apply("web", only("b1"), admission, epoch=1)
        words = Counter(world.send(group, 60))
        took_s = time.monotonic() - began
        assert 2 <= words["b1"] <= 2 + 20 * took_s + 1
        assert words["b1"] + words[SOFT] == 60
        world.until(lambda: world.send(group, 1) == ["b1"], "the bucket refills")

    def test_nothing_leaves_its_group(self, world: World) -> None:
        """With an agent, without one, and with nobody left to send to."""
        groups = [world.group("one", ("a1", "a2")), world.group("two", ("c1", "c2"))]
        world.plane.configure(groups)
        own = [{"a1", "a2"}, {"c1", "c2"}]
        for liveness in (Liveness.NORMAL, Liveness.FALLBACK):
            if liveness == Liveness.FALLBACK:
                world.abandon(liveness)
            for group, ids in zip(groups, own, strict=True):
                assert set(world.send(group, 40)) <= ids
        world.apply("one", {"a1": 0, "a2": 0}, epoch=1)
        assert set(world.send(groups[0], 10)) == {HARD}
        assert set(world.send(groups[1], 10)) <= own[1]

    def test_an_empty_group_refuses_everybody(self, world: World) -> None:
        """Also without an agent: there is nobody to send to."""
        group = opened(world, ids=())
        world.apply("web", {}, CLOSED, epoch=1)
        assert set(world.send(group, 5)) == {HARD}
        world.abandon(Liveness.FALLBACK)
        assert set(world.send(group, 5)) <= {HARD, SOFT}
        assert world.plane.read()["web"].admitted == 0

    def test_what_stays_keeps_its_table_and_counters(self, world: World) -> None:
        """When groups and backends come and go, and when another agent comes."""
        web, more = world.group("web", IDS), world.group("more", ("m1",))
        world.plane.configure([web])
        world.apply("web", only("b2"), epoch=3)
        assert set(world.send(web, 20)) == {"b2"}
        world.plane.configure([web, more])
        assert set(world.send(more, 3)) == {"m1"}
        assert set(world.send(web, 10)) == {"b2"}
        world.reopen()
        world.plane.configure([web, more])
        seen = world.plane.read()
        assert (seen["web"].epoch, seen["web"].decision, seen["web"].admitted) == (3, 3, 30)
        assert seen["web"].backends["b2"].admitted == 30
        fewer = RouteGroup("web", web.vip, web.port, web.proto, web.backends[1:])
        world.plane.configure([fewer])
        assert set(world.send(web, 10)) == {"b2"}
        assert set(world.plane.read()) == {"web"}
        assert {word.partition(":")[0] for word in world.send(more, 3)} <= {FAILED, HARD}
        with pytest.raises(Stale):
            world.apply("web", {"b2": 0, "b3": 256, "b4": 0}, epoch=3)
        world.apply("web", {"b2": 0, "b3": 256, "b4": 0}, epoch=4)
        assert set(world.send(web, 10)) == {"b3"}

    def test_no_groups_are_served_by_nobody(self, world: World) -> None:
        """All may go, and come back."""
        group = opened(world)
        world.plane.configure([])
        assert world.plane.read() == {}
        assert {word.partition(":")[0] for word in world.send(group, 3)} <= {FAILED, HARD}
        world.plane.configure([group])
        assert set(world.send(group, 10)) <= set(IDS)


class RealConformance(Conformance, Killed):
    """For planes that outlive their agent."""
