"""Groups and backends that come and go under load, and agents that are killed while they do it."""

import json
import random
import time
from collections import Counter

import pytest

from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.ports.dataplane import RouteGroup
from tests.dataplane.ebpf.counting import counts_of, wait
from tests.dataplane.ebpf.places import Place, Talker, group
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
VIP, OTHER = "127.99.0.1", "127.99.0.2"


def shapes(place: Place) -> list[list[RouteGroup]]:
    """`web` always has two of its three servers, 0 to 2; a second group with servers 3 and 4 comes
    and goes, so that places change hands between the two."""
    ids = ["b0", "b1", "b2"]
    pairs = [[ids[at], ids[at - 1]] for at in range(3)]
    webs = [group("web", VIP, 80, {id: place.ports[int(id[1])] for id in pair}) for pair in pairs]
    other = group("other", OTHER, 80, {"x": place.ports[3], "y": place.ports[4]})
    return [[webs[0]], [webs[1], other], [webs[2]], [other, webs[0]], [webs[1]], [webs[2], other]]


@pytest.mark.timeout(120)
def test_nobody_is_sent_elsewhere_or_turned_away_while_places_change_hands(
    place: Place, plane: EbpfDataplane
) -> None:
    """Hundreds of changes under load: every connection is served by its own group's servers."""
    turns = shapes(place)
    plane.configure(turns[0])
    clients = [place.client() for _ in range(2)]
    for each in clients:
        each.tell("load", host=VIP, port=80)
    rng, until, changes = random.Random(1), time.monotonic() + 2, 0
    while time.monotonic() < until or changes < 60:
        turn = turns[changes % len(turns)]
        plane.configure(turn)
        web = next(each for each in turn if each.name == "web")
        shares = {backend.id: rng.randrange(1, 200) for backend in web.backends}
        changes += 1
        plane.apply(table("web", changes, shares), decision=1)
    for each in clients:
        each.tell("stop")
    heard = Counter(word for each in clients for _, _, word in each.hear())
    for each in clients:
        each.kill()
    assert heard.keys() == {"0", "1", "2"}, heard
    seen = plane.read()["web"]
    assert (seen.admitted, seen.refused_soft, seen.refused_hard) == (heard.total(), 0, 0)
    wait(counts_of(place, plane), 0)  # each was counted out once, by its end or with its backend
    maps, registry = plane._open()
    places = maps.backends.first(maps.backends.entries)
    used = [at for at, backend in enumerate(places) if backend.group]
    assert sorted(used) == sorted(
        at for placed in registry.placed.values() for at in placed.at.values()
    )


def test_an_agent_killed_in_the_middle_of_a_change_leaves_a_plane_that_works(
    place: Place, client: Talker
) -> None:
    """kill -9 at any instant: connections go on, and the next agent finds a sound state."""
    rng = random.Random(2)
    place.plane().detach()
    for _ in range(4):
        agent = place.talker(
            "tests.dataplane.ebpf.churner",
            str(place.cgroup),
            str(place.pins),
            json.dumps(place.ports),
        )
        time.sleep(rng.random() * 0.2)  # not to synchronise: to be killed anywhere
        agent.kill()
        assert set(client.do("tcp", host=VIP, port=80, count=30)) <= {"0", "1", "2"}
        plane = place.plane()
        assert set(plane.read()) <= {"web", "other"}
        plane.configure(shapes(place)[1])
        epoch = plane.read()["web"].epoch
        plane.apply(table("web", epoch + 1, {"b0": 1, "b1": 3}), decision=1)
        assert Counter(client.do("tcp", host=VIP, port=80, count=8)) == {"0": 2, "1": 6}
        assert set(client.do("tcp", host=OTHER, port=80, count=8)) == {"3", "4"}
        plane.detach()
