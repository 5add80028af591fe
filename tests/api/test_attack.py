"""Outsiders at the HTTP port: files that are none, answers that are kept, rights that lack."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.api import endpoint as endpoint_module
from fairlead.api.app import ENDPOINTS
from fairlead.api.endpoint import Endpoint
from fairlead.api.web import PAGES
from tests.api.servers import Running, budget, node, serving, short_folder

CHANGES = [each for each in ENDPOINTS if each.method != "GET" and each.path != "/v1/signin"]
READS = [each for each in ENDPOINTS if each.method == "GET"]
STREAMS = ("/v1/watch", "/v1/reports")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder, requests_per_s=None) as running:
        running.apply(node("box"), budget("team-a"))
        yield running


def named(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def address(endpoint: Endpoint) -> str:
    values = {"kind": "Run", "verb": "cancel", "order": "isolate", "seq": "1", "number": "1"}
    path = endpoint.path
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, values.get(part.strip("{}"), "box"))
    return path


@pytest.mark.parametrize(
    "path",
    [
        "/web/../app.py",
        "/web/..%2f..%2fapp.py",
        "/web/%2e%2e/%2e%2e/app.py",
        "/web/lib/../../lab.yaml",
        "/web//etc/passwd",
        "/web/lib/",
        "/web/__init__.py",
        "/web/app.js%00.py",
        "/web/verify.mjs/..",
        "//127.0.0.1/web/app.js",
    ],
)
def test_no_file_but_those_of_the_page_is_served(server: Running, path: str) -> None:
    reply = server.send("GET", path, tcp=True)
    assert reply.status == 404, reply


def test_every_answer_says_how_it_may_be_used(server: Running) -> None:
    """No answer is kept by a browser or put into a frame, none is guessed to be something else; of
    the page itself only the files are kept, and asked for again."""
    for endpoint in [*READS, *PAGES]:
        if endpoint.path in STREAMS:
            continue
        reply = server.send("GET", address(endpoint), tcp=True)
        headers = reply.headers
        assert headers["x-content-type-options"] == "nosniff", endpoint.path
        assert headers["referrer-policy"] == "no-referrer", endpoint.path
        assert headers["cross-origin-resource-policy"] == "same-origin", endpoint.path
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, endpoint.path
        assert "frame-ancestors 'none'" in policy, endpoint.path
        assert "unsafe" not in policy, endpoint.path
        kept = "no-cache" if endpoint.page and reply.status == 200 else "no-store"
        assert headers["cache-control"] == kept, endpoint.path
        assert "access-control-allow-origin" not in headers
        assert "set-cookie" not in headers


@pytest.mark.parametrize("endpoint", CHANGES, ids=named)
def test_who_has_no_rights_changes_nothing(server: Running, endpoint: Endpoint) -> None:
    """Without a token, and with that of a viewer, who acts for an owner that has nothing here."""
    viewer = server.token("viewer", "another")
    size = server.ok("GET", "/v1/head")["size"]
    body = b"{}" if endpoint.body is not None else None
    anonymous = server.send(endpoint.method, address(endpoint), body, tcp=True)
    assert anonymous.status == 401, anonymous
    reply = server.send(endpoint.method, address(endpoint), body, tcp=True, token=viewer)
    previews = ("POST /v1/plan", "POST /v1/manifests", "POST /v1/signin/codes")
    if named(endpoint) not in previews:
        assert reply.status in (403, 404, 422), reply
        assert server.ok("GET", "/v1/head")["size"] == size


def test_no_answer_grows_with_what_is_asked_for(server: Running) -> None:
    """Pages have a largest size, and what is far away is not looked for without end."""
    for path in ("runs", "queue", "devices", "outcomes", "entries", "events"):
        reply = server.send("GET", f"/v1/{path}?limit=1000000", tcp=True)
        assert (reply.status, reply.json["error"]["path"]) == (422, "query.limit"), path
    long = "x" * 60_000
    for path in (f"/v1/entries?text={long}", f"/v1/runs?text={long}", f"/v1/nodes/{long}"):
        reply = server.send("GET", path, tcp=True)
        assert reply.status in (404, 422), reply.status
        assert len(reply.data) < 200_000


def test_events_are_one_line_each_whatever_they_hold(server: Running) -> None:
    """A name with line breaks begins no other event."""
    hostile = "x\n\ndata: {}\nid: 999999\r\n\u2028"
    body = {"agent": hostile[:3].strip(), "groups": []}
    server.ok("POST", "/v1/tokens", body)
    server.send("POST", "/v1/plan", {"kind": hostile})
    reply = server.send(
        "GET", "/v1/watch?after=0&limit=3", tcp=True, headers={"Accept": "text/event-stream"}
    )
    events = [part for part in reply.data.decode().split("\n\n") if part and part[0] != ":"]
    assert len(events) == 3
    for number, part in enumerate(events, 1):
        first, second = part.split("\n")
        assert first == f"id: {number}"
        assert json.loads(second.removeprefix("data: "))["seq"] == number


def test_no_body_keeps_others_waiting(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token a body is short, so many values are refused before they are made, and a large
    document is parsed beside the loop that answers everybody."""
    token = json.dumps({"token": "x" * 5_000}).encode()
    reply = server.send("POST", "/v1/signin", token, tcp=True)
    assert (reply.status, reply.code) == (413, "TooLarge")
    reply = server.send("POST", "/v1/apply", b'{"manifests":[' + b"[]," * 400_000 + b"0]}")
    assert (reply.status, reply.json["error"]["message"]) == (
        413,
        "must have at most 400000 values",
    )
    threads: dict[int, str] = {}
    parse = endpoint_module.read_body

    def noted(data: bytes, shape: Any) -> Any:
        threads[len(data)] = threading.current_thread().name
        return parse(data, shape)

    monkeypatch.setattr(endpoint_module, "read_body", noted)
    for size in (10, 100_000):
        body = json.dumps({"manifests": [], "pad": "x" * size}).encode()
        assert server.send("POST", "/v1/apply", body).status == 422
    (_, small), (_, large) = sorted(threads.items())
    assert small != large


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        (b'{"manifests":[{"kind":"Run","kind":"Run"}]}', 400, "manifests[0].kind"),
        (b'{"manifests":[{"kind":"\\ud800"}]}', 400, "manifests[0].kind"),
        (b'{"manifests":[{}],"x` - at `$.manifests[7]":1}', 422, "x` - at `$.manifests[7]"),
        (b'{"manifests":[{}],"":1}', 422, '""'),
    ],
)
def test_a_bad_body_is_answered_with_the_path(
    server: Running, body: bytes, status: int, path: str
) -> None:
    """A key given twice was refused without saying which; one that read like a place was a bug."""
    reply = server.send("POST", "/v1/apply", body)
    assert (reply.status, reply.json["error"]["path"]) == (status, path)


