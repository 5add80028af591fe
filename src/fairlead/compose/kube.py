"""Wires the controller of a cluster to its ledger."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.engine.gpu import Config, ControlPlane
from fairlead.host.clock import now_ms
from fairlead.kube.client import KubeClient, RateLimit, connection
from fairlead.kube.controller import ClusterController
from fairlead.kube.cpu.resizer import Resizer
from fairlead.kube.election import Election
from fairlead.ledger.keys import open_master
from fairlead.ledger.place import KEYS, open_up
from fairlead.ports.executor import Executor


@dataclass(frozen=True, slots=True)
class KubeConfig:
    """How `fairlead kube controller` runs."""

    data: Path
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    """Where its lease is; None: the kubeconfig's."""
    ledger: str | None = None
    """The address of a PostgreSQL database; None: the ledger is a file in `data`."""
    image: str | None = None
    """The image of runs that have a command and no template."""
    qps: float | None = 50.0
    """Requests to the API server a second; None: as many as it takes."""
    burst: int = 100
    engine: Config = field(default_factory=Config)


@contextmanager
def controller(
    config: KubeConfig, say: Callable[[str], None] = lambda _: None
) -> Iterator[ClusterController]:
    """The controller, ready to `run`."""
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    limit = None if config.qps is None else RateLimit(config.qps, config.burst)
    client = KubeClient(connection(config.kubeconfig, context=config.context), limit)
    identity = f"{socket.gethostname()}-{os.getpid()}"
    election = Election(client, identity, namespace=config.namespace or client.namespace)
    with ExitStack() as opened:

        def open_plane(executor: Executor) -> ControlPlane:
            """When it leads: a ledger has one writer at a time."""
            ledger = opened.enter_context(open_up(config.data, config.ledger))
            master = open_master(config.data / KEYS)
            return ControlPlane(ledger, executor, now_ms, config.engine, master)

        yield ClusterController(
            client,
            election,
            open_plane,
            now_ms,
            image=config.image,
            parts=(lambda client, wake: Resizer(client, wake, say),),
            say=say,
        )
