"""The traffic agent's configuration: strict, with the path of whatever is wrong."""

import copy
import json
from typing import Any

import pytest

from fairlead.dataplane.ebpf.layout import SLOTS_MAX
from fairlead.schema.border import BadInput
from fairlead.schema.dataplane import EBPF_SLOTS_MAX
from fairlead.schema.traffic_agent import (
    KubeDocument,
    group_config,
    health_rules,
    port_range,
    read_traffic_document,
    service_place,
)

GOOD: dict[str, Any] = {
    "plane": "haproxy",
    "groups": [
        {
            "name": "web",
            "vip": "127.0.0.1",
            "port": 8080,
            "backends": [
                {"id": "a", "host": "127.0.0.1", "port": 9001},
                {"id": "b", "host": "::1", "port": 9001, "node": "n1"},
            ],
        },
        {"name": "api", "vip": "127.0.0.1", "port": 8081, "service": "api.local:9000"},
    ],
}


def changed(path: str, value: Any) -> bytes:
    """GOOD with one value set; `...` removes it."""
    document = copy.deepcopy(GOOD)
    *way, last = path.replace("[", ".").replace("]", "").split(".")
    here: Any = document
    for step in way:
        here = here[int(step) if step.isdigit() else step]
    if value is ...:
        del here[last]
    else:
        here[int(last) if last.isdigit() else last] = value
    return json.dumps(document).encode()


def test_a_good_file_is_read() -> None:
    """The short form of the plane, defaults, and overrides."""
    document = read_traffic_document(json.dumps(GOOD).encode(), {"tick_ms": 100})
    assert document.plane.kind == "haproxy"
    assert document.tick_ms == 100
    assert document.groups[0].proto == "tcp"
    assert health_rules(document.groups[0].isolation).outlier_ratio == 4.0


def test_yaml_is_read_too() -> None:
    """As it is in the help."""
    data = b"""
    plane: {kind: ebpf, cgroup: /sys/fs/cgroup/app.slice}
    groups:
      - {name: web, vip: 10.0.0.1, port: 80, proto: udp, backends: []}
    """
    document = read_traffic_document(data, {})
    assert document.plane.cgroup == "/sys/fs/cgroup/app.slice"
    assert document.groups[0].backends == []


