"""A HAProxy that its operator runs: the suite as far as it can promise it, and what it leaves."""

import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.haproxy import RunningHaproxyDataplane, discover
from fairlead.dataplane.haproxy.runtime import ask, execute
from fairlead.dataplane.haproxy.servers import ServerSettings
from fairlead.ports.dataplane import Backend, GroupRefused, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.dataplane.bounds import Rooms
from tests.dataplane.clients import exchange, word
from tests.dataplane.conformance import Driven
from tests.dataplane.running_worlds import RunningHaproxyWorld
from tests.dataplane.tables import IDS, only, opened, table

pytestmark = pytest.mark.component("haproxy")
EVEN = dict.fromkeys(IDS, 64)


@pytest.fixture
def world() -> Iterator[RunningHaproxyWorld]:
    made = RunningHaproxyWorld()
    yield made
    made.close()


class TestRunningHaproxy(Driven, Rooms):
    """The suite of all planes, as far as it is about weights and what servers hold."""


def state(world: RunningHaproxyWorld) -> str:
    """All that HAProxy says of its servers' settings, without ages and results of checks."""
    lines = ask(world.socket, "show servers state").splitlines()
    kept = [line.split() for line in lines if line]
    slims = [line.split(",") for line in ask(world.socket, "show stat -1 4 -1").splitlines()]
    limits = [(row[0], row[1], row[6]) for row in slims if len(row) > 6]
    return repr([row[:9] + row[14:] for row in kept]) + repr(limits)


def test_everything_is_put_back_byte_for_byte(world: RunningHaproxyWorld) -> None:
    """Weights, limits and states of servers, as their operator had set them: `detach` is how an
    agent stops."""
    group = world.group("web", IDS)
    execute(
        world.socket,
        [
            "set server web/b1 weight 7",
            "set server web/b2 weight 0",
            "set maxconn server web/b3 33",
            "set server web/b4 state maint",
        ],
    )
    before = state(world)
    world.plane.configure([group])
    hard = Admission(AdmissionMode.HARD, 1.0, 1.0)
    world.apply("web", only("b2"), hard, epoch=1, inside_max=8)
    world.plane.drain("web", "b1", decision=1)
    assert world.settings("web")["b2"] == ServerSettings(256, 1)
    assert world.settings("web")["b1"].state == "drain"
    assert world.settings("web")["b4"].state == "maint"
    world.plane.detach()
    assert state(world) == before
    assert list(world.folder.iterdir()) == []


def test_an_agent_that_was_killed_leaves_what_the_next_one_puts_back(
    world: RunningHaproxyWorld,
) -> None:
    """kill -9: the last weights stay; `remove` restores what was there before the first agent."""
    group = world.group("web", IDS)
    execute(world.socket, ["set server web/b1 weight 9", "set maxconn server web/b1 5"])
    before = state(world)
    agent = world.agent([table("web", 1, only("b3"), inside_max=6)])
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    world.alone = False
    assert set(world.send(group, 10)) == {"b3"}
    assert state(world) != before
    world.reopen()
    world.plane.remove()
    assert state(world) == before
    assert not world.folder.exists()


def test_the_next_agent_goes_on_and_still_knows_what_was_there(world: RunningHaproxyWorld) -> None:
    """Tables, epochs and counters; the originals are those of before the first agent."""
    group = world.group("web", IDS)
    before = state(world)
    world.plane.configure([group])
    world.apply("web", only("b2"), epoch=3)
    assert set(world.send(group, 20)) == {"b2"}
    world.reopen()
    world.plane.configure([group])
    seen = world.plane.read()["web"]
    assert (seen.epoch, seen.decision, seen.admitted) == (3, 3, 20)
    assert set(world.send(group, 4)) == {"b2"}
    world.plane.detach()
    assert state(world) == before


