"""Every border that bytes of others cross, as a function of bytes that may refuse and nothing else.

A target returns, or raises what its border says it raises for bad input. Anything else is a defect.
Its seeds are inputs that get past the first checks.
"""

import atexit
import json
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import product
from pathlib import Path
from unittest.mock import patch

from fairlead.cli.gpu import sbatch
from fairlead.cli.importing.kueue import import_kueue
from fairlead.cli.importing.slurm import Defaults, NotSlurm, import_slurm
from fairlead.cli.input import BadFile
from fairlead.core.canonical import canonical
from fairlead.dataplane import proxy
from fairlead.dataplane.envoy import admin as envoy
from fairlead.dataplane.haproxy import runtime as haproxy
from fairlead.executor import wire
from fairlead.kube.client import MISREAD
from fairlead.kube.cpu import pods
from fairlead.kube.gpu import nodes
from fairlead.kube.gpu.template import read_template
from fairlead.kube.traffic import groups
from fairlead.kube.watch import Key
from fairlead.ledger.segment import open_segment
from fairlead.ledger.sqlite import SqliteReader
from fairlead.node import cgroup_mounts, kernel_files
from fairlead.node.traffic import scrape
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.ledger import Damaged
from fairlead.recorder import reader as recorder
from fairlead.schema import times
from fairlead.schema.border import BadInput, parse_json
from fairlead.schema.convert import convert
from fairlead.schema.kinds import KINDS
from fairlead.schema.node import read_node_document
from fairlead.schema.objects import read_manifest
from fairlead.schema.samples import Selector
from fairlead.schema.traffic_agent import read_traffic_document
from fairlead.schema.webhooks import read_webhooks
from fairlead.schema.yaml import parse_yaml_documents
from tests.api.servers import serving, short_folder
from tests.fuzz import seeds
from tests.verify.test_verify import verdict

_SOON_S, _LATEST_S = 0.1, 30.0
_EDIT = struct.Struct("!IB")


@dataclass(frozen=True, slots=True)
class Target:
    """A border: what it does with bytes, what it may raise, and where to begin."""

    run: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: Callable[[], Iterator[bytes]]

    def __call__(self, data: bytes) -> None:
        try:
            self.run(data)
        except self.refuses as refusal:
            shown = str(refusal).replace("\n", "")
            assert shown.isprintable(), f"a refusal with control characters: {shown!r}"


def _decide(data: bytes) -> None:
    """The kind is the first line. What is decided has its shape, and its bytes the second time."""
    name, _, document = data.partition(b"\n")
    kind = KINDS.get(name.decode(errors="replace"))
    if kind is None:
        return
    first = kind.run(document).result
    convert(first, kind.output_shape)
    again = kind.run(document).result
    assert canonical(first) == canonical(again), "another result the second time"


def _manifests(data: bytes) -> None:
    for document in parse_yaml_documents(data):
        read_manifest(document)


def _settings(data: bytes) -> None:
    """The files of the agents and of webhooks; the first byte says which."""
    read = (
        lambda text: read_node_document(text, {}),
        lambda text: read_traffic_document(text, {}),
        read_webhooks,
    )
    read[data[:1][0] % 3 if data else 0](data[1:])


def _words(data: bytes) -> None:
    """Times, durations and selectors, which arrive in queries and options."""
    text = data.decode(errors="replace")
    for parse in (times.parse_time, times.parse_now, times.parse_duration, Selector.parse):
        with suppress(BadInput):
            parse(text, "x")


def _template(data: bytes) -> None:
    read_template(parse_json(data))


def _script(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".sh") as file:
        Path(file.name).write_bytes(data)
        sbatch.read_script([file.name], lambda _: None)


def _slurm(data: bytes) -> None:
    import_slurm([data.decode(errors="replace")], Defaults("H100", None, None))


def _kueue(data: bytes) -> None:
    import_kueue([each for each in parse_yaml_documents(data) if each is not None])


