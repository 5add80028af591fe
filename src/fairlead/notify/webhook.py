"""Delivers notices by HTTP POST, to the address that was checked and to no other.

A URL in a configuration can point at anything this machine reaches, its own cloud's metadata
service included. So the name is resolved once, every address must be a public one unless private
ones were allowed, the connection goes to that very address, and redirects are not followed.

    Fairlead-Id: 5f0c…              the same for every attempt at one notice
    Fairlead-Timestamp: 1767225600  seconds since 1970, of this attempt
    Fairlead-Signature: v1=…        HMAC-SHA256(secret, id "." timestamp "." body), hex
"""

import hmac
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.host import http
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.notifier import Notification

ID, TIMESTAMP, SIGNATURE = "Fairlead-Id", "Fairlead-Timestamp", "Fairlead-Signature"
TIMEOUT_S = 10.0
SECRET_BYTES_MIN = 16


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
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._timeout_s, self._tls = timeout_s, tls or ssl.create_default_context()
        for receiver in self._receivers.values():
            check_url(receiver)

    def deliver(self, notice: Notification, now_ms: int) -> None:
        """One POST; only a reply of 2xx is a delivery."""
        receiver = self._receivers[notice.receiver]
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "fairlead",
            **sign(receiver.secret, notice.id, now_ms // 1000, notice.body),
        }
        parts = urlsplit(receiver.url)
        endpoint = http.parse(parts.geturl(), tls=self._tls)  # its scheme in lower case
        endpoint = replace(endpoint, check=partial(_refuse_private, receiver))
        request = ("POST", http.target_of(parts), notice.body, headers)
        try:
            with http.stream(endpoint, *request, timeout_s=self._timeout_s) as reply:
                status = reply.status  # what the receiver says beyond it is not read
        except http.NoReply as error:
            raise TemporaryFault(f"receiver {receiver.name!r}: {error}") from error
        if not 200 <= status < 300:
            why = ", and redirects are not followed" if 300 <= status < 400 else ""
            raise TemporaryFault(f"receiver {receiver.name!r}: answers {status}{why}")


def check_url(receiver: Receiver) -> None:
    """Refuse a receiver that no notice could ever be sent to, when it is configured."""
    try:
        parts = urlsplit(receiver.url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # What cannot be looked up, or written into a request, would fail at every notice.
        target = (parts.hostname or "").encode("idna").decode() + http.target_of(parts)
        known = known and target.isascii() and target.isprintable() and " " not in target
    except ValueError:
        known = False
    problem = ""
    if not known:
        problem = f"{receiver.url!r} is no http(s) URL"
    elif parts.username is not None or parts.password is not None:
        problem = "a URL must not carry a password"
    elif parts.scheme == "http" and not receiver.allow_private:
        problem = "only https outside of private networks"
    elif len(receiver.secret) < SECRET_BYTES_MIN:
        problem = f"a secret has at least {SECRET_BYTES_MIN} bytes"
    if problem:
        raise PermanentFault(f"receiver {receiver.name!r}: {problem}")


# IPv6 addresses that stand for an IPv4 one, by how many bits are behind it: mapped, NAT64, 6to4.
_CARRIERS = (("::ffff:0:0/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))


def _is_public(address: str) -> bool:
    """Whether an address is globally routable; where it carries another one, that one too."""
    found = ipaddress.ip_address(address.partition("%")[0])
    for network, behind in _CARRIERS if found.version == 6 else ():
        if found in ipaddress.ip_network(network):
            return _is_public(str(ipaddress.IPv4Address(int(found) >> behind & 0xFFFFFFFF)))
    other = found.is_multicast or found.is_reserved or getattr(found, "is_site_local", False)
    return found.is_global and not other


def _refuse_private(receiver: Receiver, address: str) -> None:
    if not receiver.allow_private and not _is_public(address):
        raise PermanentFault(
            f"receiver {receiver.name!r}: {address} is not a public address (allowPrivate)"
        )


def read_secret(path: Path) -> bytes:
    """A receiver's secret from its file, without the line feed at its end."""
    try:
        return path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise PermanentFault(f"cannot read the secret {path}: {error.strerror}") from error


def sign(secret: bytes, notice_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    return {
        ID: notice_id,
        TIMESTAMP: str(timestamp_s),
        SIGNATURE: f"v1={code(secret, notice_id, str(timestamp_s), body)}",
    }


def code(secret: bytes, notice_id: str, timestamp: str, body: bytes) -> str:
    message = f"{notice_id}.{timestamp}.".encode() + body
    return hmac.new(secret, message, "sha256").hexdigest()
