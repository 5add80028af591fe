"""A backend that lies about itself costs a real HAProxy's group its own share at the most."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host.process import free_port
from fairlead.ports.dataplane import Backend
from fairlead.sim.traffic.backend import HOST, FakeService, HttpServer
from tests.dataplane.clients import HARD, SOFT, ThreadLoad, request
from tests.e2e.traffic_agents import TrafficProcess

NAMES = ("a", "b", "c", "liar")
SCRAPE = {
    "every_ms": 200,
    "requests": "requests_total",
    "errors": "errors_total",
    "queue": "inside",
    "latency": "latency_seconds",
    "retries": "retries_total",
}
LOOKS = 25
"""Scrapes of the lie: five seconds of it."""


class Services:
    """Four backends, of which one reports what it likes."""

    def __init__(self) -> None:
        self.lies = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.servers = asyncio.run_coroutine_threadsafe(self._open(), self.loop).result(30)

    async def _open(self) -> list[HttpServer]:
        servers = []
        for name in NAMES:
            service = FakeService(16, draw=lambda: (5.0, False))
            answer = self._lying(service) if name == "liar" else service.answer
            servers.append(HttpServer(name, answer))
            await servers[-1].open()
        return servers

    def _lying(self, service: FakeService):  # type: ignore[no-untyped-def]
        async def answer(target: str, head: str) -> tuple[int, bytes]:
            if target == "/metrics":
                self.lies += 1
                service.metrics.retries = 1_000_000 * self.lies
            return await service.answer(target, head)

        return answer

    @property
    def places(self) -> list[Backend]:
        return [Backend(server.name, HOST, server.port) for server in self.servers]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture
def services() -> Iterator[Services]:
    made = Services()
    yield made
    made.close()


@pytest.mark.component("haproxy")
def test_a_backend_that_lies_about_retries_closes_no_admission(services: Services) -> None:
    """A million retries with every scrape: 99.8 % of all requests were rejected for it."""
    port = free_port(HOST)
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        group = {
            "name": "web",
            "vip": HOST,
            "port": port,
            "backends": [{"id": b.id, "host": b.host, "port": b.port} for b in services.places],
            "scrape": SCRAPE,
        }
        agent = TrafficProcess(Path(folder), "haproxy", port, [], groups=[group])
        load = ThreadLoad(lambda: request(HOST, port), 0.01)
        try:
            agent.until("decided", lambda: len(agent.slots()) == len(NAMES))
            with load.running(4):
                load.wait(50)
                seen = services.lies
                agent.until("the lie is seen", lambda: services.lies >= seen + LOOKS)
                before = len(load.sent)
                load.wait(300)
            words = [sent.word for sent in load.sent[before:]]
            rejected = sum(word in (SOFT, HARD) for word in words) / len(words)
            assert rejected <= 1 / len(NAMES), agent.group()["reasons"]
            assert set(words) <= {"ok", SOFT, HARD}
        finally:
            agent.close()
