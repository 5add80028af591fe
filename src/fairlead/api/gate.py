"""Authentication: peer credentials on the Unix socket, bearer tokens over TCP; Host and Origin.

A web page in the operator's browser can reach loopback too. It cannot choose `Host` or hide its
`Origin`: a request with another name than ours is refused before it is read, which stops DNS
rebinding and cross-site forms.
"""

import os
import pwd
import time
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request

from fairlead.api.access import Access
from fairlead.engine.gpu import Author, Forbidden

NAMES_KEPT_S = 10


class Unauthenticated(Exception):
    """The request needs a token, or carries an unknown or revoked one (HTTP 401)."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Finds the author of a request; None for an anonymous reader."""

    access: Access
    hosts: frozenset[str]
    """Allowed `Host` headers over TCP: name and port as a browser writes them."""
    origins: frozenset[str]

    def author(self, request: Request, *, page: bool = False) -> Author | None:
        """Raises `Forbidden` or `Unauthenticated`. `page`: links from other sites may lead here."""
        peer = getattr(request.state, "peer_uid", None)
        self._check_headers(request, local=peer is not None)
        if not (page and _followed_link(request)):
            _check_site(request)
        bearer = _bearer(request)
        if bearer is not None:
            author = self.access.author_of_token(bearer)
            if author is None:
                raise Unauthenticated("this token is unknown or was revoked")
            return author
        if peer is None:
            return None
        return self.access.author_of_user(user_name(peer), admin=peer in (0, os.geteuid()))

    def _check_headers(self, request: Request, *, local: bool) -> None:
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if not local and (len(hosts) != 1 or hosts[0].lower() not in self.hosts):
            raise Forbidden(f"Host {', '.join(hosts) or '(none)'!r} is not a name of this server")
        if any(origin.lower() not in self.origins for origin in origins):
            raise Forbidden(f"requests from origin {origins[0]!r} are refused")


def _check_site(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden("cross-site requests are refused")


def _followed_link(request: Request) -> bool:
    """Whether a browser followed a link; the other site cannot read the reply."""
    wanted = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
    return all(request.headers.get(name) == value for name, value in wanted)


def _bearer(request: Request) -> str | None:
    headers = request.headers.getlist("authorization")
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("must be `Authorization: Bearer TOKEN`, once")
    return token.strip()


def user_name(uid: int) -> str:
    """The name of a user of this machine, or the uid where it has none."""
    return _name_at(uid, int(time.monotonic()) // NAMES_KEPT_S)


@lru_cache(maxsize=1024)
def _name_at(uid: int, moment: int) -> str:
    """Cached for seconds only: a uid may be given to another user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def loopback_names(port: int) -> tuple[frozenset[str], frozenset[str]]:
    """Hosts and origins of a server on loopback."""
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
    return frozenset(names), frozenset(f"http://{name}" for name in names)
