"""No peer locks others out by connections that do not go on, also with few descriptors."""

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fairlead.api import connections
from fairlead.api.connections import ConnectionLimits, ConnectionPool
from fairlead.host.http import exchange, parse
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.e2e.planes import Plane

ATTACK = """
import encodings.idna, os, resource, socket, sys, time
where, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
def connect():
    if where.isdigit():
        peer = socket.create_connection(("127.0.0.1", int(where)), timeout=5)
    else:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(5)
        peer.connect(where)
    peer.sendall(b"GET /v1/objects/Run HTTP/1.1\\r\\nHost: x\\r\\nX-Slow: ")
    return peer
peers, tried = {}, 0
while True:
    for place in range(count):
        try:
            if place in peers:
                peers[place].sendall(b"a")
            else:
                tried += 1
                peers[place] = connect()
        except OSError:
            gone = peers.pop(place, None)
            if gone is not None:
                gone.close()
            time.sleep(0.001)  # the server has dropped it: the next one at once
    print(tried, flush=True)
    time.sleep(0.1)  # between two rounds of the attack
"""
CONNECTIONS, NOFILE = 2000, 1024
PATIENT = """
from fairlead.api import connections
from fairlead.cli.main import run
connections.HEADERS_S = 3600.0
run()
"""


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """For processes that are started inside."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (NOFILE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def attacking(where: str, uid: int) -> Iterator[None]:
    """2 000 connections whose headers never end; those that are closed are opened again."""
    command = [sys.executable, "-I", "-c", ATTACK, where, str(uid), str(CONNECTIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            while int(attacker.stdout.readline() or -1) < CONNECTIONS:
                assert attacker.poll() is None, "the attacker ended"
            yield
        finally:
            attacker.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_half_open_connections_lock_nobody_out() -> None:
    """Over TCP and on the socket at once, with nofile=1024: the admin is answered, and so is a
    reader over TCP, whose request comes whole; though no half-open connection ends by its time."""
    with short_folder() as folder, few_descriptors():
        plane = Plane(folder, "--port", "0")
        plane.program = ("-c", PATIENT)
        plane.up()
        try:
            socket_ = parse(str(plane.socket))
            port = int(plane.log.read_text().rpartition("127.0.0.1:")[2].split()[0])
            with attacking(str(port), 54_403), attacking(str(plane.socket), 54_404):
                for _ in range(20):
                    reply = exchange(socket_, "GET", "/v1/objects/Run", timeout_s=30)
                    assert (reply.status, reply.body) == (200, b'{"items":[]}')
                    assert Running(plane.socket.parent, port).send("GET", "/v1/head", tcp=True)
                assert plane.run("get", "runs").returncode == 0
                assert len(os.listdir(f"/proc/{plane.process.pid}/fd")) < NOFILE * 0.7
        finally:
            plane.down()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    for name in ("HEADERS_S", "BODY_S", "STUCK_S"):
        monkeypatch.setattr(connections, name, 0.5)
    with short_folder() as folder, serving(folder) as running:
        running.apply(node(), budget("team-a"))
        yield running


def ends(peer: socket.socket, within_s: float = 20.0) -> bytes:
    """What comes until the server closes; fails where it does not."""
    peer.settimeout(within_s)
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := peer.recv(65536):
            found += data
    return found


def trickle(peer: socket.socket, data: bytes) -> None:
    """A byte now and then until the server has closed: no byte prolongs the time."""
    deadline = time.monotonic() + 20
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            peer.sendall(data)
            time.sleep(0.05)  # the pace of the trickle
    assert time.monotonic() < deadline, "it stayed open"


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HTTP/1.1\r\nX: ",
        b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nX: ",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
    ],
    ids=["nothing", "headers", "body", "second-headers", "unread-body"],
)
def test_what_does_not_go_on_is_closed(server: Running, start: bytes) -> None:
    """Silent or byte by byte."""
    for more in (b"", b"a"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(server.socket))
            peer.sendall(start)
            if more:
                trickle(peer, more)
            else:
                ends(peer)


def test_a_reply_that_is_not_read_is_given_up(server: Running) -> None:
    """A whole output, and a stream of events: the connection ends, and the run goes on."""
    command = ["sh", "-c", "head -c 4000000 /dev/zero | tr '\\0' 'x'"]
    server.apply(run("long", command=command))
    server.ended("long")
    server.apply(*(run(f"wide-{place}", gpus=99) for place in range(400)))
    enough = 1_000  # events: more than the kernel and the server keep for a reader
    server.until("many events", lambda: server.ok("GET", "/v1/head")["size"] > enough)
    for path in ("/v1/runs/long/logs", "/v1/watch?after=0"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(str(server.socket))
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert peer.recv(100).startswith(b"HTTP/1.1 200")
            server.until("closed", lambda peer=peer: _hung_up(peer))
    assert server.ok("GET", "/healthz")["ok"]


def _hung_up(peer: socket.socket) -> bool:
    """Whether the other end is closed; nothing is read for it."""
    poll = select.poll()
    poll.register(peer, select.POLLHUP)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def test_a_peer_that_has_all_its_connections_busy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit and what to do; the admin on the socket is not counted."""
    few = ConnectionLimits(tcp=3, users=3, each_user=3)
    monkeypatch.setattr(ConnectionLimits, "within", staticmethod(lambda _: few))
    monkeypatch.setattr(ConnectionLimits, "streams", few.tcp)  # a place of each can be kept busy
    with short_folder() as folder, serving(folder) as server, contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(server.open("/v1/watch"))
        reply = server.send("GET", "/v1/budgets", tcp=True)
        assert (reply.status, reply.code) == (503, "TooManyConnections")
        assert (reply.headers["retry-after"], b"at most 3" in reply.data) == ("1", True)
        if os.geteuid() == 0:
            for _ in range(6):
                peer = held.enter_context(socket.socket(socket.AF_UNIX))
                peer.connect(str(server.socket))
                peer.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
                assert peer.recv(100).startswith(b"HTTP/1.1 200")
        assert json.loads(server.send("GET", "/v1/budgets").data) == []


class Idle:
    """A connection that a pool holds."""

    def __init__(self, pool: ConnectionPool, peer: str, *, waits: bool = True) -> None:
        self._pool, self._peer, self.waits, self.dropped = pool, peer, waits, False

    def drop(self) -> None:
        self.dropped = True
        self._pool.remove(self, self._peer)  # type: ignore[arg-type]


def test_who_has_most_makes_room() -> None:
    """The oldest that waits goes, of the same peer or, where all together are too many, of the one
    that has most; one that waits anew is the youngest again."""
    pool = ConnectionPool(most=5, most_each=3)
    crowd = [Idle(pool, "a", waits=place > 0) for place in range(4)]
    assert all(pool.admit(each, "a") for each in crowd)  # type: ignore[arg-type]
    assert [each.dropped for each in crowd] == [False, True, False, False]
    pool.renew(crowd[2], "a")  # type: ignore[arg-type]
    others = [Idle(pool, name) for name in "bcd"]
    assert all(pool.admit(each, each._peer) for each in others)  # type: ignore[arg-type]
    assert [each.dropped for each in crowd] == [False, True, False, True]
    busy = [Idle(pool, "z", waits=False) for _ in range(2)]
    for each in (crowd[0], crowd[2], *others):
        each.waits = False
    assert not pool.admit(busy[0], "z")  # type: ignore[arg-type]
