"""Random schedules of faults in one cluster: each ends as it would have without them.

    with arena(folder) as made:
        played = made.play(seed)          # raises `Failed`, with the path of a report

A proxy cuts connections and watches, delays, repeats and swaps; beside it the API server and etcd
are killed, leaders are killed and halted, nodes go and return, pods are deleted behind our back,
others' webhooks and quotas refuse, and the kinds are upgraded. Every schedule has namespaces and a
ledger of its own. Every other one has its ledger in PostgreSQL, and a second replica.

`python -m tests.kube.fault_soak 8 101` plays single seeds; reports go to `out/kube-faults`.
"""

import json
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.kube.client import ApiError, KubeClient, connection
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.gpu.ranks import DECISION
from fairlead.kube.kinds import KINDS, crds
from fairlead.ledger.place import open_for_reading
from fairlead.ports.faults import Fault
from tests.kube.chronicle import Chronicle
from tests.kube.disasters import Disasters
from tests.kube.faulty import Faults
from tests.kube.replicas import Replicas
from tests.kube.witness import Witness
from tests.kube.world import Document, World, due_now, made, node, run, team, until
from tests.ledger.postgres_server import server

RUNS, GPUS, STRIKES, STAYING = 8, 4, 3, 10
NODES = ("n1", "n2", "n3", "n4")
PASSES_S, LEFT_S, AGAIN_S = 180.0, 120.0, 20.0
FATES = ("complete", "fail", "delete", "lose", "lose by force", "stay", "stay", "stay")
SHOWN = {"complete": "Completed", "stay": "Running"}
"""What becomes of a run by its fate; else it has failed."""
REPORTS = Path(__file__).parents[2] / "out" / "kube-faults"


class Failed(AssertionError):
    """A schedule did not end as it should have."""


@dataclass(frozen=True, slots=True)
class Played:
    """One schedule that passed."""

    struck: tuple[str, ...]
    faults: int
    """Of the network."""
    events: int
    """At each of which no device was used twice."""
    seconds: float


def insist(act: Callable[[], Any]) -> Any:
    """A server that was just started refuses for a moment; our own hand is not what is tested."""

    def tried() -> tuple[Any] | None:
        try:
            return (act(),)
        except ApiError as error:
            if error.passes or error.status in (403, 409):
                return None
            raise
        except Fault:
            return None

    (found,) = until(tried, "the server takes what the test asks for", 60)
    return found


class Hand:
    """What users and admins do, without a process for each of their requests."""

    def __init__(self, client: KubeClient, note: Callable[[str], None]) -> None:
        self._client, self._note = client, note
        self._told_s: dict[str, float] = {}
        """When each pod was told last to exit."""

    def create(self, *documents: Document) -> None:
        for document in documents:
            self._note(f"create {document['kind']} {document['metadata']['name']}")
            path = path_of(document["kind"], document["metadata"].get("namespace"))

            def done(document: Document = document, path: str = path) -> None:
                """One that was made although nobody answered is made."""
                if self._client.get(f"{path}/{document['metadata']['name']}") is None:
                    self._client.create(path, document)

            insist(done)

    def delete(self, kind: str, name: str, namespace: str | None = None, **options: Any) -> None:
        self._note(f"delete {kind} {name} {options or ''}")
        path = f"{path_of(kind, namespace)}/{name}"
        insist(lambda: self._client.delete(path, options or None))

    def exit(self, pod: Document, code: int) -> None:
        """A simulated node that lost the API server while it ended a pod forgets it until the pod
        changes: it is told again."""
        meta, now_s = pod["metadata"], time.monotonic()
        ended = pod["status"]["phase"] in ("Succeeded", "Failed")
        if ended or now_s - self._told_s.get(meta["uid"], -AGAIN_S) < AGAIN_S:
            return
        self._told_s[meta["uid"]] = now_s
        notes = {"sim.fairlead.dev/exit-code": str(code), "sim.fairlead.dev/run-for": "1ms"}
        notes["test.fairlead.dev/told"] = str(now_s)
        self._note(f"exit {meta['name']} {code}")
        path, patch = f"{path_of('Pod', meta['namespace'])}/{meta['name']}", {"annotations": notes}
        try:
            insist(lambda: self._client.patch(path, {"metadata": patch}))
        except ApiError as error:
            if error.status != 404:
                raise

    def items(self, kind: str) -> list[Document]:
        return list(insist(lambda: self._client.list(path_of(kind)))[0])

    def free(self, kind: str, name: str, namespace: str | None = None) -> None:
        """Remove an object whose controller is gone."""
        path = f"{path_of(kind, namespace)}/{name}"

        def done() -> None:
            if self._client.get(path) is not None:
                self._client.patch(path, {"metadata": {"finalizers": None}})
                self._client.delete(path)

        insist(done)


