"""Scrapes, probes, checks and look-ups over real sockets: what is silent is missing, not idle."""

import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from fairlead.core.traffic.sighting import Look, Probed, Reading
from fairlead.host.process import free_port
from fairlead.node.traffic.poller import Poller
from fairlead.node.traffic.probes import DnsService, DnsServices, NetworkProber
from fairlead.node.traffic.scrape import Scraper
from fairlead.node.traffic.sensors import Machines
from fairlead.ports.dataplane import Backend
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.traffic_agent import (
    CheckDocument,
    ProbeDocument,
    ProbeKind,
    RemoteNodeDocument,
    ScrapeDocument,
)
from tests.node.traffic.servers import HOST, Page, serving, until

RULES = ScrapeDocument(
    requests="r_total",
    errors="e_total",
    queue="q",
    p95="p95_seconds",
    every_ms=20,
    timeout_ms=2_000,
)


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


class Clock:
    """Ours: time passes when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def _probe(path: str | None) -> ProbeDocument:
    """A GET, or a connection alone without a path."""
    return ProbeDocument(ProbeKind.HTTP if path else ProbeKind.TCP, path or "/")


def nobody() -> None:
    """Nobody is to be called."""


def test_a_backend_is_scraped(poller: Poller) -> None:
    """Counters, gauges, and times in milliseconds."""
    clock = Clock()
    with serving(Page("r_total 10\ne_total 1\nq 3\np95_seconds 0.25\n")) as page:
        scraper = Scraper(poller, clock, nobody)
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})
        until(lambda: scraper.read(clock.now_ms), "scraped")
        (found,) = scraper.read(clock.now_ms).values()
        assert found == Reading(10, 1, None, 3.0, 250.0, found.looks, clock.now_ms)
        assert set(found.looks) == {Look(clock.now_ms, 9, 1, inside=3)}
        assert set(scraper.covers("web")) == {"requests", "errors", "queue", "p95_ms"}
        assert scraper.covers("other") == ()


def test_a_backend_that_begins_to_fail_is_reported_once(poller: Poller) -> None:
    """With its third error in a row; not for an error among answers, not again and again."""
    clock, alarms = Clock(), []
    with serving(Page("r_total 10\ne_total 0\n")) as page:
        scraper = Scraper(poller, clock, lambda: alarms.append(clock.now_ms))
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})

        def heard() -> Sequence[Look]:
            return scraper.read(clock.now_ms).get(("web", "a"), Reading()).looks

        def tells(requests: int, errors: int) -> None:
            clock.now_ms += 100
            page.body = f"r_total {requests}\ne_total {errors}\n"
            told = Look(clock.now_ms, requests - errors, errors)
            until(lambda: told in heard(), "told")

        tells(10, 0)
        tells(20, 4)
        tells(22, 6)
        assert alarms == []
        tells(23, 7)
        until(lambda: alarms, "reported")
        tells(30, 14)
        tells(40, 24)
        assert len(alarms) == 1


def test_an_answer_that_comes_after_its_group_has_gone_is_nobodys(poller: Poller) -> None:
    """It was asked, then the file was read again without the group: the next look must not fail."""
    clock, dropped = Clock(), threading.Event()
    with serving(Page("r_total 10\ne_total 0\n")) as page:
        scraper = Scraper(poller, clock, nobody)

        def late() -> int:
            if scraper._rules and not dropped.is_set():
                dropped.set()
                scraper.watch({}, {})
            return 0

        scraper._clock_ms = late
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})
        until(dropped.is_set, "asked")
        until(lambda: page.asked, "answered")
        assert scraper.read(0) == {}


def test_how_long_applications_have_been_asked(poller: Poller) -> None:
    """What that means, as long as none has answered, is decided in core."""
    clock = Clock()
    with serving(Page(status=404)) as page:
        scraper = Scraper(poller, clock, nobody)
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})
        until(lambda: scraper.failures, "refused")
        clock.now_ms += 250
        assert scraper.asked_ms("web", clock.now_ms) == 250
        assert scraper.asked_ms("other", clock.now_ms) is None
        assert scraper.read(clock.now_ms) == {}


@pytest.mark.parametrize("body", ["r_total{ 10", "<html>", "r_total ten\n"])
def test_rubbish_is_no_reading(poller: Poller, body: str) -> None:
    """It is counted as a failure, or as unknown, and never as a number."""
    clock = Clock()
    with serving(Page(body)) as page:
        scraper = Scraper(poller, clock, nobody)
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})
        until(lambda: len(page.asked) >= 3, "asked")
        readings = scraper.read(clock.now_ms)
    assert readings in ({}, {("web", "a"): Reading(at_ms=1_000)})


@pytest.mark.parametrize(
    "raw", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"]
)
def test_answers_that_are_not_http_are_failures(poller: Poller, raw: bytes) -> None:
    """Whatever a server sends, the scraper goes on asking."""
    clock, page = Clock(), Page()
    page.raw = raw
    with serving(page):
        scraper = Scraper(poller, clock, nobody)
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})
        until(lambda: scraper.failures >= 2, "failed twice")


def test_an_old_answer_says_how_old_it_is(poller: Poller) -> None:
    """From when on it is none is decided in core."""
    clock = Clock()
    with serving(Page("r_total 10\n")) as page:
        scraper = Scraper(poller, clock, nobody)
        members = {"web": [Backend("a", HOST, page.port)]}
        scraper.watch({"web": RULES}, members)
        until(lambda: scraper.read(clock.now_ms), "scraped")
        page.status = 500
        until(lambda: scraper.failures, "failing")
        clock.now_ms += 3 * RULES.every_ms + 1
        assert [reading.at_ms for reading in scraper.read(clock.now_ms).values()] == [1_000]


def test_who_left_is_asked_no_more(poller: Poller) -> None:
    """And its last word is forgotten."""
    clock = Clock()
    with serving(Page("r_total 10\n")) as page:
        scraper = Scraper(poller, clock, nobody)
        scraper.watch({"web": RULES}, {"web": [Backend("a", HOST, page.port)]})
        until(lambda: scraper.read(clock.now_ms), "scraped")
        scraper.watch({"web": RULES}, {"web": []})
        assert scraper.read(clock.now_ms) == {}


def answers(prober: NetworkProber) -> list[Probed]:
    found: list[Probed] = []
    until(lambda: found.extend(prober.results()) or found, "answered")
    return found


@pytest.mark.parametrize(
    ("status", "path", "word"), [(200, "/", "well"), (404, "/x", "well"), (500, "/", "badly")]
)
def test_an_http_probe_asks_for_a_page(poller: Poller, status: int, path: str, word: str) -> None:
    """Below 500 is well; an answer has a latency, well or not."""
    with serving(Page(status=status)) as page:
        prober = NetworkProber(poller)
        prober.watch({"web": _probe(path)}, {}, {"web": [Backend("a", HOST, page.port)]})
        prober.probe("web", ["a", "unknown"])
        (found,) = answers(prober)
        assert page.asked == [path]
    assert found.ok is (word == "well")
    assert found.latency_ms is not None


def test_a_probe_of_nobody_is_no_answer(poller: Poller) -> None:
    """A closed port, by connection and by page."""
    for path in (None, "/"):
        prober = NetworkProber(poller)
        members = {"web": [Backend("a", HOST, free_port())]}
        prober.watch({"web": _probe(path)}, {}, members)
        prober.probe("web", ["a"])
        (found,) = answers(prober)
        assert (found.ok, found.latency_ms) == (False, None)


def test_every_result_of_a_check_is_reported_once(poller: Poller) -> None:
    """How many failures in a row are believed is decided in core."""
    with serving(Page(status=200)) as page:
        prober = NetworkProber(poller)
        results: list[Probed] = []

        def last(ok: bool) -> bool:
            results.extend(prober.checked())
            return bool(results) and results[-1].ok is ok

        rules = CheckDocument(path="/health", every_ms=10, failures=2)
        prober.watch({}, {"web": rules}, {"web": [Backend("a", HOST, page.port)]})
        until(lambda: last(True), "well")
        page.status = 503
        until(lambda: last(False), "failing")
        page.status = 200
        until(lambda: last(True), "well again")
        assert {(result.group, result.backend) for result in results} == {("web", "a")}
        assert len(results) <= len(page.asked)
        prober.watch({}, {}, {"web": [Backend("a", HOST, page.port)]})
        asked = len(page.asked)
        until(lambda: not prober.checked(), "no more")
        assert len(page.asked) <= asked + 1


NODE = """node_pressure_cpu_waiting_seconds_total 12.5
node_pressure_memory_stalled_seconds_total 0.25
node_memory_MemTotal_bytes 1000
node_memory_MemAvailable_bytes 400
node_filefd_maximum 100
node_filefd_allocated 60
node_pressure_io_stalled_seconds_total NaN
node_cpu_seconds_total{cpu="0",mode="idle"} 70
node_cpu_seconds_total{cpu="0",mode="iowait"} 2
node_cpu_seconds_total{cpu="1",mode="idle"} 80
node_cpu_seconds_total{cpu="1",mode="iowait"} 3
"""


def test_other_machines_are_seen_through_their_exporters(poller: Poller) -> None:
    """Counters of stalled time and what can run out; what is rubbish is left out."""
    clock = Clock()
    with serving(Page(NODE)) as page:
        url = f"http://{HOST}:{page.port}/metrics"
        machines = Machines(None, [RemoteNodeDocument("n2", url, every_ms=20)], poller, clock)
        until(lambda: machines.read(clock.now_ms), "seen")
        (node,) = machines.read(clock.now_ms)
        clock.now_ms += 61
        until(lambda: machines.read(0)[0].at_ms == clock.now_ms, "seen again")
    assert node.id == "n2"
    assert node.totals is not None
    assert node.totals.stalled_us == {"cpu_some": 12_500_000, "mem_full": 250_000}
    found = {each.name: (each.limit, each.used) for each in node.resources}
    assert found == {"memory": (1000, 600), "fds": (100, 60)}
    assert node.cpu is not None
    assert (node.cpu.total, node.cpu.iowait) == (155, 5)


def test_a_service_is_looked_up(poller: Poller) -> None:
    """Every address of a name is a backend, named by it; other names after a reload."""
    services = DnsServices(poller, every_ms=50)
    services.follow({"web": DnsService("localhost", 8080)})
    found = services.members("web")
    assert found is not None
    assert Backend("127.0.0.1:8080", "127.0.0.1", 8080) in found
    assert services.members("other") is None
    services.follow({"api": DnsService("127.0.0.1", 90)})
    assert services.members("web") is None
    assert services.members("api") == (Backend("127.0.0.1:90", "127.0.0.1", 90),)


def test_a_name_that_nobody_knows_is_a_fault_and_changes_nothing(poller: Poller) -> None:
    """Said with its group and its name."""
    services = DnsServices(poller, every_ms=50)
    services.follow({"web": DnsService("127.0.0.1", 80)})
    with pytest.raises(TemporaryFault, match=r"group 'api': no-such-name\.invalid"):
        services.follow({"api": DnsService("no-such-name.invalid", 80)})
    with pytest.raises(TemporaryFault, match=r"group 'api': x+ cannot be looked up"):
        services.follow({"api": DnsService("x" * 64, 80)})
    assert services.members("web")


def test_only_addresses_of_the_family_that_is_of_use(poller: Poller) -> None:
    """A name with both kinds has fewer backends where a plane can use one only."""
    services = DnsServices(poller, every_ms=50)
    services.follow({"web": DnsService("localhost", 80, socket.AF_INET)})
    assert services.members("web") == (Backend("127.0.0.1:80", "127.0.0.1", 80),)
    with pytest.raises(TemporaryFault, match=r"group 'web': 127\.0\.0\.1 cannot be looked up"):
        services.follow({"web": DnsService("127.0.0.1", 80, socket.AF_INET6)})


def test_a_name_server_that_is_silent_does_not_stop_the_agent(
    poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticks wait for a reload: not for the minute that a resolver may take."""
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait())
    monkeypatch.setattr("fairlead.node.traffic.probes.LOOKUP_TIMEOUT_S", 0.1)
    try:
        with pytest.raises(TemporaryFault, match=r"group 'web': slow cannot .* within 0\.1 s"):
            DnsServices(poller, every_ms=50).follow({"web": DnsService("slow", 80)})
    finally:
        ended.set()
