"""Where the traffic agent meets its dataplane, its sensors, its record and its ledger."""

import errno
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import msgspec

from fairlead.core.invariant import known
from fairlead.engine.traffic import GroupRules, Round
from fairlead.host.clock import monotonic_ms
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.host.paths import state_directory
from fairlead.node.traffic.agent import AgentConfig, GroupSpec, Reloaded, TrafficAgent
from fairlead.node.traffic.probes import CheckRules, DnsService, ProbeRules
from fairlead.node.traffic.scrape import ScrapeRules
from fairlead.node.traffic.sensors import LocalMachine, NetworkSensors, RemoteNode, SensorRules
from fairlead.ports.dataplane import Backend, Dataplane, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Ledger
from fairlead.ports.recorder import FlightRecorder
from fairlead.ports.traffic import EventLog
from fairlead.schema.traffic_agent import (
    GroupDocument,
    PlaneDocument,
    PlaneKind,
    TrafficDocument,
    group_config,
    health_rules,
    service_place,
)
from fairlead.schema.traffic_sources import CheckDocument, Knock, ProbeDocument, Unit, selectors

_HTTP_PROXIES = (PlaneKind.HAPROXY, PlaneKind.ENVOY)
_RELOADED = {"groups", "config"}
"""The parts of the configuration that a running agent changes."""


def traffic_agent(
    document: TrafficDocument,
    *,
    report: Callable[[Round, TrafficAgent], None],
    warn: Callable[[str], None],
    reload: Callable[[], TrafficDocument] | None = None,
) -> TrafficAgent:
    directory = traffic_directory(document)
    name = document.node.name or os.uname().nodename
    sensors = NetworkSensors(sensor_rules(document, name), now_ms)

    def again() -> Reloaded:
        fresh = reload() if reload is not None else document
        fixed = [
            field
            for field in document.__struct_fields__
            if field not in _RELOADED and getattr(fresh, field) != getattr(document, field)
        ]
        if fixed:
            warn(f"{', '.join(fixed)}: changed in the file, takes effect with the next start")
        specs = group_specs(fresh)
        return Reloaded(specs, sensors.follow(sensor_rules(fresh, name)))

    return TrafficAgent(
        AgentConfig(name, directory, document.tick_ms),
        group_specs(document),
        open_dataplane=lambda: open_dataplane(document.plane, directory),
        open_recorder=lambda path: _open_recorder(path, warn),
        sensors=sensors,
        open_event_log=lambda: _open_event_log(document, name, warn),
        report=report,
        warn=warn,
        reload=again,
    )


def traffic_directory(document: TrafficDocument) -> Path:
    return Path(document.state_dir) if document.state_dir else default_directory()


def default_directory() -> Path:
    """Beside the ledger of this machine."""
    return state_directory() / "traffic"


def open_dataplane(document: PlaneDocument, directory: Path) -> Dataplane:
    """The dataplane that is configured, in its folder. Only its own module is imported."""
    folder = Path(document.folder) if document.folder else directory / document.kind.value
    match document.kind:
        case PlaneKind.HAPROXY:
            from fairlead.dataplane.haproxy import HaproxyDataplane  # noqa: PLC0415 - one of four

            return HaproxyDataplane(folder, binary=document.binary or "haproxy")
        case PlaneKind.ENVOY:
            from fairlead.dataplane.envoy import EnvoyDataplane  # noqa: PLC0415 - one of four

            return EnvoyDataplane(folder, binary=document.binary)
        case PlaneKind.EBPF:
            return _open_ebpf(document)
        case PlaneKind.MEMORY:
            from fairlead.dataplane.memory import MemoryDataplane  # noqa: PLC0415 - one of four

            return MemoryDataplane(monotonic_ms)


def _open_ebpf(document: PlaneDocument) -> Dataplane:
    from fairlead.dataplane import ebpf  # noqa: PLC0415 - one of four

    cgroup = Path(document.cgroup) if document.cgroup else ebpf.default_cgroup()
    if cgroup is None:
        raise PermanentFault("no cgroup2 is mounted; name one with plane.cgroup")
    sizes = {} if document.capacity is None else msgspec.structs.asdict(document.capacity)
    return ebpf.EbpfDataplane(
        cgroup,
        Path(document.pins) if document.pins else ebpf.DEFAULT_PINS,
        capacity=ebpf.Capacity(**{name: size for name, size in sizes.items() if size is not None}),
        soft_errno=getattr(errno, document.soft_errno or "EAGAIN"),
    )


def remove_dataplane(document: PlaneDocument, directory: Path) -> None:
    """Take a dataplane off the machine, whatever state it is in."""
    if document.kind is PlaneKind.EBPF:
        from fairlead.dataplane import ebpf  # noqa: PLC0415 - one of four

        ebpf.uninstall(Path(document.pins) if document.pins else ebpf.DEFAULT_PINS)
    else:
        open_dataplane(document, directory).remove()


