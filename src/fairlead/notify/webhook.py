"""Delivers notices by HTTP POST, to the address that was checked and to no other.

A URL in a configuration can point at anything this machine reaches, its own cloud's metadata
service included. So the name is resolved once, every address must be a public one unless private
ones were allowed, the connection goes to that very address, and redirects are not followed.
"""

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from fairlead.notify.signing import sign
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.notifier import Notice

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 * 1024
SECRET_BYTES_MIN = 16
RETRY_AFTER_MS = 1_000


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where notices go, and what proves that they are ours."""

    name: str
    url: str
    secret: bytes
    allow_private: bool = False


class WebhookNotifier:
    """A `Notifier` over HTTP."""

    def __init__(
        self, receivers: Iterable[Receiver], *, timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self._receivers: Mapping[str, Receiver] = {each.name: each for each in receivers}
        self._timeout_s = timeout_s
        self._tls = tls or ssl.create_default_context()
        for each in self._receivers.values():
            check_url(each)

    def deliver(self, notice: Notice, now_ms: int) -> None:
        """One POST; only an answer of 2xx is a delivery."""
        receiver = self._receivers[notice.receiver]
        parts = urlsplit(receiver.url)
        headers = {
            "Content-Type": "application/json", "User-Agent": "fairlead",
            **sign(receiver.secret, notice.id, now_ms // 1000, notice.body),
        }  # fmt: skip
        connection = _Pinned(receiver, parts, self._timeout_s, self._tls)
        try:
            path = parts.path or "/"
            target = f"{path}?{parts.query}" if parts.query else path
            connection.request("POST", target, notice.body, headers)
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise _fault(receiver, str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if 300 <= answer.status < 400:
            raise _fault(receiver, f"answers {answer.status}, and redirects are not followed")
        if not 200 <= answer.status < 300:
            raise _fault(receiver, f"answers {answer.status}")


def check_url(receiver: Receiver) -> None:
    """What no notice will ever be sent to is refused when the receiver is configured."""
    parts = urlsplit(receiver.url)
    try:
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise PermanentFault(f"receiver {receiver.name!r}: {receiver.url!r} is no http(s) URL")
    if parts.username is not None or parts.password is not None:
        raise PermanentFault(f"receiver {receiver.name!r}: a URL must not carry a password")
    if parts.scheme == "http" and not receiver.allow_private:
        raise PermanentFault(f"receiver {receiver.name!r}: only https outside of private networks")
    if len(receiver.secret) < SECRET_BYTES_MIN:
        raise PermanentFault(
            f"receiver {receiver.name!r}: a secret has at least {SECRET_BYTES_MIN} bytes"
        )


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was looked at."""

    def __init__(
        self, receiver: Receiver, parts: SplitResult, timeout_s: float, tls: ssl.SSLContext
    ) -> None:
        default = 443 if parts.scheme == "https" else 80
        super().__init__(parts.hostname or "", parts.port or default, timeout=timeout_s)
        self._receiver, self._tls = receiver, tls if parts.scheme == "https" else None

    def connect(self) -> None:
        """To the first address of the name, if all of its addresses are allowed."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for *_, address in found:
            _refuse_private(self._receiver, str(address[0]))
        first = (str(found[0][4][0]), self.port)
        self.sock = socket.create_connection(first, self.timeout)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


def _refuse_private(receiver: Receiver, address: str) -> None:
    """Loopback, private, link-local, multicast: nothing that is not out there for everybody."""
    if not receiver.allow_private and not ipaddress.ip_address(address.partition("%")[0]).is_global:
        raise PermanentFault(
            f"receiver {receiver.name!r}: {address} is not a public address (allowPrivate)"
        )


def _fault(receiver: Receiver, what: str) -> TemporaryFault:
    return TemporaryFault(f"receiver {receiver.name!r}: {what}", retry_after_ms=RETRY_AFTER_MS)


def read_secret(path: Path) -> bytes:
    """A receiver's secret from its file, without the line feed at its end."""
    try:
        return path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise PermanentFault(f"cannot read the secret {path}: {error.strerror}") from error
