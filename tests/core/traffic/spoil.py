"""One defect in a `traffic.tick` document, and the path at which a border must refuse it.

Only defects that no reading of the contract accepts: wrong types, NaN and infinities, negative
sizes, ratios above 1, unknown and repeated names, references that would divide by zero.
"""
# ruff: noqa: PLR0911

import copy
import math
import random
from typing import Any

from tests.core.traffic.cases import OVERRIDES, PSI, Document

NOT_NUMBERS = (math.nan, math.inf, -math.inf, "3", True, [], {}, -1, -0.5)
NOT_TEXTS = (None, 3, True, [], {})
SIGNALS = ("queue", "p95_ms", "error_rate", "requests", "age_ms", "rtt_ms", "jitter_ms")
DIVISORS = ("q_ref", "l_ref_ms", "e_ref", "s_total", "stall_m", "derivative_window_ms")


def spoil(rng: random.Random, document: Document) -> tuple[Document, str]:
    """A copy with one defect, and its path."""
    document = copy.deepcopy(document)
    document.setdefault("config", {})
    document.setdefault("nodes", [])
    choices = [_spoil_top, _spoil_config, _spoil_theta]
    choices += [_spoil_backend] * 3 if document["backends"] else []
    choices += [_spoil_node, _spoil_psi] if document["nodes"] else []
    choices += [_spoil_resource] if any(n["resources"] for n in document["nodes"]) else []
    return document, rng.choice(choices)(rng, document)


def _put(where: Document, name: str, value: Any, at: str) -> str:
    where[name] = value
    return f"{at}.{name}" if at else name


def _spoil_top(rng: random.Random, document: Document) -> str:
    name = rng.choice(
        ("now_ms", "group", "backends", "nodes", "retry_index", "config", "state", "?")
    )
    if name in ("now_ms", "group", "backends") and rng.random() < 0.3:
        del document[name]
        return name
    values: dict[str, tuple[Any, ...]] = {
        "now_ms": (math.nan, math.inf, "1", True, [], None, 0.5),
        "group": NOT_TEXTS,
        "backends": ({}, None, "b", 3),
        "nodes": ({}, "n", 3),
        "retry_index": NOT_NUMBERS,
        "config": ([], "c", 3),
        "state": ([], "s", 3, True),
        "?": (1, None),
    }
    return _put(document, name, rng.choice(values[name]), "")


def _spoil_config(rng: random.Random, document: Document) -> str:
    config = document["config"] = {}
    if rng.random() < 0.1:
        return _put(config, rng.choice(("S_total", "deltaw", "x.y")), 1, "config")
    if rng.random() < 0.1:
        return _put(config, "t_hard_s", rng.choice((120, 120.0, 500)), "config")
    if rng.random() < 0.2:
        return _put(config, rng.choice(DIVISORS), 0, "config")
    name = rng.choice(sorted(set(OVERRIDES) - {"theta"}))
    return _put(config, name, rng.choice(NOT_NUMBERS), "config")


def _spoil_theta(rng: random.Random, document: Document) -> str:
    theta = dict(document["config"].get("theta", {}))
    document["config"]["theta"] = theta
    if rng.random() < 0.2:
        return _put(document["config"], "theta", rng.choice(([], 1, "x")), "config")
    if rng.random() < 0.2:
        return _put(theta, rng.choice(("cpu", "cpu_full", "disk")), 0.1, "config.theta")
    return _put(theta, rng.choice(PSI), rng.choice(NOT_NUMBERS), "config.theta")


def _spoil_backend(rng: random.Random, document: Document) -> str:
    index = rng.randrange(len(document["backends"]))
    backend, at = document["backends"][index], f"backends[{index}]"
    kind = rng.choice(("signal", "signal", "signal", "ratio", "id", "isolated", "unknown", "twice"))
    if kind == "signal":
        return _put(backend, rng.choice(SIGNALS), rng.choice(NOT_NUMBERS), at)
    if kind == "ratio":
        return _put(backend, "error_rate", rng.choice((1.0001, 2, 100)), at)
    if kind == "id":
        if rng.random() < 0.3:
            del backend["id"]
            return f"{at}.id"
        return _put(backend, "id", rng.choice(NOT_TEXTS), at)
    if kind == "isolated":
        return _put(backend, "isolated", rng.choice(("true", 1, 0, [])), at)
    if kind == "unknown":
        return _put(backend, rng.choice(("weight", "P95_ms", "x")), 1, at)
    document["backends"].append(copy.deepcopy(backend))
    return f"backends[{len(document['backends']) - 1}].id"


def _spoil_node(rng: random.Random, document: Document) -> str:
    index = rng.randrange(len(document["nodes"]))
    node, at = document["nodes"][index], f"nodes[{index}]"
    kind = rng.choice(("id", "unknown", "twice", "psi", "resources"))
    if kind == "id":
        return _put(node, "id", rng.choice(NOT_TEXTS), at)
    if kind == "unknown":
        return _put(node, "x", 1, at)
    if kind == "psi":
        return _put(node, "psi", rng.choice(([], 3, "x")), at)
    if kind == "resources":
        return _put(node, "resources", rng.choice(({}, 3, "x")), at)
    document["nodes"].append(copy.deepcopy(node))
    return f"nodes[{len(document['nodes']) - 1}].id"


def _spoil_psi(rng: random.Random, document: Document) -> str:
    index = rng.randrange(len(document["nodes"]))
    psi = document["nodes"][index]["psi"] = dict(document["nodes"][index]["psi"] or {})
    if rng.random() < 0.2:
        return _put(psi, "cpu_full", 0.1, f"nodes[{index}].psi")
    return _put(psi, rng.choice(PSI), rng.choice(NOT_NUMBERS), f"nodes[{index}].psi")


def _spoil_resource(rng: random.Random, document: Document) -> str:
    index = rng.choice([i for i, node in enumerate(document["nodes"]) if node["resources"]])
    resources = document["nodes"][index]["resources"]
    which = rng.randrange(len(resources))
    at = f"nodes[{index}].resources[{which}]"
    kind = rng.choice(("limit", "used", "name", "unknown", "twice", "less"))
    if kind in ("limit", "used"):
        return _put(resources[which], kind, rng.choice(NOT_NUMBERS), at)
    if kind == "name":
        return _put(resources[which], "name", rng.choice(NOT_TEXTS), at)
    if kind == "unknown":
        return _put(resources[which], "unit", "bytes", at)
    if kind == "less":
        name = rng.choice(("name", "limit"))
        del resources[which][name]
        return f"{at}.{name}"
    resources.append(dict(resources[which]))
    return f"nodes[{index}].resources[{len(resources) - 1}].name"
