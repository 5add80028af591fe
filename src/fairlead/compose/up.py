"""Where the embedded control plane meets its ledger, its executor and the web."""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.api.access import Access
from fairlead.api.server import ControlServer, Listen
from fairlead.api.service import Service
from fairlead.core.lottery import OwnerWeighting
from fairlead.engine.gpu import Author, BeaconSource, Config, ControlPlane
from fairlead.engine.gpu.notifications import Notifications, Subscription
from fairlead.executor import LocalExecutor, discover
from fairlead.executor.devices import MachineNode, host_name, machine_nodes, visible
from fairlead.ledger.master import open_master
from fairlead.ledger.place import KEYS, open_up
from fairlead.notify.webhook import Receiver, WebhookNotifier, read_secret
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.ledger import Ledger
from fairlead.schema.objects import API_VERSION
from fairlead.schema.webhooks import read_webhooks

SOCKET = "fairlead.sock"
KEEP_OUTPUT_MS = 30 * 86_400_000


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
def control_server(config: UpConfig) -> Iterator[ControlServer]:
    """The whole embedded control plane in one process, ready to `run`."""
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
            grace_ms=config.grace_ms,
            resolver=config.resolver,
            may_resolve=config.may_resolve,
            beacon=None if config.beacon is None else BeaconSource(*config.beacon),
            owner_weighting=OwnerWeighting(config.owner_weighting),
        )
        plane = ControlPlane(ledger, executor, _now_ms, settings, open_master(config.data / KEYS))
        if config.discover:
            declare_machine(plane, host, machine_nodes(found, host))
        keep_ms = config.keep_output_ms

        def prune() -> None:
            if keep_ms is not None:
                executor.prune(_now_ms() - keep_ms, living=plane.reports.living())

        service = Service(
            plane, ledger, Access(ledger, _now_ms), executor.log_parts, _now_ms, prune
        )
        mode = config.socket_mode or (0o666 if config.socket_group is None else 0o660)
        listen = Listen(config.socket_path, config.port, mode, config.socket_group)
        with heralded(config.webhooks, ledger, plane):
            yield ControlServer(service, listen)


@contextmanager
def heralded(webhooks: Path | None, ledger: Ledger, plane: ControlPlane) -> Iterator[None]:
    """Tell the receivers of a file what happens, in a thread of its own, until the end."""
    if webhooks is None:
        yield
        return
    try:
        found = read_webhooks(webhooks.read_bytes())
    except OSError as error:
        raise PermanentFault(f"cannot read {webhooks}: {error.strerror}") from error
    notifier = WebhookNotifier(
        Receiver(each.name, each.url, read_secret(Path(each.secret_file)), each.allow_private)
        for each in found
    )
    wanted = [Subscription(each.name, frozenset(each.owners), tuple(each.kinds)) for each in found]
    herald = Notifications(ledger, plane.events.read, notifier, wanted, newest=plane.seq)
    stop = threading.Event()
    thread = threading.Thread(target=_herald, args=(herald, stop), name="herald", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=15)


def _herald(herald: Notifications, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(Fault):  # the ledger is busy or full: at the next turn
            herald.turn(_now_ms())
        stop.wait(1)


def declare_machine(plane: ControlPlane, host: str, nodes: list[MachineNode]) -> None:
    """Make nodes of this machine's devices; what an operator declared is left alone."""
    if any(
        plane.objects.get("Node", name) is not None
        for name in (host, *(each.name for each in nodes))
    ):
        return
    plane.objects.apply_all(
        [
            {
                "apiVersion": API_VERSION,
                "kind": "Node",
                "metadata": {"name": each.name, "labels": {"product": each.devices[0].name}},
                "spec": {"flavor": each.flavor, "devices": len(each.devices)},
            }
            for each in nodes
        ],
        author=Author("fairlead", admin=True),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
