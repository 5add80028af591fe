"""Where adapters meet engines: the only module that knows both sides of the ports."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fairlead.engine.cpu_loop import Turn
from fairlead.node.agent import Agent, NodeConfig, cpu_config
from fairlead.node.cgroups import CgroupFiles, open_files
from fairlead.node.host import CgroupHost, read_cgroup_host
from fairlead.node.sensor import PodRule
from fairlead.node.state import default_directory
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.recorder import Recorder
from fairlead.schema.node import NodeDocument

if TYPE_CHECKING:
    from fairlead.api.server import ControlServer
    from fairlead.engine.gpu import ControlPlane
    from fairlead.engine.gpu.herald import Herald
    from fairlead.executor.machine import MachineNode
    from fairlead.ledger.sqlite import SqliteLedger
    from fairlead.ports.ledger import Ledger

SOCKET = "fairlead.sock"
KEEP_OUTPUT_MS = 30 * 86_400_000


def node_agent(
    document: NodeDocument,
    *,
    dry_run: bool,
    report: Callable[[Turn, Agent], None],
    fault: Callable[[TemporaryFault], None],
) -> Agent:
    """An agent on this machine's cgroups, as configured."""
    files = node_files(document)
    config = NodeConfig(
        cpu=cpu_config(document, document.capacity_millicores or machine_millicores()),
        pattern=document.pattern,
        rules=tuple(
            PodRule(rule.match, rule.request_millicores, rule.priority, rule.opted_out)
            for rule in document.pods
        ),
        state_directory=node_directory(document),
        burst=document.burst,
        observe_only=document.observe_only,
        dry_run=dry_run,
    )
    return Agent(config, files=files, open_recorder=_open_recorder, report=report, fault=fault)


def node_files(document: NodeDocument) -> CgroupFiles:
    """The cgroup files below the configured root."""
    if document.root is None:
        raise PermanentFault("no root is configured; say which cgroup to govern with --root")
    host = read_cgroup_host()
    root = root_below(host, document.root)
    cpuacct = host.cpuacct_mount / root if host.cpuacct_mount is not None else None
    return open_files(host.version, host.cpu_mount / root, cpuacct)


def root_below(host: CgroupHost, root: str) -> str:
    """A root as the user says it (a path in the cgroup file system, or below it), relative."""
    inside = os.path.normpath(root)
    mount = str(host.cpu_mount)
    if inside == mount or inside.startswith(mount + "/"):
        inside = inside[len(mount) :]
    relative = inside.strip("/")
    if relative in ("", ".") or relative.split("/")[0] == "..":
        raise PermanentFault(f"{root!r}: the root must be a cgroup below {mount}, not all of it")
    return relative


def node_directory(document: NodeDocument) -> Path:
    """Where the agent keeps its state."""
    return Path(document.state_dir) if document.state_dir else default_directory()


def machine_millicores() -> int:
    """The CPUs this machine has online."""
    return (os.cpu_count() or 1) * 1000


def _open_recorder(path: Path) -> Recorder:
    from fairlead.recorder import FileRecorder  # noqa: PLC0415 - a dry run needs none

    # A start reads the newest segment again: 1 MiB of it takes half a second, 4 MiB two.
    return FileRecorder(path, segment_bytes=2**20, segment_count=64)


@dataclass(frozen=True, slots=True)
class UpConfig:
    """How `fairlead up` runs the embedded control plane."""

    data: Path
    port: int | None = None
    allow_root: bool = False
    grace_ms: int = 30_000
    socket: Path | None = None
    socket_mode: int | None = None
    """None: 0660 where the socket belongs to a group, else everybody may knock."""
    socket_group: int | None = None
    discover: bool = True
    """Whether this machine's NVIDIA devices become a Node, unless one has its name already."""
    resolver: Literal["off", "dry-run", "enforce"] = "dry-run"
    """Whether anybody is made to give way for reservations."""
    may_resolve: frozenset[str] = frozenset()
    """Owners that may start runs by others giving way, without a reservation."""
    owner_weighting: Literal["owners", "tokens"] = "owners"
    """Between whom the lottery is fair."""
    beacon: tuple[str, int, int] | None = None
    """A public source of chance: its name, its first round's time and its period, in ms."""
    keep_output_ms: int | None = KEEP_OUTPUT_MS
    """How long the output of a run is kept after its end; None: for good."""
    ledger: str | None = None
    """The address of a PostgreSQL database; None: the ledger is a file in `data`."""
    webhooks: Path | None = None
    """Who is told what happens: see `fairlead.schema.webhooks`."""

    @property
    def socket_path(self) -> Path:
        """Where the command line finds it."""
        return self.socket or self.data / SOCKET


