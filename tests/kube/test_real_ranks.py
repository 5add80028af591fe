"""Ranks as real pods: they know and reach each other, and are told of a new width."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.gpu.front import ADMIN
from fairlead.kube.kinds import crds
from tests.kube.real_nodes import BUSYBOX, busybox_image, cpu_quota_us
from tests.kube.world import World, made, run, team, until

pytestmark = pytest.mark.component("real-node")
SERVE = "echo hello from $FAIRLEAD_RANK > /tmp/index.html; exec /busybox httpd -f -p 29500 -h /tmp"


@pytest.fixture(scope="module")
def real(
    only_real_node: None, node_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A cluster whose one node is real, and says that it has four GPUs: there is no device plugin,
    so they count, and are nothing that a container could open."""
    folder = tmp_path_factory.mktemp("ranks")
    options = ClusterOptions(real_node=True, images=(busybox_image(folder),))
    with Cluster(node_programs, folder / "cluster", options) as cluster:
        cluster.apply(crds())
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        room = {"nvidia.com/gpu": "4"}
        patch = json.dumps({"status": {"capacity": room, "allocatable": room}})
        cluster.kubectl(
            "patch", "node", "real", "--subresource=status", "--type=merge", "-p", patch
        )
        cluster.kubectl("label", "node", "real", "fairlead.dev/flavor=H100")
        yield World(cluster, folder)


def test_ranks_find_each_other_and_are_told_of_a_new_width(real: World) -> None:
    """There is no cluster DNS here: what it would answer is asked of the EndpointSlices."""
    image = {"name": "main", "image": BUSYBOX, "args": ["sh", "-c", SERVE]}
    tolerate = [{"key": "fairlead.dev/real-node", "operator": "Exists"}]
    template = {"spec": {"containers": [image], "tolerations": tolerate}}
    elastic = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}
    real.apply(*team("team-a"), run("train", 4, template=template, checkpointGrace="2s", **elastic))
    with real.controlled() as controller:
        real.reach("train", "Running")
        until(lambda: len(_addresses(real)) == 2, "both ranks have an address by name", 60)
        addresses = _addresses(real)
        for rank in (0, 1):
            assert _exec(real, rank, "/busybox hostname") == f"train-{rank}"
            assert f"train-{rank}.train." in _exec(real, rank, "/busybox cat /etc/hosts")
            hosts = "train-0.train slots=2\ntrain-1.train slots=2"
            assert _exec(real, rank, "/busybox cat $OMPI_MCA_orte_default_hostfile") == hosts
            other = addresses[f"train-{1 - rank}"]
            said = _exec(real, rank, f"/busybox wget -qO- http://{other}:$MASTER_PORT/index.html")
            assert said == f"hello from {1 - rank}"
        assert _exec(real, 1, "echo $MASTER_ADDR $PET_NNODES $PET_NPROC_PER_NODE") == (
            "train-0.train 1:2 2"
        )
        assert controller.plane is not None
        width = "/busybox cat $FAIRLEAD_WIDTH_FILE"
        assert json.loads(_exec(real, 0, width))["width"] == 4
        controller.plane.verbs.act("Run", "team-a.train", "shrink", author=ADMIN, width=2)
        until(lambda: real.names("pods") == ["train-0"], "the other rank is gone", 60)
        until(lambda: json.loads(_exec(real, 0, width))["width"] == 2, "rank 0 is told", 120)
        assert real.reach("train", "Shrunk")["width"] == 2
        (pod,) = real.get("pods", namespace="team-a")["items"]
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        real.kubectl("-n", "team-a", "delete", "run", "train", "--timeout=60s")


def _addresses(world: World) -> dict[str, str]:
    """What a cluster DNS answers for the names of ranks."""
    out = world.kubectl("-n", "team-a", "get", "endpointslices", "-o", "json")
    return {
        point["hostname"]: point["addresses"][0]
        for part in json.loads(out)["items"]
        for point in part.get("endpoints") or ()
        if point.get("hostname")
    }


def _exec(world: World, rank: int, script: str) -> str:
    command = ("exec", f"train-{rank}", "--", "/busybox", "sh", "-c", script)
    return world.kubectl("-n", "team-a", *command).strip()


def test_a_run_at_risk_reads_it_in_its_pod(real: World) -> None:
    """The file is there and empty, until a reservation comes near. CPUs and memory of the Run are
    held by the kernel."""
    image = {"name": "main", "image": BUSYBOX, "args": ["sleep", "600"]}
    tolerate = [{"key": "fairlead.dev/real-node", "operator": "Exists"}]
    template = {"spec": {"containers": [image], "tolerations": tolerate}}
    asked = {"warnBefore": {"before": "1h"}, "cpus": 0.5, "memory": "64Mi"}
    real.apply(*team("team-a", gpus=4), *team("team-b", gpus=4))
    real.apply(run("train", 4, template=template, workingDirectory="/etc", **asked))
    with real.controlled():
        real.reach("train", "Running")
        until(lambda: _phase(real, "train-0") == "Running", "its pod runs", 60)
        assert _exec(real, 0, "echo $(/busybox wc -c < $FAIRLEAD_WARNING_FILE) $PWD") == "0 /etc"
        uid = real.get("pod", "train-0", "team-a")["metadata"]["uid"]
        assert cpu_quota_us(uid) == 50_000
        begins = datetime.now(UTC) + timedelta(minutes=20)
        reserve = {"run": "big", "earliestStart": begins.strftime("%Y-%m-%dT%H:%M:%SZ")}
        real.apply(run("big", 4, "team-b"), made("Reservation", "soon", reserve, "team-b"))
        until(lambda: _exec(real, 0, "/busybox cat $FAIRLEAD_WARNING_FILE"), "it is told", 240)
        told = json.loads(_exec(real, 0, "/busybox cat $FAIRLEAD_WARNING_FILE"))
        assert told.keys() == {"start", "chance", "chanceError", "message"}
        real.kubectl("-n", "team-b", "delete", "reservation,run", "--all", "--timeout=60s")
        real.kubectl("-n", "team-a", "delete", "run", "train", "--timeout=60s")


def _phase(world: World, pod: str) -> str | None:
    found = world.get("pods", namespace="team-a")["items"]
    return next((row["status"]["phase"] for row in found if row["metadata"]["name"] == pod), None)


def test_a_rank_that_exits_1_follows_its_failure_policy(real: World) -> None:
    """A real process ends with 1; the run starts again once, and has failed then."""
    image = {"name": "main", "image": BUSYBOX, "args": ["sh", "-c", "exit 1"]}
    tolerate = [{"key": "fairlead.dev/real-node", "operator": "Exists"}]
    template = {"spec": {"containers": [image], "tolerations": tolerate}}
    real.apply(*team("team-a"))
    real.apply(run("fails", 2, template=template, failurePolicy={"maxRestarts": 1}))
    with real.controlled():
        until(lambda: real.phase("fails") == "Failed", "it has failed", 90)
        status = real.get("run", "fails", "team-a")["status"]
        assert (status["exitCode"], status["restarts"], status["attempts"]) == (1, 1, 2)
