"""Webhooks: signed, to the address that was checked, without redirects."""

import contextlib
import socket
import threading

import pytest

from fairlead.notify.webhook import (
    ID,
    SIGNATURE,
    TIMESTAMP,
    Receiver,
    WebhookNotifier,
    read_secret,
    sign,
)
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.notifier import Notification
from fairlead.schema.border import BadInput
from fairlead.schema.webhooks import read_webhooks
from tests.notify.receivers import ReplayGuard, receiver

SECRET = b"sixteen bytes or more"
NOW_MS = 1_767_225_600_000
NOTICE = Notification("n-1", "ops", b'{"events":[]}')
BYTES = 3_000  # a minute of them


def to(url: str, **more: object) -> WebhookNotifier:
    given = {"allow_private": True, "secret": SECRET, **more}
    return WebhookNotifier([Receiver("ops", url, **given)], timeout_s=5)  # type: ignore[arg-type]


def test_a_notice_arrives_signed() -> None:
    """Over id, timestamp and body, with the receiver's own secret."""
    with receiver() as inbox:
        to(inbox.url + "?a=b").deliver(NOTICE, NOW_MS)
        ((headers, body),) = inbox.messages
    assert body == NOTICE.body
    assert (headers[ID], headers[TIMESTAMP]) == ("n-1", "1767225600")
    assert ReplayGuard(SECRET).problem(headers, body, NOW_MS / 1000) is None
    for changed, data in (
        (headers, body + b" "),
        ({**headers, ID: "n-2"}, body),
        ({**headers, TIMESTAMP: "1767225601"}, body),
        ({**headers, SIGNATURE: "v1=00"}, body),
        ({}, body),
    ):
        assert (
            ReplayGuard(SECRET).problem(changed, data, NOW_MS / 1000)
            == "the signature does not hold"
        )
    assert ReplayGuard(b"another secret of bytes").problem(headers, body, NOW_MS / 1000) is not None


def test_a_recording_is_refused() -> None:
    """Twice inside the window, and any time outside of it; ids are forgotten when they may be."""
    guard, headers = ReplayGuard(SECRET, window_s=300), sign(SECRET, "n", 1_000, b"x")
    assert guard.problem(headers, b"x", 1_100) is None
    assert guard.problem(headers, b"x", 1_101) == "it was received before"
    assert guard.problem(headers, b"x", 1_301) == "it is not of now"
    assert guard.problem(headers, b"x", 600) == "it is not of now"
    again = sign(SECRET, "n", 2_000, b"x")
    assert guard.problem(again, b"x", 2_000) is None
    assert guard.problem(sign(SECRET, "m", 10, b"x") | {TIMESTAMP: "ten"}, b"x", 10) is not None


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 429, 500, 503])
def test_only_success_is_a_delivery(status: int) -> None:
    """A redirect is not followed, whatever it points at."""
    with receiver() as inbox:
        inbox.answers = [status]
        with pytest.raises(TemporaryFault, match=f"answers {status}"):
            to(inbox.url).deliver(NOTICE, NOW_MS)
        assert inbox.messages == []


