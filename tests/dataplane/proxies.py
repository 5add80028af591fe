"""What both proxies tell of their backends: counters, latencies, failures; and how they say no."""

import socket

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.sighting import BackendSeen
from fairlead.core.traffic.state import AdmissionMode
from tests.dataplane.clients import HARD, exchange, word
from tests.dataplane.proxy_worlds import ProxyWorld
from tests.dataplane.tables import only, opened


def answer(port: int, header: str = "") -> bytes:
    """The whole answer to one request, in lower case."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        return exchange(connection, header=header).lower()


def keep_asking(connection: socket.socket, count: int) -> list[str]:
    """Who answers requests on one connection."""
    return [word(exchange(connection, keep=True)) for _ in range(count)]


class Signals:
    """For the planes that see requests."""

    def test_latency_is_the_p95_of_successes(self, world: ProxyWorld) -> None:
        """Errors are counted and do not make a backend look fast."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        world.backends.behaviour["b1"].delay_s = 0.06
        assert world.send(group, 8) == ["b1"] * 8
        world.backends.behaviour["b1"].delay_s = 0.0
        world.backends.behaviour["b1"].status = 500
        assert all("500" in word for word in world.send(group, 30))
        world.until(lambda: _b1(world).p95_ms is not None, "the log was read")
        world.until(lambda: _b1(world).errors == 30, "errors are counted")
        seen = _b1(world)
        assert (seen.successes, seen.errors, seen.admitted) == (8, 30, 38)
        assert seen.p95_ms is not None
        assert seen.p95_ms >= 55
        assert seen.consecutive_failures == 0

    def test_a_backend_that_is_gone_is_seen_at_once(self, world: ProxyWorld) -> None:
        """Failed connects are counted, in a row too; a success ends the row."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        assert world.send(group, 1) == ["b1"]
        world.backends.stop("b1")
        # A connection that was kept open may serve, or break, once.
        world.until(lambda: "failed" in world.send(group, 1)[0], "b1 is gone")
        for _ in range(5):
            assert "failed" in world.send(group, 1)[0]
        world.until(lambda: (_b1(world).consecutive_failures or 0) >= 5, "five in a row")
        seen = world.plane.read()["web"]
        b1 = seen.backends["b1"]
        assert b1.successes == 1
        assert (b1.connect_failures or 0) >= 5
        assert seen.admitted == b1.admitted == 1 + (b1.connect_failures or 0) + (b1.errors or 0)

    def test_requests_of_one_connection_are_placed_one_by_one(self, world: ProxyWorld) -> None:
        """A kept connection meets the new table with its next request."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        with socket.create_connection((group.vip, group.port), 30) as connection:
            assert keep_asking(connection, 3) == ["b1"] * 3
            world.apply("web", only("b2"), epoch=2)
            assert keep_asking(connection, 3) == ["b2"] * 3

    def test_requests_in_a_backend_are_its_queue(self, world: ProxyWorld) -> None:
        """And leave it again."""
        group = opened(world)
        world.apply("web", only("b1"), epoch=1)
        world.backends.behaviour["b1"].delay_s = 0.3
        with world.load(group, clients=3):
            world.until(lambda: _b1(world).open == 3, "three are in it")
        world.until(lambda: _b1(world).open == 0, "it is empty")

    def test_remove_leaves_what_is_not_ours(self, world: ProxyWorld) -> None:
        """Whoever names a folder that is in use loses nothing in it."""
        world.folder.mkdir()
        other = world.folder / "other.txt"
        other.write_text("kept")
        opened(world)
        world.plane.remove()
        assert [path.name for path in world.folder.iterdir()] == ["other.txt"]
        other.unlink()

    def test_a_proxy_that_dies_is_started_again(self, world: ProxyWorld) -> None:
        """By the next heartbeat, with the table it had."""
        group = opened(world)
        world.apply("web", only("b2"), epoch=4)
        world.kill()
        assert "failed" in world.one(group) or world.one(group) == HARD
        world.plane.heartbeat()
        assert set(world.send(group, 8)) == {"b2"}
        assert world.plane.read()["web"].epoch == 4
        world.apply("web", only("b3"), epoch=5)
        assert set(world.send(group, 8)) == {"b3"}

    def test_a_refusal_says_whose_it_is_and_when_to_come_back(self, world: ProxyWorld) -> None:
        """429 with Retry-After when there is a rate to wait for, 503 without."""
        group = opened(world)
        world.apply("web", only("b1"), Admission(AdmissionMode.SOFT, 0.25, 0.0), epoch=1)
        head = answer(group.port)
        assert head.startswith(b"http/1.1 429 ")
        assert b"\r\nretry-after: 4\r\n" in head
        assert b"\r\nfairlead-refused: soft\r\n" in head
        world.apply("web", only("b1"), Admission(AdmissionMode.HARD, 0.25, 0.0), epoch=2)
        head = answer(group.port)
        assert head.startswith(b"http/1.1 503 ")
        assert b"\r\nfairlead-refused: hard\r\n" in head
        assert b"retry-after" not in head


def _b1(world: ProxyWorld) -> BackendSeen:
    return world.plane.read()["web"].backends["b1"]
