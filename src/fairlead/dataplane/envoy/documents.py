"""What Envoy is told: its bootstrap, listeners, clusters and endpoints, as JSON documents in files.

Per group one listener at the virtual address and three clusters: `_a` and `_b` hold the active and
the next table as endpoint weights, `_f` hashes flows when the agent is dead. Which of them serves
is in the route (`routes`), the one document that a flip replaces. The runtime document has the bias
of clusters that hold the table of a bounded group: they count the requests in each backend.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.core.traffic.limits import FULL_RETRY_AFTER_S, Ejection
from fairlead.dataplane.envoy import deadman
from fairlead.dataplane.proxy import HASHED, REFUSED_STATUS, SIDES, escape, replace_file
from fairlead.ports.dataplane import Mode, RouteGroup, Table
from fairlead.ports.faults import PermanentFault

Document = dict[str, Any]

# Envoy takes an inotify instance for every file: listeners, clusters and runtime, and for each
# group three files of endpoints and a route.
_WATCHES, _GROUP_WATCHES = 3, 4
_WATCHES_OF_OTHERS = 16  # processes of the same user
_WATCHES_MAX = Path("/proc/sys/fs/inotify/max_user_instances")
_FOLDER_BYTES_MAX = 90  # a socket's path has 107
LUA, FLOW = "envoy.filters.http.lua", "fairlead.flow"
LOG_FORMAT = "%UPSTREAM_CLUSTER% %UPSTREAM_HOST% %RESPONSE_CODE% %RESPONSE_FLAGS% %DURATION%\n"
_TYPE = "type.googleapis.com/envoy."
_UNLIMITED = 1_000_000_000  # Envoy's own limits would refuse without our saying so
_BIAS = "fairlead.bias."
_FINE = 1000
"""Parts of a slot: what distinguishes equal weights must not be felt in a split."""
_EJECTION = Ejection()
# Failed connects are left to the agent alone.
_OUTLIERS: Document = {
    "consecutive_5xx": _EJECTION.consecutive_errors,
    "interval": f"{_EJECTION.interval_ms / 1000}s",
    "base_ejection_time": f"{_EJECTION.duration_ms / 1000}s",
    "max_ejection_time": f"{_EJECTION.duration_ms / 1000}s",
    "max_ejection_percent": _EJECTION.ejected_percent_max,
    "split_external_local_origin_errors": True,
    "enforcing_consecutive_local_origin_failure": 0,
    "enforcing_local_origin_success_rate": 0,
    "enforcing_consecutive_gateway_failure": 0,
    "enforcing_success_rate": 0,
}
# What is asked for, and what people look at first. Envoy has some hundred numbers for every cluster
# and listener, and walks through all of them for every question: 10 ms for 30 groups.
_STATS = [
    *({"prefix": each} for each in ("server.", "listener_manager.", "cluster_manager.")),
    *(
        {"suffix": f".{each}"}
        for each in (
            "version_text",
            "update_rejected",
            "upstream_rq_total",
            "upstream_rq_pending_failure_eject",
            "downstream_rq_total",
            "downstream_rq_active",
            "downstream_cx_active",
            "shadow_denied",
            "no_cluster",
        )
    ),
]
_SCRIPT = Path(__file__).with_name("admission.lua")


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """What an operator may want different."""

    workers: int = 1
    """Threads. One makes splits and buckets exact; with more, each has a share of the bucket."""
    connect_timeout_ms: int = 5_000
    idle_timeout_ms: int = 60_000


class Files:
    """Where everything of the dataplane lives."""

    def __init__(self, folder: Path) -> None:
        if len(str(folder).encode()) > _FOLDER_BYTES_MAX:
            raise PermanentFault(f"folder: too long for a socket's path: {folder}")
        self.folder = folder
        self.bootstrap = folder / "bootstrap.json"  # what Envoy is started with
        self.listeners = folder / "listeners.json"  # the groups' addresses
        self.clusters = folder / "clusters.json"  # three per group
        self.runtime = folder / "runtime.json"  # the bias of every cluster
        self.admin = folder / "admin.sock"
        self.requests = folder / deadman.LOG  # a line per request, for latencies
        self.log = folder / "envoy.log"  # Envoy's own
        self.schema = folder / "schema"  # the version of all this

    def ours(self) -> list[Path]:
        """All that may be there, folders last; the folder may hold files of others."""
        single = [
            self.bootstrap,
            self.listeners,
            self.clusters,
            self.runtime,
            self.admin,
            self.requests,
            self.log,
            self.schema,
            *(self.folder / name for name in deadman.FILES),
        ]
        drafts = [path.with_name(path.name + ".draft") for path in single]
        return [*single, *drafts, self.folder / deadman.ROUTES, self.folder / "endpoints"]

    def route(self, group: str, kind: str = deadman.ROUTE_NOW) -> Path:
        """A group's route: in place, of the active table, or for a dead agent."""
        return self.folder / deadman.ROUTES / f"{escape(group)}{kind}"

    def endpoints(self, cluster: str) -> Path:
        """A cluster's endpoints and their weights."""
        return self.folder / "endpoints" / f"{cluster}.json"


