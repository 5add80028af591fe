"""Border types of the dataplane in the traffic agent's configuration: which, and where it lives.

plane: haproxy                                  # one of our own, in the state directory
plane: {kind: ebpf, cgroup: /sys/fs/cgroup}
plane: {haproxy: {socket: /run/haproxy/admin.sock, backend: app}}    # one that runs already
"""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.schema.border import BadInput
from fairlead.schema.running_proxy import RunningEnvoy, RunningHaproxy, Text

EBPF_SLOTS_MAX, EBPF_BACKENDS_MAX = 1_024, 2**20
"""What a table in the kernel has room for, and what an index in it can tell apart."""


class DataplaneKind(StrEnum):
    """What moves the connections."""

    MEMORY = "memory"
    HAPROXY = "haproxy"
    ENVOY = "envoy"
    EBPF = "ebpf"


HTTP_PROXIES = (DataplaneKind.HAPROXY, DataplaneKind.ENVOY)


_OWN_SETTINGS = ("folder", "binary", "cgroup", "pins", "capacity", "soft_errno")


class SoftErrno(StrEnum):
    """What `connect` returns to clients that should try again."""

    EAGAIN = "EAGAIN"
    EBUSY = "EBUSY"
    ECONNREFUSED = "ECONNREFUSED"


class CapacityDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How much the eBPF maps hold; what is left out keeps its default."""

    groups: Annotated[int, Meta(ge=1, le=2**14)] | None = None
    backends: Annotated[int, Meta(ge=1, le=EBPF_BACKENDS_MAX)] | None = None
    connections: Annotated[int, Meta(ge=1, le=2**24)] | None = None
    replies: Annotated[int, Meta(ge=1, le=2**24)] | None = None


class DataplaneDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The dataplane and where it lives. The proxies have `folder` and `binary`, eBPF the rest.
    `haproxy` or `envoy` is one that runs already: then it has neither."""

    kind: DataplaneKind
    folder: Text | None = None
    binary: Text | None = None
    cgroup: Text | None = None
    pins: Text | None = None
    capacity: CapacityDocument | None = None
    soft_errno: SoftErrno | None = None
    haproxy: RunningHaproxy | None = None
    envoy: RunningEnvoy | None = None

    @property
    def running(self) -> RunningHaproxy | RunningEnvoy | None:
        """The proxy of its operator that is driven; None: the agent has a dataplane of its own."""
        return self.haproxy or self.envoy


def name_kind(plane: Any) -> None:
    """`plane: {haproxy: …}` names its kind by that; `kind` is left out."""
    if isinstance(plane, dict) and "kind" not in plane:
        named = [kind.value for kind in HTTP_PROXIES if kind.value in plane]
        if len(named) == 1:
            plane["kind"] = named[0]


def check_plane(plane: DataplaneDocument) -> None:
    """A setting of another dataplane would be ignored without a word."""
    running = plane.running
    if running is not None:
        running.check()
        for name in ("folder", "binary"):
            if getattr(plane, name) is not None:
                raise BadInput(f"plane.{name}", "must be left out: the proxy runs already")
    for kind in HTTP_PROXIES:
        if plane.kind is not kind and getattr(plane, kind.value) is not None:
            message = f"has no meaning on the {plane.kind.value} plane"
            raise BadInput(f"plane.{kind.value}", message)
    for name in _OWN_SETTINGS:
        owners = HTTP_PROXIES if name in ("folder", "binary") else (DataplaneKind.EBPF,)
        if plane.kind not in owners and getattr(plane, name) is not None:
            raise BadInput(f"plane.{name}", f"has no meaning on the {plane.kind.value} plane")
