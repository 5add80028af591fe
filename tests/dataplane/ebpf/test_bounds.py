"""A bound on what is inside: exact, and flipped with the slots.

What every plane promises of one is in `tests.dataplane.bounds`, how the kernel counts in
`test_inside`.
"""

import time
from collections import Counter

import pytest

from fairlead.core.traffic.limits import share
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.ebpf.layout import BACKENDS_MAX, spread
from fairlead.ports.dataplane import Proto
from fairlead.ports.faults import PermanentFault
from tests.dataplane.ebpf.counting import IDS, VIP, counts_of, wait, web
from tests.dataplane.ebpf.places import Place, Talker, group, grow_old, limited
from tests.dataplane.ebpf.test_flip import Flip, Record
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
SLOTS_TRIED = 8
"""As in choose.h."""
EVEN = dict.fromkeys(IDS, 64)


def test_clients_at_once_never_get_past_the_bound(place: Place, plane: EbpfDataplane) -> None:
    """Three clients push as fast as they can; whoever is let in stays. Exactly 40 are, and all of
    the others were told to try again."""
    plane.configure([web(place)])
    plane.apply(table("web", 1, EVEN, inside_max=40), decision=1)
    clients = [place.client() for _ in range(3)]
    for each in clients:
        each.tell("hold", host=VIP, port=80, count=200)
    heard = Counter(word for each in clients for word in each.hear())
    assert heard.keys() == {"0", "1", "2", "3", "EAGAIN"}
    assert heard.total() - heard["EAGAIN"] == 40
    counts = counts_of(place, plane)
    assert counts()[0] == sum(counts()[1]) == 40
    for each in clients:
        each.kill()
    wait(counts, 0)


