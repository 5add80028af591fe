"""Border types of the traffic agent: its configuration file.

    plane: haproxy
    groups:
      - name: web
        vip: 127.0.0.1
        port: 8080
        backends:
          - {id: a, host: 127.0.0.1, port: 9001}
          - {id: b, host: 127.0.0.1, port: 9002}

Everything else has a default. `config` overrides the parameters of the equations by name, for all
groups or for one.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from fairlead.core.traffic import Config, HealthRules
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.dataplane import (
    EBPF_SLOTS_MAX,
    HTTP_PROXIES,
    DataplaneDocument,
    DataplaneKind,
    check_plane,
    name_kind,
)
from fairlead.schema.reports import ReportSettings
from fairlead.schema.running_proxy import Text
from fairlead.schema.samples import Selector
from fairlead.schema.traffic import AGENT_DEFAULTS, read_config

_RULES = HealthRules()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,62}", re.ASCII)
_PLACE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(?P<port>[0-9]{1,5})")

PORT_MAX = 65_535
Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]
Milliseconds = Annotated[int, Meta(ge=10, le=3_600_000)]
UrlPath = Annotated[
    str,
    Meta(description="begins with a slash, no spaces", extra_json_schema={"pattern": "^/[!-~]*$"}),
]
Times = Annotated[int, Meta(ge=1, le=1_000)]
Ratio = Annotated[float, Meta(ge=1, le=1_000)]
# From 3 s on a dataplane holds its table: a tick may fail twice before that.
TickMs = Annotated[int, Meta(ge=10, le=1_000)]
SCRAPED = ("requests", "errors", "retries", "queue", "latency", "p95")


class Unit(StrEnum):
    """Of the times in scraped metrics."""

    SECONDS = "s"
    MILLISECONDS = "ms"


class ProbeKind(StrEnum):
    """How a backend is probed."""

    TCP = "tcp"
    """It accepts a connection."""
    HTTP = "http"
    """It answers a GET with a status below 500."""


class ScrapeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What each backend's own metrics tell, by selector; times in them are in `unit`."""

    port: Port | None = None
    path: UrlPath = "/metrics"
    every_ms: Milliseconds = 1_000
    timeout_ms: Milliseconds = 800
    requests: Text | None = None
    errors: Text | None = None
    retries: Text | None = None
    queue: Text | None = None
    latency: Annotated[Text | None, Meta(description="a histogram of successes")] = None
    p95: Annotated[Text | None, Meta(description="a gauge or a quantile")] = None
    unit: Unit = Unit.SECONDS


class ProbeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How isolated backends are probed; the default kind is HTTP where the dataplane speaks it."""

    kind: ProbeKind | None = None
    path: UrlPath = "/"
    port: Port | None = None
    timeout_ms: Milliseconds = 1_000


class CheckDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A health check of every backend; so many failures in a row isolate it."""

    kind: ProbeKind = ProbeKind.HTTP
    path: UrlPath = "/"
    port: Port | None = None
    every_ms: Milliseconds = 1_000
    timeout_ms: Milliseconds = 1_000
    failures: Times = 3


class RemoteNodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Another machine, seen through its node exporter."""

    name: Text
    url: str
    every_ms: Milliseconds = 1_000
    timeout_ms: Milliseconds = 800


class LocalNodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """This machine: watched for stalls and for what runs out, unless switched off."""

    name: Text | None = None
    watch: bool = True
    disks: list[Text] = []


class Proto(StrEnum):
    """What a group carries."""

    TCP = "tcp"
    UDP = "udp"


class RetryKind(StrEnum):
    """Which requests a proxy repeats at another backend when they fail."""

    NONE = "none"
    IDEMPOTENT = "idempotent"
    """GET, HEAD, OPTIONS, PUT and DELETE, once, within a budget."""


class BackendAddressDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One place that can serve the group."""

    id: str
    host: str
    port: Port
    node: Text | None = None


class IsolationDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """When a backend is sent away, and how it comes back."""

    outlier_ratio: Ratio = _RULES.outlier_ratio
    outlier_ms: Milliseconds = _RULES.outlier_ms
    connect_failures: Times = _RULES.connect_failures
    return_successes: Times = _RULES.return_successes
    return_ratio: Ratio = _RULES.return_ratio
    probe_every_ms: Milliseconds = _RULES.probe_every_ms


class GroupSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How a route group is governed, wherever its address and its backends come from."""

    proto: Proto = Proto.TCP
    config: dict[str, Any] = {}
    isolation: IsolationDocument = IsolationDocument()
    scrape: ScrapeDocument | None = None
    probe: ProbeDocument = ProbeDocument()
    check: CheckDocument | None = None
    retry: Annotated[
        RetryKind, Meta(description="repeat failed idempotent requests once, elsewhere")
    ] = RetryKind.NONE


class GroupDocument(GroupSettings, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A virtual address and the equivalent backends behind it, listed or looked up."""

    name: str
    vip: str = ""
    port: Port = 0
    """Both are left out where a proxy that already runs is driven."""
    backends: list[BackendAddressDocument] | None = None
    service: Annotated[Text | None, Meta(description="name:port, looked up in DNS")] = None


class KubeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Groups are RouteGroups of a Kubernetes cluster, and not listed."""

    node: Annotated[Text | None, Meta(description="this machine's name in the cluster")] = None
    listen: Annotated[str | None, Meta(description="address of the groups of a proxy")] = None
    ports: Annotated[str, Meta(description="ports that RouteGroups may ask for")] = "20000-20999"
    max_groups: Annotated[
        int, Meta(ge=1, le=100_000, description="RouteGroups of one namespace that are served")
    ] = 100
    kubeconfig: Text | None = None
    context: Text | None = None
    namespace: Annotated[Text | None, Meta(description="of the Lease of the status writer")] = None
    status_every_ms: Milliseconds = 10_000


class TrafficDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The traffic agent's configuration."""

    plane: DataplaneDocument
    groups: list[GroupDocument] = []
    kube: KubeDocument | None = None
    config: dict[str, Any] = {}
    node: LocalNodeDocument = LocalNodeDocument()
    nodes: list[RemoteNodeDocument] = []
    tick_ms: TickMs = 200
    window_ms: Annotated[int, Meta(ge=1_000, le=60_000)] = 5_000
    service_every_ms: Milliseconds = 5_000
    state_dir: Text | None = None
    ledger: Text | None = None
    ledger_keys: Text | None = None
    metrics_port: Annotated[int, Meta(ge=0, le=PORT_MAX)] | None = None
    metrics_address: str = "127.0.0.1"
    report: ReportSettings | None = None


def read_traffic_document(data: bytes, overrides: Mapping[str, Any]) -> TrafficDocument:
    from fairlead.schema.yaml import read_settings  # noqa: PLC0415 - a control plane has no such file

    settings = read_settings(data, overrides)
    if isinstance(kube := overrides.get("kube"), dict):  # laid over the file's, field by field
        settings["kube"] = {**(read_settings(data, {}).get("kube") or {}), **kube}
    if is_short := isinstance(settings.get("plane"), str):  # `plane: haproxy`: a kind alone
        settings["plane"] = {"kind": settings["plane"]}
    name_kind(settings.get("plane"))
    try:
        document = check_shape(settings, TrafficDocument)
    except BadInput as error:
        if is_short and error.path == "plane.kind":  # the file has no such field
            raise BadInput("plane", error.message) from None
        raise
    read_config(document.config, "config")
    if document.kube is not None:
        _check_kube(document, document.kube)
    elif not document.groups:
        raise BadInput("groups", "must have at least 1 item, got 0")
    _check_groups(document)
    _check_nodes(document)
    check_plane(document.plane)
    _check_named(document)
    for index, group in enumerate(document.groups):
        check_carried(document, group, f"groups[{index}]")
    return document


def group_config(document: TrafficDocument, group: GroupDocument) -> Config:
    """The parameters of a group: its own over those of all groups over the defaults."""
    merged = _merged(document.config, group.config)
    return read_config({**AGENT_DEFAULTS, **merged}, "config")


def health_rules(document: IsolationDocument) -> HealthRules:
    return HealthRules(**msgspec.structs.asdict(document))


def service_place(text: str, path: str = "service") -> tuple[str, int]:
    place = _PLACE.fullmatch(text)
    if place is None or not 0 < int(place["port"]) <= PORT_MAX:
        raise BadInput(path, f"must be name:port, got {text!r}")
    return place["host"].strip("[]"), int(place["port"])