def _segment(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        with open_segment(Path(file.name)) as segment:
            segment.verify()


def _record(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        Path(file.name).write_bytes(data)
        for _ in recorder.replay(recorder.read(file.name)):
            pass


def _ledger(data: bytes) -> None:
    """The file of a ledger, edited: each edit is an offset, a length and so many bytes. What
    verifies all the same has the entries that it had."""
    whole, entries = seeds.ledger_file()
    edited = bytearray(whole)
    while len(data) >= _EDIT.size:
        offset, length = _EDIT.unpack_from(data)
        new, data = data[_EDIT.size : _EDIT.size + length], data[_EDIT.size + length :]
        edited[offset % len(whole) : offset % len(whole) + len(new)] = new
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        path.write_bytes(edited)
        with closing(SqliteReader(path)) as reader:
            if reader.verify().ok:
                assert [entry.data for entry in reader.entries(0, 100)] == entries


def _outcome(data: bytes) -> None:
    code, _ = verdict(data)
    assert code in (0, 1, 2), code


def _cgroups(data: bytes) -> None:
    for read in (
        kernel_files.counter,
        kernel_files.cpu_stat_v1,
        kernel_files.cpu_stat_v2,
        kernel_files.quota_v2,
        kernel_files.pressure,
    ):
        read(data)
    kernel_files.quota_v1(data, b"100000")
    text = data.decode(errors="surrogateescape")
    cgroup_mounts.parse_mountinfo(text)
    cgroup_mounts.parse_proc_cgroups(text)


def _haproxy(data: bytes) -> None:
    answer = data.decode(errors="replace")
    with patch.object(haproxy, "ask", lambda *_, **__: answer):
        rows = haproxy.read_counters(Path("none"))
    haproxy.add({"web": proxy.GroupCount()}, rows)


def _envoy(data: bytes) -> None:
    stats, _, clusters = data.partition(b"\0")

    def answer(_: Path, target: str) -> bytes:
        return stats if target.startswith("/stats") else clusters

    with patch.object(envoy, "ask", answer):
        envoy.read_counts(Path("none"), ["web"])


def _metrics(data: bytes) -> None:
    """What a backend says of itself: counters, gauges and a histogram."""
    latency = scrape.Quantile(Selector.parse("latency_seconds", "x"), window_ms=5_000)
    read = scrape.samples(data, {"requests_total", "inside", latency.name})
    for number in (
        scrape.counter(read, Selector.parse("requests_total", "x")),
        latency.add(0, read),
    ):
        assert number is None or number >= 0, number
    scrape.gauge(read, Selector.parse("inside", "x"))
    latency.add(1_000, read)


def _kubernetes(data: bytes) -> None:
    """Objects of a cluster, of which the API server has checked the metadata; the first byte says
    which. A RouteGroup that cannot be read leaves the others alone."""
    document = json.loads(data[1:])
    meta = {"name": "x", "namespace": "team", "uid": "u", "generation": 1}
    meta |= {"creationTimestamp": "2026-01-01T00:00:00Z", "labels": {groups.SERVICE_NAME: "x"}}
    if data[:1] == b"\1":
        pod = {"metadata": {**meta, **dict(document.get("metadata", {}))}, **document}
        by_resource = (pods.left_alone, pods.resize_state, pods.in_force, pods.originals)
        for read, resource in product(by_resource, (pods.LIMITS, pods.REQUESTS)):
            read(pod, resource)
        for known in (pods.floors, pods.last_resize, pods.container_ids, pods.is_over):
            known(pod)
        pods.resized(pod)
        pods.scheduled_millicores(pod)
    elif data[:1] == b"\2":
        node = nodes.node_manifest({**document, "metadata": meta})
        if node is not None:
            read_manifest(node)
    else:
        route_group, service, found = document
        here = groups.TrafficObjects(
            {Key("team", "x"): {"metadata": meta, "spec": route_group}},
            {Key("team", "x"): {"metadata": meta, "spec": service}},
            {Key("team", "x-1"): {**found, "metadata": meta}},
        )
        groups.follow_groups(here, groups.AgentPlace(seeds.traffic_agent(), "n1", "z"))


def _launcher(data: bytes) -> None:
    """What a control plane without rights says to the launcher, which is root."""
    asking, answering = socket.socketpair()
    with asking, answering:
        asking.sendall(data)
        asking.shutdown(socket.SHUT_WR)
        while (asked := wire.receive(answering)) is not None:
            wire.check(asked, {"job": wire.JOB, "exit": wire.EXIT}, "frame")
            wire.job_of(asked["job"])
            wire.exit_of(asked["exit"])


servers = ExitStack()
"""Ends what targets have started: at exit, where no test did."""
atexit.register(servers.close)


@cache
def _server() -> Path:
    """A control plane of this process, until it ends."""
    folder = servers.enter_context(short_folder())
    return servers.enter_context(serving(folder)).socket


def _http(data: bytes) -> None:
    """Raw bytes at the socket: an answer below 500 or none, and the next one is answered."""
    assert _answer(data, _SOON_S) < HTTPStatus.INTERNAL_SERVER_ERROR
    health = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert _answer(health, _LATEST_S) == HTTPStatus.OK


def _answer(request: bytes, wait_s: float) -> int:
    """The status; 0 where none came, as for a request that is not whole."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(TimeoutError, ConnectionError):
        connection.settimeout(wait_s)
        connection.connect(str(_server()))
        connection.sendall(request)
        answer = connection.recv(1 << 16)  # some answers never end
        return int(answer.split(b" ", 2)[1]) if answer else 0
    return 0


TARGETS: dict[str, Target] = {
    "decide": Target(_decide, (BadInput,), seeds.decisions),
    "manifests": Target(_manifests, (BadInput,), seeds.manifests),
    "settings": Target(_settings, (BadInput,), seeds.settings),
    "words": Target(_words, (), seeds.words),
    "template": Target(_template, (BadInput,), seeds.templates),
    "script": Target(_script, (BadFile,), seeds.scripts),
    "slurm": Target(_slurm, (NotSlurm,), seeds.slurm),
    "kueue": Target(_kueue, (BadInput, AttributeError, TypeError, ValueError), seeds.kueue),
    "segment": Target(_segment, (BadInput, Damaged, PermanentFault), seeds.segments),
    "record": Target(_record, (PermanentFault, TemporaryFault), seeds.records),
    "ledger": Target(_ledger, (BadInput, Damaged, PermanentFault, TemporaryFault), seeds.ledgers),
    "outcome": Target(_outcome, (), seeds.outcomes),
    "cgroups": Target(_cgroups, (), seeds.cgroups),
    "haproxy": Target(_haproxy, (TemporaryFault,), seeds.haproxy),
    "envoy": Target(_envoy, (TemporaryFault,), seeds.envoy),
    "metrics": Target(_metrics, (scrape.BadExposition,), seeds.metrics),
    "kubernetes": Target(_kubernetes, (BadInput, *MISREAD), seeds.kubernetes),
    "launcher": Target(_launcher, (wire.BadFrame,), seeds.frames),
    "http": Target(_http, (), seeds.requests),
}