@pytest.mark.parametrize("path", ["/v1/head", "/v1/signin", "/v1/nothing"])
def test_a_body_has_one_end(server: Running, path: str) -> None:
    """A proxy in front may go by the length: what it took for a body is no request of another."""
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    inner = f"GET /v1/head HTTP/1.1\r\n{host}\r\n"
    head = f"POST {path} HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as peer:
        length = f"Content-Length: {5 + len(inner)}\r\n\r\n"
        peer.sendall(f"{head}{length}0\r\n\r\n{inner}".encode())
        reply = b"".join(iter(lambda: peer.recv(65536), b""))
    assert reply.count(b"HTTP/1.1 ") == 1
    assert not reply.startswith(b"HTTP/1.1 200")


def test_a_bad_request_writes_no_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Every user of the machine could fill the disk with them."""
    host = f"Host: 127.0.0.1:{server.port}\r\nConnection: close, upgrade\r\n"
    with caplog.at_level(logging.WARNING, "root"):
        for text in ("\0\r\n\r\n", f"GET / HTTP/1.1\r\n{host}Upgrade: websocket\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as peer:
                peer.sendall(text.encode())
                assert b"".join(iter(lambda: peer.recv(65536), b"")).startswith(b"HTTP/1.1 ")
    assert caplog.records == []


ANONYMOUS = """
import encodings.idna, http.client, os, sys
os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)
peer = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
peer.request("GET", "/v1/head")
print(peer.getresponse().status)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_one_users_questions_are_not_anothers() -> None:
    """Users of one machine have one address; who asks too often without a token waits alone."""
    with short_folder() as folder, serving(folder, requests_per_s=1) as running:

        def ask() -> int:
            return running.send("GET", "/v1/head", tcp=True).status

        running.until("too often", lambda: ask() == 429)
        command = [sys.executable, "-I", "-c", ANONYMOUS, str(running.port)]
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        assert other.stdout == "200\n"
