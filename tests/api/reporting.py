"""Reports as agents send them, made by hand."""

import time
from typing import Any


def decision(number: int, kind: str = "cpu.allocate", **more: Any) -> dict[str, Any]:
    document = {"number": number, "kind": kind, "version": 1, "input": {}, "output": {}}
    return {**document, "applied": True, **more}


def pod(name: str = "web", need: int = 700, **more: Any) -> dict[str, Any]:
    return {
        "pod": name,
        "need_millicores": need,
        "allocation_millicores": 500,
        "limit_millicores": 500,
        "usage_millicores": 480,
        "throttling": 0.25,
        "min_millicores": 100,
        "max_millicores": 2000,
        "reasons": ["market-cleared"],
        **more,
    }


def node_moment(number: int, time_ms: int | None = None, **more: Any) -> dict[str, Any]:
    state = {
        "mode": "congested",
        "policy": "nash",
        "node_millicores": 2000,
        "capacity_millicores": 1800,
        "shadow_price": 0.5,
        "need_millicores": 2400,
        "limits_millicores": 1800,
        "observed_only": False,
        "problems": [],
        "pods": [pod(), pod("db", 1700)],
        **more,
    }
    now = int(time.time() * 1000) if time_ms is None else time_ms
    return {"time_ms": now, "state": state, "decision": decision(number)}


def backend(name: str, **more: Any) -> dict[str, Any]:
    pressure = {"total": 1.5, "queue": 0.5, "latency": 0.75, "error": 0.25, "penalty": 0.0}
    row = {"backend": name, "slots": 128, "target": 128, "pressure": pressure, "queue": 2.0}
    return {**row, "p95_ms": 40.0, "error_rate": 0.01, "requests": 500, **more}


def group_moment(number: int, time_ms: int | None = None, **more: Any) -> dict[str, Any]:
    state = {
        "plane": "memory",
        "mode": "normal",
        "rate_per_s": None,
        "regime": "steady",
        "stall": False,
        "ttf_s": None,
        "conductance": 0.9,
        "skew": 0.1,
        "scale_hint": False,
        "liveness": "normal",
        "admitted": 1000 + number,
        "refused_soft": 0,
        "refused_hard": 0,
        "reasons": ["balanced"],
        "fault": "",
        "backends": [backend("a"), backend("b")],
        **more,
    }
    now = int(time.time() * 1000) if time_ms is None else time_ms
    return {"time_ms": now, "state": state, "decision": decision(number, "traffic.tick")}


def report(agent: str, **parts: Any) -> dict[str, Any]:
    """`nodes={name: moments}`, `groups={name: moments}`."""
    document: dict[str, Any] = {"version": 1, "agent": agent, "started_ms": 1, "dropped": 0}
    for part, subjects in parts.items():
        document[part] = [
            {"name": name, "every_ms": 1000, "moments": moments}
            for name, moments in subjects.items()
        ]
    return document
