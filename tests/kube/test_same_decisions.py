"""The same scenario through the embedded control plane and through Kubernetes: the same ledger."""

from typing import Any

from fairlead.core.canonical import canonical
from fairlead.engine.gpu import Author, Config, ControlPlane
from fairlead.kube.client import KubeClient, connection
from fairlead.kube.controller import ClusterController
from fairlead.kube.election import Election
from fairlead.ports.executor import Executor
from fairlead.ports.ledger import Ledger
from tests.engine.gpu import worlds as embedded
from tests.engine.gpu.resolving import CHANCE
from tests.kube.conftest import GPUS, NODES
from tests.kube.world import World, made, node, run, team, until
from tests.ledger.memory import MemoryLedger

SETTINGS = Config(resolver="enforce", grace_ms=1000, preemption=embedded.LENIENT)
SMALL = [f"small-{i}" for i in range(8)]
_OWN = ("labels", "commit_head")
"""By the labels the controller knows its objects; a head names its ledger and is signed."""
RESERVE = {"run": "big", "earliestStart": "2026-01-01T01:00:00Z"}


class InKubernetes:
    """Turns taken by hand, after the watches have told what the test did."""

    def __init__(self, world: World) -> None:
        self._world, self.now_ms = world, embedded.START
        self.ledger: Ledger = MemoryLedger(time_ms=embedded.START)
        client = KubeClient(connection(world.kubeconfig))

        def open_plane(executor: Executor) -> ControlPlane:
            return ControlPlane(self.ledger, executor, lambda: self.now_ms, SETTINGS, CHANCE)

        election = Election(client, "test", namespace="default")
        self._controller = ClusterController(client, election, open_plane, lambda: self.now_ms)
        self._controller.sync()

    def submit(self, *documents: dict[str, Any]) -> None:
        self._world.apply(*documents)
        sources = self._controller.sources
        wanted = {(f"{row['kind'].lower()}s", row["metadata"]["name"]) for row in documents}

        def seen() -> bool:
            names = {
                (source.path.rpartition("/")[2], key.name)
                for source in sources.all()
                for key in source.all()
            }
            return wanted <= names

        until(seen, "the controller has seen it")

    def end(self, name: str, code: int) -> None:
        pods, pod = self._controller.sources.pods, f"{name}-0"
        until(lambda: any(key.name == pod for key in pods.known()), f"{pod} is made")
        self._world.exit(pod, code)
        ended = "Succeeded" if code == 0 else "Failed"

        def seen() -> bool:
            return any(
                key.name == pod and row["status"]["phase"] == ended
                for key, row in pods.all().items()
            )

        until(seen, f"{name} has ended")

    def await_evicted(self, names: list[str]) -> None:
        def gone() -> bool:
            there = {key.name for key in self._controller.sources.pods.all()}
            return not {f"{name}-0" for name in names} & there

        until(gone, "the preempted pods are gone")

    def close(self) -> None:
        self._controller.stop()

    def turn(self, hours: float = 0) -> None:
        self.now_ms += int(hours * embedded.HOUR)
        self._controller.turn()


def test_the_same_scenario_gives_the_same_entries(world: World) -> None:
    """Bodies, inputs, plan ids and times, byte for byte; a lottery and a preemption included."""
    plain, cluster = embedded.World(config=SETTINGS, chance=CHANCE), InKubernetes(world)
    documents = [node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8)]
    runs = [run(name, 1) for name in SMALL]
    cluster.submit(*documents, *runs)
    location = {"zone": "z1"}
    plain.apply(
        *(embedded.node(f"gpu-{i:04d}", GPUS, flavor="gpu") for i in range(NODES)),
        embedded.node("n1", location=location),
    )
    # What the controller takes of one kind in a turn is one step.
    budgets = [
        embedded.budget(owner, owner, embedded.envelope("main")) for owner in ("team-a", "team-b")
    ]
    for together in (budgets, [as_embedded(document) for document in runs]):
        plain.plane.objects.apply_all(together, author=embedded.ADMIN)
    both = (plain, cluster)
    for each in both:
        each.turn()
    cluster.end("small-0", 0)
    cluster.end("small-1", 3)
    plain.executor.end("team-a.small-0", plain.now_ms + embedded.HOUR, code=0)
    plain.executor.end("team-a.small-1", plain.now_ms + embedded.HOUR, code=3, reason="rank 0")
    for each in both:
        each.turn(1)
    big, reservation = run("big", 4, "team-b"), made("Reservation", "soon", RESERVE, "team-b")
    cluster.submit(big, reservation)
    slot = embedded.manifest("Reservation", "team-b.soon", {**RESERVE, "run": "team-b.big"})
    tenant = Author("team-b", frozenset({"team-b"}))  # an admin is exempt from the notice
    for document in (as_embedded(big), slot):
        plain.plane.objects.apply(document, author=tenant)
    for each in both:
        each.turn()
    stopped = sorted({call[1] for call in plain.executor.calls if call[0] == "stop"})
    assert len(stopped) == 2, "two of six are preempted: two devices were free"
    cluster.await_evicted([name.partition(".")[2] for name in stopped])
    for name in stopped:
        plain.executor.end(name, plain.now_ms, signal=15)
    for each in both:
        each.turn()
        each.turn()
    ours, theirs = (entries(each.ledger) for each in both)
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
    assert plain.status("Run", "team-b.big")["phase"] == "Running"
    cluster.close()


def as_embedded(document: dict[str, Any]) -> dict[str, Any]:
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    spec = {key: value for key, value in document["spec"].items() if key != "template"}
    spec |= {"owner": namespace, "command": ["entrypoint of busybox"]}
    return embedded.manifest("Run", f"{namespace}.{name}", spec)


def entries(ledger: Ledger) -> list[bytes]:
    """Everything but who asked, and what is each ledger's own."""
    found = []
    for entry in ledger.entries(0, 100_000):
        if entry.kind.startswith("ledger."):
            continue
        body = {key: value for key, value in entry.body.items() if key not in _OWN}
        found.append(canonical([entry.seq, entry.time_ms, entry.kind, entry.plan_id, body]))
    return found