def test_nobody_at_home_is_a_temporary_fault() -> None:
    """A closed port, and a receiver that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        notifier = WebhookNotifier(
            [Receiver("ops", f"http://127.0.0.1:{port}/", SECRET, allow_private=True)],
            timeout_s=0.2,
        )
        with pytest.raises(TemporaryFault):
            notifier.deliver(NOTICE, NOW_MS)
    with pytest.raises(TemporaryFault, match="refused"):
        to(f"http://127.0.0.1:{port}/").deliver(NOTICE, NOW_MS)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nX-Long: "])
def test_a_receiver_that_answers_byte_by_byte_holds_nobody_up(answer: bytes) -> None:
    """Each byte comes in time, the whole does not: it is cut off, and others have their turn.

    A head that does not end is no reply, whatever its first line says."""
    over, sent = threading.Event(), [0]

    def drip(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(answer)
            while sent[0] < BYTES and not over.wait(0.02):
                sent[0] += peer.send(b"x")

    with socket.create_server(("127.0.0.1", 0)) as slow:
        thread = threading.Thread(target=drip, args=(slow,))
        thread.start()
        try:
            notifier = WebhookNotifier(
                [
                    Receiver(
                        "ops",
                        f"http://127.0.0.1:{slow.getsockname()[1]}/",
                        SECRET,
                        allow_private=True,
                    )
                ],
                timeout_s=0.3,
            )
            with pytest.raises(TemporaryFault, match="timed out"):
                notifier.deliver(NOTICE, NOW_MS)
        finally:
            over.set()
            thread.join()
    assert sent[0] < BYTES, "it was cut off, and did not end by itself"


def test_what_comes_behind_the_status_is_not_waited_for() -> None:
    """A receiver that has said 200 has it, however long its answer is."""
    over = threading.Event()

    def endless(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx")
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=endless, args=(server,))
        thread.start()
        try:
            to(f"http://127.0.0.1:{server.getsockname()[1]}/").deliver(NOTICE, NOW_MS)
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "10.1.2.3",
        "169.254.169.254",
        "[::1]",
        "0.0.0.0",
        "[fe80::1]",
        "2130706433",
        "224.0.0.1",
        "[fd00::1]",
        "[fec0::1]",
        "[ff0e::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:100.64.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
    ],
)
def test_private_addresses_are_refused_unless_allowed(host: str) -> None:
    """Before anything is sent; a name is judged by all the addresses it has."""
    notifier = to(f"https://{host}:9/", allow_private=False)
    with pytest.raises(PermanentFault, match="not a public address"):
        notifier.deliver(NOTICE, NOW_MS)


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the connection goes to the address that was looked at, not to a second answer."""
    answers = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("1.1.1.1", "10.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    with pytest.raises(PermanentFault, match=r"10\.0\.0\.1 is not a public address"):
        to("https://hooks.example.org/", allow_private=False).deliver(NOTICE, NOW_MS)
    dialled: list[object] = []

    def dial(_: socket.socket, address: object) -> None:
        dialled.append(address)
        raise OSError("enough")

    monkeypatch.setattr(socket.socket, "connect", dial)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers[:1])
    with pytest.raises(TemporaryFault, match="enough"):
        to("https://hooks.example.org/", allow_private=False).deliver(NOTICE, NOW_MS)
    assert dialled == [("1.1.1.1", 443)]


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("ftp://example.org/", {}, "no http"),
        ("https:///path", {}, "no http"),
        ("https://example.org:99999/", {}, "no http"),
        ("https://[::1/", {}, "no http"),
        (f"https://{'a' * 64}.example.org/", {}, "no http"),
        ("https://a..example.org/", {}, "no http"),
        ("https://example.org/\u00fc", {}, "no http"),
        ("https://example.org/a b", {}, "no http"),
        ("https://user:word@example.org/", {}, "password"),
        ("http://example.org/", {"allow_private": False}, "only https"),
        ("https://example.org/", {"secret": b"short"}, "at least 16"),
    ],
)
def test_a_receiver_that_can_never_be_told_is_refused_at_once(url, more, why) -> None:
    """When it is configured, not at three in the morning."""
    with pytest.raises(PermanentFault, match=why):
        to(url, **more)


def test_the_configuration_is_strict(tmp_path) -> None:
    """Paths in refusals; secrets come from files."""
    text = b"receivers: [{name: ops, url: 'https://x/', secretFile: /s, kinds: [gpu.resolve.]}]"
    (ops,) = read_webhooks(text)
    assert (ops.name, ops.kinds, ops.allow_private) == ("ops", ["gpu.resolve."], False)
    for bad, path in (
        (b"receivers: [{name: ops}]", "receivers[0].url"),
        (b"receivers: [{name: ops, url: x, secretFile: s, token: t}]", "receivers[0].token"),
        (text[:-1] + b", {name: ops, url: 'https://y/', secretFile: /s}]", "receivers[1].name"),
    ):
        with pytest.raises(BadInput) as refused:
            read_webhooks(bad)
        assert refused.value.path == path
    (tmp_path / "secret").write_bytes(b"abc\n")
    assert read_secret(tmp_path / "secret") == b"abc"
    with pytest.raises(PermanentFault, match="cannot read the secret"):
        read_secret(tmp_path / "none")
