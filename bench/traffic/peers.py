"""The others, as their manuals say: HAProxy, Envoy and nginx, one thread each.

All of them cancel a request whose client has gone. Health checks that ask for a page would find
every backend well in every scenario (a slow one answers, and who answers 500 to users need not
answer 500 to a check), so none are configured, here or in our arms, but where HAProxy needs one to
leave out servers by their answers (`observe layer7`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.traffic.scenarios import NAMES, SLO_S, WORKERS
from fairlead.dataplane.envoy.admin import envoy_program

Document = dict[str, Any]
_TYPE = "type.googleapis.com/envoy."
_CONNECT_S, _IDLE_S = 1, 30


# One more than a backend has workers may be in it, and who waits three eighths of the objective for
# a place is sent away: by hand, for this capacity. A server that answers with errors is left out.
# What it answered is tried at another one, as is all that a server did not answer whole.
TUNED_QUEUE_S = SLO_S * 3 / 8
TUNED_SERVER = (
    f" check inter 1s maxconn {WORKERS + 1} observe layer7 error-limit 3 on-error mark-down"
)
TUNED_BACKEND = """    option httpchk GET /ready
    option redispatch 1
    retries 3
    retry-on conn-failure empty-response junk-response response-timeout 500 502 503 504
"""


def haproxy(
    balance: str, *, server: str = "", backend: str = "", queue_s: float = _IDLE_S
) -> Callable[[Path, int, Mapping[str, int]], list[str]]:
    """HAProxy with one of its algorithms, and what else is said of servers and of the backend."""

    def prepare(folder: Path, port: int, backends: Mapping[str, int]) -> list[str]:
        servers = "\n".join(
            f"    server {name} 127.0.0.1:{each}{server}" for name, each in backends.items()
        )
        config = folder / "haproxy.cfg"
        config.write_text(
            f"""global
    nbthread 1
    maxconn 8000
defaults
    mode http
    option abortonclose
    timeout connect {_CONNECT_S}s
    timeout client {_IDLE_S}s
    timeout server {_IDLE_S}s
    timeout queue {round(queue_s * 1000)}ms
