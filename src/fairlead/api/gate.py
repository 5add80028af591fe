"""Who asks: peer credentials of the Unix socket, bearer tokens over TCP; Host and Origin checked.

A web page that the operator happens to open can reach loopback too. It cannot choose `Host`, and
it cannot hide its `Origin`: a request that carries another name than ours is refused before
anything is read, so that neither DNS rebinding nor a form posted from elsewhere gets anywhere.
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
    """The request needs a token, or carries one that opens nothing (HTTP 401)."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets requests in, with their author; None for somebody who only reads."""

    access: Access
    hosts: frozenset[str]
    """What `Host` may be over TCP: name and port as a browser writes them."""
    origins: frozenset[str]

    def author(self, request: Request, *, page: bool = False) -> Author | None:
        """Raises `Forbidden` or `Unauthenticated`. `page`: links from elsewhere may lead here."""
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
            raise Forbidden(f"this server is not called {', '.join(hosts) or 'nothing'!r}")
        if any(origin.lower() not in self.origins for origin in origins):
            raise Forbidden(f"requests from {origins[0]!r} are not answered")


def _check_site(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden("requests from other sites are not answered")


def _followed_link(request: Request) -> bool:
    """Whether somebody followed a link: what sent them here learns nothing of what they see."""
    wanted = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
    return all(request.headers.get(name) == value for name, value in wanted)


def _bearer(request: Request) -> str | None:
    given = request.headers.getlist("authorization")
    if not given:
        return None
    scheme, _, token = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("must be `Authorization: Bearer TOKEN`, once")
    return token.strip()


def user_name(uid: int) -> str:
    """The name of a user of this machine, or the number where there is none."""
    return _name_at(uid, int(time.monotonic()) // NAMES_KEPT_S)


@lru_cache(maxsize=1024)
def _name_at(uid: int, moment: int) -> str:
    """Kept for a moment only: a number may come to be another user's."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def loopback_names(port: int) -> tuple[frozenset[str], frozenset[str]]:
    """Hosts and origins of a server on loopback."""
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
    return frozenset(names), frozenset(f"http://{name}" for name in names)
