"""Where fuzzing begins: inputs of each border that are accepted, from the tests' own data."""

import io
import json
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path

from fairlead.executor.wire import job_document, pack
from fairlead.ports.executor import Exit, Job
from fairlead.recorder import FileRecorder
from fairlead.schema.traffic_agent import TrafficDocument, read_traffic_document
from tests.api.servers import budget, node, run
from tests.ledger.drafts import draft
from tests.ledger.worlds import SqliteWorld
from tests.recorder.documents import clearings
from tests.verify.test_verify import tiny

ROOT = Path(__file__).resolve().parents[2]


def decisions() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests" / "golden").glob("*.jsonl")):
        for line in path.read_bytes().splitlines()[:3]:
            document = json.dumps(json.loads(line)["input"])
            yield f"{path.stem}\n{document}".encode()


def manifests() -> Iterator[bytes]:
    for document in (node(), budget("team-a"), run("train", command=["true"], duration="1h")):
        yield json.dumps(document).encode()
    head = "apiVersion: fairlead.dev/v1alpha1\nkind: Run\nmetadata: {name: a}\n"
    yield f"{head}spec: {{flavor: f, owner: t, totalGPUs: 1}}\n".encode()


def settings() -> Iterator[bytes]:
    yield b"\0node_name: n1\npolicy: nash\n"
    yield (
        b"\1plane: {kind: haproxy}\ngroups:\n- name: web\n  vip: 127.0.0.1\n  port: 8080\n"
        b"  backends: [{id: a, host: 127.0.0.1, port: 80}]\n"
    )
    yield b"\2receivers:\n- name: ops\n  url: https://example.org/hook\n  secretFile: /s\n"


def words() -> Iterator[bytes]:
    yield from (b"2026-01-01T00:00:00Z", b"1h30m", b"+2h", b"a=b,c!=d", b"region in (x, y)")


def templates() -> Iterator[bytes]:
    yield b'{"spec":{"containers":[{"name":"main","image":"x","resources":{"limits":{"a":"1"}}}]}}'


def scripts() -> Iterator[bytes]:
    yield b"#!/bin/bash\n#SBATCH --gres=gpu:2 --time=1-02:00:00\n#SBATCH -J n --array=0-9%2\ntrue\n"


def slurm() -> Iterator[bytes]:
    yield b"Cluster - 'lab':Fairshare=1\nParent - 'root'\nAccount - 'a':GrpTRES='gres/gpu=8'\n"
    yield b"Account|ParentName|User|GrpTRES|GrpTRESMins|QOS\na|root||gres/gpu=8|gres/gpu=600|q\n"


def kueue() -> Iterator[bytes]:
    yield (
        b"apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: q}\nspec:\n"
        b"  cohort: c\n  resourceGroups:\n  - coveredResources: [nvidia.com/gpu]\n    flavors:\n"
        b"    - name: h100\n      resources: [{name: nvidia.com/gpu, nominalQuota: 8}]\n"
    )


def segments() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        world = SqliteWorld(Path(folder))
        with world.open() as ledger:
            ledger.append([draft(1), draft(2)])
            out = io.BytesIO()
            ledger.export(out)
    yield out.getvalue()


def records() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder, FileRecorder(Path(folder)) as recorder:
        for document, result in islice(clearings(pods=2, changed=1, capacity_millicores=4000), 3):
            recorder.append("cpu.clear", version=1, time_ms=0, input=document, output=result)
        (file,) = Path(folder).glob("segment-*.jsonl")
        yield file.read_bytes()


@cache
def ledger_file() -> tuple[bytes, list[bytes]]:
    """The whole of a small ledger's file, and the bytes of its entries."""
    with tempfile.TemporaryDirectory() as folder:
        world = SqliteWorld(Path(folder))
        with world.open() as ledger:
            ledger.append([draft(number) for number in range(1, 6)])
            ledger.snapshot_put("state", 3, b"{}")
            entries = [entry.data for entry in ledger.entries(0, 100)]
        return world.path.read_bytes(), entries


