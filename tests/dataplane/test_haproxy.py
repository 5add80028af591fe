"""The HAProxy plane against the real HAProxy: the suite of all planes, and its own ways."""

import os
import pwd
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.haproxy import HaproxyDataplane
from fairlead.dataplane.haproxy.config import read_head, write_state
from fairlead.dataplane.proxy import load, save
from fairlead.dataplane.tables import Active
from fairlead.ports.dataplane import Backend, Proto, RouteGroup, Stale
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.dataplane import proxies, retries
from tests.dataplane.conformance import RealConformance
from tests.dataplane.proxy_worlds import HaproxyWorld
from tests.dataplane.tables import only, opened, table

pytestmark = pytest.mark.component("haproxy")


@pytest.fixture
def world() -> Iterator[HaproxyWorld]:
    made = HaproxyWorld()
    yield made
    made.close()


class TestHaproxy(RealConformance):
    """One suite for all planes."""


class TestHaproxySignals(proxies.Signals):
    """What both proxies tell of their backends."""


class TestHaproxyRetries(retries.Repeats):
    """What both proxies repeat."""


def test_a_reload_that_cannot_be_done_changes_nothing(world: HaproxyWorld) -> None:
    """The address is named, the old groups are served on, and the next change works."""
    group = opened(world)
    world.apply("web", only("b1"), epoch=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = RouteGroup("other", "127.0.0.1", port, Proto.TCP, ())
        with pytest.raises(PermanentFault, match=rf"groups\[1\]\.vip: 127\.0\.0\.1 port {port}: "):
            world.plane.configure([group, other])
    assert set(world.send(group, 5)) == {"b1"}
    world.apply("web", only("b2"), epoch=2)
    more = world.group("more", ("m1",))
    world.plane.configure([group, more])
    assert set(world.send(group, 5)) == {"b2"}
    assert set(world.send(more, 5)) == {"m1"}


def test_a_reload_fails_no_request(world: HaproxyWorld) -> None:
    """The new worker takes the sockets over, with the active table."""
    group = opened(world)
    world.apply("web", only("b1"), epoch=1)
    more = world.group("more", ("m1",))
    with world.load(group, clients=2) as load:
        load.wait(20)
        world.plane.configure([group, more])
        load.wait(20)
        world.plane.configure([group])
        load.wait(20)
        assert {each.word for each in load.sent} == {"b1"}


def test_a_change_that_fails_counts_nothing_twice(world: HaproxyWorld) -> None:
    """Neither now nor after the next change that works."""
    group, more = opened(world), world.group("more", ("m1",))
    assert len(world.send(group, 10)) == 10
    broken = HaproxyDataplane(world.folder, binary="false")
    with pytest.raises(PermanentFault, match="does not accept its configuration"):
        broken.configure([group, more])
    assert world.plane.read()["web"].admitted == 10
    world.plane.configure([group, more])
    assert world.plane.read()["web"].admitted == 10


def test_root_is_given_up(world: HaproxyWorld) -> None:
    """The worker that talks to strangers is nobody's root, and changes still work."""
    if os.geteuid() != 0:
        pytest.skip("only root has something to give up")
    group = opened(world)
    assert Path(f"/proc/{world.server()}").stat().st_uid == pwd.getpwnam("haproxy").pw_uid
    world.plane.configure([group, world.group("more", ("m1",))])
    assert set(world.send(group, 4)) <= {each.id for each in group.backends}


def test_with_several_threads(world: HaproxyWorld) -> None:
    """Flips are as whole; threads that ask at the same moment may share a token."""
    world.plane = HaproxyDataplane(world.folder, threads=2)
    group = opened(world)
    world.apply("web", only("b1"), Admission(AdmissionMode.SOFT, 0.0, 10.0), epoch=1)
    with world.load(group, clients=4) as load:
        load.wait(60)
    assert 10 <= sum(each.word == "b1" for each in load.sent) <= 20
    world.apply("web", only("b1"), epoch=2)
    with world.load(group, clients=4) as load:
        for epoch in range(3, 120):
            shut = epoch % 2 == 0
            world.apply(
                "web",
                only("b2") if shut else only("b1"),
                Admission(AdmissionMode.HARD, 0.0, 0.0) if shut else Admission(),
                epoch=epoch,
            )
        load.wait(20)
    assert {each.word for each in load.sent} <= {"b1", "hard"}


def test_udp_is_refused(world: HaproxyWorld) -> None:
    """By its path."""
    group = replace(world.group("web", ("b1",)), proto=Proto.UDP)
    with pytest.raises(PermanentFault, match=r"groups\[0\]\.proto: "):
        world.plane.configure([group])


def test_a_machine_without_haproxy_is_told_what_to_install(tmp_path: Path) -> None:
    """Not a stack trace."""
    plane = HaproxyDataplane(tmp_path, binary="fairlead-no-such-program")
    with pytest.raises(PermanentFault, match="apt-get install haproxy"):
        plane.configure([])
    with pytest.raises(TemporaryFault, match="does not answer"):
        plane.heartbeat()


def test_names_that_haproxy_could_not_write(world: HaproxyWorld) -> None:
    """Are written another way; what is read back has its own name."""
    group = world.group("shop/ä.1 b", ("b_1", "b:2"))
    world.plane.configure([group])
    world.apply("shop/ä.1 b", {"b_1": 128, "b:2": 128}, epoch=1)
    assert set(world.send(group, 10)) == {"b_1", "b:2"}
    assert set(world.plane.read()["shop/ä.1 b"].backends) == {"b_1", "b:2"}


def test_both_families_of_addresses(world: HaproxyWorld) -> None:
    """A group at ::1 in front of a backend at 127.0.0.1."""
    group = replace(world.group("six", ("b1",)), vip="::1")
    world.plane.configure([group])
    assert world.send(group, 3) == ["b1"] * 3


@pytest.mark.parametrize(
    "admission",
    [
        Admission(),
        Admission(AdmissionMode.SOFT, 12.5, 30.0),
        Admission(AdmissionMode.HARD, 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("decision", [None, 41])
def test_states_are_read_back_as_they_were_written(
    tmp_path: Path, admission: Admission, decision: int | None
) -> None:
    """The next agent goes on from them: HAProxy has epoch and side, a file has the table."""
    now = Active(table("web", 7, {"b1": 3}, admission, 60, stored=(100.0, 100.0)), decision, "b")
    save(tmp_path / "laid.json", now)
    assert load(tmp_path / "laid.json", Active) == now
    assert read_head(write_state(now)) == (7, "b")
    none = write_state(Active(table("web", 8, {"b1": 0}, admission), decision))
    assert none.split("|")[0] == f"8:a:0:{'' if decision is None else decision}"
    assert none.split("|")[1].startswith("hard:")


def test_a_table_whose_file_is_lost_is_followed_by_the_next(world: HaproxyWorld) -> None:
    """Served on as it is; epochs go on from what HAProxy has, on the side that rests."""
    group = opened(world)
    world.apply("web", only("b2"), epoch=3)
    for path in world.folder.glob("laid-*"):
        path.unlink()
    world.reopen()
    world.plane.configure([group])
    assert set(world.send(group, 8)) == {"b2"}
    assert world.plane.read()["web"].epoch == 3
    with pytest.raises(Stale):
        world.apply("web", only("b3"), epoch=3)
    world.apply("web", only("b3"), epoch=4)
    assert set(world.send(group, 8)) == {"b3"}


def test_slots_beyond_what_haproxy_can_weigh_are_scaled(world: HaproxyWorld) -> None:
    """Nobody who has a slot is rounded down to nothing."""
    group = opened(world)
    world.apply("web", {"b1": 2000, "b2": 1000, "b3": 1, "b4": 0}, epoch=1)
    words_met = world.send(group, 385)
    assert 250 <= words_met.count("b1") <= 262
    assert words_met.count("b4") == 0
    assert words_met.count("b3") >= 1


def test_a_group_may_have_no_backends_yet(world: HaproxyWorld) -> None:
    """They come later."""
    empty = world.group("web", ())
    world.plane.configure([empty])
    assert set(world.send(empty, 2)) == {"hard"}
    world.plane.heartbeat()
    backend: Backend = world.backends.start("b1")
    world.plane.configure([replace(empty, backends=(backend,))])
    world.plane.apply(table("web", 1, {"b1": 256}), decision=1)
    assert set(world.send(empty, 2)) == {"b1"}