def _merged(all_groups: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    merged, outer, inner = {**all_groups, **one}, all_groups.get("theta"), one.get("theta")
    if isinstance(outer, dict) and isinstance(inner, dict):
        merged["theta"] = {**outer, **inner}
    return merged


def _check_kube(document: TrafficDocument, kube: KubeDocument) -> None:
    if document.plane.running is not None:
        raise BadInput("kube", "must be left out where a proxy that already runs is driven")
    if document.groups:
        raise BadInput("groups", "must be left out where RouteGroups of a cluster are followed")
    port_range(kube.ports)
    if document.plane.kind in HTTP_PROXIES:
        if kube.listen is None:
            kind = document.plane.kind.value
            raise BadInput("kube.listen", f"is required on the {kind} plane")
        _place(kube.listen, 1, "kube", "listen")


def port_range(text: str, path: str = "kube.ports") -> range:
    """The ports of `20000-20999`."""
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= PORT_MAX:
        return range(int(first), int(last) + 1)
    raise BadInput(path, f"must be two ports such as 20000-20999, got {text!r}")


def _check_named(document: TrafficDocument) -> None:
    """The name of one backend or cluster stands for one group."""
    plane = document.plane
    named = {
        "plane.haproxy.backend": plane.haproxy and plane.haproxy.backend,
        "plane.envoy.cluster": plane.envoy and plane.envoy.cluster,
    }
    for path, name in named.items():
        if name is not None and len(document.groups) > 1:
            problem = "must be left out with several groups: each is the one of its group's name"
            raise BadInput(path, problem)


def check_carried(document: TrafficDocument, group: GroupDocument, path: str) -> None:
    """What this dataplane cannot carry; checked here, because `check` opens none."""
    kind = document.plane.kind
    if kind in HTTP_PROXIES and group.proto is Proto.UDP:
        raise BadInput(f"{path}.proto", f"must be tcp on the {kind.value} plane")
    check_retry(group, kind.value, f"{path}.retry")
    if kind is not DataplaneKind.EBPF:
        return
    family = _plain(group.vip, f"{path}.vip")
    for index, backend in enumerate(group.backends or ()):
        here = f"{path}.backends[{index}].host"
        if _plain(backend.host, here) != family:
            raise BadInput(here, f"must be IPv{family} like the vip on the ebpf plane")
    if group_config(document, group).s_total > EBPF_SLOTS_MAX:
        place = f"{path}.config" if "s_total" in group.config else "config"
        raise BadInput(f"{place}.s_total", f"must be at most {EBPF_SLOTS_MAX} on the ebpf plane")


def check_retry(group: GroupSettings, kind: str, path: str) -> None:
    """Only a proxy has the request that is to be repeated."""
    if group.retry is not RetryKind.NONE and kind not in HTTP_PROXIES:
        message = f"must be none on the {kind} plane: it places connections and sees no requests"
        raise BadInput(path, message)


def _plain(text: str, path: str) -> int:
    """The family of an address that a socket can be given as it stands."""
    address = ip_address(text)
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise BadInput(path, f"must be a plain address on the ebpf plane, got {text!r}")
    return address.version


def _check_nodes(document: TrafficDocument) -> None:
    disks = document.node.disks
    for index, disk in enumerate(disks):
        if not disk.startswith("/") or not disk.isprintable():
            raise BadInput(f"node.disks[{index}]", f"must be an absolute path, got {disk!r}")
    refuse_repeats(disks, "node.disks", "", "repeats {}")
    names = [] if document.node.name is None else [document.node.name]
    for index, node in enumerate(document.nodes):
        if node.name in names:
            raise BadInput(f"nodes[{index}].name", f"repeats {node.name!r}")
        check_url(node.url, f"nodes[{index}].url")
        names.append(node.name)


def _check_groups(document: TrafficDocument) -> None:
    running = document.plane.running is not None
    for index, group in enumerate(document.groups):
        _check_place(group, f"groups[{index}]", document.plane)
    check_routes(document.groups, placed=not running)
    for index, group in enumerate(document.groups):
        path = f"groups[{index}]"
        if not _NAME.fullmatch(group.name):
            raise BadInput(f"{path}.name", _not_a_name("63", group.name))
        listed = (group.backends is not None) + (group.service is not None)
        if listed != 1 and not (listed == 0 and document.plane.haproxy is not None):
            raise BadInput(path, "must have either backends or a service")
        if group.service is not None:
            service_place(group.service, f"{path}.service")
        for number, backend in enumerate(group.backends or ()):
            if not _ID.fullmatch(backend.id):
                where = f"{path}.backends[{number}].id"
                raise BadInput(where, _not_a_name("63, and colons", backend.id))
        check_settings(group, document.config, path)


def _check_place(group: GroupDocument, path: str, plane: DataplaneDocument) -> None:
    """A group has an address unless clients connect to a proxy of its operator's."""
    if plane.running is None:
        for name in ("vip", "port"):
            if not getattr(group, name):
                raise BadInput(f"{path}.{name}", "is required")
        return
    for name in ("vip", "port"):
        if getattr(group, name):
            message = "must be left out: clients connect to the proxy that already runs"
            raise BadInput(f"{path}.{name}", message)
    if plane.haproxy is not None and group.service is not None:
        raise BadInput(f"{path}.service", "must be left out: HAProxy lists its own servers")
    if group.retry is not RetryKind.NONE:
        raise BadInput(f"{path}.retry", "must be none: retries are settings of the proxy that runs")


def check_settings(group: GroupSettings, all_groups: Mapping[str, Any], path: str) -> None:
    """What the shape of a group's settings does not say."""
    read_config(_merged(all_groups, group.config), f"{path}.config")
    if group.scrape is not None:
        selectors(group.scrape, f"{path}.scrape")
    check_path(group.probe.path, f"{path}.probe.path")
    if group.check is not None:
        check_path(group.check.path, f"{path}.check.path")


def check_routes(groups: Sequence[Any], *, placed: bool = True) -> None:
    """Names and addresses of groups and their backends, of a document or of the dataplane port. Not
    `placed`: the groups have no address of their own.

    Proxies count by address, so two backends of a group at one address could not be distinguished.
    """
    refuse_repeats([group.name for group in groups], "groups", ".name", "repeats {}.name")
    addresses = [
        (*_place(group.vip, group.port, f"groups[{index}]", "vip"), group.proto.value)
        for index, group in enumerate(groups if placed else ())
    ]
    refuse_repeats(addresses, "groups", ".vip", "is the address of {}")
    for index, group in enumerate(groups):
        backends, path = group.backends or (), f"groups[{index}].backends"
        refuse_repeats([backend.id for backend in backends], path, ".id", "repeats {}.id")
        places = [
            _place(backend.host, backend.port, f"{path}[{number}]", "host")
            for number, backend in enumerate(backends)
        ]
        refuse_repeats(places, path, ".host", "is the address and port of {}")


def refuse_repeats(values: Sequence[Any], path: str, field: str, message: str) -> None:
    """Refuse a value that an earlier item of the list at `path` has; {} is where that stands."""
    first: dict[Any, int] = {}
    for index, value in enumerate(values):
        if first.setdefault(value, index) != index:
            raise BadInput(f"{path}[{index}]{field}", message.format(f"{path}[{first[value]}]"))


def _place(host: str, port: int, path: str, field: str) -> tuple[str, int]:
    try:
        address = str(ip_address(host))
    except ValueError:
        raise BadInput(f"{path}.{field}", f"must be an IP address, got {host!r}") from None
    if not 0 < port <= PORT_MAX:
        raise BadInput(f"{path}.port", f"must be between 1 and {PORT_MAX}, got {port}")
    return address, port


def _not_a_name(what: str, name: str) -> str:
    return f"must be letters, digits, dots, dashes, underscores, at most {what}; got {name!r}"


def selectors(document: ScrapeDocument, path: str = "scrape") -> dict[str, Selector]:
    """What is scraped, by name; `latency` and `p95` are both a p95."""
    parsed = {
        name: Selector.parse(text, f"{path}.{name}")
        for name in SCRAPED
        if (text := getattr(document, name)) is not None
    }
    check_path(document.path, f"{path}.path")
    if not parsed:
        raise BadInput(path, f"must name at least one of {', '.join(SCRAPED)}")
    if "errors" in parsed and "requests" not in parsed:
        raise BadInput(f"{path}.requests", "is required where errors are scraped")
    if "latency" in parsed and "p95" in parsed:
        raise BadInput(f"{path}.p95", "must be left out where latency is scraped")
    return parsed


def check_path(text: str, path: str) -> None:
    """The path of a URL: from its slash on, without what would end the request's first line."""
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise BadInput(path, f"must begin with a slash and hold no spaces, got {text!r}")


def check_url(text: str, path: str) -> None:
    """Plain HTTP to somewhere; nothing else is spoken here, and no password."""
    try:
        parts = urlsplit(text)
        known = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or " " in parts.netloc or "@" in parts.netloc:
        raise BadInput(path, f"must be http://host[:port]/path, got {text!r}")
    check_path(parts._replace(scheme="", netloc="", path=parts.path or "/").geturl(), path)
