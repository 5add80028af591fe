"""The route of a group: all that a flip changes, in one file that is replaced whole.

It says which cluster serves, how much may be inside and how far the door is open. The script of the
door (`admission.lua`) reads its numbers from the route's metadata; that of the bound (`inside.lua`)
has them in front. The table it stands for is written into it, so that the next agent can read what
the group goes by.
"""

import json
from math import ceil
from pathlib import Path
from typing import Any

from fairlead.dataplane.envoy import refusals
from fairlead.dataplane.envoy.documents import (
    FLOW,
    HASHED,
    LUA,
    SIDES,
    cluster_name,
    response,
    typed,
)
from fairlead.dataplane.envoy.files import Document
from fairlead.dataplane.names import tame
from fairlead.dataplane.tables import Current, fallback_admission
from fairlead.ports.dataplane import Admission, Mode, RouteGroup

_OURS = "fairlead"
_RETRY_S_MAX = 60
_SCRIPT = Path(__file__).with_name("inside.lua")


def active(group: RouteGroup, table: Current, *, side: str, version: str, workers: int) -> Document:
    """The route of a living agent's table."""
    door = _door(table.admission, workers) | {"nobody": not any(table.slots.values())}
    return _routes(group, door, _to(group, side, table.inside_max), _kept(table, side), version)


def alone(group: RouteGroup, table: Current, *, side: str, version: str, workers: int) -> Document:
    """The route for the time without an agent: nothing is bounded."""
    door = _door(fallback_admission(table.admission), workers) | {"nobody": not table.slots}
    to = _to(group, HASHED, None) | {"hash_policy": [{"filter_state": {"key": FLOW}}]}
    return _routes(group, door, to, _kept(table, side), version)


def read(document: Document) -> tuple[Current, str]:
    """The table a route stands for, and the side it is laid out on."""
    routes = document["resources"][0]["virtual_hosts"][0]["routes"]
    kept: dict[str, Any] = routes[-1]["metadata"]["filter_metadata"][_OURS]
    admission = Admission(Mode(kept["mode"]), *kept["budget"])
    table = Current(int(kept["epoch"]), dict(kept["slots"]), admission, kept.get("inside_max"))
    return table, kept["side"]


def _to(group: RouteGroup, served: str, inside_max: int | None) -> Document:
    """Where requests go: to a cluster, or through the script that counts what is inside."""
    name = cluster_name(group.name, served)
    if inside_max is None:
        return {"cluster": name}
    listed = ", ".join(json.dumps(cluster_name(group.name, each)) for each in (*SIDES, HASHED))
    words = f"local most, served, clusters = {inside_max}, {json.dumps(name)}, {{{listed}}}\n"
    script = {
        "@type": typed("extensions.router.cluster_specifiers.lua.v3.LuaConfig"),
        "source_code": {"inline_string": words + _SCRIPT.read_text()},
        "default_cluster": name,
    }
    named = {"name": "envoy.router.cluster_specifier_plugin.lua", "typed_config": script}
    return {"inline_cluster_specifier_plugin": {"extension": named}}


def _door(admission: Admission, workers: int) -> Document:
    """What the script is told: each worker has a bucket, and a share of the numbers."""
    if admission.mode == Mode.NORMAL:
        return {"mode": admission.mode.value}
    rate, burst = admission.rate_per_s or 0.0, admission.burst or 0.0
    # A bucket below one token would never let anybody in, however long it fills.
    share = max(burst / workers, min(burst, 1.0))
    return {
        "mode": admission.mode.value,
        "rate": rate / workers,
        "burst": share,
        "retry_s": _retry_s(rate),
    }


def _routes(
    group: RouteGroup, door: Document, to: Document, kept: Document, version: str
) -> Document:
    host = {
        "name": tame(group.name),
        "domains": ["*"],
        "routes": [*(_refusal(mode, door) for mode in refusals.STATUS), _main(door, to, kept)],
    }
    made = {
        "@type": typed("config.route.v3.RouteConfiguration"),
        "name": tame(group.name),
        "virtual_hosts": [host],
    }
    return response(version, [made])


def _main(door: Document, to: Document, kept: Document) -> Document:
    made: Document = {
        "match": {"prefix": "/"},
        "route": to | {"timeout": "0s"},
        "metadata": {"filter_metadata": {LUA: door, _OURS: kept}},
    }
    if door["mode"] == Mode.NORMAL and not door["nobody"]:
        skip = {"@type": typed("extensions.filters.http.lua.v3.LuaPerRoute"), "disabled": True}
        made["typed_per_filter_config"] = {LUA: skip}
    return made


def _refusal(mode: str, door: Document) -> Document:
    said = {
        "filter": _OURS,
        "path": [{"key": "refused"}],
        "value": {"string_match": {"exact": mode}},
    }
    return {
        "match": {"prefix": "/", "dynamic_metadata": [said]},
        "direct_response": {"status": refusals.STATUS[mode], "body": refusals.body(mode)},
        "response_headers_to_add": refusals.headers(mode, door.get("retry_s", 1)),
    }


def _retry_s(rate_per_s: float) -> int:
    """When the next token is due."""
    return min(_RETRY_S_MAX, max(1, ceil(1 / rate_per_s))) if rate_per_s > 0 else _RETRY_S_MAX


def _kept(table: Current, side: str) -> Document:
    admission = table.admission
    budget = [admission.rate_per_s, admission.burst]
    stored = [admission.stored_rate_per_s, admission.stored_burst]
    return {
        "epoch": table.epoch,
        "side": side,
        "slots": dict(table.slots),
        "mode": admission.mode.value,
        "budget": budget + stored,
        "inside_max": table.inside_max,
    }
