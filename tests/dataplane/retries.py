"""What both proxies promise of groups with `retry: idempotent`."""

from collections import Counter
from dataclasses import replace

import pytest

from fairlead.core.traffic.retries import IDEMPOTENT, RetryLimit
from fairlead.core.traffic.sighting import Liveness
from fairlead.ports.dataplane import RouteGroup
from tests.dataplane.clients import request
from tests.dataplane.proxy_worlds import ProxyWorld
from tests.dataplane.tables import table

IDS = ("b1", "b2", "b3")
EVEN = dict.fromkeys(IDS, 64)


def opened(world: ProxyWorld, retries: RetryLimit | None, *, epoch: int = 1) -> RouteGroup:
    """A group that asks for retries; its table allows these."""
    group = replace(world.group("web", IDS), retry=True)
    world.plane.configure([group])
    allow(world, retries, epoch=epoch)
    return group


def allow(world: ProxyWorld, retries: RetryLimit | None, *, epoch: int) -> None:
    world.plane.heartbeat()
    world.plane.apply(table("web", epoch, EVEN, retries=retries), decision=epoch)


def sent(world: ProxyWorld, group: RouteGroup, count: int, method: str = "GET") -> Counter[str]:
    words: Counter[str] = Counter()
    for _ in range(count):
        world.plane.heartbeat()
        words[request(group.vip, group.port, method=method)] += 1
    return words


class Repeats:
    """For the proxies."""

    @pytest.mark.parametrize("method", [method for method in IDEMPOTENT if method != "HEAD"])
    def test_an_idempotent_request_that_fails_is_repeated_elsewhere(
        self, world: ProxyWorld, method: str
    ) -> None:
        """No client sees the errors of a backend that fails at once; all of them are counted."""
        group = opened(world, RetryLimit(1))
        world.backends.behaviour["b1"].status = 500
        words = sent(world, group, 30, method)
        assert set(words) <= {"b2", "b3"}, words
        failed = world.backends.behaviour["b1"].requests
        assert failed > 0
        world.until(lambda: world.plane.read()["web"].retries == failed, "retries are counted")
        seen = world.plane.read()["web"]
        assert seen.admitted == 30
        assert seen.backends["b1"].errors == failed
        assert sum(world.backends.behaviour[id].requests for id in IDS) == 30 + failed

    def test_other_requests_are_sent_once(self, world: ProxyWorld) -> None:
        """A POST may have done its work before it failed."""
        group = opened(world, RetryLimit(1))
        world.backends.behaviour["b1"].status = 500
        words = sent(world, group, 30, "POST")
        assert sum(count for word, count in words.items() if "500" in word) == 10, words
        assert sum(world.backends.behaviour[id].requests for id in IDS) == 30

    def test_a_backend_that_is_gone_costs_no_client_anything(self, world: ProxyWorld) -> None:
        """A connect that fails is repeated like an answer that fails."""
        group = opened(world, RetryLimit(1))
        world.backends.stop("b1")
        assert set(sent(world, group, 20)) <= {"b2", "b3"}
        seen = world.plane.read()["web"].backends["b1"]
        assert (seen.errors or 0) + (seen.connect_failures or 0) > 0

    def test_a_request_is_repeated_once(self, world: ProxyWorld) -> None:
        """When all fail, each request reaches two of them."""
        group = opened(world, RetryLimit(1))
        for id in IDS:
            world.backends.behaviour[id].status = 503
        words = sent(world, group, 12)
        assert all("503" in word for word in words)
        assert sum(world.backends.behaviour[id].requests for id in IDS) <= 24

    @pytest.mark.parametrize("retries", [None, RetryLimit()])
    def test_a_table_without_retries_repeats_nothing(
        self, world: ProxyWorld, retries: RetryLimit | None
    ) -> None:
        """The governor takes the budget away; the next table may give it back."""
        group = opened(world, retries)
        world.backends.behaviour["b1"].status = 500
        assert sum("500" in word for word in sent(world, group, 12).elements()) == 4
        assert sum(world.backends.behaviour[id].requests for id in IDS) == 12
        allow(world, RetryLimit(1), epoch=2)
        assert set(sent(world, group, 12)) <= {"b2", "b3"}

    def test_without_an_agent_nothing_is_repeated(self, world: ProxyWorld) -> None:
        """There is no budget that is kept by anything."""
        group = opened(world, RetryLimit(1))
        world.backends.behaviour["b1"].status = 500
        world.abandon(Liveness.FALLBACK)
        words = [world.flow(group, number) for number in range(40)]
        failed = sum("500" in word for word in words)
        assert failed > 0
        assert sum(world.backends.behaviour[id].requests for id in IDS) == 40