def path_of(kind: str, namespace: str | None = None) -> str:
    if kind in KINDS:
        return KINDS[kind].path(namespace)
    root = "/apis/coordination.k8s.io/v1" if kind == "Lease" else "/api/v1"
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{where}/{kind.lower()}s"


class Schedule:
    """The runs of a seed, and what is to become of them."""

    def __init__(
        self,
        hand: Hand,
        chance: random.Random,
        teams: tuple[str, str],
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        """`tend`: looks after the cluster's own processes."""
        self._hand, self._teams, self._tend = hand, teams, tend
        names = [f"r{i}" for i in range(RUNS)]
        self.fates = {name: chance.choice(FATES) for name in names}
        self.sizes = {name: chance.choice((1, 2, 3, 6)) for name in names}
        room = STAYING
        for name in names:  # what stays leaves room for the others
            room -= self.sizes[name] if self.fates[name] == "stay" else 0
            if room < 0 or (self.fates[name], self.sizes[name]) == ("stay", 6):
                room, self.fates[name] = max(room, 0), "complete"
        self.due = names
        self._lost: set[str] = set()
        """Runs that lost a pod behind its gate, and uids of pods that were lost."""

    def submit(self, count: int) -> None:
        now, self.due = self.due[:count], self.due[count:]
        self._hand.create(*(run(name, self.sizes[name], self._teams[0]) for name in now))

    def reserve(self) -> None:
        """A reservation of another team, for which what stays may have to go, until it is over."""
        self.fates["big"] = "complete"
        big, other = run("big", 8, self._teams[1]), self._teams[1]
        self._hand.create(big, made("Reservation", "now", due_now("big"), other))

    def play(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.step()
            time.sleep(0.1)  # as often as users look

    def step(self) -> dict[str, str | None]:
        """Let what runs meet its fate; the phase of each run."""
        self._tend()
        found = {}
        for item in self._hand.items("Run"):
            meta, phase = item["metadata"], item.get("status", {}).get("phase")
            fate = self.fates[meta["name"]]
            if phase == "Running" and fate != "stay" and "deletionTimestamp" not in meta:
                self._meet(meta["name"], meta["namespace"], fate)
            found[meta["name"]] = phase
        return found

    def _meet(self, name: str, namespace: str, fate: str) -> None:
        if fate == "delete":
            self._hand.delete("Run", name, namespace)
        elif fate.startswith("lose"):
            self._lose(name, namespace, force=fate == "lose by force")
        else:
            for pod in self._pods_of(name):
                self._hand.exit(pod, 0 if fate == "complete" else 1)

    def _lose(self, name: str, namespace: str, *, force: bool) -> None:
        """Behind its gate once: it is made again, and a hand that deletes it each time, as fast as
        it is made, would keep its gang from ever beginning."""
        for pod in self._pods_of(name):
            meta = pod["metadata"]
            what = name if pod["spec"].get("schedulingGates") else meta["uid"]
            if meta["name"] != f"{name}-0" or what in self._lost:
                continue
            self._lost.add(what)
            options = {"gracePeriodSeconds": 0} if force else {}
            self._hand.delete("Pod", f"{name}-0", namespace, **options)

    def _pods_of(self, run: str) -> list[Document]:
        pods = self._hand.items("Pod")
        return [pod for pod in pods if pod["metadata"]["labels"]["fairlead.dev/run"] == run]

    def ended(self) -> bool:
        """The end state of a world without faults."""
        wanted = {
            name: SHOWN.get(fate, "Failed") for name, fate in self.fates.items() if fate != "delete"
        }
        if self.step() != wanted:
            return False
        staying = {name for name, fate in self.fates.items() if fate == "stay"}
        leases = {lease["spec"]["run"] for lease in self._hand.items("GPULease")}
        living = {
            pod["metadata"]["labels"]["fairlead.dev/run"]
            for pod in self._hand.items("Pod")
            if pod["status"]["phase"] not in ("Succeeded", "Failed")
        }
        return leases == living == staying

    def end(self) -> None:
        for kind in ("Reservation", "Run"):
            for item in self._hand.items(kind):
                self._hand.delete(kind, item["metadata"]["name"], item["metadata"]["namespace"])

    def nothing_left(self) -> bool:
        self._tend()
        return not any(self._hand.items(kind) for kind in ("Run", "GPULease", "Pod"))


class Arena:
    """A cluster of its own, whose servers are killed, and a database."""

    def __init__(self, cluster: Cluster, database: str, folder: Path, reports: Path) -> None:
        self._cluster, self._database = cluster, database
        self._folder, self._reports = folder, reports
        self._client = KubeClient(connection(cluster.kubeconfig))
        self._dirty = True

    def play(self, seed: int) -> Played:
        """Raises `Failed`. What a seed leaves behind is removed before the next one."""
        folder = self._folder / f"seed-{seed}"
        folder.mkdir()
        world = World(self._cluster, folder)
        if self._dirty:
            world.clean()
        self._dirty = True
        chronicle = Chronicle()
        hand = Hand(self._client, chronicle.note)
        played = _Play(world, hand, chronicle, seed, self._ledger(seed))
        try:
            found = played.run(folder)
        except Exception as error:  # noqa: BLE001 - whatever it was is reported, and is a failure
            self._reports.mkdir(parents=True, exist_ok=True)
            report = self._reports / f"seed-{seed}.txt"
            report.write_text(f"seed {seed}: {traceback.format_exc()}\n{played.facts()}")
            raise Failed(f"seed {seed}: {str(error)[:500]}\n(report: {report})") from None
        self._clean(hand, teams_of(seed))
        self._dirty = False
        return found

    def _ledger(self, seed: int) -> str | None:
        return new_database(self._database, seed) if seed % 2 else None

    def _clean(self, hand: Hand, teams: tuple[str, str]) -> None:
        """Nodes stay; the namespaces go beside the next schedule."""
        hand.free("Lease", "fairlead-controller", "default")
        for name in teams:
            hand.free("Budget", name)
            hand.free("OwnerBinding", name)
            hand.delete("Namespace", name)
        for outcome in hand.items("ResolverOutcome"):
            hand.free("ResolverOutcome", outcome["metadata"]["name"])


def teams_of(seed: int) -> tuple[str, str]:
    return f"team-a-{seed}", f"team-b-{seed}"


class _Play:
    """One schedule from its first run to an empty cluster."""

    def __init__(
        self, world: World, hand: Hand, chronicle: Chronicle, seed: int, ledger: str | None
    ) -> None:
        teams = teams_of(seed)
        self._world, self._hand, self._chronicle = world, hand, chronicle
        self._chance, self._ledger, self._teams = random.Random(seed), ledger, teams
        self._schedule = Schedule(hand, self._chance, teams, world.cluster.check)
        self._faults = Faults(seed, 0.05)
        self._struck: tuple[str, ...] = ()
        self._replicas: Replicas | None = None

    def run(self, folder: Path) -> Played:
        began, to = time.monotonic(), connection(self._world.kubeconfig)
        for team_ in self._teams:
            self._hand.create(*team(team_))
        there = {item["metadata"]["name"] for item in self._hand.items("Node")}
        self._hand.create(*(node(name, gpus=GPUS) for name in NODES if name not in there))
        replicas = self._replicas = Replicas(to, self._faults, folder, self._ledger)
        witness = Witness(to, GPUS, self._chronicle.see)
        with closing(replicas), closing(witness):
            self._play(replicas)
            self._end(replicas)
            witness.close()
            check_ledger(self._place(), witness, replicas)
        assert self._faults.count > 0, "nothing failed: the schedule shows nothing"
        seconds = time.monotonic() - began
        return Played(self._struck, self._faults.count, witness.events, seconds)

    def _play(self, replicas: Replicas) -> None:
        chance, schedule = self._chance, self._schedule
        disasters = Disasters(self._world, replicas, chance, schedule.play, self._teams[0])
        disasters.note = self._chronicle.note
        reserving = chance.choice((1, 2))
        several = self._ledger is not None
        self._struck = tuple(chance.sample(disasters.names(replicas=several), STRIKES))
        for _ in range(2 if several else 1):
            replicas.start()
        schedule.submit(2)
        assert replicas.leader
        for names in (self._struck[:1], self._struck[1:]):  # the last two at once
            schedule.submit(3)
            schedule.play(chance.uniform(0, 2))
            if reserving == len(names):
                schedule.reserve()
            disasters.strike(*names)

    def _end(self, replicas: Replicas) -> None:
        schedule = self._schedule
        schedule.play(1)
        self._chronicle.note("no more faults")
        self._faults.rate = 0.0
        until(lambda: replicas.leader and schedule.ended(), "the end of a world without", PASSES_S)
        self._chronicle.note("the end of a world without faults is reached")
        schedule.end()
        until(schedule.nothing_left, "nothing is left behind", LEFT_S)
        for replica in replicas.all:
            code = replica.end()
            known = (0, 3, -9) if replica.log else (0, -15)  # one that has hardly begun
            assert code in known, f"ended with {code}:\n{replica.log[-2000:]}"

    def _place(self) -> str:
        assert self._replicas is not None
        return self._ledger or str(self._replicas.data / "ledger.db")

    def facts(self) -> str:
        """All that is known of a failure: for one who was not there."""
        parts = [f"struck: {self._struck}", f"fates: {self._schedule.fates}"]
        parts.append(f"sizes: {self._schedule.sizes}")
        for title, tell in {
            "what happened": self._chronicle.text,
            "what is there": self._world.picture,
            "logs": lambda: self._replicas.logs(20_000) if self._replicas else "",
            "ledger": lambda: "\n".join(
                f"{e.seq} {e.time_ms} {e.kind} {json.dumps(e.body)[:300]}"
                for e in entries_of(self._place())
            ),
            "writes": lambda: self._chronicle.writes(self._replicas) if self._replicas else "",
        }.items():
            try:
                parts.append(f"== {title}\n{tell()}")
            except Exception as error:  # noqa: BLE001 - a report must not fail with what it reports
                parts.append(f"== {title}: {error!r}")
        return "\n".join(parts)


@contextmanager
def arena(programs: Programs, folder: Path, reports: Path = REPORTS) -> Iterator[Arena]:
    """Its servers are killed: what they acknowledged has to be on disk.

    A scheduler ends by itself where it sees another pod of the same name after its watch was cut
    (kubernetes/kubernetes#141078), and a KWOK that is started again waits for the leases of its
    predecessor, which had another name: both are the cluster's, and not what is tested.
    """
    options = ClusterOptions(nodes=1, gpus=1, fsync=True, supervised=True, node_lease_s=8)
    with server() as database, Cluster(programs, folder / "cluster", options) as started:
        started.apply(crds())
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield Arena(started, database, folder, reports)


def new_database(address: str, seed: int) -> str:
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(address, autocommit=True) as made:
        made.execute(f"CREATE DATABASE seed_{seed}")
    return address.rpartition("/")[0] + f"/seed_{seed}"


def entries_of(place: str) -> list[Any]:
    with closing(open_for_reading(place)) as reader:
        entries, after = [], 0
        while part := reader.entries(after, 10_000):
            entries += part
            after = part[-1].seq
    return entries


def check_ledger(place: str, witness: Witness, replicas: Replicas) -> None:
    """It verifies, no slot was two pods', and each eviction names an entry of it."""
    with closing(open_for_reading(place)) as reader:
        verified = reader.verify()
        assert verified.ok, verified
    entries = entries_of(place)
    opened = {e.body["lease"]: e.body["slots"] for e in entries if e.kind == "lease.open"}
    closed = {e.body["lease"] for e in entries if e.kind == "lease.close"}
    assert opened.keys() == closed, "every lease that was opened is closed"
    witness.check(opened)
    known = {e.plan_id for e in entries} | {str(e.seq) for e in entries}
    for replica in replicas.all:
        for write in replica.writes:
            if write.path.endswith("/eviction"):
                meta = json.loads(write.body)["metadata"]
                decision = meta["annotations"][DECISION]
                assert decision in known, f"{meta['name']} was evicted without a decision"
