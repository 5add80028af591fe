"""RouteGroups, Services and EndpointSlices become the agent's groups; what cannot is refused."""

from typing import Any

import pytest

from fairlead.kube.traffic.groups import AgentPlace, TrafficObjects, follow_groups
from fairlead.kube.watch import Key, key_of
from fairlead.schema.traffic_agent import read_traffic_document
from tests.kube.world import Document

PROXY = b"{plane: haproxy, kube: {listen: 10.1.1.1, ports: 20000-20009}}"
EBPF = b"{plane: ebpf, kube: {}}"
HTTP = {"name": "http", "port": 80, "protocol": "TCP"}


def place(settings: bytes = PROXY, zone: str | None = None) -> AgentPlace:
    return AgentPlace(read_traffic_document(settings, {}), "n1", zone)


def meta(name: str, namespace: str = "team-a", **more: Any) -> Document:
    times = {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": f"u-{name}", "generation": 1}
    return {"name": name, "namespace": namespace, **times, **more}


def group(name: str = "web", namespace: str = "team-a", **spec: Any) -> Document:
    more = {"creationTimestamp": spec.pop("made")} if "made" in spec else {}
    fields = {"service": {"name": "web", "port": 80}, "dataplane": "haproxy", "port": 20000}
    return {
        "metadata": meta(name, namespace, **more),
        "spec": {k: v for k, v in {**fields, **spec}.items() if v is not None},
    }


def service(namespace: str = "team-a", **spec: Any) -> Document:
    fields = {"clusterIPs": ["10.96.0.7"], "ipFamilies": ["IPv4"], "ports": [HTTP]}
    return {"metadata": meta("web", namespace), "spec": {**fields, **spec}}


def slice_of(
    name: str, *hosts: str, namespace: str = "team-a", family: str = "IPv4", **more: Any
) -> Document:
    labels = {"kubernetes.io/service-name": "web"}
    return {
        "metadata": meta(name, namespace, labels=labels),
        "addressType": family,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [host]} for host in hosts],
        **more,
    }


def objects(groups: list[Document], services: list[Document], *slices: Document) -> TrafficObjects:
    rows = (groups, services, list(slices))
    return TrafficObjects(*({key_of(row): row for row in kind} for kind in rows))


def test_a_group_has_the_ready_endpoints_of_all_slices_of_its_service() -> None:
    """At the port of the slice, not of the Service; other families and other names left out."""
    other = {"ports": [{"name": "admin", "port": 9, "protocol": "TCP"}]}
    followed = follow_groups(
        objects(
            [group(config={"l_ref_ms": 50})],
            [service()],
            slice_of("web-1", "10.0.0.1", "10.0.0.2"),
            slice_of("web-2", "10.0.0.2", "10.0.0.3"),
            slice_of("web-3", "fd00::1", family="IPv6"),
            slice_of("web-4", "10.0.0.9", **other),
            slice_of("web-5", "10.0.0.8", namespace="team-b"),
            slice_of("web-6", "example.org", family="FQDN"),
        ),
        place(),
    )
    (made,) = followed.groups
    assert (made.name, made.vip, made.port) == ("team-a.web", "10.1.1.1", 20000)
    assert [backend.id for backend in made.backends or ()] == [
        "10.0.0.1:8080",
        "10.0.0.2:8080",
        "10.0.0.3:8080",
    ]
    assert made.config == {"l_ref_ms": 50}
    verdict = followed.verdicts[Key("team-a", "web")]
    assert (verdict.accepted, verdict.address, verdict.ready) == (True, "10.1.1.1:20000", 3)


def test_a_terminating_endpoint_is_to_be_drained() -> None:
    ends = {
        "addresses": ["10.0.0.2"],
        "conditions": {"ready": False, "serving": True, "terminating": True},
    }
    item = slice_of("web-1", "10.0.0.1")
    item["endpoints"].append(ends)
    followed = follow_groups(objects([group()], [service()], item), place())
    assert followed.drains == {"team-a.web": {"10.0.0.2:8080": "drain"}}
    assert followed.verdicts[Key("team-a", "web")].ready == 1


def test_hints_are_kept() -> None:
    item = slice_of("web-1", "10.0.0.1", "10.0.0.2")
    for row, zone in zip(item["endpoints"], ("a", "b"), strict=True):
        row["hints"] = {"forZones": [{"name": zone}]}
    found = objects([group()], [service()], item)
    (near,) = follow_groups(found, place(zone="b")).groups
    assert [backend.host for backend in near.backends or ()] == ["10.0.0.2"]
    (all_of_them,) = follow_groups(found, place()).groups
    assert len(all_of_them.backends or ()) == 2


def test_on_ebpf_the_address_is_the_services_own_for_each_family() -> None:
    """A tenant names no address: that of a Service is given by the API server."""
    both = service(clusterIPs=["10.96.0.7", "fd00:96::7"], ipFamilies=["IPv4", "IPv6"])
    found = objects(
        [group(dataplane="ebpf", port=None)],
        [both],
        slice_of("web-1", "10.0.0.1"),
        slice_of("web-2", "fd00::1", family="IPv6"),
    )
    four, six = follow_groups(found, place(EBPF)).groups
    assert (four.name, four.vip, four.port) == ("team-a.web", "10.96.0.7", 80)
    assert (six.name, six.vip, six.port) == ("team-a.web_v6", "fd00:96::7", 80)
    assert [backend.host for backend in six.backends or ()] == ["fd00::1"]