def check_watches(groups: int) -> None:
    """Refuse more groups than Envoy can watch files for: it would end itself instead."""
    needed = _WATCHES + _GROUP_WATCHES * groups
    limit = int(_WATCHES_MAX.read_text()) if _WATCHES_MAX.exists() else None
    if limit is not None and needed > limit - _WATCHES_OF_OTHERS:
        raise PermanentFault(
            f"groups: {groups} groups need {needed} inotify instances and {_WATCHES_OF_OTHERS}"
            f" to spare; fs.inotify.max_user_instances is {limit}"
        )


def version() -> str:
    """A name that no earlier document has."""
    return f"{time.monotonic_ns():x}"


def write(path: Path, document: Document) -> None:
    """Replace a document: Envoy takes it up whole."""
    replace_file(path, json.dumps(document, sort_keys=True))


def read(path: Path) -> Document | None:
    """A document; None when it is not there. They are not flushed to disk when they are written, so
    the machine's sudden end may leave an empty one: that is not there either."""
    try:
        document = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(document, dict) and document.get("resources") is not None
    return document if whole else None


def resources(path: Path) -> list[Document]:
    """What a document holds; nothing when it is not there."""
    document = read(path)
    return list(document["resources"]) if document else []


def typed(name: str) -> str:
    """The full name of a message of Envoy's API."""
    return _TYPE + name


def cluster_name(group: str, side: str) -> str:
    """The cluster of a side."""
    return f"{escape(group)}_{side}"


def response(version: str, resources: Sequence[Document]) -> Document:
    """Resources as Envoy reads them from a file."""
    return {"version_info": version, "resources": list(resources)}


def bootstrap(files: Files, settings: EnvoySettings) -> Document:
    """Where to find the rest, and where to ask."""
    return {
        "node": {
            "id": "fairlead",
            "cluster": "fairlead",
            "metadata": {"workers": settings.workers},
        },
        "admin": {"address": {"pipe": {"path": str(files.admin), "mode": 0o600}}},
        "dynamic_resources": {
            "cds_config": from_file(files.clusters),
            "lds_config": from_file(files.listeners),
        },
        "layered_runtime": {
            "layers": [
                {
                    "name": "fairlead",
                    "rtds_layer": {"name": "fairlead", "rtds_config": from_file(files.runtime)},
                }
            ]
        },
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": _STATS}}},
    }


def from_file(path: Path) -> Document:
    """A source that Envoy reads again whenever the file is replaced."""
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}


def runtime(biases: Mapping[str, float]) -> list[Document]:
    """The bias of clusters that count the requests in their backends; of all others it is 0."""
    layer = {_BIAS + name: bias for name, bias in sorted(biases.items())}
    return [{"@type": typed("service.runtime.v3.Runtime"), "name": "fairlead", "layer": layer}]


def biases(documents: Sequence[Document]) -> dict[str, float]:
    """The clusters that a runtime document names."""
    return {
        key.removeprefix(_BIAS): bias
        for document in documents
        for key, bias in document["layer"].items()
    }


def clusters(groups: Sequence[RouteGroup], files: Files, settings: EnvoySettings) -> list[Document]:
    """Three for each group."""
    return [
        _cluster(group, side, files, settings)
        for group in sorted(groups, key=_name)
        for side in (*SIDES, HASHED)
    ]


def listeners(
    groups: Sequence[RouteGroup], files: Files, settings: EnvoySettings
) -> list[Document]:
    """One for each group."""
    return [_listener(group, files, settings) for group in sorted(groups, key=_name)]


def _name(group: RouteGroup) -> str:
    return group.name


