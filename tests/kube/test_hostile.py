"""What a tenant can write on its own objects, and a node on its pods: nothing of it may stop the
controller, slow it down for others, or get devices that no lease names."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.engine.gpu import ControlPlane
from fairlead.kube.client import MISREAD, ApiError, Document
from fairlead.kube.controller import ClusterController
from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.election import LEDGER, Election
from fairlead.kube.gpu.front import ADMIN
from fairlead.kube.gpu.ranks import ended_ms, lost_ranks, read_pod
from fairlead.kube.gpu.template import read_template
from fairlead.kube.kubeconfig import connection
from fairlead.kube.queries import Queries, QueryAnswer
from fairlead.kube.traffic.follow import GroupFollower
from fairlead.kube.watch import GONE_MAX
from fairlead.ports.executor import Executor
from fairlead.ports.faults import PermanentFault
from fairlead.schema.border import BadInput
from fairlead.schema.times import format_time
from fairlead.schema.traffic_agent import read_traffic_document
from tests.engine.gpu.worlds import START, MemoryLedger
from tests.kube.small import Server, Small, put
from tests.kube.world import World, node, plane_of, run, team, until

INFINITE = '{"decision": "n/1", "first": false, "unseen": {"app": 1e999}}'
DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [INFINITE, DEEP], ids=["infinite", "deep"])
def test_marks_that_a_user_wrote_count_as_none(text: str) -> None:
    """They are JSON in annotations: a number or a depth that Python does not take, too."""
    marks = {cpu_pods.RESIZE: text, cpu_pods.ORIGINAL: text}
    pod = {"metadata": {"annotations": marks}, "spec": {"containers": [{"name": "app"}]}}
    assert cpu_pods.last_resize(pod) is None
    assert cpu_pods.originals(pod, cpu_pods.LIMITS) is None


@pytest.mark.parametrize("error", [OverflowError, RecursionError])
def test_what_cannot_be_read_is_misread(error: type[Exception]) -> None:
    """Numbers and depths included: each reader catches it for one object, else the process ends."""
    assert issubclass(error, MISREAD)


def rank_pod(rank: int, ranks: str, **annotations: str) -> Document:
    named = {"fairlead.dev/job": "team-a.train.1.1", "fairlead.dev/ranks": ranks, **annotations}
    labels = {"fairlead.dev/run": "train", "fairlead.dev/rank": str(rank)}
    meta = {"name": f"train-{rank}", "namespace": "team-a", "labels": labels, "annotations": named}
    return {"metadata": meta, "spec": {}}


def test_a_pod_that_claims_a_million_ranks_costs_no_more_than_another() -> None:
    """Its annotation is its user's to write, and every pod is read in every turn."""
    tracemalloc.start()
    pods = [read_pod(rank_pod(0, "999999")), read_pod(rank_pod(1, "3"))]
    known = [pod for pod in pods if pod is not None]
    assert lost_ranks(known) == {2}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(known) == 2
    assert peak < 1_000_000
    assert read_pod(rank_pod(3, "3")) is None


def test_a_time_that_python_has_not_is_no_time() -> None:
    """Go's years begin with 0."""
    state = {"terminated": {"exitCode": 0, "finishedAt": "0000-01-01T00:00:00Z"}}
    assert ended_ms({"status": {"containerStatuses": [{"state": state}]}}) is None


@pytest.mark.parametrize("part", ["limits", "requests"])
@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.5gb", "deviceclass.resource.kubernetes.io/gpu"]
)
def test_a_template_has_no_other_name_for_a_device(name: str, part: str) -> None:
    """The policy lets the controller's pods pass: what the template may name is decided here."""
    container: dict[str, Any] = {"name": "a", "image": "i", "resources": {part: {name: "8"}}}
    with pytest.raises(BadInput, match="resources"):
        read_template({"spec": {"containers": [container]}})


def test_json_of_marks_is_read_back() -> None:
    """The readers above refuse what is not ours, and take what is."""
    row = cpu_pods.PodResize("n/1", {"app": 100}, False)
    pod = {"metadata": {"annotations": {cpu_pods.RESIZE: row.text()}}}
    assert cpu_pods.last_resize(pod) == row
    assert json.loads(row.text())["unseen"] == {"app": 100}


def event(type: str, number: int) -> Document:
    meta = {"name": f"q-{number}", "namespace": "a", "uid": f"u-{number}"}
    return {"type": type, "object": {"metadata": {**meta, "resourceVersion": str(10 + number)}}}


class Busy(Server):
    """A server whose objects come and go."""

    def watch(self, path: str, version: str, **query: str) -> Iterator[Document]:
        for number in range(0, 2 * 3 * GONE_MAX, 2):
            yield event("ADDED", number)
            gone = event("DELETED", number)
            gone["object"]["metadata"]["resourceVersion"] = str(11 + number)
            yield gone


