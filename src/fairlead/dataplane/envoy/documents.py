"""Envoy's configuration: listeners, clusters, endpoints and routes, as JSON documents in files.

Per group one listener at the virtual address and three clusters: `_a` and `_b` hold the active and
the next table as endpoint weights, `_f` hashes flows when the agent is dead. The route is all that
a flip replaces: the cluster that serves, how much may be inside, and the admission, whose numbers
`admission.lua` reads from the route's metadata. The runtime document has the bias of clusters that
hold the table of a bounded group: they count the requests in each backend.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fairlead.core.traffic.alone import FallbackBound
from fairlead.core.traffic.limits import FULL_RETRY_AFTER_S, Concurrency, Ejection
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.retries import IDEMPOTENT, RetryLimit
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane import proxy
from fairlead.dataplane.envoy import deadman
from fairlead.dataplane.tables import Active
from fairlead.ports.dataplane import Backend, RouteGroup, Table
from fairlead.ports.faults import PermanentFault

Document = dict[str, Any]

# Envoy takes an inotify instance for every file: listeners, clusters and runtime, and for each
# group three files of endpoints and a route.
_WATCHES, _GROUP_WATCHES = 3, 4
_WATCHES_OF_OTHERS = 16  # processes of the same user
_WATCHES_MAX = Path("/proc/sys/fs/inotify/max_user_instances")
_FOLDER_BYTES_MAX = 90  # a socket's path has 107
_BIAS, _RELAXED = "fairlead.bias.", "x-fairlead-inside-max"
_FINE = 1000  # parts of a slot: what distinguishes equal weights must not be felt in a split
_METHODS = "|".join(IDEMPOTENT)
_SCRIPT = Path(__file__).with_name("admission.lua")
_INSIDE = Path(__file__).with_name("inside.lua")
_TEMPLATES = Path(__file__).with_name("templates.yaml")


class EnvoyFiles(proxy.ProxyFiles):
    """Where everything of the dataplane lives."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FOLDER_BYTES_MAX)
        self.bootstrap = folder / "bootstrap.json"  # what Envoy is started with
        self.listeners = folder / "listeners.json"  # the groups' addresses
        self.clusters = folder / "clusters.json"  # three per group
        self.runtime = folder / "runtime.json"  # the bias of every cluster
        self.routes = folder / deadman.ROUTES  # per group: in place, active, for a dead agent
        self.assignments = folder / "endpoints"  # a file per cluster
        self.admin = folder / "admin.sock"
        self.requests = folder / deadman.LOG  # a line per request, for latencies
        self.log = folder / "envoy.log"  # Envoy's own
        self.schema = folder / "schema"  # the version of all this

    def more(self) -> list[Path]:
        return [self.folder / name for name in deadman.FILES]

    def route(self, group: str, kind: str = deadman.ROUTE_NOW) -> Path:
        return self.routes / f"{proxy.escape(group)}{kind}"

    def endpoints(self, cluster: str) -> Path:
        return self.assignments / f"{cluster}.json"


def check_watches(groups: int) -> None:
    """Refuse more groups than Envoy can watch files for: it would end itself instead."""
    needed = _WATCHES + _GROUP_WATCHES * groups
    limit = int(_WATCHES_MAX.read_text()) if _WATCHES_MAX.exists() else None
    if limit is not None and needed > limit - _WATCHES_OF_OTHERS:
        raise PermanentFault(
            f"groups: {groups} groups need {needed} inotify instances and {_WATCHES_OF_OTHERS}"
            f" to spare; fs.inotify.max_user_instances is {limit}"
        )


def write(path: Path, resources: Sequence[Document]) -> str:
    """Replace a document; returns its version, by which Envoy says that it has taken it up."""
    version = f"{time.monotonic_ns():x}"
    proxy.save(path, {"version_info": version, "resources": resources})
    return version


def resources(path: Path) -> list[Document]:
    """Those of a document; none when it is not there. Documents are not flushed to disk when they
    are written, so the machine's sudden end may leave an empty one: that is not there either."""
    document = proxy.load(path, dict[str, Any])
    return list(document.get("resources") or ()) if document else []


_templates = cache(lambda: yaml.safe_load(_TEMPLATES.read_text()))


def filled(template: str, /, **values: Any) -> Document:
    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(value) for key, value in part.items()}
        if isinstance(part, list):
            return [fill(value) for value in part]
        return values[part[1:]] if isinstance(part, str) and part.startswith("$") else part

    document: Document = fill(_templates()[template])
    return document


