"""No peer locks others out by connections that do not go on, also with few descriptors."""

import contextlib
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fairlead.api import connections
from fairlead.api.connections import ConnectionLimits, ConnectionPool, Gatekeeper
from fairlead.api.peers import Peer, tcp_user
from fairlead.host.http import exchange, parse
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.e2e.planes import Plane

ATTACK = """
import encodings.idna, os, resource, socket, sys, time
where, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
HOST = f"127.0.0.1:{where}".encode() if where.isdigit() else b"x"
HALVES = (
    b"GET /v1/objects/Run HTTP/1.1\\r\\nHost: x\\r\\nX-Slow: ",
    b"POST /v1/signin HTTP/1.1\\r\\nHost: " + HOST + b"\\r\\nContent-Length: 1000\\r\\n\\r\\n{",
)
def connect(place):
    if where.isdigit():
        peer = socket.create_connection(("127.0.0.1", int(where)), timeout=5)
    else:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(5)
        peer.connect(where)
    peer.sendall(HALVES[place % 2])
    return peer
peers, tried = {}, 0
while True:
    for place in range(count):
        try:
            if place in peers:
                peers[place].sendall(b"a")
            else:
                tried += 1
                peers[place] = connect(place)
        except OSError:
            gone = peers.pop(place, None)
            if gone is not None:
                gone.close()
            time.sleep(0.001)  # the server has dropped it: the next one at once
    print(tried, flush=True)
    time.sleep(0.1)  # between two rounds of the attack
"""
CONNECTIONS, NOFILE = 2000, 1024
STRANGERS, ADA = (54_404, 54_405, 54_406, 54_407), 54_408
ASK = """
import os, socket, sys
uid = int(sys.argv[2])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
peer = socket.socket(socket.AF_UNIX)  # blocking: it waits its turn in the listener's queue
peer.connect(sys.argv[1])
peer.settimeout(30)
peer.sendall(b"GET /v1/head HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
print(peer.recv(12).decode())
"""
PATIENT = """
from fairlead.api import connections
from fairlead.cli.main import run
connections.HEADERS_S = connections.BODY_S = 3600.0
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
def attacking(where: str, uid: int, count: int = CONNECTIONS) -> Iterator[None]:
    """Connections whose headers or bodies never end; those that are closed are opened again."""
    command = [sys.executable, "-I", "-c", ATTACK, where, str(uid), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            while int(attacker.stdout.readline() or -1) < count:
                assert attacker.poll() is None, "the attacker ended"
            yield
        finally:
            attacker.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_half_open_connections_lock_nobody_out() -> None:
    """Over TCP and on the socket at once, with nofile=1024: the admin is answered, a bound user on
    the socket, and a reader over TCP, whose request comes whole; though no half-open connection
    ends by its time."""
    with short_folder() as folder, few_descriptors(), contextlib.ExitStack() as attack:
        plane = Plane(folder, "--port", "0")
        plane.program = ("-c", PATIENT)
        plane.up()
        try:
            plane.ok("users", "bind", str(ADA), "--owner", "team-a")
            socket_ = parse(str(plane.socket))
            port = int(plane.log.read_text().rpartition("127.0.0.1:")[2].split()[0])
            attack.enter_context(attacking(str(port), 54_403))
            for uid in STRANGERS:
                attack.enter_context(attacking(str(plane.socket), uid, CONNECTIONS // 4))
            for _ in range(20):
                reply = exchange(socket_, "GET", "/v1/objects/Run", timeout_s=30)
                assert (reply.status, reply.body) == (200, b'{"items":[],"next":null}')
                reader = Running(plane.socket.parent, port)
                assert reader.send("GET", "/v1/head", tcp=True).status == 200
            for _ in range(5):
                asked = [sys.executable, "-I", "-c", ASK, str(plane.socket), str(ADA)]
                done = subprocess.run(asked, capture_output=True, text=True, check=True)
                assert done.stdout == "HTTP/1.1 200\n"
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
    few = ConnectionLimits(tcp=3, each_tcp=3, users=3, strangers=3, each_user=3)
    monkeypatch.setattr(ConnectionLimits, "within", staticmethod(lambda _: few))
    monkeypatch.setattr(
        ConnectionLimits, "streams", few.each_tcp
    )  # a place of each can be kept busy
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


HALF_BODY = "POST /v1/signin HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 9\r\n\r\n{{"


def test_half_a_body_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous readers that never end their body hold every place: whole requests are answered
    all the same, and the connections that waited longest are ended for them."""
    few = ConnectionLimits(tcp=4, each_tcp=4, users=4, strangers=4, each_user=4)
    monkeypatch.setattr(ConnectionLimits, "within", staticmethod(lambda _: few))
    monkeypatch.setattr(connections, "BODY_S", 3600.0)
    with short_folder() as folder, serving(folder) as server, contextlib.ExitStack() as held:
        halves = []
        for _ in range(4):
            half = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            half.sendall(HALF_BODY.format(server.port).encode())
            halves.append(half)
            assert server.ok("GET", "/healthz")["ok"]  # so it was accepted
        for _ in range(3):
            assert server.send("GET", "/v1/head", tcp=True).status == 200
        assert ends(halves[0]) == b""


