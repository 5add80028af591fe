"""Wires the embedded control plane to its ledger, executor, server and webhooks."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fairlead.api.access import Access
from fairlead.api.server import ControlServer, Listen, Listeners
from fairlead.api.service import Service
from fairlead.compose.clock import machine_clock
from fairlead.compose.split import ControlUser, LauncherProcess, become, prepare_directory
from fairlead.compose.tracing import decision_spans, traced, tracing
from fairlead.core.gpu import PreemptionPolicy, QuotaPolicy
from fairlead.core.gpu.clock import ClockPolicy
from fairlead.core.invariant import known
from fairlead.core.lottery import BeaconNetwork, OwnerWeighting
from fairlead.engine.gpu import Author, Config, ControlPlane, HostNodes
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.hosts import foreign_nodes
from fairlead.engine.gpu.notifications import Notifications, Subscription
from fairlead.engine.gpu.quota import SEVERAL_OWNERS, owners_of
from fairlead.engine.gpu.state import RunState
from fairlead.executor.devices import (
    Discovery,
    MachineNode,
    NvmlMeter,
    discover,
    host_name,
    machine_nodes,
    minors,
    slots,
    visible,
)
from fairlead.executor.local import LocalExecutor
from fairlead.executor.proofs import LedgerEvidence, RunFacts
from fairlead.executor.remote import GONE, RemoteExecutor
from fairlead.host.log import Log
from fairlead.ledger.keys import open_master
from fairlead.ledger.place import KEYS, open_up
from fairlead.ledger.seen import remember
from fairlead.node.doctor.checks import FREE_MIN_BYTES
from fairlead.notify.webhook import Receiver, WebhookNotifier, read_secret
from fairlead.ports.executor import Executor
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Ledger
from fairlead.schema.objects import API_VERSION
from fairlead.schema.webhooks import read_webhooks

SOCKET, RUNS = "fairlead.sock", "runs"
PRUNE_S, NOTIFY_S, REMEMBER_S, ROOM_S = 3600.0, 1.0, 60.0, 60


@dataclass(frozen=True, slots=True)
class UpConfig:
    """How `fairlead up` runs the embedded control plane; its options explain the fields."""

    data: Path
    port: int | None = None
    allow_root: bool = False
    root_as: int | None = None
    """Whose processes root's runs are, where root's own are not allowed; None: they are refused."""
    grace_ms: int = 30_000
    max_grace_ms: int = 600_000
    max_clock_jump_ms: int = 300_000
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
    single_owner: bool = False
    """Whether a second owner is refused: runs have the rights of the control plane."""
    user: ControlUser | None = None
    """Whom the control plane becomes, while a launcher stays root; None: one process."""
    traces: str | None = None
    """The address of an OTLP/HTTP collector; None: nothing is traced."""
    run_users: int | None = None
    """The group whose members run commands; None: any user but system accounts."""

    @property
    def socket_path(self) -> Path:
        return self.socket or self.data / SOCKET


RunExecutor = LocalExecutor | RemoteExecutor


@dataclass(slots=True)
class _Machine:
    """What starts the runs, and the sockets."""

    connect: Callable[[Ledger, Callable[[], ControlPlane], LedgerClock], RunExecutor]
    listeners: Listeners
    on_end: Callable[[Callable[[], object]], None] = lambda call: None
    """Calls back when runs can no more be started."""


@contextmanager
def control_server(config: UpConfig) -> Iterator[ControlServer]:
    devices, host = discover(), host_name()
    start = _whole if config.user is None else _split
    with (
        start(config, visible(devices, host), minors(devices, host)) as machine,
        open_up(config.data, config.ledger) as ledger,
        tracing(config.traces) as tracer,
    ):
        made = list[ControlPlane]()
        clock = machine_clock(ClockPolicy(jump_ms=config.max_clock_jump_ms))
        executor = machine.connect(ledger, lambda: made[0], clock)
        applied = traced(executor, tracer)
        isolation = executor.isolation
        plane = _plane(
            config, ledger, applied, clock, isolation=isolation, devices=devices, host=host
        )
        made.append(plane)
        if config.traces is not None:
            plane.committer.listen(decision_spans(tracer))
        service = _service(config, ledger, plane, executor)
        service.tracer = tracer
        server = ControlServer(service, machine.listeners)
        machine.on_end(lambda: server.fail(PermanentFault(GONE)))
        yield server


@contextmanager
def _listening(config: UpConfig, prepare: Callable[[], None]) -> Iterator[Listeners]:
    """The sockets, before the first file: where a port is taken, no directory is left behind."""
    is_new = not config.data.exists()
    prepare()
    mode = config.socket_mode or (0o666 if config.socket_group is None else 0o660)
    try:
        listeners = Listeners(Listen(config.socket_path, config.port, mode, config.socket_group))
    except PermanentFault:
        with suppress(OSError):  # something else is in it
            for made in (config.data / RUNS, config.data) if is_new else ():
                if made.exists():
                    made.rmdir()
        raise
    try:
        yield listeners
    finally:
        listeners.close()


@contextmanager
def _whole(
    config: UpConfig, visible: Mapping[str, str], minors: Mapping[str, int]
) -> Iterator[_Machine]:
    """One process, which starts the runs itself."""

    def prepare() -> None:
        try:
            # Others must reach the socket; the ledger, its keys and the runs have their own modes.
            config.data.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise PermanentFault(f"cannot create {config.data}: {error.strerror}") from error

    def connect(
        ledger: Ledger, plane: Callable[[], ControlPlane], clock: LedgerClock
    ) -> LocalExecutor:
        return LocalExecutor(
            config.data / RUNS,
            allow_root=config.allow_root,
            root_as=config.root_as,
            visible=visible,
            minors=minors,
            now_ms=clock,
        )

    with _listening(config, prepare) as listeners:
        yield _Machine(connect, listeners)


@contextmanager
def _split(
    config: UpConfig, visible: Mapping[str, str], minors: Mapping[str, int]
) -> Iterator[_Machine]:
    """A launcher that stays root; from here on this process is the control plane's user."""
    user, runs = known(config.user, "a split has a user"), config.data / RUNS
    with _listening(config, lambda: prepare_directory(config.data, runs, user)) as listeners:
        listeners.give(user.uid)
        launcher = LauncherProcess(
            runs,
            user,
            allow_root=config.allow_root,
            visible=visible,
            minors=minors,
            run_users=config.run_users,
        )

        def connect(
            ledger: Ledger, plane: Callable[[], ControlPlane], clock: LedgerClock
        ) -> RemoteExecutor:
            evidence = LedgerEvidence(
                ledger, lambda run: run_facts(plane().committer.projection.runs.get(run))
            )
            return RemoteExecutor(launcher.channels, evidence, clock)

        try:
            become(user)
            yield _Machine(connect, listeners, launcher.watch)
        finally:
            launcher.close()


