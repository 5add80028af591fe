"""The border of the independent `traffic.tick`: which documents are refused, and at which path.

Nothing is imported from Fairlead. A document either passes, or `Bad` names the exact field.
"""
# ruff: noqa: PLR0917
# mypy: ignore-errors

import math

DEFAULTS = {
    "s_total": 256,
    "delta_max": None,
    "delta_w": 0.02,
    "t_hold_ms": 1000,
    "t_recover_min_ms": 20_000,
    "w_q": 0.5,
    "w_l": 1.0,
    "w_e": 3.0,
    "q_ref": 50.0,
    "l_ref_ms": 100.0,
    "e_ref": 0.01,
    "e_max": 20.0,
    "eta": 0.05,
    "k_e": 10.0,
    "p_min": 0.1,
    "g_min": 0.3,
    "t_safe_s": 120.0,
    "t_hard_s": 20.0,
    "alpha": 0.2,
    "derivative_window_ms": 5000,
    "stall_m": 10,
    "stall_p": 0.7,
    "warmup_ms": 30_000,
    "bucket_burst": 100,
    "bucket_rate": 100.0,
    # The page says "any default by name"; these names are ours.
    "crisis_factor": 4.0,
    "p_ref": 1.0,
    "error_requests_min": 20,
    "error_keep_ms": 5000,
    "wilson_z": 1.96,
    "ttf_max_s": 86_400.0,
    "retry_soft": 0.5,
    "retry_hard": 2.0,
    "skew_max": 0.2,
    "epsilon_skew": 0.02,
    "skew_requests_min": 50,
    "guard_quiet_ms": 5000,
    "recover_share": 0.1,
    "drip_share": 0.01,
    "drip_rate_min": 1.0,
    "stall_score_max": 10.0,
    "w_rtt": 0.0,
    "rtt_ref_ms": 50.0,
    "w_retx": 0.0,
    "retx_ref": 0.01,
    "w_jit": 0.0,
    "jit_ref_ms": 10.0,
    "w_psi": 0.0,
    "w_fd": 0.0,
    "fd_ref": 0.8,
    "w_ct": 0.0,
    "ct_ref": 0.8,
    "w_io": 0.0,
    "io_ref": 0.1,
}
THETA = {"cpu_some": 0.40, "mem_some": 0.10, "mem_full": 0.05, "io_full": 0.10}

# What each override may be: whole number or not, the smallest and the largest value.
# A reference that divides, and a count that must be at least one, cannot be 0.
INF = math.inf
RULES = {
    "s_total": ("whole", 1, INF),
    "delta_max": ("whole", 1, INF),
    "delta_w": ("real", 0, 1),
    "t_hold_ms": ("whole", 0, INF),
    "t_recover_min_ms": ("whole", 0, INF),
    "w_q": ("real", 0, INF),
    "w_l": ("real", 0, INF),
    "w_e": ("real", 0, INF),
    "q_ref": ("above", 0, INF),
    "l_ref_ms": ("above", 0, INF),
    "e_ref": ("above", 0, INF),
    "e_max": ("real", 0, INF),
    "eta": ("real", 0, 1),
    "k_e": ("real", 0, INF),
    "p_min": ("above", 0, INF),
    "g_min": ("real", 0, INF),
    "t_safe_s": ("real", 0, INF),
    "t_hard_s": ("real", 0, INF),
    "alpha": ("above", 0, 1),
    "derivative_window_ms": ("whole", 1, INF),
    "stall_m": ("whole", 1, INF),
    "stall_p": ("real", 0, 1),
    "warmup_ms": ("whole", 0, INF),
    "bucket_burst": ("real", 1, INF),
    "bucket_rate": ("above", 0, INF),
    "crisis_factor": ("real", 1, INF),
    "skew_requests_min": ("whole", 1, INF),
    "guard_quiet_ms": ("whole", 1, INF),
    "error_requests_min": ("whole", 0, INF),
    "error_keep_ms": ("whole", 0, INF),
    **dict.fromkeys(("skew_max", "epsilon_skew", "recover_share", "drip_share"), ("real", 0, 1)),
    **dict.fromkeys(("wilson_z", "retry_soft", "retry_hard", "drip_rate_min"), ("real", 0, INF)),
    **dict.fromkeys(("p_ref", "ttf_max_s", "rtt_ref_ms", "retx_ref"), ("above", 0, INF)),
    **dict.fromkeys(("jit_ref_ms", "fd_ref", "ct_ref", "io_ref"), ("above", 0, INF)),
    **dict.fromkeys(("w_rtt", "w_retx", "w_jit", "w_psi", "w_fd"), ("real", 0, INF)),
    **dict.fromkeys(("w_ct", "w_io", "stall_score_max"), ("real", 0, INF)),
}
PSI = ("cpu_some", "mem_some", "mem_full", "io_some", "io_full")


