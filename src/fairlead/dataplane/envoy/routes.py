"""The route of a group: all that a flip changes, in one file that is replaced whole.

It says which cluster serves and how far the door is open; the script (`admission.lua`) reads the
door's numbers from the route's metadata. The table it stands for is written into it, so that the
next agent can read what the group goes by.
"""

from math import ceil
from typing import Any

from fairlead.dataplane.envoy.documents import (
    FLOW,
    HASHED,
    LUA,
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
_REFUSALS = {"soft": 429, "hard": 503}


def active(group: RouteGroup, table: Current, *, side: str, version: str, workers: int) -> Document:
    """The route of a living agent's table."""
    door = _door(table.admission, workers) | {"nobody": not any(table.slots.values())}
    return _routes(group, door, side, _kept(table, side), version)


def alone(group: RouteGroup, table: Current, *, side: str, version: str, workers: int) -> Document:
    """The route for the time without an agent."""
    door = _door(fallback_admission(table.admission), workers) | {"nobody": not table.slots}
    return _routes(group, door, HASHED, _kept(table, side), version)


def read(document: Document) -> tuple[Current, str]:
    """The table a route stands for, and the side it is laid out on."""
    routes = document["resources"][0]["virtual_hosts"][0]["routes"]
    kept: dict[str, Any] = routes[-1]["metadata"]["filter_metadata"][_OURS]
    admission = Admission(Mode(kept["mode"]), *kept["budget"])
    return Current(int(kept["epoch"]), dict(kept["slots"]), admission), kept["side"]


def _door(admission: Admission, workers: int) -> Document:
    """What the script is told: each worker has a bucket, and a share of the numbers."""
    if admission.mode == Mode.NORMAL:
        return {"mode": admission.mode.value}
    rate, burst = admission.rate_per_s or 0.0, admission.burst or 0.0
    # A bucket below one token would never let anybody in, however long it fills.
    share = max(burst / workers, min(burst, 1.0))
    return {"mode": admission.mode.value, "rate": rate / workers, "burst": share,
            "retry_s": _retry_s(rate)}  # fmt: skip


def _routes(
    group: RouteGroup, door: Document, served: str, kept: Document, version: str
) -> Document:
    refusals = [_refusal(mode, door) for mode in _REFUSALS]
    host = {
        "name": tame(group.name),
        "domains": ["*"],
        "routes": [*refusals, _main(group, door, served, kept)],
    }
    made = {
        "@type": typed("config.route.v3.RouteConfiguration"),
        "name": tame(group.name),
        "virtual_hosts": [host],
    }
    return response(version, [made])


def _main(group: RouteGroup, door: Document, served: str, kept: Document) -> Document:
    action: Document = {"cluster": cluster_name(group.name, served), "timeout": "0s"}
    made: Document = {
        "match": {"prefix": "/"},
        "route": action,
        "metadata": {"filter_metadata": {LUA: door, _OURS: kept}},
    }
    if served == HASHED:
        action["hash_policy"] = [{"filter_state": {"key": FLOW}}]
    if door["mode"] == Mode.NORMAL and not door["nobody"]:
        skip = {"@type": typed("extensions.filters.http.lua.v3.LuaPerRoute"), "disabled": True}
        made["typed_per_filter_config"] = {LUA: skip}
    return made


def _refusal(mode: str, door: Document) -> Document:
    headers = {"Fairlead-Refused": mode}
    if mode == Mode.SOFT:
        headers["Retry-After"] = str(door.get("retry_s", 1))
    said = {"filter": _OURS, "path": [{"key": "refused"}],
            "value": {"string_match": {"exact": mode}}}  # fmt: skip
    return {
        "match": {"prefix": "/", "dynamic_metadata": [said]},
        "direct_response": {
            "status": _REFUSALS[mode],
            "body": {"inline_string": f"refused by fairlead: {mode}"},
        },
        "response_headers_to_add": [
            {"header": {"key": key, "value": value}} for key, value in headers.items()
        ],
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
    }