@contextmanager
def control_server(config: UpConfig) -> Iterator["ControlServer"]:
    """The whole embedded control plane in one process, ready to `run`."""
    # All of these here: the web stack and what is under it cost other commands their start.
    from fairlead.api.access import Access  # noqa: PLC0415
    from fairlead.api.server import ControlServer, Listen  # noqa: PLC0415
    from fairlead.api.service import Service  # noqa: PLC0415
    from fairlead.core.lottery import OwnerWeighting  # noqa: PLC0415
    from fairlead.engine.gpu import Config, ControlPlane  # noqa: PLC0415
    from fairlead.engine.gpu.control import Beacon  # noqa: PLC0415
    from fairlead.executor import LocalExecutor, discover  # noqa: PLC0415
    from fairlead.executor.machine import host_name, machine_nodes, visible  # noqa: PLC0415
    from fairlead.ledger.master import open_master  # noqa: PLC0415
    from fairlead.ledger.place import KEYS, open_up  # noqa: PLC0415

    try:
        # Others have to reach the socket; the ledger, its keys and the runs have their own modes.
        config.data.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise PermanentFault(f"cannot make {config.data}: {error.strerror}") from error
    found, host = discover(), host_name()
    with open_up(config.data, config.ledger) as ledger:
        executor = LocalExecutor(
            config.data / "runs", allow_root=config.allow_root, visible=visible(found, host)
        )
        settings = Config(
            grace_ms=config.grace_ms, resolver=config.resolver, may_resolve=config.may_resolve,
            beacon=None if config.beacon is None else Beacon(*config.beacon),
            owner_weighting=OwnerWeighting(config.owner_weighting),
        )  # fmt: skip
        plane = ControlPlane(ledger, executor, _now_ms, settings, open_master(config.data / KEYS))
        if config.discover:
            declare_machine(plane, host, machine_nodes(found, host))
        keep_ms = config.keep_output_ms

        def prune() -> None:
            if keep_ms is not None:
                executor.prune(_now_ms() - keep_ms, living=plane.living())

        service = Service(plane, ledger, Access(ledger, _now_ms), executor.log_parts, _now_ms,
                          prune)  # fmt: skip
        mode = config.socket_mode or (0o666 if config.socket_group is None else 0o660)
        listen = Listen(config.socket_path, config.port, mode, config.socket_group)
        with heralded(config.webhooks, ledger, plane):
            yield ControlServer(service, listen)


@contextmanager
def heralded(webhooks: Path | None, ledger: "Ledger", plane: "ControlPlane") -> Iterator[None]:
    """Tell the receivers of a file what happens, in a thread of its own, until the end."""
    if webhooks is None:
        yield
        return
    from fairlead.engine.gpu.herald import Herald, Subscription  # noqa: PLC0415
    from fairlead.notify.webhook import Receiver, WebhookNotifier, read_secret  # noqa: PLC0415
    from fairlead.schema.webhooks import read_webhooks  # noqa: PLC0415

    try:
        found = read_webhooks(webhooks.read_bytes())
    except OSError as error:
        raise PermanentFault(f"cannot read {webhooks}: {error.strerror}") from error
    notifier = WebhookNotifier(
        Receiver(each.name, each.url, read_secret(Path(each.secret_file)), each.allow_private)
        for each in found
    )
    wanted = [Subscription(each.name, frozenset(each.owners), tuple(each.kinds)) for each in found]
    herald = Herald(ledger, plane.events, notifier, wanted, newest=plane.seq)
    stop = threading.Event()
    thread = threading.Thread(target=_herald, args=(herald, stop), name="herald", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=15)


def _herald(herald: "Herald", stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(Fault):  # the ledger is busy or full: at the next turn
            herald.turn(_now_ms())
        stop.wait(1)


def declare_machine(plane: "ControlPlane", host: str, nodes: "list[MachineNode]") -> None:
    """Make nodes of this machine's devices; what an operator declared is left alone."""
    from fairlead.engine.gpu import Author  # noqa: PLC0415
    from fairlead.schema.objects import API_VERSION  # noqa: PLC0415

    if any(plane.get("Node", name) is not None for name in (host, *(each.name for each in nodes))):
        return
    plane.apply_all(
        [
            {
                "apiVersion": API_VERSION, "kind": "Node",
                "metadata": {"name": each.name, "labels": {"product": each.devices[0].name}},
                "spec": {"flavor": each.flavor, "devices": len(each.devices)},
            }
            for each in nodes
        ],
        author=Author("fairlead", admin=True),
    )  # fmt: skip


@contextmanager
def archivable(path: Path, last: int) -> Iterator["SqliteLedger"]:
    """A ledger whose entries up to `last` may go to an archive: what they led to is kept first.

    Without that the control plane could not start again: it would have to fold what is gone. What
    an open outcome was committed to stays, or it could neither be drawn nor given up.
    """
    from fairlead.engine.gpu import ControlPlane  # noqa: PLC0415
    from fairlead.ledger.place import open_file  # noqa: PLC0415

    with open_file(path) as ledger:
        if ledger.last("object.applied") is not None:
            plane = ControlPlane(ledger, None, _now_ms)
            plane.checkpoint()
            oldest = plane.oldest_open_outcome()
            if oldest is not None and oldest <= last:
                raise PermanentFault(f"outcome {oldest} is not over: archive up to {oldest - 1}")
        yield ledger


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