def test_a_body_that_comes_steadily_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that it has grows with what came."""
    monkeypatch.setattr(connections, "BODY_S", 0.2)
    monkeypatch.setattr(connections, "BODY_BYTES_PER_S", 1)
    head = "PUT /v1/objects/Run/slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    body = json.dumps(run("slow")).encode()
    with short_folder() as folder, serving(folder) as server:
        server.apply(node(), budget("team-a"))
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(server.socket))
            peer.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:100])
            time.sleep(0.5)  # more than a silent body has, far less than 100 bytes have
            peer.sendall(body[100:])
            assert ends(peer).startswith(b"HTTP/1.1 200")


def test_the_kernel_names_the_user_of_a_loopback_connection() -> None:
    """Users of one machine have one address: by their number they are told apart."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        served, _ = listening.accept()
        with served:
            assert tcp_user(served) == os.getuid()
            client.close()
            assert tcp_user(served) is None
    one, other = socket.socketpair()
    with one, other:
        assert tcp_user(one) is None


def test_a_peer_that_is_gone_before_it_is_looked_at_is_no_fault(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Else every client could write a traceback for each connection that it resets."""
    for _ in range(200):
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    assert server.send("GET", "/v1/head", tcp=True).status == 200
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_strangers_take_no_place_of_bound_users() -> None:
    """On the socket; a run has places of its own, and admins are not counted."""
    limits = ConnectionLimits.within(1024)
    keeper = Gatekeeper(limits, None, lambda uid: uid == 0, lambda uid: uid == 1000)
    assert (limits.tcp, limits.each_tcp, limits.users, limits.each_user) == (128, 64, 128, 32)
    assert keeper.place(None, "user 7") == (keeper.tcp, "user 7")
    assert keeper.place(Peer(0), "")[0] is None
    assert keeper.place(Peer(1000), "") == (keeper.users, (1000, False))
    assert keeper.place(Peer(1000, in_run=True), "") == (keeper.users, (1000, True))
    assert keeper.place(Peer(1001), "") == (keeper.strangers, (1001, False))


class Idle:
    """A connection that a pool holds."""

    def __init__(
        self, pool: ConnectionPool, peer: str, *, waits: bool = True, reads: bool = False
    ) -> None:
        self._pool, self._peer, self.waits, self.dropped = pool, peer, waits, False
        self.reads, self.unsent = reads, 0

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


def test_a_peer_with_less_gets_a_place_of_the_one_with_most() -> None:
    """Streams without end lock no other out: a read is ended for a peer that has fewer. Who has as
    many as the others waits, and a newcomer keeps the place that it got."""
    pool = ConnectionPool(most=4, most_each=4)
    crowd = [Idle(pool, "a", waits=False, reads=place > 0) for place in range(4)]
    assert all(pool.admit(each, "a") for each in crowd)  # type: ignore[arg-type]
    first = Idle(pool, "b")
    assert pool.admit(first, "b")  # type: ignore[arg-type]
    assert [each.dropped for each in crowd] == [False, True, False, False]
    assert not pool.admit(Idle(pool, "a"), "a")  # type: ignore[arg-type]
    assert not first.dropped
    second = Idle(pool, "b", waits=False)
    first.waits = False
    assert pool.admit(second, "b")  # type: ignore[arg-type]
    assert [each.dropped for each in crowd] == [False, True, True, False]
    assert not pool.admit(Idle(pool, "b"), "b")  # type: ignore[arg-type]


def test_answers_that_are_not_read_are_bounded() -> None:
    """A peer that asks for much and reads nothing keeps so much of it in memory, beside the newest
    answer; what goes first is the oldest, and nothing of another peer."""
    pool = ConnectionPool(most=9, most_each=9)
    slow, other = [Idle(pool, "a") for _ in range(5)], Idle(pool, "b")
    assert all(pool.admit(each, each._peer) for each in (*slow, other))  # type: ignore[arg-type]
    half = connections.UNSENT_MOST // 2
    for each, unsent in zip((*slow, other), (half, 0, half, half, 9 * half, 9 * half), strict=True):
        each.unsent = unsent
    pool.shed(slow[4], "a")  # type: ignore[arg-type]
    assert [each.dropped for each in slow] == [True, False, False, False, False]
    slow[4].unsent = 0
    pool.shed(slow[4], "a")  # type: ignore[arg-type]
    assert [each.dropped for each in slow] == [True, False, False, False, False]
    assert not other.dropped