def run_facts(state: RunState | None) -> RunFacts:
    """What the evidence of a run's decisions consists of."""
    if state is None:
        return RunFacts()
    about = (state.stop_seq, state.pause_seq, state.width_seq)
    found = tuple(seq for seq in about if seq is not None)
    return RunFacts(state.submitted_seq, tuple(state.leases), found)


def _plane(
    config: UpConfig,
    ledger: Ledger,
    executor: Executor,
    clock: LedgerClock,
    *,
    isolation: str,
    devices: Discovery,
    host: str,
) -> ControlPlane:
    nodes = machine_nodes(devices, host)
    settings = Config(
        grace_ms=config.grace_ms,
        max_grace_ms=config.max_grace_ms,
        clock=clock.policy,
        resolver=config.resolver,
        may_resolve=config.may_resolve,
        preemption=config.preemption,
        quota=config.quota,
        single_owner=config.single_owner,
        beacon=config.beacon,
        owner_weighting=OwnerWeighting(config.owner_weighting),
        idle_after_ms=config.idle_after_ms,
        idle_release=config.idle_release,
        host=HostNodes({node.name: len(node.devices) for node in nodes}, devices.note, isolation),
    )
    meter = NvmlMeter(slots(devices, host) if devices.source == "nvml" else {})
    chance = open_master(config.data / KEYS)
    plane = ControlPlane(ledger, executor, clock, settings, chance, meter=meter)
    with suppress(Fault):  # no room for it: then there is none for a token either
        # Tokens and users are recorded beside the committer, maybe before the first turn.
        plane.committer.record_boot()
    owners = owners_of(plane.committer.projection)
    if config.single_owner and len(owners) > 1:
        raise PermanentFault(f"{SEVERAL_OWNERS}: {', '.join(sorted(owners))}")
    if config.discover:
        declare_machine(plane, host, nodes)
    retire_foreign(plane)
    return plane


def _service(
    config: UpConfig, ledger: Ledger, plane: ControlPlane, executor: RunExecutor
) -> Service:
    clock = plane.committer.clock
    chores = list[tuple[Callable[[], object], float]]()
    if config.keep_output_ms is not None:
        keep_ms = config.keep_output_ms
        living = plane.reports.living
        chores.append((lambda: executor.prune(clock() - keep_ms, living=living()), PRUNE_S))
    if config.webhooks is not None:
        notifications = _notifications(config.webhooks, ledger, plane)
        chores.append((lambda: notifications.turn(clock()), NOTIFY_S))
    chores.append((lambda: remember(ledger, config.data), REMEMBER_S))
    chores.append((lambda: check_room(config.data), ROOM_S))
    access = Access(ledger, clock)
    plane.committer.after_checkpoint = access.keep
    if isinstance(executor, RemoteExecutor):
        access.users_change, access.after_keep = executor.users_change, executor.show_users
    parts = executor.log_parts
    return Service(
        plane,
        ledger,
        access,
        parts,
        clock,
        tuple(chores),
        requests_per_s=config.requests_per_s,
        console=executor,
    )


def check_room(folder: Path) -> None:
    """Raises where the disk is full: without it an idle control plane says so at the next entry."""
    if shutil.disk_usage(folder).free < FREE_MIN_BYTES:
        raise TemporaryFault(
            f"the file system of {folder} has less than {FREE_MIN_BYTES // 2**20} MiB free: "
            "free some space, or entries cannot be recorded",
            retry_after_ms=ROOM_S * 1000,
        )


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
        Log("fairlead.gpu").warning("node.foreign", node=name, why=why)
