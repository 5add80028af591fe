"""RouteGroups, Services and EndpointSlices as the traffic agent's groups. No I/O.

A RouteGroup names a Service of its own namespace and nothing else: its backends are the Service's
endpoints, its address is the Service's own (eBPF) or a port of the agent's address, within what
the operator allows (proxies). One that is refused says why and leaves the others alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from fairlead.core.invariant import known
from fairlead.core.traffic.endpoints import ServiceEndpoint, choose_endpoints
from fairlead.kube.client import MISREAD, Document
from fairlead.kube.kinds import engine_name
from fairlead.kube.watch import Key
from fairlead.schema.border import BadInput
from fairlead.schema.route_group import KubeDataplane, RouteGroupSpec, read_route_group
from fairlead.schema.traffic_agent import (
    BackendAddressDocument,
    GroupDocument,
    GroupSettings,
    TrafficDocument,
    check_carried,
    port_range,
)

SERVICE_NAME = "kubernetes.io/service-name"
ZONE = "topology.kubernetes.io/zone"
NAME_MAX = 120
"""Of namespace and name together: the kernel's tables have room for 127, the family included."""
_FAMILIES = {"IPv4": 4, "IPv6": 6}
Address = tuple[str, int, str]
"""A virtual address, its port and its protocol."""


class NotServed(Exception):
    """A RouteGroup that is not served: a reason for scripts, a message for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """What became of one RouteGroup's spec."""

    uid: str
    generation: int
    accepted: bool
    reason: str
    message: str
    address: str = ""
    groups: tuple[str, ...] = ()
    """The agent's groups: one, or on eBPF one for each family of the Service."""
    ready: int = 0


