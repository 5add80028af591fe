"""The spec of a RouteGroup on Kubernetes: a group's settings, and the Service that it stands for.

    service: {name: web, port: 80}
    dataplane: haproxy
    port: 20080
    config: {l_ref_ms: 50}

A tenant writes it, so it names no address: backends are the Service's endpoints, and where the
group is reached is the Service's own address (eBPF) or a port of those that the agent's operator
allows (proxies).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.dataplane import DataplaneKind
from fairlead.schema.objects import Label
from fairlead.schema.traffic_agent import GroupSettings, Port, Proto, check_retry, check_settings

CONFIG_MAX = {"derivative_window_ms": 60_000, "s_total": 1_024, "stall_m": 100}
"""Parameters that an agent's memory or time grows with."""
EVERY_MS_MIN = 500
"""How often a tenant may have the agent of every node ask each backend."""


class KubeDataplane(StrEnum):
    """What moves the connections of a RouteGroup."""

    EBPF = DataplaneKind.EBPF.value
    HAPROXY = DataplaneKind.HAPROXY.value
    ENVOY = DataplaneKind.ENVOY.value


class ServicePort(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A port of a Service of the RouteGroup's own namespace."""

    name: Label
    port: Port


class RouteGroupSpec(GroupSettings, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How the connections to a Service are balanced and admitted."""

    service: ServicePort
    dataplane: KubeDataplane
    port: Annotated[
        Port | None, Meta(description="where a proxy listens; none on ebpf: the Service's address")
    ] = None


def read_route_group(spec: Any, all_groups: Mapping[str, Any]) -> RouteGroupSpec:
    """A spec that is checked whole; `all_groups` are the agent's own parameters."""
    try:
        read = check_shape(spec, RouteGroupSpec)
    except BadInput as error:
        raise BadInput(f"spec.{error.path}" if error.path else "spec", error.message) from error
    check_settings(read, all_groups, "spec")
    for name, most in CONFIG_MAX.items():
        if read.config.get(name, 0) > most:
            message = f"must be at most {most}, got {read.config[name]}"
            raise BadInput(f"spec.config.{name}", message)
    ebpf = read.dataplane is KubeDataplane.EBPF
    if ebpf and read.port is not None:
        raise BadInput("spec.port", "must be left out on ebpf: the Service's address is used")
    if not ebpf and read.port is None:
        raise BadInput("spec.port", f"is required on {read.dataplane.value}")
    if not ebpf and read.proto is Proto.UDP:
        raise BadInput("spec.proto", f"must be tcp on {read.dataplane.value}")
    check_retry(read, read.dataplane.value, "spec.retry")
    for name in ("scrape", "check"):
        part = getattr(read, name)
        if part is not None and part.every_ms < EVERY_MS_MIN:
            raise BadInput(f"spec.{name}.every_ms", f"must be at least {EVERY_MS_MIN}")
    if read.isolation.probe_every_ms < EVERY_MS_MIN:
        raise BadInput("spec.isolation.probe_every_ms", f"must be at least {EVERY_MS_MIN}")
    return read
