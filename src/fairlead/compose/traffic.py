"""Where the traffic agent meets its dataplane, its sensors, its record and its ledger."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead.core.invariant import known
from fairlead.core.traffic.memory import EDITION
from fairlead.engine.traffic import GroupRules, TickRound
from fairlead.engine.traffic.loop import Orders
from fairlead.host.clock import monotonic_ms
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.host.paths import state_directory
from fairlead.node.traffic.agent import AgentConfig, GroupSpec, Reloaded, TrafficAgent
from fairlead.node.traffic.sensors import NetworkSensors
from fairlead.ports.dataplane import Backend, Dataplane, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault
from fairlead.ports.recorder import FlightRecorder
from fairlead.ports.traffic import EventLog
from fairlead.schema.dataplane import DataplaneDocument, DataplaneKind
from fairlead.schema.traffic_agent import (
    BackendAddressDocument,
    GroupDocument,
    RetryKind,
    ScrapeDocument,
    TrafficDocument,
    group_config,
    health_rules,
)

_RELOADED = {"groups", "config"}
"""The parts of the configuration that a running agent changes."""


def traffic_agent(
    document: TrafficDocument,
    *,
    report: Callable[[TickRound, TrafficAgent], None],
    warn: Callable[[str], None],
    reload: Callable[[], TrafficDocument] | None = None,
    drains: Callable[[], Orders] = dict,
    apart: bool = False,
) -> TrafficAgent:
    document, directory = _with_servers(document), traffic_directory(document)
    name = document.node.name or os.uname().nodename
    sensors = NetworkSensors(document, name, now_ms)

    def again() -> Reloaded:
        fresh = _with_servers(reload()) if reload is not None else document
        fixed = [
            field
            for field in document.__struct_fields__
            if field not in _RELOADED and getattr(fresh, field) != getattr(document, field)
        ]
        if fixed:
            warn(f"{', '.join(fixed)}: changed in the file, takes effect with the next start")
        now = msgspec.structs.replace(document, groups=fresh.groups, config=fresh.config)
        specs = [_group_spec(now, group) for group in now.groups]
        return Reloaded(specs, sensors.follow(now))

    return TrafficAgent(
        AgentConfig(name, directory, document.tick_ms),
        [_group_spec(document, group) for group in document.groups],
        open_dataplane=lambda: open_dataplane(document.plane, directory),
        open_recorder=lambda path: _open_recorder(path, warn),
        sensors=sensors,
        open_event_log=lambda: _open_event_log(document, name, warn),
        report=report,
        warn=warn,
        reload=again,
        drains=drains,
        apart=apart,
    )


def traffic_directory(document: TrafficDocument) -> Path:
    return Path(document.state_dir) if document.state_dir else state_directory() / "traffic"


def open_dataplane(document: DataplaneDocument, directory: Path) -> Dataplane:
    """The dataplane that is configured, in its folder. Only its own module is imported."""
    if document.running is not None:
        return _open_running(document, directory)
    folder = Path(document.folder) if document.folder else directory / document.kind.value
    match document.kind:
        case DataplaneKind.HAPROXY:
            from fairlead.dataplane.haproxy import HaproxyDataplane  # noqa: PLC0415 - one of four

            return HaproxyDataplane(folder, binary=document.binary or "haproxy")
        case DataplaneKind.ENVOY:
            from fairlead.dataplane.envoy import EnvoyDataplane  # noqa: PLC0415 - one of four

            return EnvoyDataplane(folder, binary=document.binary)
        case DataplaneKind.EBPF:
            return _open_ebpf(document)
        case DataplaneKind.MEMORY:
            from fairlead.dataplane.memory import MemoryDataplane  # noqa: PLC0415 - one of four

            return MemoryDataplane(monotonic_ms)


def _open_running(document: DataplaneDocument, directory: Path) -> Dataplane:
    """A proxy of its operator's; `directory` keeps what was found there."""
    if (haproxy := document.haproxy) is not None:
        from fairlead.dataplane.haproxy import RunningHaproxyDataplane  # noqa: PLC0415 - one of six

        folder = directory / "running-haproxy"
        return RunningHaproxyDataplane(haproxy.socket, folder, backend=haproxy.backend)
    from fairlead.dataplane.envoy import RunningEnvoyDataplane  # noqa: PLC0415 - one of six

    envoy = known(document.envoy, "it is one of two")
    return RunningEnvoyDataplane(
        xds=envoy.xds,
        admin_place=envoy.admin,
        folder=directory / "running-envoy",
        cluster=envoy.cluster,
        requests=Path(envoy.requests) if envoy.requests else None,
    )