def test_groups_of_another_dataplane_are_left_to_its_agent() -> None:
    found = objects([group(dataplane="envoy")], [service()], slice_of("web-1", "10.0.0.1"))
    assert follow_groups(found, place()).verdicts == {}


@pytest.mark.parametrize(
    ("spec", "about", "reason", "message"),
    [
        ({"config": {"alpha": 7}}, {}, "Invalid", "spec.config.alpha: must be between"),
        ({"config": {"beta": 7}}, {}, "Invalid", "spec.config.beta: is not a known field"),
        ({"color": "red"}, {}, "Invalid", "spec.color: is not a known field"),
        ({"scrape": {}}, {}, "Invalid", "spec.scrape: must name at least one of requests"),
        ({"config": {"s_total": 2000}}, {}, "Invalid", "spec.config.s_total: must be at most 1024"),
        ({"proto": "udp"}, {}, "Invalid", "spec.proto: must be tcp on haproxy"),
        ({"check": {"every_ms": 10}}, {}, "Invalid", "spec.check.every_ms: must be at least 500"),
        ({"port": None}, {}, "Invalid", "spec.port: is required on haproxy"),
        ({"port": 80}, {}, "PortNotAllowed", "spec.port: must be between 20000 and 20009, got 80"),
        (
            {"service": {"name": "db", "port": 80}},
            {},
            "ServiceNotFound",
            "spec.service.name: there is no Service 'db' here",
        ),
        (
            {"service": {"name": "web", "port": 81}},
            {},
            "PortNotFound",
            "spec.service.port: the Service has no tcp port 81",
        ),
        ({}, {"type": "ExternalName"}, "Unsupported", "spec.service.name: an ExternalName"),
        ({}, {"ports": 7}, "Invalid", "cannot be read"),
    ],
)
def test_a_group_that_cannot_be_served_says_why_and_leaves_the_others_alone(
    spec: Document, about: Document, reason: str, message: str
) -> None:
    """The other one is younger, and of another namespace."""
    good = group("web", "team-b", port=20001, made="2026-02-01T00:00:00Z")
    found = objects(
        [group(**spec), good],
        [service(**about), service("team-b")],
        slice_of("web-1", "10.0.0.1", namespace="team-b"),
    )
    followed = follow_groups(found, place())
    verdict = followed.verdicts[Key("team-a", "web")]
    assert (verdict.accepted, verdict.reason) == (False, reason)
    assert message in verdict.message
    assert [made.name for made in followed.groups] == ["team-b.web"]


@pytest.mark.parametrize(
    ("spec", "about", "message"),
    [
        ({"port": 20000}, {}, "spec.port: must be left out on ebpf"),
        ({}, {"clusterIPs": ["None"]}, "spec.service.name: a headless Service"),
        ({"config": {"s_total": 2000}}, {}, "spec.config.s_total: must be at most 1024"),
    ],
)
def test_what_ebpf_cannot_serve_is_refused(spec: Document, about: Document, message: str) -> None:
    wanted = group(**{"dataplane": "ebpf", "port": None, **spec})
    followed = follow_groups(objects([wanted], [service(**about)]), place(EBPF))
    verdict = followed.verdicts[Key("team-a", "web")]
    assert not verdict.accepted
    assert message in verdict.message


def test_an_address_belongs_to_the_oldest_group_that_asks_for_it() -> None:
    """The other is not told whose it is."""
    late = group("late", "team-b", made="2026-02-01T00:00:00Z")
    found = objects([late, group("early")], [service(), service("team-b")])
    followed = follow_groups(found, place())
    assert followed.verdicts[Key("team-a", "early")].accepted
    verdict = followed.verdicts[Key("team-b", "late")]
    assert (verdict.reason, verdict.accepted) == ("AddressTaken", False)
    assert "early" not in verdict.message


def test_a_name_that_is_too_long_for_the_kernel_is_refused() -> None:
    name, namespace = "w" * 63, "n" * 63
    found = objects([group(name, namespace)], [service(namespace)])
    verdict = follow_groups(found, place()).verdicts[Key(namespace, name)]
    assert verdict.message.startswith("metadata.name: must be at most 120 characters")


def test_a_namespace_has_a_limit_of_groups_and_the_oldest_are_served() -> None:
    many = PROXY.replace(b"ports:", b"max_groups: 2, ports:")
    made = [group(f"g{n}", port=20000 + n, made=f"2026-01-0{9 - n}T00:00:00Z") for n in range(4)]
    other = group("one", "team-b", port=20005, made="2026-02-01T00:00:00Z")
    found = follow_groups(objects([*made, other], [service(), service("team-b")]), place(many))
    refused = {key.name: row for key, row in found.verdicts.items() if not row.accepted}
    assert sorted(refused) == ["g0", "g1"], "the youngest; another namespace is served"
    assert {row.reason for row in refused.values()} == {"TooManyRouteGroups"}
    assert "kube.max_groups" in refused["g0"].message
