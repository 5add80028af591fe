"""`python -m tests.dataplane.ebpf.servers COUNT HOST`: servers that say who they are.

Each listens on one port for TCP and UDP; the first line of the output is the list of ports. TCP:
its number and a newline, then it closes. UDP: its number and a space before what was sent to it.
Ends with its standard input.
"""

import contextlib
import json
import select
import socket
import sys
from functools import partial


def both(host: str) -> tuple[socket.socket, socket.socket]:
    """A TCP and a UDP socket on the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        tcp, udp = (socket.socket(family, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
        tcp.bind((host, 0))
        try:
            udp.bind(tcp.getsockname())
        except OSError:  # somebody has that port for UDP
            tcp.close()
            udp.close()
            continue
        tcp.listen(1024)
        tcp.setblocking(False)
        udp.setblocking(False)
        return tcp, udp


def greet(listener: socket.socket, number: int) -> None:
    """Answer everybody who waits."""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.send(b"%d\n" % number)


def echo(listener: socket.socket, number: int) -> None:
    """Answer every datagram that waits."""
    with contextlib.suppress(BlockingIOError):
        while True:
            data, sender = listener.recvfrom(2048)
            listener.sendto(b"%d " % number + data, sender)


def main() -> None:
    """Serve until standard input ends."""
    count, host = int(sys.argv[1]), sys.argv[2]
    poll, actions, ports = select.epoll(), {}, []
    for number in range(count):
        tcp, udp = both(host)
        ports.append(tcp.getsockname()[1])
        actions[tcp.fileno()] = partial(greet, tcp, number)
        actions[udp.fileno()] = partial(echo, udp, number)
    for descriptor in (*actions, sys.stdin.fileno()):
        poll.register(descriptor, select.EPOLLIN)
    print(json.dumps(ports), flush=True)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == sys.stdin.fileno():
                return
            actions[descriptor]()


if __name__ == "__main__":
    main()