def test_a_groups_parameters_lie_over_everybodys() -> None:
    """By name, thresholds by kind of stall."""
    data = json.loads(changed("groups[0].config", {"l_ref_ms": 50, "theta": {"io_full": 0.5}}))
    data["config"] = {"l_ref_ms": 200, "q_ref": 9, "theta": {"cpu_some": 0.9}}
    document = read_traffic_document(json.dumps(data).encode(), {})
    config = group_config(document, document.groups[0])
    assert (config.l_ref_ms, config.q_ref) == (50, 9)
    assert (config.theta.cpu_some, config.theta.io_full, config.theta.mem_full) == (0.9, 0.5, 0.05)
    assert group_config(document, document.groups[1]).l_ref_ms == 200


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("plane", "nginx", "plane: must be one of memory, haproxy, envoy, ebpf"),
        ("plane", {"kind": "nginx"}, "plane.kind: must be one of memory, haproxy, envoy, ebpf"),
        ("plane", ..., "plane: is required"),
        ("plane", {"kind": "haproxy", "pins": "/p"}, "plane.pins: has no meaning on the haproxy"),
        ("plane", {"kind": "ebpf", "folder": "/f"}, "plane.folder: has no meaning on the ebpf"),
        ("plane", {"kind": "memory", "binary": "x"}, "plane.binary: has no meaning on the memory"),
        ("plane", {"kind": "envoy", "capacity": {}}, "plane.capacity: has no meaning on the envoy"),
        (
            "plane",
            {"kind": "ebpf", "soft_errno": "EPERM"},
            "plane.soft_errno: must be one of EAGAIN",
        ),
        (
            "plane",
            {"kind": "ebpf", "capacity": {"groups": 0}},
            "plane.capacity.groups: must be an integer between 1 and 16384, got 0",
        ),
        ("colour", "red", "colour: is not a known field"),
        ("groups", [], "groups: must have at least 1 item, got 0"),
        ("groups[0].name", "a/b", "groups[0].name: must be letters"),
        ("groups[0].name", "..", "groups[0].name: must be letters"),
        ("groups[1].name", "web", "groups[1].name: repeats groups[0].name"),
        ("groups[0].vip", "localhost", "groups[0].vip: must be an IP address, got 'localhost'"),
        ("groups[1].port", 8080, "groups[1].vip: is the address of groups[0]"),
        ("groups[0].port", 0, "groups[0].port: must be an integer between 1 and 65535, got 0"),
        ("groups[0].proto", "sctp", "groups[0].proto: must be one of tcp, udp"),
        ("groups[0].service", "x:1", "groups[0]: must have either backends or a service"),
        ("groups[0].backends", ..., "groups[0]: must have either backends or a service"),
        ("groups[1].service", "x", "groups[1].service: must be name:port, got 'x'"),
        ("groups[1].service", "x:70000", "groups[1].service: must be name:port"),
        ("groups[0].backends[1].id", "a", "groups[0].backends[1].id: repeats"),
        ("groups[0].backends[0].id", "", "groups[0].backends[0].id: must be letters"),
        ("groups[0].backends[0].host", "web", "groups[0].backends[0].host: must be an IP address"),
        (
            "groups[0].backends[1].host",
            "127.0.0.1",
            "groups[0].backends[1].host: is the address and port of groups[0].backends[0]",
        ),
        ("groups[0].backends[0].weight", 3, "groups[0].backends[0].weight: is not a known field"),
        ("groups[0].config", {"alpha": 7}, "groups[0].config.alpha: must be between"),
        ("groups[0].config", {"beta": 7}, "groups[0].config.beta: is not a known field"),
        ("groups[0].config", {"t_hard_s": 999}, "groups[0].config.t_hard_s: must be below"),
        ("config", {"p_min": -1}, "config.p_min: must be between"),
        ("groups[0].scrape", {}, "groups[0].scrape: must name at least one of requests"),
        ("groups[0].scrape", {"errors": "e"}, "groups[0].scrape.requests: is required where"),
        ("groups[0].scrape", {"queue": "{}"}, "groups[0].scrape.queue: must begin with the name"),
        ("groups[0].scrape", {"queue": "q", "path": "m"}, "groups[0].scrape.path: must begin"),
        ("groups[0].scrape", {"queue": "q", "unit": "h"}, "groups[0].scrape.unit: must be one of"),
        (
            "groups[0].scrape",
            {"latency": "l", "p95": "p"},
            "groups[0].scrape.p95: must be left out where latency is scraped",
        ),
        ("groups[0].probe", {"path": "/a b"}, "groups[0].probe.path: must begin with a slash"),
        ("groups[0].check", {"path": "x\r\ny"}, "groups[0].check.path: must begin with a slash"),
        ("groups[0].isolation", {"outlier_ratio": 0}, "groups[0].isolation.outlier_ratio: must"),
        ("nodes", [{"name": "n", "url": "ftp://x/"}], "nodes[0].url: must be http://host"),
        ("nodes", [{"name": "n", "url": "http://[x/"}], "nodes[0].url: must be http://host"),
        ("nodes", [{"name": "n", "url": "http://x/"}] * 2, "nodes[1].name: repeats 'n'"),
        ("nodes", [{"name": "n", "url": "http://x/?a b"}], "nodes[0].url: must begin with a slash"),
        ("nodes", [{"name": "n", "url": "http://u:p@x/"}], "nodes[0].url: must be http://host"),
        ("nodes", [{"name": "n", "url": "http://x y/"}], "nodes[0].url: must be http://host"),
        ("node", {"disks": ["/a", "b"]}, "node.disks[1]: must be an absolute path, got 'b'"),
        ("node", {"disks": ["/a\0"]}, "node.disks[0]: must not contain a NUL character"),
        ("node", {"disks": ["/a", "/b", "/a"]}, "node.disks[2]: repeats node.disks[0]"),
        ("tick_ms", 1, "tick_ms: must be an integer between 10 and 1000, got 1"),
        ("tick_ms", 3000, "tick_ms: must be an integer between 10 and 1000, got 3000"),
        ("window_ms", 10, "window_ms: must be an integer between 1000 and 60000, got 10"),
        ("metrics_port", -1, "metrics_port: must be an integer between 0 and 65535, got -1"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(path: str, value: Any, problem: str) -> None:
    """Nothing is guessed and nothing ignored."""
    with pytest.raises(BadInput) as refused:
        read_traffic_document(changed(path, value), {})
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("plane", "path", "value", "problem"),
    [
        ("haproxy", "groups[0].proto", "udp", "groups[0].proto: must be tcp on the haproxy plane"),
        ("envoy", "groups[1].proto", "udp", "groups[1].proto: must be tcp on the envoy plane"),
        ("ebpf", "groups[0].port", 80, "groups[0].backends[1].host: must be IPv4 like the vip"),
        ("ebpf", "groups[0].vip", "::ffff:10.0.0.1", "groups[0].vip: must be a plain address"),
        ("ebpf", "groups[1].vip", "fe80::1%eth0", "groups[1].vip: must be a plain address"),
        ("ebpf", "groups[0].retry", "idempotent", "groups[0].retry: must be none on the ebpf"),
        ("memory", "groups[1].retry", "idempotent", "groups[1].retry: must be none on the mem"),
        ("haproxy", "groups[1].retry", "always", "groups[1].retry: "),
        ("ebpf", "config", {"s_total": 1025}, "config.s_total: must be at most 1024"),
        ("ebpf", "groups[1].config", {"s_total": 2000}, "groups[1].config.s_total: must be at"),
    ],
)
def test_what_a_plane_cannot_carry_is_refused_before_it_is_opened(
    plane: str, path: str, value: Any, problem: str
) -> None:
    """By `traffic check` too, and with the path of the field."""
    data = json.loads(changed(path, value))
    if plane == "ebpf" and path != "groups[0].port":
        data["groups"][0]["backends"].pop()
    with pytest.raises(BadInput) as refused:
        read_traffic_document(json.dumps(data).encode(), {"plane": plane})
    assert str(refused.value).startswith(problem)


