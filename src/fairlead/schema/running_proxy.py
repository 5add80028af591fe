"""Border types of a proxy that its operator runs, and that the traffic agent drives.

    plane: {haproxy: {socket: /run/haproxy/admin.sock, backend: app}}
    plane: {envoy: {xds: 127.0.0.1:18000, admin: 127.0.0.1:9901, cluster: app}}

Its listeners, TLS, routes and retries stay its operator's. A group of such a plane therefore has no
address; on HAProxy its backends may be left out, because HAProxy lists its servers.
"""

import re
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.schema.border import BadInput

_PLACE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(?P<port>[0-9]{1,5})")
_PROXY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,126}", re.ASCII)
_PORT_MAX = 65_535
Text = Annotated[str, Meta(min_length=1)]


class RunningHaproxy(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A HAProxy by its runtime socket, which needs the level admin."""

    socket: Annotated[Text, Meta(description="a path, or host:port")]
    backend: Annotated[
        Text | None, Meta(description="of the only group; others have their group's name")
    ] = None

    def check(self) -> None:
        place(self.socket, "plane.haproxy.socket")
        _check_name(self.backend, "plane.haproxy.backend")


class RunningEnvoy(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An Envoy that asks this agent for its endpoints, and whose counters the agent reads."""

    xds: Annotated[Text, Meta(description="where Envoy asks: a socket's path, or loopback:port")]
    admin: Annotated[Text, Meta(description="Envoy's admin interface: a path, or host:port")]
    cluster: Annotated[
        Text | None, Meta(description="of the only group; others have their group's name")
    ] = None
    requests: Annotated[
        Text | None, Meta(description="an access log of Envoy's, for latencies; it is emptied")
    ] = None

    def check(self) -> None:
        served = place(self.xds, "plane.envoy.xds")
        place(self.admin, "plane.envoy.admin")
        _check_name(self.cluster, "plane.envoy.cluster")
        if not isinstance(served, str) and not _is_loopback(served[0]):
            problem = "must be a socket's path or a loopback address: it asks for no password"
            raise BadInput("plane.envoy.xds", f"{problem}; got {self.xds!r}")
        if self.requests is not None and not self.requests.startswith("/"):
            message = f"must be an absolute path, got {self.requests!r}"
            raise BadInput("plane.envoy.requests", message)


def place(text: str, path: str) -> str | tuple[str, int]:
    """A socket's path, or a host and a port."""
    if text.startswith("/"):
        return text
    found = _PLACE.fullmatch(text)
    if found is None or not 0 < int(found["port"]) <= _PORT_MAX:
        raise BadInput(path, f"must be a socket's path or host:port, got {text!r}")
    return found["host"].strip("[]"), int(found["port"])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_name(name: str | None, path: str) -> None:
    if name is not None and not _PROXY_NAME.fullmatch(name):
        problem = "must be letters, digits, dots, dashes, underscores and colons"
        raise BadInput(path, f"{problem}; got {name!r}")
