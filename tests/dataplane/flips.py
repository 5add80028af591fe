"""The part of the suite about tables: how they split, flip, and are refused."""

import time
from collections import Counter
from itertools import pairwise

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import SCHEMA_VERSION, Stale
from fairlead.ports.faults import PermanentFault
from tests.dataplane.clients import HARD, Sent
from tests.dataplane.tables import CLOSED, IDS, only, opened, table
from tests.dataplane.worlds import World


class Weights:
    """For every plane, one that drives a proxy of its operator's included."""

    def test_a_group_without_a_table_is_served_by_its_backends(self, world: World) -> None:
        """The door is open before the first decision."""
        group = opened(world)
        assert set(world.send(group, 40)) <= set(IDS)
        seen = world.plane.read()["web"]
        assert (seen.epoch, seen.mode, seen.liveness) == (0, AdmissionMode.NORMAL, Liveness.NORMAL)
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

    def test_an_old_epoch_is_refused_and_nothing_changes(self, world: World) -> None:
        """Equal is old too."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=5)
        for epoch in (5, 4):
            with pytest.raises(Stale):
                world.apply("web", only("b2"), epoch=epoch)
        assert set(world.send(group, 8)) == {"b1"}
        seen = world.plane.read()["web"]
        assert (seen.epoch, seen.decision) == (5, 5)

    def test_a_bad_table_is_refused_whole(self, world: World) -> None:
        """Backends missing, unknown, negative; doors without numbers; groups that are not there."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        good = only("b2")
        for slots, admission, name in (
            ({"b2": 256}, Admission(), "web"),
            ({**good, "b9": 0}, Admission(), "web"),
            ({**good, "b2": -1}, Admission(), "web"),
            (good, Admission(AdmissionMode.SOFT), "web"),
            (good, Admission(AdmissionMode.HARD, 1.0, float("nan")), "web"),
            (good, Admission(), "elsewhere"),
        ):
            world.plane.heartbeat()
            with pytest.raises(PermanentFault):
                world.plane.apply(table(name, 2, slots, admission), decision=2)
        assert set(world.send(group, 8)) == {"b1"}
        assert world.plane.read()["web"].epoch == 1


class Flips(Weights):
    """For planes that lay out a table before they flip to it."""

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
        for each, number in met:
            while position < len(ended) and ended[position][0].ended < each.began:
                latest = max(latest, ended[position][1])
                position += 1
            assert number >= latest, f"{each} met table {number} after table {latest} was seen"

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