def cluster_name(group: str, side: str) -> str:
    return f"{proxy.escape(group)}_{side}"


def bootstrap(files: EnvoyFiles, workers: int) -> Document:
    return filled(
        "bootstrap",
        workers=workers,
        admin=str(files.admin),
        clusters=_file(files.clusters),
        listeners=_file(files.listeners),
        runtime=_file(files.runtime),
    )


def _file(path: Path) -> Document:
    return filled("file", path=str(path))


def runtime(biases: Mapping[str, float]) -> list[Document]:
    """The bias of clusters that count the requests in their backends; of all others it is 0."""
    layer = {_BIAS + name: bias for name, bias in sorted(biases.items())}
    return [filled("runtime", layer=layer)]


def read_biases(path: Path) -> dict[str, float]:
    layers = [document["layer"].items() for document in resources(path)]
    return {key.removeprefix(_BIAS): bias for layer in layers for key, bias in layer}


def clusters(groups: Sequence[RouteGroup], files: EnvoyFiles) -> list[Document]:
    in_order = sorted(groups, key=lambda group: group.name)
    return [_cluster(group, side, files) for group in in_order for side in proxy.COPIES]


def listeners(groups: Sequence[RouteGroup], files: EnvoyFiles) -> list[Document]:
    in_order = sorted(groups, key=lambda group: group.name)
    return [_listener(group, files) for group in in_order]


def _cluster(group: RouteGroup, side: str, files: EnvoyFiles) -> Document:
    name, ejection = cluster_name(group.name, side), Ejection()
    cluster = filled(
        "cluster",
        name=name,
        endpoints=_file(files.endpoints(name)),
        connect_timeout=_seconds(proxy.CONNECT_TIMEOUT_MS),
    )
    if group.retry:
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        threshold |= filled("retry_budget", percent=RetryLimit().percent)
    if side == proxy.HASHED:
        return cluster | filled("hashed", balance_percent=FallbackBound().balance_percent)
    return cluster | filled(
        "sided",
        bias_key=_BIAS + name,
        consecutive_errors=ejection.consecutive_errors,
        interval=_seconds(ejection.interval_ms),
        duration=_seconds(ejection.duration_ms),
        ejected_percent_max=ejection.ejected_percent_max,
    )


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000}s"


def endpoints(group: RouteGroup, side: str, table: Table) -> list[Document]:
    """The backends with their slots as weights. One without slots stays listed, as draining: a host
    that leaves the list would lose its counters."""
    name = cluster_name(group.name, side)
    if side == proxy.HASHED:
        weights = dict.fromkeys(table.limits.fallback.members, 1)
    else:
        weights = _weights(table.slots, biased=table.limits.concurrency is not None)
    listed = [
        filled(
            "endpoint",
            host=backend.host,
            port=backend.port,
            weight=max(1, weights.get(backend.id, 0)),
            health="HEALTHY" if weights.get(backend.id) else "DRAINING",
        )
        for backend in sorted(group.backends, key=lambda backend: backend.id)
    ]
    return [filled("endpoints", name=name, listed=listed)]


def assignment(name: str, backends: Sequence[Backend], weights: Mapping[str, int]) -> Document:
    """The hosts of a cluster that is not ours; one without a weight is not among them."""
    listed = [
        filled("endpoint", host=b.host, port=b.port, weight=weights[b.id], health="HEALTHY")
        for b in sorted(backends, key=lambda backend: backend.id)
        if weights.get(b.id)
    ]
    return filled("endpoints", name=name, listed=listed)


def _weights(slots: Mapping[str, int], *, biased: bool) -> dict[str, int]:
    """Never all the same, for then Envoy would choose at random; and never those of a biased
    cluster for one that is not, for Envoy asks for the bias only when weights change."""
    fine = _FINE if biased else _FINE - 1
    weights = {id: count * fine for id, count in sorted(slots.items()) if count}
    if len(set(weights.values())) == 1:
        weights[min(weights)] += 1
    return weights


def _listener(group: RouteGroup, files: EnvoyFiles) -> Document:
    return filled(
        "listener",
        name=proxy.escape(group.name),
        vip=group.vip,
        port=group.port,
        route=_file(files.route(group.name)),
        script=_SCRIPT.read_text(),
        count_soft=_counter("soft"),
        count_hard=_counter("hard"),
        log=str(files.requests),
        full_status=proxy.REFUSED_STATUS["soft"],
        full_body=refusal_body("soft"),
        full_headers=refusal_headers("soft", FULL_RETRY_AFTER_S),
        idle_timeout=_seconds(proxy.IDLE_TIMEOUT_MS),
    )


