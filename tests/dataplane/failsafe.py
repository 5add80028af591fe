"""The part of the suite about the agent's death: hold, fallback, and kill -9 in real time."""

import signal
import time
from collections import Counter

import pytest

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import RouteGroup, Stale
from tests.dataplane.clients import HARD, SOFT
from tests.dataplane.tables import CLOSED, IDS, only, opened, table
from tests.dataplane.worlds import RealWorld, World

FLOWS = range(48)


class Failsafe:
    """For every plane."""

    def test_hold_keeps_the_table_and_refuses_flips(self, world: World) -> None:
        """Until the next heartbeat."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        world.abandon(Liveness.HOLD)
        assert world.plane.read()["web"].liveness == Liveness.HOLD
        with pytest.raises(Stale):
            world.plane.apply(table("web", 2, only("b2")), decision=2)
        assert set(world.send(group, 16)) == {"b1"}
        world.apply("web", only("b2"), epoch=2)
        assert set(world.send(group, 16)) == {"b2"}

    def test_fallback_hashes_flows_inside_the_group(self, world: World) -> None:
        """Sticky per flow, spread over those who had slots; the table is back with the agent."""
        group = opened(world)
        world.apply("web", {"b1": 254, "b2": 1, "b3": 1, "b4": 0}, epoch=1)
        world.abandon(Liveness.FALLBACK)
        assert world.plane.read()["web"].liveness == Liveness.FALLBACK
        with pytest.raises(Stale):
            world.plane.apply(table("web", 2, only("b2")), decision=2)
        first = [world.flow(group, number) for number in FLOWS]
        assert set(first) == {"b1", "b2", "b3"}
        assert [world.flow(group, number) for number in FLOWS] == first
        world.plane.heartbeat()
        world.until(lambda: set(world.send(group, 32)) == {"b1"}, "the table is back")
        world.apply("web", only("b2"), epoch=2)
        assert set(world.send(group, 8)) == {"b2"}

    def test_in_fallback_only_the_flows_of_a_backend_that_left_move(self, world: World) -> None:
        """Modulo would move three in four."""
        group = opened(world)
        world.abandon(Liveness.FALLBACK)
        before = [world.flow(group, number) for number in FLOWS]
        stay = tuple(each for each in group.backends if each.id != "b1")
        world.plane.configure([RouteGroup(group.name, group.vip, group.port, group.proto, stay)])
        world.abandon(Liveness.FALLBACK)
        after = [world.flow(group, number) for number in FLOWS]
        assert "b1" not in after
        moved = [old for old, new in zip(before, after, strict=True) if old not in (new, "b1")]
        assert len(moved) <= len(FLOWS) // 12, moved

    def test_without_an_agent_hard_decays_to_soft(self, world: World) -> None:
        """With the stored budget: a dead agent never leaves a closed door."""
        group = opened(world)
        world.apply("web", only("b1"), CLOSED, epoch=1, stored=(50.0, 5.0))
        assert set(world.send(group, 10)) == {HARD}
        world.abandon(Liveness.HOLD)
        assert set(world.send(group, 10)) == {HARD}
        world.abandon(Liveness.FALLBACK)
        assert world.plane.read()["web"].mode == AdmissionMode.SOFT
        words: Counter[str] = Counter()

        def budgeted() -> bool:
            words.update(world.send(group, 20))
            return words["b1"] > 5 and words[SOFT] > 0

        world.until(budgeted, "the door opens, and not for everybody")
        assert set(words) == {"b1", SOFT}, words

    def test_without_a_stored_budget_the_drip_stays(self, world: World) -> None:
        """But it says try again, and no longer no."""
        group = opened(world)
        world.apply("web", only("b1"), Admission(AdmissionMode.HARD, 0.0, 3.0), epoch=1)
        assert Counter(world.send(group, 9)) == {"b1": 3, HARD: 6}
        world.abandon(Liveness.FALLBACK)
        assert set(world.send(group, 9)) == {SOFT}


class Killed:
    """For planes that outlive their agent."""

    def test_a_killed_agent_fails_nobody(self, world: RealWorld) -> None:
        """kill -9 with one group open and one shut: after 15 s, not before, the shut one lets its
        stored budget in, and the open one hashes; no request fails all the while."""
        calm, shut = world.group("calm", IDS), world.group("shut", ("s1", "s2"))
        tables = [
            table("calm", 1, {"b1": 253, "b2": 1, "b3": 1, "b4": 1}),
            table("shut", 1, {"s1": 128, "s2": 128}, CLOSED, stored=(200.0, 20.0)),
        ]
        agent = world.agent(tables)
        with world.load(calm, clients=1, pause_s=0.004) as load:
            load.wait(10)
            assert set(world.send(shut, 5)) == {HARD}
            killed = time.monotonic()
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            opened = {"s1", "s2"}
            world.until(lambda: not opened.isdisjoint(world.send(shut, 1)), "hard decays")
            opened_s = time.monotonic() - killed
            already = len(load.sent)
            load.wait(200)
            assert set(world.send(shut, 10)) <= {"s1", "s2", SOFT}
        sent = load.sent
        # The last heartbeat was up to 0.1 s (and a busy machine's moment) before the kill.
        assert opened_s > FALLBACK_AFTER_MS / 1000 - 1.5
        assert {each.word for each in sent} <= set(IDS)
        held = Counter(each.word for each in sent if each.ended < killed + 10)
        alone = Counter(each.word for each in sent[already:])
        assert held["b1"] / held.total() > 0.9, held
        assert alone["b1"] / alone.total() < 0.7, alone
