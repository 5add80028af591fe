"""Optional layers of pressure in the independent `traffic.tick` (section 3 of the equations).

A term is in the result where its weight is not 0. A layer's signal that is missing for one backend
is the group's worst; missing for all, the term is 0.
"""
# mypy: ignore-errors

from tests.core.traffic.oracle_signals import impute


def layer_terms(backends, nodes, config):
    """{id: {label: term}} of the layers that are switched on."""
    by_id = {node["id"]: node for node in nodes}
    node_of = {b["id"]: by_id.get(b.get("node")) for b in backends}
    signals = {
        "rtt": ("w_rtt", "rtt_ref_ms", {b["id"]: b.get("rtt_ms") for b in backends}),
        "retransmits": ("w_retx", "retx_ref", {b["id"]: b.get("retrans_rate") for b in backends}),
        "jitter": ("w_jit", "jit_ref_ms", {b["id"]: b.get("jitter_ms") for b in backends}),
        "stall": ("w_psi", None, {i: stall_score(n, config) for i, n in node_of.items()}),
        "fds": ("w_fd", "fd_ref", {i: fullness(n, "fds") for i, n in node_of.items()}),
        "conntrack": ("w_ct", "ct_ref", {i: fullness(n, "conntrack") for i, n in node_of.items()}),
        "iowait": (
            "w_io",
            "io_ref",
            {i: (n or {}).get("iowait_ratio") for i, n in node_of.items()},
        ),
    }
    out = {backend["id"]: {} for backend in backends}
    for label, (weight, reference, values) in signals.items():
        if not config[weight]:
            continue
        known, _ = impute(values)
        by = config[reference] if reference else 1.0
        for name, terms in out.items():
            terms[label] = config[weight] * ((known[name] or 0.0) / by)
    return out


def stall_score(node, config):
    """As given, or the worst PSI field relative to its theta; bounded."""
    if node is None:
        return None
    score = node.get("stall_score")
    if score is None:
        psi, theta = node.get("psi") or {}, config["theta"]
        fields = ("cpu_some", "mem_some", "mem_full", "io_full")
        ratios = [psi[f] / max(theta[f], 1e-9) for f in fields if psi.get(f) is not None]
        score = max(ratios, default=None)
    return None if score is None else min(score, config["stall_score_max"])


def fullness(node, name):
    """used/limit of a resource of the node."""
    for resource in (node or {}).get("resources", []):
        if resource["name"] == name and resource["limit"] and resource["used"] is not None:
            return resource["used"] / resource["limit"]
    return None