class Bad(ValueError):
    """Bad input, with the path of the offending field."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path


def check(document):
    """Raise `Bad` for a document that is not in the contract; at most one thing is wrong."""
    known(document, "", {"config", "state", "now_ms", "group", "backends", "nodes", "retry_index"})
    for name in ("now_ms", "group", "backends"):
        if name not in document:
            raise Bad(name)
    check_config(document.get("config", {}))
    if not (document.get("state") is None or isinstance(document["state"], dict)):
        raise Bad("state")
    number(document["now_ms"], "now_ms", "whole", 0, INF)
    text(document["group"], "group")
    listed(document["backends"], "backends")
    for i, backend in enumerate(document["backends"]):
        check_backend(backend, f"backends[{i}]")
    unique(document["backends"], "backends", "id")
    listed(document.get("nodes", []), "nodes")
    for i, node in enumerate(document.get("nodes", [])):
        check_node(node, f"nodes[{i}]")
    unique(document.get("nodes", []), "nodes", "id")
    signal(document, "retry_index", "", "real", 0, INF)


def check_config(config):
    if not isinstance(config, dict):
        raise Bad("config")
    known(config, "config", {*RULES, "theta"})
    for name, (how, low, high) in RULES.items():
        if name in config:
            number(config[name], f"config.{name}", how, low, high)
    theta = config.get("theta", {})
    if not isinstance(theta, dict):
        raise Bad("config.theta")
    known(theta, "config.theta", set(PSI))
    for name in theta:
        number(theta[name], f"config.theta.{name}", "real", 0, 1)
    merged = {**DEFAULTS, **config}
    if merged["t_hard_s"] >= merged["t_safe_s"]:
        raise Bad("config.t_hard_s")
    if merged["retry_hard"] < merged["retry_soft"]:
        raise Bad("config.retry_hard")


def check_backend(backend, at):
    fields = {
        "id",
        "queue",
        "p95_ms",
        "error_rate",
        "requests",
        "isolated",
        "age_ms",
        "node",
        "rtt_ms",
        "retrans_rate",
        "jitter_ms",
    }
    known(backend, at, fields)
    if "id" not in backend:
        raise Bad(f"{at}.id")
    text(backend["id"], f"{at}.id")
    signal(backend, "queue", at, "real", 0, INF)
    signal(backend, "p95_ms", at, "real", 0, INF)
    signal(backend, "error_rate", at, "real", 0, 1)
    signal(backend, "requests", at, "whole", 0, INF)
    signal(backend, "age_ms", at, "whole", 0, INF)
    for name in ("rtt_ms", "retrans_rate", "jitter_ms"):
        signal(backend, name, at, "real", 0, INF)
    if backend.get("node") is not None:
        text(backend["node"], f"{at}.node")
    if not isinstance(backend.get("isolated", False), bool):
        raise Bad(f"{at}.isolated")


def check_node(node, at):
    known(node, at, {"id", "psi", "resources", "stall_score", "iowait_ratio"})
    if "id" not in node:
        raise Bad(f"{at}.id")
    text(node["id"], f"{at}.id")
    psi = node.get("psi")
    if psi is not None:
        known(psi, f"{at}.psi", set(PSI))
        for name in PSI:
            signal(psi, name, f"{at}.psi", "real", 0, 1)
    signal(node, "stall_score", at, "real", 0, INF)
    signal(node, "iowait_ratio", at, "real", 0, 1)
    listed(node.get("resources", []), f"{at}.resources")
    for i, resource in enumerate(node.get("resources", [])):
        here = f"{at}.resources[{i}]"
        known(resource, here, {"name", "limit", "used"})
        for name in ("name", "limit", "used"):
            if name not in resource:
                raise Bad(f"{here}.{name}")
        text(resource["name"], f"{here}.name")
        signal(resource, "limit", here, "real", 0, INF)
        signal(resource, "used", here, "real", 0, INF)
    unique(node.get("resources", []), f"{at}.resources", "name")


def known(value, at, fields):
    if not isinstance(value, dict):
        raise Bad(at or "$")
    for name in value:
        if name not in fields:
            raise Bad(f"{at}.{name}" if at else name)


def listed(value, at):
    if not isinstance(value, list):
        raise Bad(at)


def text(value, at):
    if not isinstance(value, str):
        raise Bad(at)


def unique(items, at, name):
    seen = set()
    for i, item in enumerate(items):
        if item[name] in seen:
            raise Bad(f"{at}[{i}].{name}")
        seen.add(item[name])


def signal(where, name, at, how, low, high):
    """A signal may be null or left out: then it is missing."""
    if where.get(name) is not None:
        number(where[name], f"{at}.{name}" if at else name, how, low, high)


def number(value, at, how, low, high):
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Bad(at)
    if how == "whole" and value != int(value):
        raise Bad(at)
    if not low <= value <= high or (how == "above" and value <= low):
        raise Bad(at)
