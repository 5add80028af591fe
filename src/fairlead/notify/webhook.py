"""Delivers notices by HTTP POST, to the address that was checked and to no other.

A URL in a configuration can point at anything this machine reaches, its own cloud's metadata
service included. So the name is resolved once, every address must be a public one unless private
ones were allowed, the connection goes to that very address, and redirects are not followed.
"""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from fairlead.notify.signing import sign
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.notifier import Notice

TIMEOUT_S = 10.0
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
        self,
        receivers: Iterable[Receiver],
        *,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
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
            "Content-Type": "application/json",
            "User-Agent": "fairlead",
            **sign(receiver.secret, notice.id, now_ms // 1000, notice.body),
        }
        connection = _Pinned(receiver, parts, self._timeout_s, self._tls)
        # A socket's timeout is for each read: who answers byte by byte would hold up the others.
        watchdog = threading.Timer(self._timeout_s, connection.hang_up)
        watchdog.start()
        try:
            connection.request("POST", _target(parts), notice.body, headers)
            answer = connection.getresponse()  # what it says beyond its status is not read
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise _fault(receiver, str(error) or type(error).__name__) from error
        finally:
            watchdog.cancel()
            connection.close()
        if 300 <= answer.status < 400:
            raise _fault(receiver, f"answers {answer.status}, and redirects are not followed")
        if not 200 <= answer.status < 300:
            raise _fault(receiver, f"answers {answer.status}")


def check_url(receiver: Receiver) -> None:
    """What no notice will ever be sent to is refused when the receiver is configured."""
    try:
        parts = urlsplit(receiver.url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # What cannot be looked up, or written into a request, would fail at every notice.
        target = (parts.hostname or "").encode("idna").decode() + _target(parts)
        known = known and target.isascii() and target.isprintable() and " " not in target
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


def _target(parts: SplitResult) -> str:
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was looked at."""

    def __init__(
        self, receiver: Receiver, parts: SplitResult, timeout_s: float, tls: ssl.SSLContext
    ) -> None:
        default = 443 if parts.scheme == "https" else 80
        super().__init__(parts.hostname or "", parts.port or default, timeout=timeout_s)
        self._receiver, self._tls = receiver, tls if parts.scheme == "https" else None
        self._overdue = False

    def connect(self) -> None:
        """To the first address of the name, if all of its addresses are allowed."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for *_, address in found:
            _refuse_private(self._receiver, str(address[0]))
        first = (str(found[0][4][0]), self.port)
        self.sock = socket.create_connection(first, self.timeout)
        if self._tls is not None:
            # Its own before the handshake, so that `hang_up` finds it.
            self.sock = self._tls.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()
        if self._overdue:
            raise TimeoutError("it took too long to reach")

    def hang_up(self) -> None:
        """From another thread: whatever is being waited for fails."""
        self._overdue = True
        with contextlib.suppress(AttributeError, OSError):  # not connected, or closed by now
            self.sock.shutdown(socket.SHUT_RDWR)


# IPv6 addresses that stand for an IPv4 one, by how many bits are behind it: mapped, NAT64, 6to4.
_CARRIERS = (("::ffff:0:0/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))


def _is_public(address: str) -> bool:
    """Out there for everybody; where an address carries another one, that one too."""
    found = ipaddress.ip_address(address.partition("%")[0])
    for network, behind in _CARRIERS if found.version == 6 else ():
        if found in ipaddress.ip_network(network):
            return _is_public(str(ipaddress.IPv4Address(int(found) >> behind & 0xFFFFFFFF)))
    other = found.is_multicast or found.is_reserved or getattr(found, "is_site_local", False)
    return found.is_global and not other


def _refuse_private(receiver: Receiver, address: str) -> None:
    """Loopback, private, link-local, multicast: nothing that is not out there for everybody."""
    if not receiver.allow_private and not _is_public(address):
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