def ledgers() -> Iterator[bytes]:
    """Edits that change nothing, at the places that a search can go on from."""
    whole, _ = ledger_file()
    for offset in (0, *range(4096, len(whole), 4096)):
        yield struct.pack("!IB", offset, 32) + whole[offset : offset + 32]


def metrics() -> Iterator[bytes]:
    yield b'# TYPE requests_total counter\nrequests_total{code="200"} 5\ninside 2\n'
    yield (
        b'latency_seconds_bucket{le="0.1"} 2\nlatency_seconds_bucket{le="+Inf"} 3\n'
        b"latency_seconds_sum 0.4\nlatency_seconds_count 3\n"
    )


def kubernetes() -> Iterator[bytes]:
    spec = {"dataplane": "haproxy", "service": {"name": "x", "port": 80}, "port": 8080}
    service = {"clusterIPs": ["192.0.2.9"], "ports": [{"port": 80, "name": "http"}]}
    endpoint = {"addresses": ["198.51.100.7"], "conditions": {"ready": True}, "nodeName": "n1"}
    slices = {
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"port": 8080, "name": "http"}],
    }
    yield b"\0" + json.dumps([spec, service, slices]).encode()
    cpu = {"limits": {"cpu": "500m"}, "requests": {"cpu": "0.25"}}
    status = {"qosClass": "Burstable", "phase": "Running", "observedGeneration": 1}
    status |= {"containerStatuses": [{"name": "main", "resources": cpu, "state": {"running": {}}}]}
    pod = {"spec": {"containers": [{"name": "main", "resources": cpu}]}, "status": status}
    yield b"\1" + json.dumps(pod).encode()
    node = {"spec": {"unschedulable": True}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    yield b"\2" + json.dumps(node).encode()


@cache
def traffic_agent() -> TrafficDocument:
    text = b"{plane: {kind: haproxy}, kube: {listen: 192.0.2.1, ports: 8000-9000}}"
    return read_traffic_document(text, {})


def frames() -> Iterator[bytes]:
    job = Job("r.1", "r", "o", ("true",), ("n1/0",), env={"A": "b"})
    yield pack({"job": job_document(job), "exit": asdict(Exit("r.1", "r", 0, code=0))})


def outcomes() -> Iterator[bytes]:
    yield tiny()


def cgroups() -> Iterator[bytes]:
    yield b"usage_usec 1\nnr_periods 2\nnr_throttled 1\nthrottled_usec 5\n"
    yield b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 total=2\n"
    yield b"150000 100000\n"
    yield b"25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    yield b"#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t5\t1\n"


def haproxy() -> Iterator[bytes]:
    answers = ",".join(f"hrsp_{kind}xx" for kind in range(1, 6))
    names = f"# pxname,svname,qcur,scur,stot,econ,eresp,wretr,wredis,iid,{answers},req_tot"
    rows = (
        "web_a,b1,0,1,7,0,0,0,0,3,0,6,0,0,1,7,\nweb_soft,BACKEND,0,0,3,0,0,0,0,4,0,0,0,0,0,3,\n\n"
    )
    yield f"{names},\n{rows}".encode()


def envoy() -> Iterator[bytes]:
    place = {"socket_address": {"address": "127.0.0.1", "port_value": 80}}
    host = {"address": place, "stats": [{"name": "rq_success", "value": "3"}]}
    clusters = {"cluster_statuses": [{"name": "web_a", "host_statuses": [host]}]}
    yield b"http.web.downstream_rq_total: 5\n\0" + json.dumps(clusters).encode()


def requests() -> Iterator[bytes]:
    body = json.dumps(budget("team-a")).encode()
    head = "PUT /v1/objects/Budget/team-a?expected_version=0 HTTP/1.1\r\nhost: x\r\n"
    yield f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    for path in ("objects/Run?owner=a", "leases", "events?after=0&limit=5", "report?since=1h"):
        yield f"GET /v1/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
