"""Wires the controller of a cluster to its ledger."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from fairlead.api.access import Access
from fairlead.api.cluster_server import ClusterListen, ClusterServer, ControllerState
from fairlead.api.queries import Ask, Asker, answer
from fairlead.api.service import Service
from fairlead.compose.clock import machine_clock
from fairlead.engine.gpu import Author, Config, ControlPlane
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.host.clock import now_ms
from fairlead.host.process import keep_little
from fairlead.kube.client import KubeClient, RateLimit, connection
from fairlead.kube.controller import ClusterController, ControllerPart
from fairlead.kube.cpu.resizer import Resizer
from fairlead.kube.election import Election, Terms
from fairlead.kube.gpu.front import ADMIN, RUNS_MAX
from fairlead.kube.queries import SHARE, Queries, QueryAnswer, Question
from fairlead.kube.reviews import Reviews
from fairlead.kube.serving import ServingCertificate
from fairlead.ledger.keys import open_master
from fairlead.ledger.place import KEYS, open_up
from fairlead.ports.executor import Executor
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.ledger import Ledger


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
    max_runs: int = RUNS_MAX
    """Runs of a namespace that have not ended."""
    admin_namespace: str | None = None
    """Queries in this namespace are an admin's; None: there is none."""
    listen: ClusterListen | None = None
    """Where its HTTP server listens; None: it has none."""
    tls_service: str | None = None
    """Name of the Service whose certificate the controller issues; None: it issues none."""
    engine: Config = field(default_factory=Config)
    terms: Terms = field(default_factory=Terms)


def _service(plane: ControlPlane, ledger: Ledger, clock: LedgerClock) -> Service:
    access = Access(ledger, clock)
    plane.committer.after_checkpoint = access.keep
    return Service(plane, ledger, access, lambda *_: [], clock)


@contextmanager
def controller(
    config: KubeConfig, say: Callable[[str], None] = lambda _: None
) -> Iterator[ClusterController]:
    """The controller, ready to `run`."""
    keep_little()
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    limit = None if config.qps is None else RateLimit(config.qps, config.burst)
    to = connection(config.kubeconfig, context=config.context)
    # In a container every process is number 1, and on a host network every host name is the node's.
    identity = f"{socket.gethostname()}-{uuid4().hex[:8]}"
    namespace = config.namespace or to.namespace
    # A client of its own: the lease is renewed whatever else waits for the limit.
    election = Election(KubeClient(to), identity, namespace=namespace, terms=config.terms)
    client = KubeClient(to, limit, may_write=lambda: election.leads)
    with ExitStack() as opened:
        served = Served()

        def open_plane(executor: Executor) -> ControlPlane:
            """When it leads: a ledger has one writer at a time."""
            opening = open_up(config.data, config.ledger, take_over=True)
            ledger = opened.enter_context(opening)
            master = open_master(config.data / KEYS)
            clock = machine_clock(config.engine.clock, elsewhere=True)
            plane = ControlPlane(ledger, executor, clock, config.engine, master)
            served.service = _service(plane, ledger, clock)
            return plane

        def queries(client: KubeClient, wake: Callable[[], None]) -> ControllerPart:
            served.queries = Queries(
                client.apart(SHARE),
                wake,
                answer=served.answer,
                owner_of=lambda namespace: made.owner_of(namespace),  # noqa: PLW0108 - made below
                admin_namespace=config.admin_namespace,
            )
            return served.queries

        def resizer(client: KubeClient, wake: Callable[[], None]) -> ControllerPart:
            return Resizer(client, wake, say)

        made = ClusterController(
            client,
            election,
            open_plane,
            now_ms,
            image=config.image,
            runs_max=config.max_runs,
            parts=(resizer, queries),
            say=say,
        )
        if config.listen is None:
            yield made
            return
        bugs: list[BaseException] = []
        on_bug = partial(_stop_with, made, bugs)

        def state() -> ControllerState:
            counters = {
                "fairlead_kube_turns_total": made.turns,
                "fairlead_kube_turn_failures_total": made.failures,
                "fairlead_kube_requests_total": client.requests,
                "fairlead_kube_queries_total": served.answered,
                "fairlead_kube_pod_mismatches_total": made.auditor.mismatches
                if made.auditor
                else 0,
            }
            service = served.service if election.leads else None
            return ControllerState(service, election.holder, made.synced, counters)

        # A client of its own: who does not lead may not write, and a review is a POST.
        reviews = Reviews(KubeClient(to))
        listen = config.listen
        if config.tls_service is not None:
            serving = ServingCertificate(
                KubeClient(to), namespace, config.tls_service, config.data / "tls", say=say
            )
            serving.turn()
            serving.start()
            opened.callback(serving.stop)
            listen = replace(listen, certificate=serving.certificate, key=serving.key)
        server = ClusterServer(listen, state, reviews.of, on_bug)
        server.start()
        say(f"listens on {config.listen.host}:{server.port}")
        try:
            yield made
        finally:
            server.stop()
        if bugs:
            raise bugs[0]


def _stop_with(made: ClusterController, bugs: list[BaseException], error: BaseException) -> None:
    bugs.append(error)
    made.stop()


@dataclass(slots=True)
class Served:
    """The control plane as the API sees it, once this controller leads."""

    service: Service | None = None
    queries: Queries | None = None

    @property
    def answered(self) -> int:
        return 0 if self.queries is None else self.queries.answered

    def answer(self, asked: Question) -> QueryAnswer:
        if self.service is None:
            raise TemporaryFault("this controller does not lead yet")
        asker = Asker(ADMIN)
        if asked.owner is not None:
            author = Author(f"kubernetes:{asked.namespace}", frozenset({asked.owner}))
            asker = Asker(author, asked.namespace)
        ask = Ask(asked.method, asked.path, asked.query, asked.body)
        result = answer(self.service, asker, ask)
        return QueryAnswer(result.code, result.body.decode(), result.headers)
