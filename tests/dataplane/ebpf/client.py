"""`python -m tests.dataplane.ebpf.client CGROUP`: connects from inside a cgroup, as it is told.

Each line of standard input is a JSON object with `do` and that function's arguments; each answer is
one line. Outcomes are what the server said, or the name of the errno.
"""

import contextlib
import errno
import json
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 30
told = open(0, "rb", buffering=0)  # noqa: SIM115 - unbuffered, so that select() knows of every line
kept: list[socket.socket] = []


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@contextlib.contextmanager
def opened(host: str, kind: socket.SocketKind, bind: int | None = None) -> Iterator[socket.socket]:
    with socket.socket(family(host), kind) as connection:
        connection.settimeout(TIMEOUT_S)
        if bind is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.bind(("::1" if ":" in host else "127.0.0.1", bind))
        yield connection


def once(host: str, port: int) -> str:
    """One connection: what it heard, or why not."""
    try:
        with opened(host, socket.SOCK_STREAM) as connection:
            connection.connect((host, port))
            return connection.recv(64).decode().strip()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def tcp(host: str, port: int, count: int = 1) -> list[str]:
    return [once(host, port) for _ in range(count)]


def load(host: str, port: int) -> list[tuple[int, int, str]]:
    """Connect until the next line arrives: when each began and ended, and what it heard."""
    seen = []
    while not select.select([told], [], [], 0)[0]:
        for _ in range(32):
            began = time.monotonic_ns()
            heard = once(host, port)
            seen.append((began, time.monotonic_ns(), heard))
    told.readline()
    return seen


def time_connects(host: str, port: int, count: int) -> float:
    """The median nanoseconds of connect() alone."""
    taken = []
    for _ in range(count):
        with socket.socket(family(host), socket.SOCK_STREAM) as connection:
            began = time.perf_counter_ns()
            connection.connect((host, port))
            taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken)


def keep(host: str, port: int) -> dict[str, Any]:
    """Connect and stay; says who the peer seems to be."""
    connection = socket.create_connection((host, port), TIMEOUT_S)
    kept.append(connection)
    return {"heard": connection.recv(64).decode().strip(), "peer": connection.getpeername()[:2]}


def hold(host: str, port: int, count: int, only: list[str] | None = None) -> list[str]:
    """Connect one after the other, and keep those who hear one of these words, or any."""
    heard = []
    for _ in range(count):
        connection = socket.socket(family(host), socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect((host, port))
            heard.append(connection.recv(64).decode().strip())
        except OSError as error:
            heard.append(errno.errorcode.get(error.errno or 0, str(error)))
            connection.close()
            continue
        if only is None or heard[-1] in only:
            kept.append(connection)
        else:
            connection.close()
    return heard


def again(host: str, port: int, count: int) -> list[str]:
    """One socket that connects so often, and is kept: each errno."""
    connection = socket.socket(family(host), socket.SOCK_STREAM)
    kept.append(connection)
    return [errno.errorcode.get(connection.connect_ex((host, port)), "") for _ in range(count)]


def last_goes_to(host: str, port: int) -> str:
    """The socket that was kept last connects elsewhere."""
    return errno.errorcode.get(kept[-1].connect_ex((host, port)), "")


def let_go() -> int:
    count = len(kept)
    while kept:
        kept.pop().close()
    return count


def begin(host: str, port: int) -> int:
    """Start to connect and do not wait for the end."""
    connection = socket.socket(family(host), socket.SOCK_STREAM)
    connection.setblocking(False)
    kept.append(connection)
    return connection.connect_ex((host, port))


def udp(
    host: str, port: int, count: int = 1, bind: list[int] | None = None
) -> list[tuple[str, Any]]:
    """Unconnected datagrams: the answer, and whom it seems to come from."""
    seen: list[tuple[str, Any]] = []
    for number, place in enumerate(bind or [None] * count):
        try:
            with opened(host, socket.SOCK_DGRAM, place) as sender:
                sender.settimeout(None)  # with one, Python itself would try again after EAGAIN
                sender.sendto(b"%d" % number, (host, port))
                sender.settimeout(TIMEOUT_S)
                answer, source = sender.recvfrom(2048)
                seen.append((answer.decode(), source[:2]))
        except OSError as error:
            seen.append((errno.errorcode.get(error.errno or 0, str(error)), None))
    return seen


def udp_one_socket(targets: list[tuple[str, int]]) -> list[tuple[str, Any]]:
    """One unconnected socket, several destinations."""
    with opened(targets[0][0], socket.SOCK_DGRAM) as sender:
        seen = []
        for host, port in targets:
            sender.sendto(b"x", (host, port))
            answer, source = sender.recvfrom(2048)
            seen.append((answer.decode(), source[:2]))
        return seen


def udp_connected(host: str, port: int, count: int = 3) -> dict[str, Any]:
    """A connected UDP socket: every answer, its source, and the peer's name."""
    with opened(host, socket.SOCK_DGRAM) as sender:
        sender.connect((host, port))
        seen = []
        for _ in range(count):
            sender.send(b"x")
            answer, source = sender.recvfrom(2048)
            seen.append((answer.decode(), source[:2]))
        return {"seen": seen, "peer": sender.getpeername()[:2]}


def mapped(host: str, port: int) -> dict[str, Any]:
    """An IPv4 address through an IPv6 socket, as Java and Go do it."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect((f"::ffff:{host}", port))
        return {"heard": connection.recv(64).decode().strip(), "peer": connection.getpeername()[:2]}


def udp_mapped(host: str, port: int) -> list[Any]:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.settimeout(TIMEOUT_S)
        sender.sendto(b"x", (f"::ffff:{host}", port))
        answer, source = sender.recvfrom(2048)
        return [answer.decode(), source[:2]]


DO = {
    each.__name__: each
    for each in (
        tcp,
        load,
        time_connects,
        keep,
        hold,
        again,
        last_goes_to,
        let_go,
        begin,
        mapped,
        udp,
        udp_one_socket,
        udp_connected,
        udp_mapped,
    )
}


def main() -> None:
    """Move in, then do as told until standard input ends."""
    Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    print(json.dumps("ready"), flush=True)
    while line := told.readline():
        order = json.loads(line)
        print(json.dumps(DO[order.pop("do")](**order)), flush=True)


if __name__ == "__main__":
    main()
