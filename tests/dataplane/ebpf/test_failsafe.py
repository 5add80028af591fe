"""What happens without the agent: the kernel goes on by itself, and never leaves a closed door.

Here the heartbeat is made old in the kernel's map; `test_conformance` waits in real time.
"""

import json
import time
from collections import Counter

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.host.process import free_port
from fairlead.ports.dataplane import Proto, Stale
from tests.dataplane.ebpf.agent import PORT, STORED_BURST, STORED_PER_S, VIP
from tests.dataplane.ebpf.places import Place, Talker, group, grow_old, limited
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")


def agent(place: Place, mode: AdmissionMode) -> Talker:
    """An agent in a process of its own, after its first flip."""
    return place.talker(
        "tests.dataplane.ebpf.agent",
        str(place.cgroup),
        str(place.pins),
        json.dumps(place.ports[:2]),
        mode,
    )


def heard(client: Talker, count: int) -> Counter[str]:
    return Counter(client.do("tcp", host=VIP, port=PORT, count=count))


def open_again(client: Talker) -> None:
    """The stored budget lets some in, not all, and refuses nobody for good."""
    while heard(client, 1).keys() == {"EAGAIN"}:  # it is empty at first, and refills
        time.sleep(0.01)
    began = time.monotonic()
    told = heard(client, 200)
    assert told.keys() <= {"0", "1", "EAGAIN"}
    most = STORED_BURST + STORED_PER_S * (time.monotonic() - began) + 1
    assert told["0"] + told["1"] <= most


def test_killed_in_normal_traffic_goes_on(place: Place, client: Talker) -> None:
    """kill -9 in normal: the same split, then hold, then fallback, without one failure."""
    agent(place, AdmissionMode.NORMAL).kill()
    assert heard(client, 64) == {"0": 48, "1": 16}
    plane = place.plane()
    grow_old(plane, 5)
    assert heard(client, 64) == {"0": 48, "1": 16}
    grow_old(plane, 20)
    told = heard(client, 64)
    assert told.keys() == {"0", "1"}
    assert told.total() == 64
    plane.detach()
    assert heard(client, 64).total() == 64  # with nobody at all attached


def test_killed_in_hard_the_door_opens_again(place: Place, client: Talker) -> None:
    agent(place, AdmissionMode.HARD).kill()
    assert heard(client, 8) == {"ECONNREFUSED": 8}
    plane = place.plane()
    grow_old(plane, 14)
    assert heard(client, 8) == {"ECONNREFUSED": 8}
    assert plane.read()["web"].mode == AdmissionMode.HARD
    grow_old(plane, 16)
    assert plane.read()["web"].mode == AdmissionMode.SOFT
    open_again(client)
    plane.detach()


def test_killed_in_soft_stays_soft(place: Place, client: Talker) -> None:
    agent(place, AdmissionMode.SOFT).kill()
    plane = place.plane()
    grow_old(plane, 16)
    told = heard(client, 50)
    assert (told["0"] + told["1"], told["EAGAIN"]) == (40, 10)
    plane.detach()


def test_the_next_agent_takes_over(place: Place, client: Talker) -> None:
    """After a kill the next agent finds epochs and counters, and flips after its first beat."""
    agent(place, AdmissionMode.NORMAL).kill()
    heard(client, 16)
    plane = place.plane()
    groups = [group("web", VIP, PORT, {"a": place.ports[0], "b": place.ports[1]})]
    before = plane.read()["web"]
    assert before.epoch >= 1
    assert (before.admitted, before.backends["a"].admitted) == (16, 12)
    grow_old(plane, 20)
    plane.configure(groups)  # whoever configures is alive
    with pytest.raises(Stale, match="is not after"):
        plane.apply(table("web", before.epoch, {"a": 0, "b": 1}), decision=1)
    plane.apply(table("web", before.epoch + 1, {"a": 0, "b": 1}), decision=1)
    assert heard(client, 8) == {"1": 8}
    assert plane.read()["web"].admitted == 24
    plane.detach()


def test_without_a_stored_budget_the_drip_stays(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    plane.configure([group("web", VIP, PORT, {"b0": place.ports[0]})])
    plane.apply(table("web", 1, {"b0": 1}, limited(AdmissionMode.HARD, 0, 2)), decision=1)
    grow_old(plane, 16)
    assert heard(client, 4) == {"0": 2, "EAGAIN": 2}


def test_fallback_keeps_a_flow_with_its_backend_and_moves_only_the_lost_ones(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """Rendezvous inside the group: 60 flows, one of four backends leaves, only its flows move."""
    to = {f"b{number}": place.ports[number] for number in range(4)}
    plane.configure([group("names", VIP, 53, to, Proto.UDP)])
    flows = [free_port() for _ in range(60)]

    def sent() -> list[str]:
        grow_old(plane, 20)
        answers = client.do("udp", host=VIP, port=53, bind=flows)
        return [answer.split()[0] for answer, _ in answers]

    first = sent()
    assert sent() == first
    assert set(first) == {"0", "1", "2", "3"}
    plane.configure([group("names", VIP, 53, {id: to[id] for id in ("b0", "b1", "b3")}, Proto.UDP)])
    after = sent()
    moved = [(was, now) for was, now in zip(first, after, strict=True) if was != now]
    assert {was for was, _ in moved} == {"2"}
    assert len(moved) == first.count("2")
    assert "2" not in after


def test_fallback_stays_in_the_group_and_leaves_out_the_isolated(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """Who had no slots in the last table gets nothing from a dead agent either."""
    plane.configure(
        [
            group("web", VIP, PORT, {f"b{number}": place.ports[number] for number in range(3)}),
            group("other", VIP, PORT + 1, {"b4": place.ports[4]}),
        ]
    )
    plane.apply(table("web", 1, {"b0": 255, "b1": 1, "b2": 0}), decision=1)
    grow_old(plane, 20)
    told = heard(client, 200)
    assert told.keys() == {"0", "1"}
    # By flows, not by slots: each of the two gets about half.
    assert min(told.values()) > 40


def test_an_agent_that_comes_back_ends_fallback(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    plane.configure([group("web", VIP, PORT, {"b0": place.ports[0], "b1": place.ports[1]})])
    plane.apply(table("web", 1, {"b0": 1, "b1": 0}, Admission()), decision=1)
    grow_old(plane, 100)
    plane.heartbeat()
    assert plane.liveness() == Liveness.NORMAL
    assert heard(client, 5) == {"0": 5}
