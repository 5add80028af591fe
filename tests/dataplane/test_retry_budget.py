"""The governor and a real proxy together: what clients see of retries, and what backends do."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.core.traffic import Config
from fairlead.core.traffic.memory import EDITION
from fairlead.engine.traffic import Group, GroupGovernor, GroupRules, Ports, TrafficLoop
from fairlead.ports.dataplane import RouteGroup
from tests.dataplane.clients import request
from tests.dataplane.proxy_worlds import EnvoyWorld, HaproxyWorld, ProxyWorld
from tests.engine.traffic_worlds import Eyes, Machines, MemoryRecorder

IDS = ("b1", "b2", "b3")
TICK_MS = 200
BUSY_MS = 200
"""How long a backend needs for a request under overload."""


@pytest.fixture(
    params=[
        pytest.param(HaproxyWorld, marks=pytest.mark.component("haproxy")),
        pytest.param(EnvoyWorld, marks=pytest.mark.component("envoy")),
    ]
)
def world(request: pytest.FixtureRequest) -> Iterator[ProxyWorld]:
    made: ProxyWorld = request.param()
    yield made
    made.close()


class Governed:
    """A group that is governed tick by tick, by a clock of ours: a slow machine changes nothing."""

    def __init__(self, world: ProxyWorld, *, retry: bool = True) -> None:
        self.world, self.now_ms = world, 1_000_000_000
        self.route: RouteGroup = replace(world.group("web", IDS), retry=retry)
        # However slow this machine is, latency does not close admission.
        config = Config(l_ref_ms=60_000)
        rules = GroupRules(config, retry=retry, own_bound=True, edition=EDITION)
        self.governor = GroupGovernor("web", rules)
        eyes, recorder = Eyes(), MemoryRecorder()
        ports = Ports(lambda _: recorder, eyes, Machines(eyes), eyes)  # type: ignore[arg-type, return-value]
        self.loop = TrafficLoop(world.plane, [Group(self.route, self.governor)], ports)
        self.loop.start(self.now_ms)

    def wave(self, clients: int) -> Counter[str]:
        """So many requests at once, then a tick."""
        words: list[str] = []
        threads = [
            threading.Thread(target=lambda: words.append(request(self.route.vip, self.route.port)))
            for _ in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.now_ms += TICK_MS
        self.loop.tick(self.now_ms)
        return Counter(words)

    @property
    def reached(self) -> int:
        """Requests that the backends were sent."""
        return sum(self.world.backends.behaviour[id].requests for id in IDS)


def test_a_backend_that_fails_at_once_costs_no_client_an_error(world: ProxyWorld) -> None:
    """From its first failure until it is ejected, and after: as with `retry-on` and `redispatch` in
    a configuration by hand, which repeats every one of them, too."""
    group = Governed(world)
    for _ in range(5):
        group.wave(9)
    world.backends.behaviour["b1"].status = 500
    words: Counter[str] = Counter()
    for _ in range(20):
        words += group.wave(9)
    assert set(words) <= {"b2", "b3"}, words
    assert "b1" in group.governor.isolated
    assert world.plane.read()["web"].admitted == 9 * 25


def test_at_twice_the_capacity_retries_do_not_add_to_it(world: ProxyWorld) -> None:
    """Backends that hold four each answer 503 beyond that; twice as many come at once. What they
    are sent stays within a fifth and what a tick or two send before the governor has seen it."""
    group = Governed(world)
    for id in IDS:
        world.backends.behaviour[id].room = 4
        world.backends.behaviour[id].delay_s = BUSY_MS / 1000
    clients, waves, words = 24, 25, Counter[str]()
    for _ in range(waves):
        words += group.wave(clients)
    sent = clients * waves
    assert words.total() == sent
    seen = world.plane.read()["web"]
    assert group.reached - seen.admitted == seen.retries
    assert group.reached <= sent + sent // 5 + 10 + 2 * clients, (group.reached, words)


def test_when_every_backend_fails_retries_stop(world: ProxyWorld) -> None:
    """Each request would reach two of them, for nothing, also while load is shed."""
    group = Governed(world)
    for id in IDS:
        world.backends.behaviour[id].room = 0
    clients, waves, words = 12, 40, Counter[str]()
    for _ in range(waves):
        words += group.wave(clients)
    sent = clients * waves
    assert words.total() == sent
    assert not set(words) & set(IDS)
    seen = world.plane.read()["web"]
    assert group.reached - seen.admitted == seen.retries
    assert 0 < (seen.retries or 0) <= seen.admitted // 5 + 10 + 2 * clients
