"""Where the traffic agent meets its plane, its eyes, its record and its ledger."""

import errno
import os
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import msgspec

from fairlead.engine.traffic import GroupRules
from fairlead.engine.traffic_loop import Round
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.node.traffic.agent import AgentConfig, GroupSpec, Reloaded, TrafficAgent
from fairlead.node.traffic.exporters import RemoteNode
from fairlead.node.traffic.eyes import EyeRules, NetworkEyes
from fairlead.node.traffic.probes import CheckRules, KnockRules
from fairlead.node.traffic.scrape import ScrapeRules
from fairlead.node.traffic.services import Service
from fairlead.node.traffic.vitals import Vitals
from fairlead.ports.dataplane import Backend, Dataplane, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Ledger
from fairlead.ports.recorder import FlightRecorder
from fairlead.ports.traffic import Chronicle
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

_HTTP_PLANES = (PlaneKind.HAPROXY, PlaneKind.ENVOY)


FIXED = (
    "plane",
    "node",
    "nodes",
    "tick_ms",
    "window_ms",
    "state_dir",
    "ledger",
    "ledger_keys",
    "metrics_port",
    "metrics_address",
    "service_every_ms",
)
"""What a running agent does not change."""


def traffic_agent(
    document: TrafficDocument,
    *,
    report: Callable[[Round, TrafficAgent], None],
    warn: Callable[[str], None],
    reload: Callable[[], TrafficDocument] | None = None,
) -> TrafficAgent:
    """An agent on this machine, as configured."""
    directory = traffic_directory(document)
    name = document.node.name or os.uname().nodename
    eyes = NetworkEyes(eye_rules(document, name), now_ms)

    def again() -> Reloaded:
        fresh = reload() if reload is not None else document
        fixed = [each for each in FIXED if getattr(fresh, each) != getattr(document, each)]
        if fixed:
            warn(f"{', '.join(fixed)}: changed in the file, takes effect with the next start")
        specs = group_specs(fresh)
        return Reloaded(specs, eyes.follow(eye_rules(fresh, name)))

    return TrafficAgent(
        AgentConfig(name, directory, document.tick_ms),
        group_specs(document),
        open_plane=lambda: open_plane(document.plane, directory),
        open_recorder=lambda path: _open_recorder(path, warn),
        eyes=eyes,
        open_chronicle=lambda: _open_chronicle(document, name, warn),
        report=report,
        warn=warn,
        reload=again,
    )


def traffic_directory(document: TrafficDocument) -> Path:
    """Where the agent keeps its state."""
    return Path(document.state_dir) if document.state_dir else default_directory()


def default_directory() -> Path:
    """Beside the ledger of this machine."""
    from fairlead.ledger.place import state_directory  # noqa: PLC0415 - rarely asked

    return state_directory() / "traffic"


