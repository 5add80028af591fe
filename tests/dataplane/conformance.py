"""What every plane promises: one suite, run against each world.

A plane's own test file says

    @pytest.fixture
    def world(): ...

    class TestThatPlane(RealConformance): ...

The suite asks the client: what was sent, who answered, what was refused and how.
"""

import signal
import time
from collections import Counter
from itertools import pairwise

import pytest

from fairlead.ports.dataplane import (
    FALLBACK_AFTER_MS,
    SCHEMA_VERSION,
    Admission,
    Liveness,
    Mode,
    RouteGroup,
    Stale,
    Table,
)
from fairlead.ports.faults import PermanentFault
from tests.dataplane.clients import FAILED, HARD, SOFT, Sent
from tests.dataplane.worlds import RealWorld, World

IDS = ("b1", "b2", "b3", "b4")
CLOSED = Admission(Mode.HARD, 0.0, 0.0)
FLOWS = range(48)


def only(id: str) -> dict[str, int]:
    return {each: 256 if each == id else 0 for each in IDS}


def opened(world: World, name: str = "web", ids: tuple[str, ...] = IDS) -> RouteGroup:
    """A group, configured alone."""
    group = world.group(name, ids)
    world.plane.configure([group])
    return group


class Conformance:
    """For every plane."""

    def test_a_group_without_a_table_is_served_by_its_backends(self, world: World) -> None:
        """The door is open before the first decision."""
        group = opened(world)
        assert set(world.send(group, 40)) <= set(IDS)
        seen = world.plane.read()["web"]
        assert (seen.epoch, seen.mode, seen.liveness) == (0, Mode.NORMAL, Liveness.NORMAL)
        assert world.plane.schema_version() == SCHEMA_VERSION

    def test_the_split_is_that_of_the_slots(self, world: World) -> None:
        """In multiples of Σ slots, within what the plane promises; 0 slots are nothing at all."""
        group = opened(world)
        slots = {"b1": 150, "b2": 75, "b3": 31, "b4": 0}
        world.apply("web", slots, epoch=1)
        for turns in (1, 2):
            counts = Counter(world.send(group, 256 * turns))
            assert set(counts) <= {"b1", "b2", "b3"}
            for id, wanted in slots.items():
                assert abs(counts[id] - wanted * turns) <= world.split_error_max, counts

    def test_a_flip_is_atomic_under_load(self, world: World) -> None:
        """Once a request met the new table, no later one meets the old one; none fails."""
        group = opened(world)
        world.apply("web", only(IDS[0]), epoch=1)
        flips: list[tuple[float, float]] = [(0.0, time.monotonic())]
        with world.load(group, clients=4) as load:
            load.wait(20)
            for epoch in range(2, 14):
                began = time.monotonic()
                world.apply("web", only(IDS[(epoch - 1) % 4]), epoch=epoch)
                flips.append((began, time.monotonic()))
                load.wait(20)
            sent = load.sent
        assert {each.word for each in sent} == set(IDS)
        met = [(each, _table_met(each, flips)) for each in sent]
        met.sort(key=lambda pair: pair[0].began)
        latest = -1
        ended = sorted(met, key=lambda pair: pair[0].ended)
        position = 0
        for each, table in met:
            while position < len(ended) and ended[position][0].ended < each.began:
                latest = max(latest, ended[position][1])
                position += 1
            assert table >= latest, f"{each} met table {table} after table {latest} was seen"

    def test_slots_and_door_flip_together(self, world: World) -> None:
        """A table that is open for b1 and one that is closed with b2: b2 is never met."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        with world.load(group, clients=4) as load:
            for epoch in range(2, 22):
                shut = epoch % 2 == 0
                world.apply(
                    "web",
                    only("b2") if shut else only("b1"),
                    CLOSED if shut else Admission(),
                    epoch=epoch,
                )
                load.wait(10)
            words = Counter(each.word for each in load.sent)
        assert set(words) == {"b1", HARD}, words

    def test_an_old_epoch_is_refused_and_nothing_changes(self, world: World) -> None:
        """Equal is old too."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=5)
        for epoch in (5, 4):
            with pytest.raises(Stale):
                world.apply("web", only("b2"), epoch=epoch)
        assert set(world.send(group, 8)) == {"b1"}
        assert world.plane.read()["web"].epoch == 5

    def test_a_bad_table_is_refused_whole(self, world: World) -> None:
        """Backends missing, unknown, negative; doors without numbers; groups that are not there."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        good = only("b2")
        for slots, admission, name in (
            ({"b2": 256}, Admission(), "web"),
            ({**good, "b9": 0}, Admission(), "web"),
            ({**good, "b2": -1}, Admission(), "web"),
            (good, Admission(Mode.SOFT), "web"),
            (good, Admission(Mode.HARD, 1.0, float("nan")), "web"),
            (good, Admission(), "elsewhere"),
        ):
            world.plane.heartbeat()
            with pytest.raises(PermanentFault):
                world.plane.apply(Table(name, 2, slots, admission))
        assert set(world.send(group, 8)) == {"b1"}
        assert world.plane.read()["web"].epoch == 1

    @pytest.mark.parametrize("mode", [Mode.SOFT, Mode.HARD])
    def test_what_is_admitted_is_delivered_and_the_rest_is_told(
        self, world: World, mode: Mode
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
        admission = Admission(Mode.SOFT, 20.0, 2.0)
        began = time.monotonic()
        world.apply("web", only("b1"), admission, epoch=1)
        words = Counter(world.send(group, 60))
        took_s = time.monotonic() - began
        assert 2 <= words["b1"] <= 2 + 20 * took_s + 1
        assert words["b1"] + words[SOFT] == 60
        world.until(lambda: world.send(group, 1) == ["b1"], "the bucket refills")

    def test_hold_keeps_the_table_and_refuses_flips(self, world: World) -> None:
        """Until the next heartbeat."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        world.age(Liveness.HOLD)
        assert world.plane.read()["web"].liveness == Liveness.HOLD
        with pytest.raises(Stale):
            world.plane.apply(Table("web", 2, only("b2"), Admission()))
        assert set(world.send(group, 16)) == {"b1"}
        world.apply("web", only("b2"), epoch=2)
        assert set(world.send(group, 16)) == {"b2"}

    def test_fallback_hashes_flows_inside_the_group(self, world: World) -> None:
        """Sticky per flow, spread over those who had slots; the table is back with the agent."""
        group = opened(world)
        world.apply("web", {"b1": 254, "b2": 1, "b3": 1, "b4": 0}, epoch=1)
        world.age(Liveness.FALLBACK)
        assert world.plane.read()["web"].liveness == Liveness.FALLBACK
        with pytest.raises(Stale):
            world.plane.apply(Table("web", 2, only("b2"), Admission()))
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
        world.age(Liveness.FALLBACK)
        before = [world.flow(group, number) for number in FLOWS]
        stay = tuple(each for each in group.backends if each.id != "b1")
        world.plane.configure([RouteGroup(group.name, group.vip, group.port, group.proto, stay)])
        world.age(Liveness.FALLBACK)
        after = [world.flow(group, number) for number in FLOWS]
        assert "b1" not in after
        moved = [old for old, new in zip(before, after, strict=True) if old not in (new, "b1")]
        assert len(moved) <= len(FLOWS) // 12, moved

    def test_without_an_agent_hard_decays_to_soft(self, world: World) -> None:
        """With the stored budget: a dead agent never leaves a closed door."""
        group = opened(world)
        world.apply("web", only("b1"), Admission(Mode.HARD, 0.0, 0.0, 50.0, 5.0), epoch=1)
        assert set(world.send(group, 10)) == {HARD}
        world.age(Liveness.HOLD)
        assert set(world.send(group, 10)) == {HARD}
        world.age(Liveness.FALLBACK)
        assert world.plane.read()["web"].mode == Mode.SOFT
        words: Counter[str] = Counter()

        def budgeted() -> bool:
            words.update(world.send(group, 20))
            return words["b1"] > 5 and words[SOFT] > 0

        world.until(budgeted, "the door opens, and not for everybody")
        assert set(words) == {"b1", SOFT}, words

    def test_without_a_stored_budget_the_drip_stays(self, world: World) -> None:
        """But it says try again, and no longer no."""
        group = opened(world)
        world.apply("web", only("b1"), Admission(Mode.HARD, 0.0, 3.0), epoch=1)
        assert Counter(world.send(group, 9)) == {"b1": 3, HARD: 6}
        world.age(Liveness.FALLBACK)
        assert set(world.send(group, 9)) == {SOFT}

    def test_nothing_leaves_its_group(self, world: World) -> None:
        """With an agent, without one, and with nobody left to send to."""
        groups = [world.group("one", ("a1", "a2")), world.group("two", ("c1", "c2"))]
        world.plane.configure(groups)
        own = [{"a1", "a2"}, {"c1", "c2"}]
        for liveness in (Liveness.NORMAL, Liveness.FALLBACK):
            if liveness == Liveness.FALLBACK:
                world.age(liveness)
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
        world.age(Liveness.FALLBACK)
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
        assert (seen["web"].epoch, seen["web"].admitted) == (3, 30)
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

    def test_a_drained_backend_gets_nothing_and_comes_back_with_slots(self, world: World) -> None:
        """Nobody fails on the way."""
        group = opened(world)
        world.apply("web", {**only("b1"), "b2": 256}, epoch=1)
        with world.load(group, clients=2) as load:
            load.wait(10)
            world.apply("web", only("b1"), epoch=2)
            world.plane.drain("web", "b2")
            load.wait(10)
            assert set(world.send(group, 20)) == {"b1"}
            world.until(lambda: not world.plane.read()["web"].backends["b2"].open, "b2 is empty")
            world.apply("web", only("b2"), epoch=3)
            assert set(world.send(group, 20)) == {"b2"}
            assert {each.word for each in load.sent} == {"b1", "b2"}
        for name, backend in (("web", "b9"), ("elsewhere", "b1")):
            with pytest.raises(PermanentFault):
                world.plane.drain(name, backend)

    def test_remove_leaves_nothing(self, world: World) -> None:
        """No process, no file, nobody who listens; done twice it is still done."""
        opened(world)
        world.plane.remove()
        assert world.left() == []
        world.plane.remove()