def test_the_slots_of_a_table_in_the_kernel_are_as_many_as_it_says() -> None:
    """The same number in both places."""
    assert EBPF_SLOTS_MAX == SLOTS_MAX


def test_a_list_is_no_configuration() -> None:
    """Nor is anything else but a mapping."""
    with pytest.raises(BadInput, match="mapping"):
        read_traffic_document(b"[1, 2]", {})


def test_services_are_name_and_port() -> None:
    """IPv6 addresses in brackets."""
    assert service_place("web.local:80") == ("web.local", 80)
    assert service_place("[::1]:80") == ("::1", 80)


def kube(**settings: Any) -> bytes:
    return json.dumps({"plane": "haproxy", "kube": {"listen": "10.0.0.1"}, **settings}).encode()


def test_groups_of_a_cluster_are_not_listed() -> None:
    """Flags are laid over the file field by field."""
    document = read_traffic_document(kube(), {"kube": {"node": "n1"}})
    assert document.kube == KubeDocument(node="n1", listen="10.0.0.1")
    assert document.groups == []
    assert port_range(document.kube.ports) == range(20000, 21000)
    assert read_traffic_document(b"", {"plane": "ebpf", "kube": {}}).kube == KubeDocument()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": GOOD["groups"]}, "groups: must be left out where RouteGroups"),
        ({"kube": {}}, "kube.listen: is required on the haproxy plane"),
        ({"kube": {"listen": "here"}}, "kube.listen: must be an IP address, got 'here'"),
        ({"kube": {"listen": "::1", "ports": "9-1"}}, "kube.ports: must be two ports such as"),
        ({"kube": {"listen": "::1", "ports": "80"}}, "kube.ports: must be two ports such as"),
    ],
)
def test_a_bad_kube_section_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_traffic_document(kube(**settings), {})
    assert message in str(refused.value)


HAPROXY = {"haproxy": {"socket": "/run/haproxy/admin.sock", "backend": "app"}}
ENVOY = {"envoy": {"xds": "127.0.0.1:18000", "admin": "127.0.0.1:9901", "cluster": "app"}}
LISTED = [{"id": "a", "host": "127.0.0.1", "port": 9001}]