def open_plane(document: PlaneDocument, directory: Path) -> Dataplane:
    """The plane that is asked for, in the folder that is asked for."""
    folder = Path(document.folder) if document.folder else directory / document.kind.value
    if document.kind is PlaneKind.HAPROXY:
        from fairlead.dataplane.haproxy import HaproxyDataplane  # noqa: PLC0415 - one of four

        return HaproxyDataplane(folder, binary=document.binary or "haproxy")
    if document.kind is PlaneKind.ENVOY:
        from fairlead.dataplane.envoy import EnvoyDataplane  # noqa: PLC0415 - one of four

        return EnvoyDataplane(folder, binary=document.binary)
    if document.kind is PlaneKind.EBPF:
        from fairlead.dataplane.ebpf import DEFAULT_PINS, Capacity, EbpfDataplane, default_cgroup  # noqa: PLC0415 - one of four

        cgroup = Path(document.cgroup) if document.cgroup else default_cgroup()
        if cgroup is None:
            raise PermanentFault("no cgroup2 is mounted; name one with plane.cgroup")
        sizes = {} if document.capacity is None else msgspec.structs.asdict(document.capacity)
        return EbpfDataplane(
            cgroup,
            Path(document.pins) if document.pins else DEFAULT_PINS,
            capacity=Capacity(**{name: size for name, size in sizes.items() if size is not None}),
            soft_errno=getattr(errno, document.soft_errno or "EAGAIN"),
        )
    from fairlead.dataplane.memory import MemoryDataplane  # noqa: PLC0415 - one of four

    return MemoryDataplane(lambda: time.monotonic_ns() // 1_000_000)


def remove_plane(document: PlaneDocument, directory: Path) -> None:
    """Take a plane off the machine, whatever state it is in."""
    if document.kind is PlaneKind.EBPF:
        from fairlead.dataplane.ebpf import DEFAULT_PINS, uninstall  # noqa: PLC0415 - one of four

        uninstall(Path(document.pins) if document.pins else DEFAULT_PINS)
        return
    open_plane(document, directory).remove()


def group_specs(document: TrafficDocument) -> list[GroupSpec]:
    """The groups as the agent takes them."""
    return [
        GroupSpec(
            RouteGroup(
                group.name,
                group.vip,
                group.port,
                Proto(group.proto.value),
                tuple(Backend(each.id, each.host, each.port) for each in group.backends or ()),
            ),
            GroupRules(
                group_config(document, group),
                health_rules(group.isolation),
                document.window_ms,
                own_budget=not {"bucket_rate", "bucket_burst"} & {*document.config, *group.config},
                own_reference="q_ref" not in {*document.config, *group.config},
                own_latency="l_ref_ms" not in {*document.config, *group.config},
                own_bound="inside_max" not in {*document.config, *group.config},
            ),
            {each.id: each.node for each in group.backends or () if each.node is not None},
            looked_up=group.service is not None,
        )
        for group in document.groups
    ]


def eye_rules(document: TrafficDocument, name: str) -> EyeRules:
    """Where the agent looks, as configured."""
    groups = document.groups
    local = Vitals(name, disks=[Path(disk) for disk in document.node.disks])
    return EyeRules(
        scrapes={
            group.name: _scrape(document, group) for group in groups if group.scrape is not None
        },
        knocks={group.name: _knock(document, group.probe) for group in groups},
        checks={group.name: _check(group.check) for group in groups if group.check is not None},
        services={
            group.name: Service(*service_place(group.service), _family(document, group))
            for group in groups
            if group.service is not None
        },
        service_every_ms=document.service_every_ms,
        local=local if document.node.watch else None,
        remote=tuple(
            RemoteNode(each.name, each.url, each.every_ms, each.timeout_ms)
            for each in document.nodes
        ),
    )


def _family(document: TrafficDocument, group: GroupDocument) -> int:
    """A socket of one family cannot be sent to an address of the other by the kernel's hooks."""
    if document.plane.kind is not PlaneKind.EBPF:
        return socket.AF_UNSPEC
    return socket.AF_INET6 if ip_address(group.vip).version == 6 else socket.AF_INET


def _scrape(document: TrafficDocument, group: GroupDocument) -> ScrapeRules:
    scrape = group.scrape
    assert scrape is not None
    return ScrapeRules(
        selectors=selectors(scrape, "scrape"),
        path=scrape.path,
        port=scrape.port,
        every_ms=scrape.every_ms,
        timeout_ms=scrape.timeout_ms,
        ms_per_unit=1_000.0 if scrape.unit is Unit.SECONDS else 1.0,
        window_ms=document.window_ms,
    )


def _knock(document: TrafficDocument, probe: ProbeDocument) -> KnockRules:
    """HTTP where the plane speaks it, a connection elsewhere, unless the user says otherwise."""
    http = document.plane.kind in _HTTP_PLANES if probe.kind is None else probe.kind is Knock.HTTP
    return KnockRules(probe.path if http else None, probe.port, probe.timeout_ms)


def _check(check: CheckDocument) -> CheckRules:
    path = check.path if check.kind is Knock.HTTP else None
    knock = KnockRules(path, check.port, check.timeout_ms)
    return CheckRules(knock, check.every_ms, check.failures)


def _open_recorder(path: Path, warn: Callable[[str], None]) -> FlightRecorder:
    """A group's record. A damaged one is put aside: traffic does not wait for its past."""
    from fairlead.recorder import CorruptRecord, FileRecorder  # noqa: PLC0415 - as in `node`

    try:
        return FileRecorder(path, sync_each=False)
    except CorruptRecord as error:
        aside = path.with_name(f"{path.name}.damaged-{now_ms()}")
        path.rename(aside)
        warn(f"the record is damaged ({error}); it is kept as {aside}, and a new one begins")
    return FileRecorder(path, sync_each=False)


def _open_chronicle(
    document: TrafficDocument, name: str, warn: Callable[[str], None]
) -> Chronicle | None:
    if document.ledger is None:
        return None
    from fairlead.node.traffic.chronicle import LedgerChronicle  # noqa: PLC0415 - if configured

    return LedgerChronicle(_open_ledger(document, document.ledger), agent=name, fault=warn)


def _open_ledger(document: TrafficDocument, place: str) -> Ledger:
    """A ledger's file with its keys beside it, or a PostgreSQL database with keys of its own."""
    if place.startswith(("postgresql://", "postgres://")):
        from fairlead.ledger import KeyDirectory  # noqa: PLC0415 - see the package
        from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

        keys = document.ledger_keys or str(traffic_directory(document) / "keys")
        return PostgresLedger.open(place, KeyDirectory(Path(keys)))
    from fairlead.ledger.place import open_file  # noqa: PLC0415 - see the package

    return open_file(Path(place))