def _with_servers(document: TrafficDocument) -> TrafficDocument:
    """The groups of a HAProxy that runs already with its servers, where they list none."""
    plane = document.plane.haproxy
    if plane is None or all(group.backends is not None for group in document.groups):
        return document
    from fairlead.dataplane.haproxy import discover  # noqa: PLC0415 - one of six

    groups = []
    for index, group in enumerate(document.groups):
        if group.backends is None:
            name = plane.backend or group.name
            listed = [
                BackendAddressDocument(server.id, server.host, server.port)
                for server in discover(plane.socket, name, f"groups[{index}]")
            ]
            group = msgspec.structs.replace(group, backends=listed)  # noqa: PLW2901 - with servers
        groups.append(group)
    return msgspec.structs.replace(document, groups=groups)


def _open_ebpf(document: DataplaneDocument) -> Dataplane:
    from fairlead.dataplane import ebpf  # noqa: PLC0415 - one of four

    cgroup = Path(document.cgroup) if document.cgroup else ebpf.default_cgroup()
    if cgroup is None:
        raise PermanentFault("no cgroup2 is mounted; name one with plane.cgroup")
    sizes = {} if document.capacity is None else msgspec.structs.asdict(document.capacity)
    return ebpf.EbpfDataplane(
        cgroup,
        Path(document.pins) if document.pins else ebpf.DEFAULT_PINS,
        capacity={name: size for name, size in sizes.items() if size is not None},
        soft_errno=getattr(errno, document.soft_errno or "EAGAIN"),
    )


def remove_dataplane(document: DataplaneDocument, directory: Path) -> None:
    """Take a dataplane off the machine, whatever state it is in."""
    if document.kind is DataplaneKind.EBPF:
        from fairlead.dataplane import ebpf  # noqa: PLC0415 - one of four

        ebpf.uninstall(Path(document.pins) if document.pins else ebpf.DEFAULT_PINS)
    else:
        open_dataplane(document, directory).remove()


def _group_spec(document: TrafficDocument, group: GroupDocument) -> GroupSpec:
    listed = group.backends or ()
    backends = tuple(Backend(backend.id, backend.host, backend.port) for backend in listed)
    retry = group.retry is RetryKind.IDEMPOTENT
    # What the operator set is not learned.
    named, scrape = {*document.config, *group.config}, group.scrape or ScrapeDocument()
    rules = GroupRules(
        group_config(document, group),
        health_rules(group.isolation),
        document.window_ms,
        own_budget=not {"bucket_rate", "bucket_burst"} & named,
        own_reference="q_ref" not in named,
        own_latency="l_ref_ms" not in named,
        own_bound="inside_max" not in named,
        own_flow="g_min" not in named,
        check_failures=None if group.check is None else group.check.failures,
        scrape_every_ms=scrape.every_ms,
        scrape_timeout_ms=scrape.timeout_ms,
        node_every_ms={node.name: node.every_ms for node in document.nodes},
        edition=EDITION,
        retry=retry,
    )
    return GroupSpec(
        RouteGroup(group.name, group.vip, group.port, Proto(group.proto.value), backends, retry),
        rules,
        {backend.id: backend.node for backend in listed if backend.node is not None},
        looked_up=group.service is not None,
        own_nodes=document.kube is not None,
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
    """In a ledger's file with its keys beside it, or in PostgreSQL with keys of its own."""
    place = document.ledger
    if place is None:
        return None
    from fairlead.ledger.keys import KeyDirectory  # noqa: PLC0415 - if configured
    from fairlead.ledger.place import is_postgres, open_file  # noqa: PLC0415 - as in `node`
    from fairlead.node.traffic.event_log import LedgerEventLog  # noqa: PLC0415 - as above

    if not is_postgres(place):
        return LedgerEventLog(open_file(Path(place)), agent=name, fault=warn)
    from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

    keys = KeyDirectory(Path(document.ledger_keys or traffic_directory(document) / "keys"))
    return LedgerEventLog(PostgresLedger.open(place, keys), agent=name, fault=warn)