def _cluster(group: RouteGroup, side: str, files: Files, settings: EnvoySettings) -> Document:
    name = cluster_name(group.name, side)
    most = {
        "max_connections": _UNLIMITED,
        "max_pending_requests": _UNLIMITED,
        "max_requests": _UNLIMITED,
    }
    made: Document = {
        "@type": typed("config.cluster.v3.Cluster"),
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": from_file(files.endpoints(name))},
        "connect_timeout": f"{settings.connect_timeout_ms / 1000}s",
        "circuit_breakers": {"thresholds": [most]},
        # Without it Envoy would send to isolated endpoints when too few are left.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }
    if side == HASHED:
        # Not the ring: it has as many points for three as for four, so when one leaves, the new
        # points of the others move one flow in six that need not move.
        return made | {"lb_policy": "MAGLEV"}
    # With a bias of 0 it goes by turns. Envoy asks for the bias whenever weights change.
    bias = {"default_value": 0.0, "runtime_key": _BIAS + name}
    chosen = {"active_request_bias": bias}
    return made | {
        "lb_policy": "LEAST_REQUEST",
        "least_request_lb_config": chosen,
        "outlier_detection": _OUTLIERS,
    }


def endpoints(group: RouteGroup, side: str, table: Table, version: str) -> Document:
    """The backends with their slots as weights. One without slots stays listed, as draining: a host
    that leaves the list would lose its counters."""
    name = cluster_name(group.name, side)
    if side == HASHED:
        weights = dict.fromkeys(table.limits.fallback.members, 1)
    else:
        weights = _weights(table.slots, biased=table.limits.concurrency is not None)
    listed = []
    for backend in sorted(group.backends, key=lambda backend: backend.id):
        weight = weights.get(backend.id, 0)
        listed.append(
            {
                "endpoint": {"address": _address(backend.host, backend.port)},
                "load_balancing_weight": max(1, weight),
                "health_status": "HEALTHY" if weight else "DRAINING",
            }
        )
    assignment = {
        "@type": typed("config.endpoint.v3.ClusterLoadAssignment"),
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": listed}],
    }
    return response(version, [assignment])


def _weights(slots: Mapping[str, int], *, biased: bool) -> dict[str, int]:
    """Never all the same, for then Envoy would choose at random; and never those of a biased
    cluster for one that is not, for Envoy asks for the bias only when weights change."""
    fine = _FINE if biased else _FINE - 1
    weights = {id: count * fine for id, count in sorted(slots.items()) if count}
    if len(set(weights.values())) == 1:
        weights[min(weights)] += 1
    return weights


def _listener(group: RouteGroup, files: Files, settings: EnvoySettings) -> Document:
    """The virtual address: admission, counting of refusals, routing, and a log."""
    name = escape(group.name)
    log = {
        "@type": typed("extensions.access_loggers.file.v3.FileAccessLog"),
        "path": str(files.requests),
        "log_format": {"text_format_source": {"inline_string": LOG_FORMAT}},
    }
    manager = {
        "@type": typed(
            "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
        ),
        "stat_prefix": name,
        "rds": {"route_config_name": name, "config_source": from_file(files.route(group.name))},
        "http_filters": [_lua(), _counter("soft"), _counter("hard"), _router()],
        "access_log": [{"name": "log", "typed_config": log}],
        "local_reply_config": {"mappers": [_full()]},
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        "stream_idle_timeout": f"{settings.idle_timeout_ms / 1000}s",
    }
    chain = {"filters": [_flow(), {"name": "http", "typed_config": manager}]}
    return {
        "@type": typed("config.listener.v3.Listener"),
        "name": name,
        "address": _address(group.vip, group.port),
        "filter_chains": [chain],
    }


def _full() -> Document:
    """A request that finds the group full is answered as in soft mode. Envoy's flag for it means:
    no such cluster."""
    return {
        "filter": {"response_flag_filter": {"flags": ["NC"]}},
        "status_code": REFUSED_STATUS["soft"],
        "body": refusal_body("soft"),
        "headers_to_add": refusal_headers("soft", FULL_RETRY_AFTER_S),
    }


def refusal_body(mode: str) -> Document:
    """What people read."""
    return {"inline_string": f"refused by fairlead: {mode}"}


def refusal_headers(mode: str, retry_after_s: int) -> list[Document]:
    """What programs read."""
    headers = {"Fairlead-Refused": mode}
    if mode == Mode.SOFT:
        headers["Retry-After"] = str(retry_after_s)
    return [{"header": {"key": key, "value": value}} for key, value in headers.items()]


def _flow() -> Document:
    """Names the flow of a connection, for the clusters that hash: the client's address and port."""
    named = {
        "object_key": FLOW,
        "factory_key": "envoy.hashable_string",
        "format_string": {"text_format_source": {"inline_string": "%DOWNSTREAM_REMOTE_ADDRESS%"}},
    }
    return {
        "name": "fairlead.flow",
        "typed_config": {
            "@type": typed("extensions.filters.network.set_filter_state.v3.Config"),
            "on_new_connection": [named],
        },
    }


def _lua() -> Document:
    return {
        "name": LUA,
        "typed_config": {
            "@type": typed("extensions.filters.http.lua.v3.Lua"),
            "default_source_code": {"inline_string": _SCRIPT.read_text()},
        },
    }


def _counter(refused: str) -> Document:
    """Counts what the script refused: shadow rules deny nothing, but have a counter."""
    wanted = {
        "filter": "fairlead",
        "path": [{"key": "refused"}],
        "value": {"string_match": {"exact": refused}},
    }
    found = {"sourced_metadata": {"metadata_matcher": wanted, "metadata_source": "DYNAMIC"}}
    policy = {"permissions": [found], "principals": [{"any": True}]}
    return {
        "name": f"fairlead.{refused}",
        "typed_config": {
            "@type": typed("extensions.filters.http.rbac.v3.RBAC"),
            "shadow_rules": {"action": "DENY", "policies": {"refused": policy}},
            "shadow_rules_stat_prefix": f"{refused}_",
        },
    }


def _router() -> Document:
    router = {
        "@type": typed("extensions.filters.http.router.v3.Router"),
        "suppress_envoy_headers": True,
    }
    return {"name": "envoy.filters.http.router", "typed_config": router}


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}
