"""Wires the embedded control plane to its ledger, executor, server and webhooks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from fairlead.api.access import Access
from fairlead.api.server import ControlServer, Listen
from fairlead.api.service import Service
from fairlead.core.gpu import PreemptionPolicy, QuotaPolicy
from fairlead.core.lottery import BeaconNetwork, OwnerWeighting
from fairlead.engine.gpu import Author, Config, ControlPlane, HostNodes
from fairlead.engine.gpu.hosts import foreign_nodes
from fairlead.engine.gpu.notifications import Notifications, Subscription
from fairlead.executor.devices import (
    MachineNode,
    discover,
    host_name,
    machine_nodes,
    minors,
    slots,
    visible,
)
from fairlead.executor.local import LocalExecutor
from fairlead.executor.meter import NvmlMeter
from fairlead.host.clock import now_ms
from fairlead.ledger.keys import open_master
from fairlead.ledger.place import KEYS, open_up
from fairlead.ledger.seen import remember
from fairlead.notify.webhook import Receiver, WebhookNotifier, read_secret
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Ledger
from fairlead.schema.objects import API_VERSION
from fairlead.schema.webhooks import read_webhooks

SOCKET = "fairlead.sock"
PRUNE_S, NOTIFY_S, REMEMBER_S = 3600.0, 1.0, 60.0


@dataclass(frozen=True, slots=True)
class UpConfig:
    """How `fairlead up` runs the embedded control plane; its options explain the fields."""

    data: Path
    port: int | None = None
    allow_root: bool = False
    grace_ms: int = 30_000
    max_grace_ms: int = 600_000
    socket: Path | None = None
    socket_mode: int | None = None
    """None: 0660 with a group, else 0666."""
    socket_group: int | None = None
    idle_after_ms: int | None = None
    idle_release: bool = False
    discover: bool = True
    """Whether this machine's NVIDIA devices become a Node, unless one of its name exists."""
    resolver: Literal["off", "dry-run", "enforce"] = "dry-run"
    may_resolve: frozenset[str] = frozenset()
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    quota: QuotaPolicy = field(default_factory=QuotaPolicy)
    requests_per_s: int | None = 50
    """Of one user that is no admin; None: not bounded."""
    owner_weighting: Literal["owners", "tokens", "stake"] = "owners"
    beacon: BeaconNetwork | None = None
    """A public network that signs a round of randomness every few seconds."""
    keep_output_ms: int | None = 30 * 86_400_000
    """None: for good."""
    ledger: str | None = None
    """The address of a PostgreSQL database; None: the ledger is a file in `data`."""
    webhooks: Path | None = None

    @property
    def socket_path(self) -> Path:
        return self.socket or self.data / SOCKET


@contextmanager
def control_server(config: UpConfig) -> Iterator[ControlServer]:
    try:
        # Other users must reach the socket; the ledger, its keys and the runs have their own modes.
        config.data.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise PermanentFault(f"cannot create {config.data}: {error.strerror}") from error
    devices, host = discover(), host_name()
    nodes = machine_nodes(devices, host)
    with open_up(config.data, config.ledger) as ledger:
        executor = LocalExecutor(
            config.data / "runs",
            allow_root=config.allow_root,
            visible=visible(devices, host),
            minors=minors(devices, host),
        )
        settings = Config(
            grace_ms=config.grace_ms,
            max_grace_ms=config.max_grace_ms,
            resolver=config.resolver,
            may_resolve=config.may_resolve,
            preemption=config.preemption,
            quota=config.quota,
            beacon=config.beacon,
            owner_weighting=OwnerWeighting(config.owner_weighting),
            idle_after_ms=config.idle_after_ms,
            idle_release=config.idle_release,
            host=HostNodes(
                {node.name: len(node.devices) for node in nodes},
                devices.note,
                executor.controls.words(),
            ),
        )
        meter = NvmlMeter(slots(devices, host) if devices.source == "nvml" else {})
        chance = open_master(config.data / KEYS)
        plane = ControlPlane(ledger, executor, now_ms, settings, chance, meter=meter)
        if config.discover:
            declare_machine(plane, host, nodes)
        retire_foreign(plane)
        chores = list[tuple[Callable[[], object], float]]()
        if config.keep_output_ms is not None:
            keep_ms = config.keep_output_ms
            living = plane.reports.living
            chores.append((lambda: executor.prune(now_ms() - keep_ms, living=living()), PRUNE_S))
        if config.webhooks is not None:
            notifications = _notifications(config.webhooks, ledger, plane)
            chores.append((lambda: notifications.turn(now_ms()), NOTIFY_S))
        chores.append((lambda: remember(ledger, config.data), REMEMBER_S))
        access = Access(ledger, now_ms)
        plane.committer.after_checkpoint = access.keep
        parts = executor.log_parts
        service = Service(
            plane,
            ledger,
            access,
            parts,
            now_ms,
            tuple(chores),
            requests_per_s=config.requests_per_s,
            console=executor,
        )
        mode = config.socket_mode or (0o666 if config.socket_group is None else 0o660)
        listen = Listen(config.socket_path, config.port, mode, config.socket_group)
        yield ControlServer(service, listen)


def _notifications(webhooks: Path, ledger: Ledger, plane: ControlPlane) -> Notifications:
    """The events that the receivers of a file get."""
    try:
        receivers = read_webhooks(webhooks.read_bytes())
    except OSError as error:
        raise PermanentFault(f"cannot read {webhooks}: {error.strerror}") from error
    notifier = WebhookNotifier(
        Receiver(row.name, row.url, read_secret(Path(row.secret_file)), row.allow_private)
        for row in receivers
    )
    wanted = [Subscription(row.name, frozenset(row.owners), tuple(row.kinds)) for row in receivers]
    return Notifications(ledger, plane.events.read, notifier, wanted, newest=plane.seq)


def declare_machine(plane: ControlPlane, host: str, nodes: list[MachineNode]) -> None:
    """Declare nodes for this machine's devices, unless an operator has declared them."""
    if any(
        plane.objects.get("Node", name) is not None
        for name in (host, *(node.name for node in nodes))
    ):
        return
    plane.objects.apply_all(
        [
            {
                "apiVersion": API_VERSION,
                "kind": "Node",
                "metadata": {"name": node.name, "labels": {"product": node.devices[0].name}},
                "spec": {"flavor": node.flavor, "devices": len(node.devices)},
            }
            for node in nodes
        ],
        author=Author("fairlead", admin=True),
    )


def retire_foreign(plane: ControlPlane) -> None:
    """Nodes that an earlier version let in and that are not this host: their runs go on, and none
    is placed there any more. An operator makes them virtual, or removes them."""
    for name, why in foreign_nodes(plane.committer.projection, plane.config.host).items():
        plane.verbs.act("Node", name, "cordon", author=Author("fairlead", admin=True))
        plane.faults[f"*node {name}"] = why
        structlog.get_logger("fairlead.gpu").warning("node.foreign", node=name, why=why)
