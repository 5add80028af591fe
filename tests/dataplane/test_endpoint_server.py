"""The endpoints that an Envoy asks for: what others ask or leave open keeps it from nothing."""

import http.client
import json
import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from fairlead.dataplane.envoy import xds
from fairlead.dataplane.envoy.xds import PATH, EndpointServer
from fairlead.host.bounded import CONNECTIONS_MOST

HALF = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode()


@pytest.fixture
def server() -> Iterator[tuple[EndpointServer, int]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with closing(EndpointServer(f"127.0.0.1:{port}")) as made:
        made.offer({"app": {"cluster_name": "app"}})
        yield made, port


def ask(envoy: http.client.HTTPConnection, body: bytes) -> int:
    envoy.request("POST", PATH, body)
    answer = envoy.getresponse()
    answer.read()
    return answer.status


def test_half_a_question_keeps_no_envoy_away(
    server: tuple[EndpointServer, int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Of hundreds of connections that do not go on most are ended, and none that asks."""
    _, port = server
    question = json.dumps({"resource_names": ["app"]}).encode()
    halves: list[socket.socket] = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as envoy:
        envoy.connect()
        first = envoy.sock
        for number in range(120):
            halves.append(socket.create_connection(("127.0.0.1", port), timeout=30))
            halves[-1].sendall(HALF)
            if number % 10 == 0:
                assert ask(envoy, question) == 200
        assert envoy.sock is first
        ended = 0
        while ended < 120 - CONNECTIONS_MOST:
            for half in select.select(halves, [], [], 30)[0]:
                assert half.recv(1) == b""
                half.close()
                halves.remove(half)
                ended += 1
    for half in halves:
        half.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"resource_names": 5}', b'{"resource_names": {"a": 1}}', b"\xff"]
)
def test_rubbish_is_refused_in_silence(
    server: tuple[EndpointServer, int], body: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    _, port = server
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as peer:
        assert ask(peer, body) == 400
    assert capfd.readouterr().err == ""


def test_names_that_nobody_offers_are_forgotten(server: tuple[EndpointServer, int]) -> None:
    made, _ = server
    made.answer([f"made-up-{number}" for number in range(5_000)], "")
    made.answer(["app"], "")
    assert len(made.clusters()) == xds._ASKED_MOST
    assert made.asked("app") is not None