@dataclass(frozen=True, slots=True)
class FollowedGroups:
    """What the agent serves, and what became of each RouteGroup of its dataplane."""

    groups: tuple[GroupDocument, ...] = ()
    drains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    verdicts: Mapping[Key, GroupVerdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Where the agent is."""

    document: TrafficDocument
    node: str
    zone: str | None = None

    @property
    def dataplane(self) -> str:
        return self.document.plane.kind.value


@dataclass(frozen=True, slots=True)
class TrafficObjects:
    """The cluster as far as groups follow from it."""

    route_groups: Mapping[Key, Document]
    services: Mapping[Key, Document]
    slices: Mapping[Key, Document]


@dataclass(frozen=True, slots=True)
class _Made:
    """The groups of one RouteGroup."""

    groups: tuple[GroupDocument, ...]
    drains: Mapping[str, tuple[str, ...]]


def follow_groups(objects: TrafficObjects, place: AgentPlace) -> FollowedGroups:
    """All groups of the agent's dataplane. Of two RouteGroups with one address the older has it."""
    slices = _by_service(objects.slices.values())
    groups: list[GroupDocument] = []
    drains: dict[str, dict[str, str]] = {}
    verdicts: dict[Key, GroupVerdict] = {}
    taken: dict[Address, Key] = {}
    served: Counter[str] = Counter()
    for key, document in sorted(objects.route_groups.items(), key=_age):
        if not _is_ours(document, place):
            continue
        meta = document["metadata"]
        about = (meta["uid"], meta["generation"])
        try:
            _refuse_many(key.namespace, served, place)
            made = _make(key, document, objects.services, slices, place)
            _take(key, made.groups, taken)
            served[key.namespace] += 1
        except NotServed as refused:
            verdicts[key] = GroupVerdict(
                *about, accepted=False, reason=refused.reason, message=str(refused)
            )
            continue
        groups += made.groups
        drains |= {name: dict.fromkeys(ids, "drain") for name, ids in made.drains.items() if ids}
        verdicts[key] = _accept(about, made)
    return FollowedGroups(tuple(groups), drains, verdicts)


def _refuse_many(namespace: str, served: Mapping[str, int], place: AgentPlace) -> None:
    """One tenant must not fill the tables of every agent: the oldest of a namespace are served."""
    most = known(place.document.kube, "RouteGroups are followed with kube").max_groups
    if served[namespace] >= most:
        text = f"the namespace has {most} RouteGroups that are served, as many as the agent's"
        raise NotServed("TooManyRouteGroups", f"{text} kube.max_groups allows")


def _accept(about: tuple[str, int], made: _Made) -> GroupVerdict:
    first = made.groups[0]
    drained = sum(map(len, made.drains.values()))
    ready = sum(len(group.backends or ()) for group in made.groups) - drained
    address = f"[{first.vip}]:{first.port}" if ":" in first.vip else f"{first.vip}:{first.port}"
    names = tuple(group.name for group in made.groups)
    return GroupVerdict(
        *about,
        accepted=True,
        reason="Accepted",
        message="",
        address=address,
        groups=names,
        ready=ready,
    )


def _is_ours(document: Document, place: AgentPlace) -> bool:
    spec = document.get("spec")
    return isinstance(spec, dict) and spec.get("dataplane") == place.dataplane


def _age(item: tuple[Key, Document]) -> tuple[str, Key]:
    key, document = item
    return document["metadata"]["creationTimestamp"], key


def _take(key: Key, groups: Iterable[GroupDocument], taken: dict[Address, Key]) -> None:
    addresses = [(group.vip, group.port, group.proto.value) for group in groups]
    for address in addresses:
        if owner := taken.get(address):
            where = f"{address[0]} port {address[1]}"
            # Another tenant's names are not told.
            whose = f" of {owner.name}" if owner.namespace == key.namespace else ""
            raise NotServed("AddressTaken", f"{where} is the address of an older RouteGroup{whose}")
    taken |= dict.fromkeys(addresses, key)


def _make(
    key: Key,
    document: Document,
    services: Mapping[Key, Document],
    slices: Mapping[Key, list[Document]],
    place: AgentPlace,
) -> _Made:
    try:
        name = engine_name(*key)
        if len(name) > NAME_MAX:
            too_long = f"must be at most {NAME_MAX} characters with its namespace, got {len(name)}"
            raise BadInput("metadata.name", too_long)
        spec = read_route_group(document["spec"], place.document.config)
        service = services.get(Key(key.namespace, spec.service.name))
        if service is None:
            message = f"spec.service.name: there is no Service {spec.service.name!r} here"
            raise NotServed("ServiceNotFound", message)
        port = _service_port(service["spec"], spec)
        found = slices.get(Key(key.namespace, spec.service.name), [])
        by_family = _by_family(found, port)
        return _groups(name, spec, service["spec"], by_family, place)
    except BadInput as error:
        raise NotServed("Invalid", str(error)) from error
    except MISREAD as error:  # an object of another release: it must not stop the others
        raise NotServed("Invalid", f"cannot be read: {error!r}") from error


def _service_port(service: Document, spec: RouteGroupSpec) -> Document:
    if service.get("type") == "ExternalName":
        raise NotServed(
            "Unsupported", "spec.service.name: an ExternalName Service has no endpoints"
        )
    for port in service.get("ports") or ():
        protocol = port.get("protocol", "TCP")
        if port["port"] == spec.service.port and protocol.lower() == spec.proto.value:
            return dict(port)
    missing = f"the Service has no {spec.proto.value} port {spec.service.port}"
    raise NotServed("PortNotFound", f"spec.service.port: {missing}")


def _by_family(slices: Iterable[Document], port: Document) -> dict[int, list[ServiceEndpoint]]:
    found: dict[int, list[ServiceEndpoint]] = {4: [], 6: []}
    for item in slices:
        family = _FAMILIES.get(item["addressType"])
        if family is not None:
            found[family] += _endpoints(item, port)
    return found


def _groups(
    name: str,
    spec: RouteGroupSpec,
    service: Document,
    by_family: Mapping[int, list[ServiceEndpoint]],
    place: AgentPlace,
) -> _Made:
    groups, drains = [], {}
    settings = {field: getattr(spec, field) for field in GroupSettings.__struct_fields__}
    for family, suffix, vip, own_port in _addresses(spec, service, place):
        chosen = choose_endpoints(by_family[family], zone=place.zone, node=place.node)
        backends = [
            BackendAddressDocument(backend.id, backend.host, backend.port, backend.node)
            for backend in chosen.backends
        ]
        group = GroupDocument(
            name=name + suffix, vip=vip, port=own_port, backends=backends, **settings
        )
        check_carried(place.document, group, "spec")
        groups.append(group)
        drains[group.name] = chosen.draining
    return _Made(tuple(groups), drains)


def _addresses(
    spec: RouteGroupSpec, service: Document, place: AgentPlace
) -> Iterator[tuple[int, str, str, int]]:
    """Family of the backends, what is appended to the name, and where the group is reached.

    A proxy speaks to backends of one family, or a pod with two addresses would count twice.
    """
    addresses = [ip for ip in service.get("clusterIPs") or () if ip != "None"]
    if spec.dataplane is not KubeDataplane.EBPF:
        kube = known(place.document.kube, "the agent follows a cluster")
        allowed = port_range(kube.ports)
        if spec.port not in allowed:
            message = f"must be between {allowed[0]} and {allowed[-1]}, got {spec.port}"
            raise NotServed("PortNotAllowed", f"spec.port: {message}")
        families = service.get("ipFamilies") or ["IPv4"]
        listen, port = known(kube.listen, "a proxy listens"), known(spec.port, "it was checked")
        yield _FAMILIES[families[0]], "", listen, port
        return
    if not addresses:
        message = "a headless Service has no address that eBPF could answer for"
        raise NotServed("Unsupported", f"spec.service.name: {message}")
    for number, address in enumerate(addresses):
        family = ip_address(str(address)).version
        yield family, f"_v{family}" if number else "", address, spec.service.port


def _endpoints(item: Document, port: Document) -> Iterator[ServiceEndpoint]:
    """The endpoints of one slice at a port of the Service: slices refer to it by its name."""
    for offered in item.get("ports") or ():
        same = (offered.get("name") or "") == (port.get("name") or "")
        protocol = (offered.get("protocol") or "TCP") == (port.get("protocol") or "TCP")
        if not same or not protocol or not offered.get("port"):
            continue
        for endpoint in item.get("endpoints") or ():
            # All addresses of an endpoint lead to the same place.
            for host in endpoint["addresses"][:1]:
                yield _endpoint(str(ip_address(host)), offered["port"], endpoint)


def _endpoint(host: str, port: int, endpoint: Document) -> ServiceEndpoint:
    """What is not said is as Kubernetes reads it: ready, serving while ready, not terminating."""
    state, hints = endpoint.get("conditions") or {}, endpoint.get("hints") or {}
    ready = state.get("ready") is not False
    serving = state.get("serving")
    return ServiceEndpoint(
        host,
        port,
        ready=ready,
        serving=ready if serving is None else serving,
        terminating=state.get("terminating") is True,
        node=endpoint.get("nodeName"),
        zone=endpoint.get("zone"),
        for_zones=tuple(hint["name"] for hint in hints.get("forZones") or ()),
        for_nodes=tuple(hint["name"] for hint in hints.get("forNodes") or ()),
    )


def _by_service(slices: Iterable[Document]) -> dict[Key, list[Document]]:
    found: dict[Key, list[Document]] = {}
    for item in slices:
        meta = item["metadata"]
        if name := (meta.get("labels") or {}).get(SERVICE_NAME):
            found.setdefault(Key(meta["namespace"], name), []).append(item)
    return found