def running(plane: Any, *groups: Any, **settings: Any) -> bytes:
    return json.dumps({"plane": plane, "groups": groups, **settings}).encode()


def test_a_proxy_that_runs_already_names_its_kind() -> None:
    """HAProxy lists its servers itself; Envoy is told its endpoints."""
    document = read_traffic_document(running(HAPROXY, {"name": "web"}), {})
    assert document.plane.kind == "haproxy"
    assert document.plane.running is document.plane.haproxy
    document = read_traffic_document(running(ENVOY, {"name": "web", "backends": LISTED}), {})
    assert document.plane.running is document.plane.envoy
    assert read_traffic_document(changed("groups[0].name", "x"), {}).plane.running is None


@pytest.mark.parametrize(
    ("plane", "group", "problem"),
    [
        (HAPROXY, {"vip": "127.0.0.1"}, "groups[0].vip: must be left out: clients connect to"),
        (HAPROXY, {"port": 80}, "groups[0].port: must be left out"),
        (HAPROXY, {"service": "web:80"}, "groups[0].service: must be left out: HAProxy lists"),
        (HAPROXY, {"retry": "idempotent"}, "groups[0].retry: must be none: retries are settings"),
        (ENVOY, {}, "groups[0]: must have either backends or a service"),
        ({"haproxy": {"socket": "here"}}, {}, "plane.haproxy.socket: must be a socket's path or"),
        ({"haproxy": {"socket": "h:0"}}, {}, "plane.haproxy.socket: must be a socket's path or"),
        ({"haproxy": {"socket": "/s", "backend": "a b"}}, {}, "plane.haproxy.backend: must be l"),
        ({"haproxy": {"socket": "/s"}, "folder": "/f"}, {}, "plane.folder: must be left out: the"),
        (
            {"haproxy": {"socket": "/s"}, "kind": "envoy"},
            {},
            "plane.haproxy: has no meaning on the",
        ),
        ({"haproxy": {}}, {}, "plane.haproxy.socket: is required"),
        (
            {"envoy": {"xds": "10.0.0.1:1", "admin": "/a"}},
            {"backends": LISTED},
            "plane.envoy.xds: must be a socket's path or a loopback address",
        ),
        (
            {"envoy": {"xds": "proxy.example:1", "admin": "/a"}},
            {"backends": LISTED},
            "plane.envoy.xds: must be a socket's path or a loopback address",
        ),
        (
            {"envoy": {"xds": "localhost:1", "admin": "/a", "requests": "log"}},
            {"backends": LISTED},
            "plane.envoy.requests: must be an absolute path, got 'log'",
        ),
        ({"kind": "memory", **HAPROXY}, {}, "plane.haproxy: has no meaning on the memory plane"),
    ],
)
def test_what_is_wrong_about_a_proxy_that_runs_is_refused(
    plane: Any, group: Any, problem: str
) -> None:
    """Before it is asked anything."""
    with pytest.raises(BadInput) as refused:
        read_traffic_document(running(plane, {"name": "web", **group}), {})
    assert str(refused.value).startswith(problem), refused.value


def test_one_name_does_not_stand_for_several_groups_nor_for_a_cluster() -> None:
    """Without it each group is the backend of its name."""
    groups = ({"name": "one"}, {"name": "two"})
    with pytest.raises(BadInput, match=r"plane\.haproxy\.backend: must be left out with several"):
        read_traffic_document(running(HAPROXY, *groups), {})
    named = {"haproxy": {"socket": "localhost:9999"}}
    assert len(read_traffic_document(running(named, *groups), {}).groups) == 2
    with pytest.raises(BadInput, match="kube: must be left out where a proxy that already runs"):
        read_traffic_document(running(HAPROXY, kube={"listen": "10.0.0.1"}), {})


@pytest.mark.parametrize("name", ["vip", "port"])
def test_a_group_of_our_own_proxy_has_an_address(name: str) -> None:
    """As before."""
    data = json.loads(changed("groups[0].name", "x"))
    del data["groups"][0][name]
    with pytest.raises(BadInput) as refused:
        read_traffic_document(json.dumps(data).encode(), {})
    assert str(refused.value) == f"groups[0].{name}: is required"