def test_what_leaves_the_agents_file_is_put_back(world: RunningHaproxyWorld) -> None:
    """A group, and a server of a group that stays; servers that are not listed are not touched."""
    web, more = world.group("web", IDS), world.group("more", ("m1", "m2"))
    world.plane.configure([web, more])
    world.apply("web", only("b2"), epoch=1)
    fewer = replace(web, backends=web.backends[1:])
    world.plane.configure([fewer])
    assert world.settings("web")["b1"] == ServerSettings(1, 0)
    assert set(world.settings("more").values()) == {ServerSettings(1, 0)}
    world.apply("web", {"b2": 0, "b3": 256, "b4": 0}, epoch=2)
    assert world.settings("web")["b1"] == ServerSettings(1, 0)
    assert world.settings("web")["b3"].weight == 256
    world.plane.configure([])
    assert world.plane.read() == {}
    assert set(world.settings("web").values()) == {ServerSettings(1, 0)}


def test_after_a_reload_what_its_operator_configured_is_the_original(
    world: RunningHaproxyWorld,
) -> None:
    """The new process has the values of its file: they are put back, and the table begins again."""
    group = opened(world)
    world.apply("web", only("b2"), epoch=5)
    world.server = "check inter 500 weight 3"
    world.serve()
    assert world.plane.read()["web"].epoch == 0
    world.apply("web", only("b4"), epoch=1)
    assert set(world.send(group, 6)) == {"b4"}
    world.plane.detach()
    assert set(world.settings("web").values()) == {ServerSettings(3, 0)}


def test_a_reload_between_two_agents_leaves_nothing_to_put_back(world: RunningHaproxyWorld) -> None:
    """What was found belongs to a process that is gone."""
    opened(world)
    world.apply("web", only("b2"), epoch=1)
    world.server = "check inter 500 weight 4"
    world.serve()
    world.reopen()
    world.plane.remove()
    assert set(world.settings("web").values()) == {ServerSettings(4, 0)}


def test_hold_as_much_as_may_be_inside_and_never_more_than_its_operator_allows(
    world: RunningHaproxyWorld,
) -> None:
    """Shares of the bound; `hard` lets one request at a time into each server."""
    world.server = "check inter 500 maxconn 6"
    opened(world)
    world.apply("web", {"b1": 128, "b2": 64, "b3": 64, "b4": 0}, epoch=1, inside_max=20)
    held = {name: settings.maxconn for name, settings in world.settings("web").items()}
    assert held == {"b1": 6, "b2": 5, "b3": 5, "b4": 6}
    world.apply("web", EVEN, Admission(AdmissionMode.HARD, 1.0, 1.0), epoch=2)
    assert {settings.maxconn for settings in world.settings("web").values()} == {1}
    world.apply("web", EVEN, epoch=3)
    assert {settings.maxconn for settings in world.settings("web").values()} == {6}


def test_latency_errors_and_what_is_inside_are_seen(world: RunningHaproxyWorld) -> None:
    """From `show stat` alone: nothing has to be added to the configuration."""
    group = opened(world)
    world.backends.behaviour["b1"].delay_s = 0.2
    world.backends.behaviour["b2"].status = 500
    world.plane.read()
    assert len(world.send(group, 40)) == 40
    seen = world.plane.read()["web"].backends
    assert seen["b1"].p95_ms is not None
    assert seen["b3"].p95_ms is not None
    assert seen["b1"].p95_ms >= 190
    assert seen["b1"].p95_ms > seen["b3"].p95_ms
    assert (seen["b2"].successes, seen["b2"].errors) == (0, 10)
    world.backends.behaviour["b1"].delay_s = 0.3
    with world.load(group, clients=4):
        world.until(lambda: (world.plane.read()["web"].backends["b1"].open or 0) > 0, "inside b1")


def test_the_operators_tls_stays_his(world: RunningHaproxyWorld) -> None:
    """A frontend with a certificate of its own serves HTTPS by our weights."""
    pem = world.home / "own.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -keyout {pem}.key "
        f"-out {pem}.crt && cat {pem}.crt {pem}.key > {pem}",
        shell=True,
        check=True,
        capture_output=True,
    )
    world.certificate = f"ssl crt {pem}"
    group = opened(world)
    world.apply("web", only("b3"), epoch=1)
    context = ssl.create_default_context(cafile=f"{pem}.crt")
    context.check_hostname = False
    words = set()
    for _ in range(6):
        plain = socket.create_connection((group.vip, group.port), 30)
        with plain, context.wrap_socket(plain) as secured:
            words.add(word(exchange(secured)))
    assert words == {"b3"}