@pytest.mark.parametrize("kind", ["Query", "GPULease", "EndpointSlice"])
def test_what_comes_and_goes_leaves_nothing_in_memory(kind: str) -> None:
    """Names are new each time: one Query for each request, one GPULease for each start."""
    server = Busy()
    source = {
        "Query": lambda: Queries(
            server, lambda: None, answer=lambda _: QueryAnswer(200, ""), owner_of=lambda _: "a"
        ).sources()[0],
        "GPULease": lambda: (
            ClusterController(
                server,
                Election(server, "me", namespace="n"),
                lambda _: pytest.fail("leads"),
                lambda: 0,
            ).sources.leases
        ),
        "EndpointSlice": lambda: (
            GroupFollower(
                server, read_traffic_document(b"{plane: ebpf, kube: {}}", {}), "n", Path("kept")
            ).slices
        ),
    }[kind]()
    source._watch("1")
    source.take_keys()
    assert source.take_gone() == {}
    assert len(source._deleted) <= GONE_MAX
    server.close()


def test_a_run_does_not_keep_its_devices_for_weeks_after_it_was_preempted(small: Small) -> None:
    """They are free when its pods are gone: how long that takes is not the tenant's alone."""
    elastic = {"malleable": {"minTotalGPUs": 1}, "totalGPUs": 2, "groupGPUs": 1}
    named = {"long": {"checkpointGrace": "366d", **elastic}, "short": {"checkpointGrace": "10m"}}
    small.add("team-a", *(run(name, 1, **spec) for name, spec in named.items()))
    put(small.sources.nodes, node("n1"))
    small.turn()
    verdicts = {key.name: row for (kind, key), row in small.front.verdicts.items() if kind == "Run"}
    assert verdicts["short"].message == "submitted for owner 'team-a'"
    assert verdicts["long"].accepted
    assert verdicts["long"].message.endswith("; spec.checkpointGrace is cut to 10m")
    small.plane.verbs.act("Run", "team-a.long", "shrink", author=ADMIN, width=1)
    assert small.status("team-a.long")["graceEnds"] == format_time(small.now_ms + 600_000)
    spec = {"containers": [{"name": "a"}], "terminationGracePeriodSeconds": 86_401}
    with pytest.raises(BadInput, match="terminationGracePeriodSeconds"):
        read_template({"spec": spec})
    read_template({"spec": {**spec, "terminationGracePeriodSeconds": 86_400}})


def test_a_part_that_misreads_something_keeps_no_other_from_its_turn() -> None:
    """What one part of the controller cannot read ends neither the process nor the turn."""
    said: list[str] = []
    server = Server()
    made = ClusterController(
        server,
        Election(server, "me", namespace="n"),
        lambda _: pytest.fail("leads"),
        lambda: 0,
        say=said.append,
    )

    def misreads() -> None:
        raise KeyError("spec")

    assert not made._try(misreads)
    assert made.failures == 1
    assert "KeyError('spec')" in said[0]
    server.close()


def test_the_ledger_is_opened_once_when_the_lease_cannot_be_read() -> None:
    """What failed is tried again; a ledger that is open already cannot be opened again."""
    away = [True]

    def answer(method: str, path: str, body: Any) -> Document | None:
        if "/leases/" in path and away:
            raise ApiError(500, "InternalError", "etcd is away")
        return {"items": [], "metadata": {"resourceVersion": "1"}} if method == "GET" else None

    server, opened = Server(answer), list[ControlPlane]()

    def open_plane(executor: Executor) -> ControlPlane:
        assert not opened
        opened.append(ControlPlane(MemoryLedger(time_ms=START), executor, lambda: START))
        return opened[0]

    made = ClusterController(
        server, Election(server, "me", namespace="n"), open_plane, lambda: START
    )
    made.turn()
    assert made.plane is None
    away.clear()
    made.turn()
    assert made.plane is opened[0]
    server.close()


def uid_of(world: World) -> str:
    pods = world.get("pods", namespace="team-a")["items"]
    return next((str(row["metadata"]["uid"]) for row in pods), "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_controller_with_another_ledger_leads_nothing_and_ends_no_pod(world: World) -> None:
    """As after a volume was lost, or with the wrong one: to it, what runs was never started."""
    world.apply(node("n1"), *team("team-a"), run("train", 8))
    with world.controlled("a"):
        world.reach("train", "Running")
    before = uid_of(world)
    with (
        pytest.raises(AssertionError, match="remove the annotation"),
        world.controlled("b") as made,
    ):
        until(made._stop.is_set, "it has ended")
    assert uid_of(world) == before
    with world.controlled("a") as made:
        plane_of(made)
        world.kubectl("-n", "default", "annotate", "lease", "fairlead-controller", f"{LEDGER}-")
    with world.controlled("b"):
        until(lambda: before != uid_of(world), "a ledger that does not know it starts it anew")


@pytest.mark.parametrize("rows", ["5", "[{name: [a], user: {}}]", "[{name: {}, user: {}}]"])
def test_a_kubeconfig_that_is_none_says_which_file_and_list(tmp_path: Path, rows: str) -> None:
    file = tmp_path / "config"
    file.write_text(f"users: {rows}\n")
    with pytest.raises(PermanentFault, match="config: users"):
        connection(file)
