"""What Envoy is told: its bootstrap, listeners, clusters and endpoints, as JSON documents.

Per group one listener at the virtual address and three clusters: `_a` and `_b` hold the active and
the next table as endpoint weights, `_f` hashes flows when the agent is gone. Which of them serves
is in the route (`routes`), the one document that a flip replaces. The runtime document names the
clusters that *lean*: they hold the table of a bounded group, and look at what is inside a backend.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.dataplane.envoy import refusals
from fairlead.dataplane.envoy.files import Document, Files
from fairlead.dataplane.names import tame
from fairlead.dataplane.tables import Current, fallback_members
from fairlead.ports.dataplane import RouteGroup

SIDES, HASHED = ("a", "b"), "f"
LUA, FLOW = "envoy.filters.http.lua", "fairlead.flow"
LOG_FORMAT = "%UPSTREAM_CLUSTER% %UPSTREAM_HOST% %RESPONSE_CODE% %RESPONSE_FLAGS% %DURATION%\n"
_TYPE = "type.googleapis.com/envoy."
_UNLIMITED = 1_000_000_000  # Envoy's own limits would refuse without our saying so
_BIAS = "fairlead.bias."
_FINE = 1000
"""Parts of a slot: what tells equal weights apart must not be felt in a split."""
# With 1 a host that fails at once, and so never holds anything, would draw most of it; with 0.5 one
# that stalls got up to 13 of 100 requests.
_LEANS = 0.6
_FULL_RETRY_S = 1
# Who gives three errors in a row gets nothing for a second: by then the agent has seen it, and
# decides. Connects that fail are the agent's business alone.
_PASSED_OVER: Document = {
    "consecutive_5xx": 3,
    "interval": "0.5s",
    "base_ejection_time": "1s",
    "max_ejection_time": "1s",
    "max_ejection_percent": 50,
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
class Limits:
    """What an operator may want different."""

    workers: int = 1
    """Threads. One makes splits and buckets exact; with more, each has a share of the bucket."""
    connect_timeout_ms: int = 5_000
    idle_timeout_ms: int = 60_000


def typed(name: str) -> str:
    """The full name of a message of Envoy's API."""
    return _TYPE + name


def cluster_name(group: str, side: str) -> str:
    """The cluster of a side."""
    return f"{tame(group)}_{side}"


def response(version: str, resources: Sequence[Document]) -> Document:
    """Resources as Envoy reads them from a file."""
    return {"version_info": version, "resources": list(resources)}


def bootstrap(files: Files, limits: Limits) -> Document:
    """Where to find the rest, and where to ask."""
    return {
        "node": {"id": "fairlead", "cluster": "fairlead", "metadata": {"workers": limits.workers}},
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


def leaning(clusters: Collection[str]) -> list[Document]:
    """The clusters that look at what is inside their backends; all others do not."""
    layer = {_BIAS + name: _LEANS for name in sorted(clusters)}
    return [{"@type": typed("service.runtime.v3.Runtime"), "name": "fairlead", "layer": layer}]


def who_leans(runtime: Sequence[Document]) -> set[str]:
    """The clusters that a runtime document names."""
    return {key.removeprefix(_BIAS) for each in runtime for key in each["layer"]}


def clusters(groups: Sequence[RouteGroup], files: Files, limits: Limits) -> list[Document]:
    """Three for each group."""
    return [
        _cluster(group, side, files, limits)
        for group in sorted(groups, key=_name)
        for side in (*SIDES, HASHED)
    ]


def listeners(groups: Sequence[RouteGroup], files: Files, limits: Limits) -> list[Document]:
    """One for each group."""
    return [_listener(group, files, limits) for group in sorted(groups, key=_name)]


def _name(group: RouteGroup) -> str:
    return group.name


def _cluster(group: RouteGroup, side: str, files: Files, limits: Limits) -> Document:
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
        "connect_timeout": f"{limits.connect_timeout_ms / 1000}s",
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
        "outlier_detection": _PASSED_OVER,
    }


def endpoints(group: RouteGroup, side: str, table: Current, version: str) -> Document:
    """The backends with their slots as weights. Who has none stays listed, and draining: a host
    that leaves the list would lose its counters."""
    name = cluster_name(group.name, side)
    if side == HASHED:
        weights = dict.fromkeys(fallback_members(table.slots), 1)
    else:
        weights = _weights(table.slots, leans=table.inside_max is not None)
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


def _weights(slots: Mapping[str, int], *, leans: bool) -> dict[str, int]:
    """Never all the same, for then Envoy would draw lots; and never those of a cluster that leans
    for one that does not, for Envoy asks for the bias only when weights change."""
    fine = _FINE if leans else _FINE - 1
    weights = {id: share * fine for id, share in sorted(slots.items()) if share}
    if len(set(weights.values())) == 1:
        weights[min(weights)] += 1
    return weights


def _listener(group: RouteGroup, files: Files, limits: Limits) -> Document:
    """The virtual address: admission, counting of refusals, routing, and a log."""
    name = tame(group.name)
    log = {
        "@type": typed("extensions.access_loggers.file.v3.FileAccessLog"),
        "path": str(files.log),
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
        "stream_idle_timeout": f"{limits.idle_timeout_ms / 1000}s",
    }
    chain = {"filters": [_flow(), {"name": "http", "typed_config": manager}]}
    return {
        "@type": typed("config.listener.v3.Listener"),
        "name": name,
        "address": _address(group.vip, group.port),
        "filter_chains": [chain],
    }


def _full() -> Document:
    """Whoever finds the group full hears what the soft door says. Envoy says: no such cluster."""
    return {
        "filter": {"response_flag_filter": {"flags": ["NC"]}},
        "status_code": refusals.STATUS["soft"],
        "body": refusals.body("soft"),
        "headers_to_add": refusals.headers("soft", _FULL_RETRY_S),
    }


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
    """Counts what the script refused: rules that only watch deny nobody, but have a counter."""
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