def group_specs(document: TrafficDocument) -> list[GroupSpec]:
    return [_group_spec(document, group) for group in document.groups]


def _group_spec(document: TrafficDocument, group: GroupDocument) -> GroupSpec:
    listed = group.backends or ()
    backends = tuple(Backend(backend.id, backend.host, backend.port) for backend in listed)
    # What the operator set is not learned.
    named = {*document.config, *group.config}
    rules = GroupRules(
        group_config(document, group),
        health_rules(group.isolation),
        document.window_ms,
        own_budget=not {"bucket_rate", "bucket_burst"} & named,
        own_reference="q_ref" not in named,
        own_latency="l_ref_ms" not in named,
        own_bound="inside_max" not in named,
    )
    return GroupSpec(
        RouteGroup(group.name, group.vip, group.port, Proto(group.proto.value), backends),
        rules,
        {backend.id: backend.node for backend in listed if backend.node is not None},
        looked_up=group.service is not None,
    )


def sensor_rules(document: TrafficDocument, name: str) -> SensorRules:
    groups = document.groups
    local = LocalMachine(name, disks=[Path(disk) for disk in document.node.disks])
    return SensorRules(
        scrapes={
            group.name: _scrape(document, group) for group in groups if group.scrape is not None
        },
        probes={group.name: _probe(document, group.probe) for group in groups},
        checks={group.name: _check(group.check) for group in groups if group.check is not None},
        services={
            group.name: DnsService(*service_place(group.service), _family(document, group))
            for group in groups
            if group.service is not None
        },
        service_every_ms=document.service_every_ms,
        local=local if document.node.watch else None,
        remote=tuple(RemoteNode(**msgspec.structs.asdict(node)) for node in document.nodes),
    )


def _family(document: TrafficDocument, group: GroupDocument) -> int:
    """A socket of one family cannot be sent to an address of the other by the kernel's hooks."""
    if document.plane.kind is not PlaneKind.EBPF:
        return socket.AF_UNSPEC
    return socket.AF_INET6 if ip_address(group.vip).version == 6 else socket.AF_INET


def _scrape(document: TrafficDocument, group: GroupDocument) -> ScrapeRules:
    scrape = known(group.scrape, "only groups with a scrape are scraped")
    return ScrapeRules(
        selectors=selectors(scrape, "scrape"),
        path=scrape.path,
        port=scrape.port,
        every_ms=scrape.every_ms,
        timeout_ms=scrape.timeout_ms,
        ms_per_unit=1_000.0 if scrape.unit is Unit.SECONDS else 1.0,
        window_ms=document.window_ms,
    )


def _probe(document: TrafficDocument, probe: ProbeDocument) -> ProbeRules:
    """HTTP where the dataplane speaks it, a connection elsewhere, unless configured otherwise."""
    http = document.plane.kind in _HTTP_PROXIES if probe.kind is None else probe.kind is Knock.HTTP
    return ProbeRules(probe.path if http else None, probe.port, probe.timeout_ms)


def _check(check: CheckDocument) -> CheckRules:
    path = check.path if check.kind is Knock.HTTP else None
    return CheckRules(
        ProbeRules(path, check.port, check.timeout_ms), check.every_ms, check.failures
    )


def _open_recorder(path: Path, warn: Callable[[str], None]) -> FlightRecorder:
    """A group's record. A damaged one is put aside: traffic does not wait for its repair."""
    from fairlead.recorder import CorruptRecord, FileRecorder  # noqa: PLC0415 - as in `node`

    try:
        return FileRecorder(path, sync_each=False)
    except CorruptRecord as error:
        aside = path.with_name(f"{path.name}.damaged-{now_ms()}")
        path.rename(aside)
        warn(f"the record is damaged ({error}); it is kept as {aside}, and a new one begins")
    return FileRecorder(path, sync_each=False)


def _open_event_log(
    document: TrafficDocument, name: str, warn: Callable[[str], None]
) -> EventLog | None:
    if document.ledger is None:
        return None
    from fairlead.node.traffic.event_log import LedgerEventLog  # noqa: PLC0415 - if configured

    return LedgerEventLog(_open_ledger(document, document.ledger), agent=name, fault=warn)


def _open_ledger(document: TrafficDocument, place: str) -> Ledger:
    """A ledger's file with its keys beside it, or a PostgreSQL database with keys of its own."""
    from fairlead.ledger.place import is_postgres, open_file  # noqa: PLC0415 - as in `node`

    if is_postgres(place):
        from fairlead.ledger.keys import KeyDirectory  # noqa: PLC0415 - as in `place`
        from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

        keys = document.ledger_keys or str(traffic_directory(document) / "keys")
        return PostgresLedger.open(place, KeyDirectory(Path(keys)))
    return open_file(Path(place))