frontend web
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    balance {balance}
{backend}{servers}
"""
        )
        return ["haproxy", "-db", "-q", "-f", str(config)]

    return prepare


def nginx(
    *, server: str = "", location: str = ""
) -> Callable[[Path, int, Mapping[str, int]], list[str]]:
    """nginx, the better of two random servers, and what else is said of servers and requests."""
    return partial(_nginx, server, location)


def _nginx(
    server: str, location: str, folder: Path, port: int, backends: Mapping[str, int]
) -> list[str]:
    servers = "\n".join(f"        server 127.0.0.1:{each}{server};" for each in backends.values())
    config = folder / "nginx.conf"
    config.write_text(
        f"""daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 8000; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream servers {{
        zone servers 64k;
        random two least_conn;
{servers}
        keepalive 64;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_connect_timeout {_CONNECT_S}s;
            proxy_read_timeout {_IDLE_S}s;
{location}        }}
    }}
}}
"""
    )
    return ["nginx", "-c", str(config), "-p", str(folder), "-e", str(folder / "nginx.log")]


def envoy(
    balance: str,
    *,
    outlier: bool = False,
    filters: Sequence[Document] = (),
    cluster_more: Document | None = None,
    route_more: Document | None = None,
) -> Callable[[Path, int, Mapping[str, int]], list[str]]:
    """Envoy with a load balancing policy, and its means against unhealthy backends or overload,
    by its defaults.
    """

    def prepare(folder: Path, port: int, backends: Mapping[str, int]) -> list[str]:
        cluster: Document = {
            "name": "servers",
            "type": "STATIC",
            "connect_timeout": f"{_CONNECT_S}s",
            "lb_policy": balance,
            "load_assignment": {
                "cluster_name": "servers",
                "endpoints": [
                    {"lb_endpoints": [{"endpoint": _at(each)} for each in backends.values()]}
                ],
            },
        }
        if outlier:
            # By default Envoy may eject a tenth of the hosts: of four, none.
            cluster["outlier_detection"] = {"max_ejection_percent": 50}
        cluster |= cluster_more or {}
        listener = _listener(port, filters, route_more or {})
        static = {"listeners": [listener], "clusters": [cluster]}
        config = folder / "envoy.json"
        config.write_text(json.dumps({"static_resources": static}))
        return [
            envoy_program(None),
            "-c",
            str(config),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "error",
            "--log-path",
            str(folder / "envoy.log"),
        ]

    return prepare


def _at(port: int) -> Document:
    return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}


def _listener(port: int, filters: Sequence[Document], route_more: Document) -> Document:
    """Whom Envoy turns away by itself learns why: rejections are told from errors by that."""
    says = {"header": {"key": "x-details", "value": "%RESPONSE_CODE_DETAILS%"}}
    any_failure = {"comparison": {"op": "GE", "value": {"default_value": 400, "runtime_key": "x"}}}
    manager = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "web",
        "generate_request_id": False,
        "local_reply_config": {
            "mappers": [{"filter": {"status_code_filter": any_failure}, "headers_to_add": [says]}]
        },
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "web",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "servers", **route_more}}
                    ],
                }
            ]
        },
        "http_filters": [*filters, _filter("router", "router.v3.Router", {})],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"name": "web", **_at(port), "filter_chains": [chain]}


def _filter(name: str, kind: str, config: Document) -> Document:
    typed = {"@type": f"{_TYPE}extensions.filters.http.{kind}", **config}
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed}


ADMISSION = _filter(
    "admission_control",
    "admission_control.v3.AdmissionControl",
    {
        "enabled": {"default_value": True, "runtime_key": "admission"},
        "success_criteria": {
            "http_criteria": {"http_success_status": [{"start": 100, "end": 500}]}
        },
    },
)
# The numbers of the example in Envoy's manual; it has no defaults for them.
ADAPTIVE = _filter(
    "adaptive_concurrency",
    "adaptive_concurrency.v3.AdaptiveConcurrency",
    {
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {
                "jitter": {"value": 10},
                "interval": "60s",
                "request_count": 50,
            },
        },
        "enabled": {"default_value": True, "runtime_key": "adaptive"},
    },
)

# About twice what HAProxy above lets in: the gradient controller finds the rest by itself. A failed
# request is tried once more elsewhere.
BREAKERS: Document = {
    "circuit_breakers": {
        "thresholds": [
            {
                "max_requests": len(NAMES) * (WORKERS + 1) * 2,
                "max_retries": len(NAMES),
                "max_pending_requests": len(NAMES) * (WORKERS + 1) * 2,
            }
        ]
    }
}
RETRY_ONCE: Document = {
    "retry_policy": {
        "retry_on": "5xx,connect-failure",
        "num_retries": 1,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3"
                    ".PreviousHostsPredicate"
                },
            }
        ],
    }
}
# `queue`, which lets requests wait for a server, is part of the commercial nginx only: here a group
# in which every server is full answers 502 at once.
NGINX_RETRY = """            proxy_next_upstream error timeout http_500 http_502 http_503;
            proxy_next_upstream_tries 2;
"""

PREPARE: dict[str, Callable[[Path, int, Mapping[str, int]], list[str]]] = {
    "haproxy-roundrobin": haproxy("roundrobin"),
    "haproxy-leastconn": haproxy("leastconn"),
    "haproxy-random2": haproxy("random(2)"),
    "haproxy-maxconn": haproxy(
        "leastconn", server=TUNED_SERVER, backend=TUNED_BACKEND, queue_s=TUNED_QUEUE_S
    ),
    "envoy-roundrobin": envoy("ROUND_ROBIN"),
    "envoy-outlier": envoy("LEAST_REQUEST", outlier=True),
    "envoy-admission": envoy("LEAST_REQUEST", filters=[ADMISSION]),
    "envoy-adaptive": envoy("LEAST_REQUEST", filters=[ADAPTIVE]),
    "nginx-random2": nginx(),
    "envoy-expert": envoy(
        "LEAST_REQUEST",
        outlier=True,
        filters=[ADAPTIVE],
        cluster_more=BREAKERS,
        route_more=RETRY_ONCE,
    ),
    "nginx-expert": nginx(
        server=f" max_conns={WORKERS + 1} max_fails=10 fail_timeout=1s", location=NGINX_RETRY
    ),
}
"""Writes the configuration into a folder; the command that runs it."""