def test_the_socket_may_be_an_address(world: RunningHaproxyWorld) -> None:
    """Where the agent runs in another container."""
    group = world.group("web", IDS)
    place = f"127.0.0.1:{world.port}"
    world.plane = RunningHaproxyDataplane(place, world.folder, backend="web")
    world.plane.configure([replace(group, name="shop")])
    world.plane.apply(table("shop", 1, only("b4")), decision=1)
    assert set(world.send(group, 6)) == {"b4"}


class TestRefusals:
    """Nothing is changed, and what is missing is named."""

    def test_no_socket(self, world: RunningHaproxyWorld) -> None:
        """With the line that HAProxy needs."""
        with pytest.raises(PermanentFault, match=r"plane\.haproxy\.socket: .*level admin"):
            world.plane.configure([])

    @pytest.mark.parametrize("level", ["user", "operator"])
    def test_another_level(self, world: RunningHaproxyWorld, level: str) -> None:
        """It could read everything, and would fail at the first tick."""
        world.level = level
        group = world.group("web", IDS)
        problem = rf"has the level '{level}'; add `level admin`"
        with pytest.raises(PermanentFault, match=problem):
            world.plane.configure([group])

    def test_no_such_backend(self, world: RunningHaproxyWorld) -> None:
        """With those that there are."""
        web = world.group("web", IDS)
        with pytest.raises(GroupRefused, match=r"groups\[0\]: .* no backend 'shop'; it has .*web"):
            world.plane.configure([replace(web, name="shop")])

    def test_no_servers(self, world: RunningHaproxyWorld) -> None:
        """There is nothing that could be weighed."""
        empty = world.group("web", ())
        with pytest.raises(GroupRefused, match="'web' has no servers: add `server`"):
            world.plane.configure([empty])

    def test_a_server_that_is_not_there_or_elsewhere(self, world: RunningHaproxyWorld) -> None:
        """Both by name."""
        web = world.group("web", IDS)
        more = (*web.backends, Backend("b9", "127.0.0.1", 9))
        with pytest.raises(GroupRefused, match="'web' has no server 'b9'; it has b1, b2, b3, b4"):
            world.plane.configure([replace(web, backends=more)])
        moved = (replace(web.backends[0], port=9), *web.backends[1:])
        with pytest.raises(GroupRefused, match=r"server 'b1' of backend 'web' is at .*, not at "):
            world.plane.configure([replace(web, backends=moved)])

    def test_a_server_that_nothing_checks(self, world: RunningHaproxyWorld) -> None:
        """Without the agent it would keep its share when it fails."""
        world.server = ""
        web = world.group("web", IDS)
        with pytest.raises(GroupRefused, match="server 'b1' of backend 'web' has no `check`"):
            world.plane.configure([web])
        with pytest.raises(PermanentFault, match=r"groups\[0\]: .*has no `check`"):
            discover(world.socket, "web", "groups[0]")

    def test_a_way_to_balance_that_takes_no_weights(self, world: RunningHaproxyWorld) -> None:
        """HAProxy would refuse the first table."""
        world.more = "balance static-rr"
        web = world.group("web", IDS)
        with pytest.raises(GroupRefused, match="static-rr takes no weights"):
            world.plane.configure([web])

    def test_udp(self, world: RunningHaproxyWorld) -> None:
        """HAProxy carries none."""
        web = replace(world.group("web", IDS), proto=Proto.UDP)
        with pytest.raises(GroupRefused, match="udp is not supported"):
            world.plane.configure([web])


def test_servers_are_discovered_without_those_in_maintenance(world: RunningHaproxyWorld) -> None:
    """A group that lists none has those that its operator has in service."""
    web: RouteGroup = world.group("web", IDS)
    execute(world.socket, ["set server web/b2 state maint"])
    found = discover(world.socket, "web", "groups[0]")
    assert found == tuple(backend for backend in web.backends if backend.id != "b2")


def test_a_haproxy_that_is_gone_is_a_fault_that_may_pass(world: RunningHaproxyWorld) -> None:
    """The agent goes on asking; nothing is started in its place."""
    opened(world)
    world.stop()
    for act in (world.plane.heartbeat, world.plane.read, world.plane.detach):
        with pytest.raises(TemporaryFault, match="does not answer"):
            act()
    world.serve()
    world.plane.heartbeat()
