"""What Envoy has counted: requests per host from `/clusters`, refusals and totals from `/stats`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.dataplane.envoy import admin
from fairlead.dataplane.envoy.documents import HASHED, SIDES

_TOTALS = (
    r"^(cluster\..*\.upstream_rq_(total|pending_failure_eject)"
    r"|http\..*\.(rbac\..*shadow_denied|no_cluster))$"
)
_REFUSED = re.compile(r"^http\.(.*)\.rbac\.(soft|hard)_\.?shadow_denied$")
_FULL = re.compile(r"^http\.(.*)\.no_cluster$")  # `inside.lua` sent them nowhere
# Requests that got a connection, and those whose connection failed.
_SENT = re.compile(r"^cluster\.(.*)_[abf]\.upstream_rq_(?:total|pending_failure_eject)$")


@dataclass(slots=True)
class Host:
    """One backend of a group, over its clusters."""

    admitted: int = 0
    connect_failures: int = 0
    successes: int = 0
    errors: int = 0
    open: int = 0


@dataclass(slots=True)
class Counted:
    """One group; hosts by address, as Envoy writes it."""

    admitted: int = 0
    refused_soft: int = 0
    refused_hard: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)


def read(path: Path, groups: Iterable[str]) -> dict[str, Counted]:
    """Everything about these (tamed) groups."""
    counted = {name: Counted() for name in groups}
    for name, value in admin.stats(path, _TOTALS).items():
        sent, refused, full = _SENT.match(name), _REFUSED.match(name), _FULL.match(name)
        if sent and sent[1] in counted:
            counted[sent[1]].admitted += int(value)
        elif full and full[1] in counted:
            counted[full[1]].refused_soft += int(value)
        elif refused and refused[1] in counted:
            here = counted[refused[1]]
            if refused[2] == "soft":
                here.refused_soft += int(value)
            else:
                here.refused_hard += int(value)
    for cluster in admin.document(path, "/clusters?format=json").get("cluster_statuses", []):
        group, _, side = cluster["name"].rpartition("_")
        if side in (*SIDES, HASHED) and group in counted:
            for status in cluster.get("host_statuses", []):
                _add(counted[group].hosts, status)
    return counted


def _add(hosts: dict[str, Host], status: dict[str, Any]) -> None:
    place = status["address"]["socket_address"]
    host = hosts.setdefault(address(place["address"], place["port_value"]), Host())
    values = {each["name"]: int(each.get("value", 0)) for each in status.get("stats", [])}
    failed, broken = values.get("rq_error", 0), values.get("cx_connect_fail", 0)
    host.successes += values.get("rq_success", 0)
    # Envoy counts a request whose connect failed as an error, and the connect besides.
    host.connect_failures += min(failed, broken)
    host.errors += failed - min(failed, broken)
    host.open += values.get("rq_active", 0)
    host.admitted = host.successes + host.errors + host.connect_failures + host.open


def address(host: str, port: int) -> str:
    """An address as Envoy writes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
