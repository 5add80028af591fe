"""A flip is one atomic write: every connection sees the old table or the new one, whole."""

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.ports.dataplane import Stale
from tests.dataplane.ebpf.places import Place, Talker, group, grow_old, limited
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
VIP = "127.99.0.1"
# Three tables that have nothing in common, so that what was heard says which one was seen.
TABLES = (
    ({"a": 200, "b": 56, "c": 0, "d": 0}, limited(AdmissionMode.NORMAL, 0, 0)),
    ({"a": 0, "b": 0, "c": 64, "d": 192}, limited(AdmissionMode.NORMAL, 0, 0)),
    ({"a": 128, "b": 0, "c": 128, "d": 0}, limited(AdmissionMode.HARD, 0, 0)),
)
HEARD = ({"0", "1"}, {"2", "3"}, {"ECONNREFUSED"})


@dataclass(frozen=True, slots=True)
class Flip:
    """Between `began` and `ended` the group changed over to table `which`."""

    began: int
    ended: int
    which: int


def web(place: Place) -> list:
    return [group("web", VIP, 80, dict(zip("abcd", place.ports[:4], strict=True)))]


class Record:
    """All flips of a test, in order, and what may be heard under each table."""

    def __init__(self, flips: list[Flip], heard: Sequence[set[str]]) -> None:
        self._flips, self._heard = flips, heard
        self._begins = [flip.began for flip in flips]
        self._ends = [flip.ended for flip in flips]

    def allows(self, began: int, ended: int, heard: str) -> bool:
        """Whether a table that was active at some instant of the connection says so."""
        first = max(0, bisect_left(self._ends, began) - 1)  # the last that was over by then
        last = bisect_right(self._begins, ended)
        return any(heard in self._heard[flip.which] for flip in self._flips[first:last])


@pytest.mark.timeout(120)
def test_under_load_no_connection_sees_a_mixed_table(place: Place, plane: EbpfDataplane) -> None:
    """Two clients as fast as they can, flips as fast as we can: each outcome is of a table that was
    active while the connection was made, and refusals come from the closed one only."""
    plane.configure(web(place))
    flips = [flip(plane, 1)]
    clients = [place.client() for _ in range(2)]
    for each in clients:
        each.tell("load", host=VIP, port=80)
    while len(flips) <= 200 or plane.read()["web"].admitted < 5_000:
        plane.heartbeat()
        flips.append(flip(plane, len(flips) + 1))
    for each in clients:
        each.tell("stop")
    seen = sorted(tuple(one) for each in clients for one in each.hear())
    for each in clients:
        each.kill()
    record = Record(flips, HEARD)
    wrong = [one for one in seen if not record.allows(*one)]
    assert not wrong, (len(wrong), wrong[:3])
    counts = Counter(heard for _, _, heard in seen)
    assert counts.keys() == set.union(*HEARD)
    told = plane.read()["web"]
    assert told.admitted == len(seen) - counts["ECONNREFUSED"]
    assert (told.refused_hard, told.refused_soft) == (counts["ECONNREFUSED"], 0)


def flip(plane: EbpfDataplane, epoch: int) -> Flip:
    which = epoch % 3
    slots, door = TABLES[which]
    began = time.monotonic_ns()
    plane.apply(table("web", epoch, slots, door), decision=1)
    return Flip(began, time.monotonic_ns(), which)


def test_old_epochs_are_refused(place: Place, plane: EbpfDataplane, client: Talker) -> None:
    plane.configure(web(place))
    flip(plane, 6)
    for epoch in (5, 6, 1):
        with pytest.raises(Stale, match=f"epoch {epoch} is not after 6"):
            flip(plane, epoch)
    assert set(client.do("tcp", host=VIP, port=80, count=20)) == HEARD[0]
    flip(plane, 7)
    assert set(client.do("tcp", host=VIP, port=80, count=20)) == HEARD[1]


def test_hold_refuses_flips_until_the_next_heartbeat(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """From 3 s on the active table stays; whether the agent lives is judged in the kernel."""
    plane.configure(web(place))
    flip(plane, 3)
    grow_old(plane, 2.5)
    assert plane.liveness() == Liveness.NORMAL
    flip(plane, 6)
    for age, alive in ((3.1, Liveness.HOLD), (14.0, Liveness.HOLD), (15.1, Liveness.FALLBACK)):
        grow_old(plane, age)
        assert plane.liveness() == alive
        with pytest.raises(Stale, match=f"the heartbeat is old: {alive}"):
            flip(plane, 7)
        assert set(client.do("tcp", host=VIP, port=80, count=20)) == HEARD[0]
        assert (plane.read()["web"].epoch, plane.read()["web"].liveness) == (6, alive)
    plane.heartbeat()
    flip(plane, 7)
    assert set(client.do("tcp", host=VIP, port=80, count=20)) == HEARD[1]


def test_hold_goes_on_by_the_slots(place: Place, plane: EbpfDataplane, client: Talker) -> None:
    plane.configure(web(place))
    flip(plane, 3)
    grow_old(plane, 10)
    assert Counter(client.do("tcp", host=VIP, port=80, count=256)) == {"0": 200, "1": 56}


def test_a_table_that_is_overwritten_while_it_is_read_is_not_used(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """What a program sees that slept through two flips: stamps of another turn. It must not go by
    them; here, where the selector never comes to agree, it says "try again"."""
    plane.configure(web(place))
    flip(plane, 3)
    maps, registry = plane._open()
    placed = registry.placed["web"]
    at = 2 * placed.index + (placed.word & 1)
    other = maps.tables[at]
    other.slots[:] = [slot + (1 << 32) for slot in other.slots]
    maps.tables[at] = other
    assert client.do("tcp", host=VIP, port=80, count=5) == ["EAGAIN"] * 5
    assert plane.read()["web"].refused_soft == 5