def _counter(mode: str) -> Document:
    return filled(
        "counter", name=f"fairlead.{mode}", refused=filled("refused", mode=mode), prefix=f"{mode}_"
    )


def refusal_body(mode: str) -> Document:
    return {"inline_string": f"refused by fairlead: {mode}"}


def refusal_headers(mode: str, retry_after_s: int) -> list[Document]:
    headers = {"Fairlead-Refused": mode}
    if mode == AdmissionMode.SOFT:
        headers["Retry-After"] = str(retry_after_s)
    return [{"header": {"key": key, "value": value}} for key, value in headers.items()]


def route(group: RouteGroup, now: Active, workers: int, *, alone: bool) -> list[Document]:
    """The route of the active table, or that for the time without an agent."""
    limits, fallback = now.table.limits, now.table.limits.fallback
    retries = limits.retries if group.retry else None
    if alone:
        admission = _admission(fallback.admission, fallback.retry_after_s, workers)
        admission["bound"] = _bound_alone(now, workers)
        bounded = _bounded(group, proxy.HASHED, fallback.bound.inside_max, relaxed=_RELAXED)
        target = bounded | filled("hashed_target")
        empty = not fallback.members
    else:
        admission = _admission(limits.admission, limits.retry_after_s, workers)
        target = _target(group, now.side, limits.concurrency)
        empty = not any(now.table.slots.values())
    admission["no_backend"] = empty
    target |= {"timeout": "0s"}
    route = filled("route", target=target, admission=admission, active=asdict(now))
    if retries is not None and retries.times and not alone:
        target["retry_policy"] = filled("retry_policy", times=retries.times, methods=_METHODS)
    if alone:
        route |= filled("relaxed", header=_RELAXED)
    elif admission["mode"] == AdmissionMode.NORMAL and not empty:
        route["typed_per_filter_config"] = filled("unscripted")
    refusals = [
        filled(
            "refusal",
            refused=filled("refused", mode=mode),
            status=status,
            body=refusal_body(mode),
            headers=refusal_headers(mode, admission.get("retry_after_s", 1)),
        )
        for mode, status in proxy.REFUSED_STATUS.items()
    ]
    return [filled("routes", name=proxy.escape(group.name), routes=[*refusals, route])]


def _target(group: RouteGroup, served: str, bound: Concurrency | None) -> Document:
    """Where requests go: to a cluster, or through the script that counts what is inside."""
    if bound is None:
        return {"cluster": cluster_name(group.name, served)}
    return _bounded(group, served, bound.inside_max)


def _bounded(group: RouteGroup, served: str, most: int, relaxed: str | None = None) -> Document:
    name = cluster_name(group.name, served)
    listed = ", ".join(json.dumps(cluster_name(group.name, side)) for side in proxy.COPIES)
    header = json.dumps(relaxed) if relaxed else "nil"
    values = f"{most}, {json.dumps(name)}, {{{listed}}}, {header}"
    script = f"local most, served, clusters, relaxed = {values}\n{_INSIDE.read_text()}"
    return filled("bounded_target", script=script, name=name)


def _bound_alone(now: Active, workers: int) -> Document:
    """What `admission.lua` relaxes the bound by. Each worker sees its own successes only."""
    bound = now.table.limits.fallback.bound
    return {
        "epoch": now.table.epoch,
        "header": _RELAXED,
        "inside_max": bound.inside_max,
        "most": bound.most,
        "step": bound.step,
        "every_ms": bound.every_ms,
        "stay_ms": bound.stay_ms * workers,
    }


def _admission(admission: Admission, retry_after_s: int, workers: int) -> Document:
    """What `admission.lua` reads: each worker has a bucket, and a share of the numbers."""
    if admission.mode == AdmissionMode.NORMAL:
        return {"mode": admission.mode.value}
    rate, burst = (admission.rate_per_s or 0.0) / workers, admission.burst or 0.0
    # A bucket below one token would never admit anything, however long it fills.
    burst = max(burst / workers, min(burst, 1.0))
    numbers = {"rate": rate, "burst": burst, "retry_after_s": retry_after_s}
    return {"mode": admission.mode.value, **numbers}