class RealConformance(Conformance):
    """For planes that outlive their agent."""

    def test_a_killed_agent_fails_nobody(self, world: RealWorld) -> None:
        """kill -9 with one group open and one shut: after 15 s, not before, the shut one lets its
        stored budget in, and the open one hashes; no request fails all the while."""
        calm, shut = world.group("calm", IDS), world.group("shut", ("s1", "s2"))
        stored = Admission(Mode.HARD, 0.0, 0.0, 200.0, 20.0)
        tables = [
            Table("calm", 1, {"b1": 253, "b2": 1, "b3": 1, "b4": 1}, Admission()),
            Table("shut", 1, {"s1": 128, "s2": 128}, stored),
        ]
        agent = world.agent(tables)
        with world.load(calm, clients=1) as load:
            load.wait(10)
            assert set(world.send(shut, 5)) == {HARD}
            killed = time.monotonic()
            agent.send_signal(signal.SIGKILL)
            agent.wait()
            shares = []
            while {"s1", "s2"}.isdisjoint(world.send(shut, 1)):
                assert time.monotonic() - killed < 60, "hard never decayed"
                shares.append(time.monotonic())
                time.sleep(0.05)
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


def _table_met(sent: Sent, flips: list[tuple[float, float]]) -> int:
    """Which flip's table answered. Four tables in turn, and requests are short: it is one only."""
    possible = [
        number
        for number, (began, _) in enumerate(flips)
        if IDS[number % 4] == sent.word
        and began <= sent.ended
        and (number + 1 == len(flips) or sent.began <= flips[number + 1][1])
    ]
    assert len(possible) == 1, f"{sent} does not fit the flips {list(pairwise(flips))}"
    return possible[0]