def test_a_bound_holds_without_the_agent(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    plane.configure([web(place)])
    plane.apply(table("web", 1, EVEN, inside_max=2), decision=1)
    grow_old(plane, 10)
    assert client.do("hold", host=VIP, port=80, count=4)[2:] == ["EAGAIN"] * 2
    grow_old(plane, 20)
    assert set(client.do("hold", host=VIP, port=80, count=4)) == {"EAGAIN"}
    client.do("let_go")


def test_who_finds_no_room_costs_the_bucket_nothing(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """Five tokens, one place: 20 refusals later four tokens are left."""
    plane.configure([web(place)])
    plane.apply(table("web", 1, EVEN, limited(AdmissionMode.HARD, 0, 5), inside_max=1), decision=1)
    client.do("hold", host=VIP, port=80, count=1)
    assert client.do("tcp", host=VIP, port=80, count=20) == ["EAGAIN"] * 20
    seen = plane.read()["web"]
    assert (seen.admitted, seen.refused_soft, seen.refused_hard) == (1, 20, 0)
    client.do("let_go")
    heard = client.do("tcp", host=VIP, port=80, count=6)
    assert heard[4:] == ["ECONNREFUSED"] * 2
    assert not {"EAGAIN", "ECONNREFUSED"} & set(heard[:4])


def test_the_split_is_exact_where_everybody_has_room(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    plane.configure([web(place)])
    plane.apply(table("web", 1, {"a": 150, "b": 75, "c": 31, "d": 0}, inside_max=10), decision=1)
    heard = Counter(client.do("tcp", host=VIP, port=80, count=256))
    assert heard == {"0": 150, "1": 75, "2": 31}


@pytest.mark.parametrize(
    "slots", [EVEN, {"a": 150, "b": 75, "c": 31, "d": 0}, {"a": 4, "b": 500, "c": 8, "d": 512}]
)
@pytest.mark.parametrize("keeping", [("a",), ("a", "b"), ("c",), IDS])
def test_who_holds_too_much_is_passed_over_to_the_connection(
    place: Place,
    plane: EbpfDataplane,
    client: Talker,
    slots: dict[str, int],
    keeping: tuple[str, ...],
) -> None:
    """The kernel's sequence is the one that `share` says, step by step."""
    plane.configure([web(place)])
    plane.apply(table("web", 1, slots, inside_max=60), decision=1)
    keep = [str(IDS.index(id)) for id in keeping]
    heard = client.do("hold", host=VIP, port=80, count=150, only=keep)
    assert heard == expected(slots, keeping, 60, 150)
    client.do("let_go")


def expected(slots: dict[str, int], keeping: tuple[str, ...], most: int, count: int) -> list[str]:
    order, cursor, held, words = spread(slots), 0, Counter[str](), []
    for _ in range(count):
        inside = held.total()
        if inside >= most:
            words.append("EAGAIN")
            continue
        for _ in range(SLOTS_TRIED):
            id = order[cursor % len(order)]
            cursor += 1
            if held[id] < share(slots[id], len(order), inside + 1):
                break
        held[id] += id in keeping
        words.append(str(IDS.index(id)))
    return words


def test_datagrams_have_no_end_and_no_bound(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    plane.configure([group("names", VIP, 53, {"a": place.ports[0]}, Proto.UDP)])
    plane.apply(table("names", 1, {"a": 1}, inside_max=1), decision=1)
    client.do("udp_connected", host=VIP, port=53)
    answers = client.do("udp", host=VIP, port=53, count=5)
    assert [text for text, _ in answers] == [f"0 {number}" for number in range(5)]
    assert plane.read()["names"].backends["a"].open is None


def test_bound_and_count_outlive_the_agent_and_a_change_of_backends(
    place: Place, client: Talker
) -> None:
    """The next agent finds both, and a newcomer does not widen the door."""
    plane = place.plane()
    plane.configure([web(place, ("a",))])
    plane.apply(table("web", 1, {"a": 1}, inside_max=2**40), decision=1)
    plane.apply(table("web", 2, {"a": 1}, inside_max=2), decision=1)
    client.do("hold", host=VIP, port=80, count=2)
    plane.detach()
    after = place.plane()
    assert after.read()["web"].backends["a"].open == 2
    after.configure([web(place, ("a", "b"))])
    assert client.do("tcp", host=VIP, port=80) == ["EAGAIN"]
    client.do("let_go")
    assert client.do("hold", host=VIP, port=80, count=3) == ["0", "0", "EAGAIN"]
    client.do("let_go")


# With one connection kept for ever, only the second of these is shut, and only by its bound.
TABLES = (
    ({"a": 200, "b": 56, "c": 0, "d": 0}, None),
    ({"a": 0, "b": 0, "c": 64, "d": 192}, 1),
    ({"a": 0, "b": 0, "c": 64, "d": 192}, 1_000),
)
HEARD = ({"0", "1"}, {"EAGAIN"}, {"2", "3"})


@pytest.mark.timeout(120)
def test_a_flip_under_load_takes_bound_and_slots_together(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """Each outcome is of a table that was active while the connection was made."""
    plane.configure([web(place)])
    client.do("hold", host=VIP, port=80, count=1)

    def flip(epoch: int) -> Flip:
        slots, inside_max = TABLES[epoch % 3]
        began = time.monotonic_ns()
        plane.apply(table("web", epoch, slots, inside_max=inside_max), decision=1)
        return Flip(began, time.monotonic_ns(), epoch % 3)

    flips = [flip(1)]
    clients = [place.client() for _ in range(2)]
    for each in clients:
        each.tell("load", host=VIP, port=80)
    until = time.monotonic() + 2
    while time.monotonic() < until or len(flips) <= 100:
        plane.heartbeat()
        flips.append(flip(len(flips) + 1))
    for each in clients:
        each.tell("stop")
    seen = [tuple(one) for each in clients for one in each.hear()]
    for each in clients:
        each.kill()
    record = Record(flips, HEARD)
    wrong = [one for one in seen if not record.allows(*one)]
    assert not wrong, (len(wrong), wrong[:3])
    assert {heard for _, _, heard in seen} == set.union(*HEARD)
    client.do("let_go")
    wait(counts_of(place, plane), 0)


def test_more_backends_than_a_slot_can_name_are_refused(place: Place) -> None:
    with pytest.raises(PermanentFault, match=f"capacity.backends: must be at most {BACKENDS_MAX}"):
        place.plane(capacity={"backends": BACKENDS_MAX + 1})
    assert not place.pins.exists()
