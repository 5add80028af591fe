"""The optional layers of pressure (sections 3 and 12): path, node and backlog debt.

Their weights are 0 by default, so they are off; a term that is on is labelled. A signal that is
missing for one backend is taken as the group's worst, like any other; missing for all it is left
out. Debt is different: without a real queue and a real drain rate there is no debt to speak of.
"""

from collections.abc import Mapping, Sequence

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Backend, Node
from fairlead.core.traffic.signals import EPSILON, impute, normalise
from fairlead.core.traffic.stall import stall_score

Terms = tuple[tuple[str, float], ...]
Signal = list[float | None]


def layer_terms(
    backends: Sequence[Backend], nodes: Mapping[str, Node], config: Config
) -> list[Terms]:
    """Labelled terms of each backend; an empty list where no layer is on."""
    if not config.layered:
        return []
    under = [None if b.node is None else nodes.get(b.node) for b in backends]
    columns: list[tuple[str, list[float]]] = []
    for label, weight, reference, signal in _signals(backends, under, config):
        if weight:
            values = impute(signal).values or [0.0] * len(backends)
            columns.append((label, [normalise(value, weight, reference) for value in values]))
    if config.w_debt:
        columns.append(("debt", [debt_term(backend, config) for backend in backends]))
    return [tuple((label, terms[i]) for label, terms in columns) for i in range(len(backends))]


def _signals(
    backends: Sequence[Backend], under: Sequence[Node | None], config: Config
) -> list[tuple[str, float, float, Signal]]:
    scores: Signal = [None if node is None else _score(node, config) for node in under]
    return [
        ("rtt", config.w_rtt, config.rtt_ref_ms, [b.rtt_ms for b in backends]),
        ("retransmits", config.w_retx, config.retx_ref, [b.retrans_rate for b in backends]),
        ("jitter", config.w_jit, config.jit_ref_ms, [b.jitter_ms for b in backends]),
        ("stall", config.w_psi, 1.0, scores),
        ("fds", config.w_fd, config.fd_ref, [_fullness(node, "fds") for node in under]),
        ("conntrack", config.w_ct, config.ct_ref, [_fullness(node, "conntrack") for node in under]),
        (
            "iowait",
            config.w_io,
            config.io_ref,
            [None if node is None else node.iowait_ratio for node in under],
        ),
    ]


def _score(node: Node, config: Config) -> float | None:
    given = node.stall_score
    score = stall_score(node.psi, config.theta) if given is None else given
    return None if score is None else min(score, config.stall_score_max)


def _fullness(node: Node | None, name: str) -> float | None:
    """used/limit of a resource of the node."""
    for resource in () if node is None else node.resources:
        if resource.name == name and resource.limit and resource.used is not None:
            return resource.used / resource.limit
    return None


def debt_term(backend: Backend, config: Config) -> float:
    """W_debt*clip(T_drain/T_ref, 0, debt_max), T_drain = debt/drain rate.

    The equations divide the debt by T_drain, which is the drain rate again: a backend that drains
    faster would look worse. The time to drain is what a new request would wait.
    """
    if backend.debt is None or backend.drain_per_s is None:
        return 0.0
    drain_s = backend.debt / max(EPSILON, backend.drain_per_s)
    return config.w_debt * min(drain_s / config.t_ref_s, config.debt_max)
