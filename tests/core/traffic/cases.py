"""Seeded sequences of `traffic.tick` documents: a small world in which everything may happen.

`World.tick` gives one document after the other, without its state: whoever runs the sequence hands
each implementation its own. Values come from short lists, so that ties and exact thresholds are
common. Documents with one defect each are made by `spoil.py`.
"""

import random
from typing import Any

Document = dict[str, Any]

NAMES = (
    "b1",
    "b2",
    "b3",
    "b10",
    "B1",
    "a",
    "z",
    "é",
    "ß",
    "你",
    "\U0001f600",
    "\uffee",
    " ",
    "B2",
    "a.b",
    "x[0]",
    "b-7",
    "b_8",
    "0",
    "node/1",
)
LATENCIES = (0, 1, 5, 10, 20, 40, 40, 40, 40, 50, 80, 100, 100, 200, 400, 1000, 33.3, 0.1, 1e6)
QUEUES = (0, 0, 1, 3, 3, 3, 10, 25, 50, 100, 500, 2.5, 1e6)
ERRORS = (0, 0.0, 0.0, 0.0, 0.001, 0.01, 0.04, 0.05, 0.050001, 0.06, 0.1, 0.5, 1, 1 / 3)
REQUESTS = (0, 0, 1, 5, 12, 19, 20, 21, 49, 50, 100, 200, 200, 200, 1000, 12345)
AGES = (None, None, 600_000, 600_000, 30_000, 29_999, 15_000, 7_500, 1, 0)
RETRIES = (None, None, None, None, 0, 0.1, 0.49, 0.5, 0.7, 1.99, 2, 2.0, 7)
STEPS_MS = (200, 200, 200, 200, 200, 200, 200, 200, 1000, 190, 210, 0, 400, 5000, 25_000)
PSI = ("cpu_some", "mem_some", "mem_full", "io_some", "io_full")
RESOURCES = ("memory", "fds", "conntrack", "pids", "disk", "cpu")
SIGNALS = ("queue", "p95_ms", "error_rate", "requests")
THETAS = {"cpu_some": 0.40, "mem_some": 0.10, "mem_full": 0.05, "io_some": 0.1, "io_full": 0.10}
OVERRIDES: dict[str, tuple[Any, ...]] = {
    "s_total": (1, 2, 3, 4, 7, 10, 16, 64, 100, 255, 1000, 4096, 100_000),
    "delta_max": (1, 2, 3, 7, 64, 1000),
    "delta_w": (0, 0.001, 0.02, 0.05, 0.25, 0.5, 1),
    "t_hold_ms": (0, 200, 400, 1000, 3000),
    "t_recover_min_ms": (0, 200, 1000, 2000, 5000, 20_000),
    "w_q": (0, 0.5, 2),
    "w_l": (0, 1, 0.1),
    "w_e": (0, 3, 1),
    "q_ref": (1, 50, 0.5),
    "l_ref_ms": (1, 100, 50.5),
    "e_ref": (0.001, 0.01, 1),
    "e_max": (0, 1, 20, 1000),
    "eta": (0, 0.01, 0.05, 0.5, 1),
    "k_e": (0, 5, 10, 20),
    "p_min": (0.001, 0.1, 0.5, 2, 10),
    "g_min": (0, 0.1, 0.3, 1, 2, 9),
    "t_safe_s": (20.5, 60, 120, 1000),
    "t_hard_s": (0.5, 10, 20),
    "alpha": (0.05, 0.2, 0.5, 1),
    "derivative_window_ms": (1, 200, 1000, 2000, 5000),
    "stall_m": (1, 2, 3, 5, 10, 20),
    "stall_p": (0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 1),
    "theta": ({}, {"cpu_some": 0.1}, {"mem_full": 0, "io_full": 0.5}, {"io_some": 0.01}),
    "warmup_ms": (0, 1, 1000, 15_000, 30_000, 60_000),
    "bucket_burst": (1, 10, 100, 500),
    "bucket_rate": (0.5, 1, 10, 100, 1000),
    "crisis_factor": (1, 1.5, 4, 10),
    "p_ref": (0.5, 1, 2),
    "error_requests_min": (0, 1, 20, 50),
    "error_keep_ms": (0, 200, 5000),
    "wilson_z": (0, 1, 1.96),
    "ttf_max_s": (100, 86_400),
    "retry_soft": (0, 0.5, 1),
    "retry_hard": (1, 2, 5),
    "skew_max": (0, 0.1, 0.2, 1),
    "epsilon_skew": (0, 0.02, 0.1, 1),
    "skew_requests_min": (1, 20, 50, 500),
    "guard_quiet_ms": (200, 1000, 5000),
    "recover_share": (0, 0.1, 0.5, 1),
    "drip_share": (0, 0.01, 0.5),
    "drip_rate_min": (0, 1, 5),
    "stall_score_max": (0, 1, 10),
    "w_rtt": (0, 1),
    "rtt_ref_ms": (1, 50),
    "w_retx": (0, 0.5),
    "retx_ref": (0.01, 1),
    "w_jit": (0, 2),
    "jit_ref_ms": (10, 20),
    "w_psi": (0, 1),
    "w_fd": (0, 1),
    "fd_ref": (0.5, 0.8),
    "w_ct": (0, 1),
    "ct_ref": (0.8, 1),
    "w_io": (0, 1),
    "io_ref": (0.1, 1),
}
# Overrides that may change between two ticks without touching what a state means.
CHANGEABLE = (
    "delta_max",
    "delta_w",
    "t_hold_ms",
    "w_q",
    "w_l",
    "w_e",
    "k_e",
    "eta",
    "g_min",
    "s_total",
    "w_rtt",
    "w_psi",
)
LAYERS = {"rtt_ms": (1, 20, 100), "retrans_rate": (0, 0.01, 0.2), "jitter_ms": (0, 5, 50)}
STYLES = (
    "calm",
    "calm",
    "mixed",
    "mixed",
    "mixed",
    "sick",
    "sick",
    "blind",
    "churn",
    "churn",
    "ramp",
    "stall",
    "storm",
    "lonely",
    "crowd",
    "warm",
    "time",
    "guard",
    "flap",
)


TICKS = (1, 2, 5, 12, 25, 25, 40, 60, 120)


class World:
    """What the group looks like now; `tick` changes a little and takes a snapshot."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.style = rng.choice(STYLES)
        self.now_ms = rng.choice((0, 1, 1000, 123_456_789, 1_700_000_000_000))
        self.step_ms = rng.choice((200, 200, 200, 1000))
        self.config = self._config()
        sizes = {"lonely": (0, 1, 1, 1, 2), "crowd": (12, 20, 20)}
        size = rng.choice(sizes.get(self.style, (1, 2, 2, 3, 4, 4, 5, 8)))
        self.pool = rng.sample(NAMES, len(NAMES))
        self.backends = {self.pool.pop(): self._backend() for _ in range(size)}
        self.nodes = {f"n{i}": self._node() for i in range(rng.choice((0, 1, 1, 2, 3)))}
        self.retry: float | None = None
        self.chance = rng.choice((0.02, 0.05, 0.2))  # of something happening, per tick and thing
        self.layered = rng.random() < 0.3
        self.flow = rng.choice(
            (None, None, 40, 60, 1000)
        )  # requests in the window follow the slots
        self.ticks = rng.choice(TICKS)

    def tick(self, slots: dict[str, int] | None = None) -> Document:
        """One document; lists in any order, and now and then a field left out.

        `slots` is the table of the last tick: in some worlds the requests follow it.
        """
        self._live()
        rng = self.rng
        if self.flow and slots:
            whole = sum(slots.values())
            for name, backend in self.backends.items():
                if backend["requests"] is not None:
                    backend["requests"] = self.flow * slots.get(name, 0) // whole
        backends = [self._snapshot(name, backend) for name, backend in self.backends.items()]
        nodes = [self._node_snapshot(name, node) for name, node in self.nodes.items()]
        rng.shuffle(backends)
        rng.shuffle(nodes)
        document: Document = {
            "config": dict(self.config),
            "now_ms": self.now_ms,
            "group": "web",
            "backends": backends,
            "nodes": nodes,
            "retry_index": self.retry,
        }
        for name, empty in (("config", {}), ("nodes", []), ("retry_index", None)):
            if document[name] == empty and rng.random() < 0.3:
                del document[name]
        self._advance()
        return document

    def _config(self) -> Document:
        rng = self.rng
        count = rng.choice((0, 0, 1, 2, 4, 8, 16, len(OVERRIDES)))
        names = rng.sample(sorted(OVERRIDES), count)
        config = {name: rng.choice(OVERRIDES[name]) for name in names}
        if rng.random() < 0.3:  # with the real 20 s, few sequences would ever relax
            config["t_recover_min_ms"] = rng.choice((200, 1000, 2000))
        return config

    def _backend(self) -> Document:
        rng = self.rng
        sick = self.style == "sick" and rng.random() < 0.4
        return {
            "queue": 3 if self.style == "calm" else rng.choice(QUEUES),
            "p95_ms": rng.choice((400, 1000)) if sick else rng.choice(LATENCIES[:12]),
            "error_rate": rng.choice(ERRORS) if sick else 0.0,
            "requests": rng.choice(REQUESTS),
            "isolated": rng.random() < (0.02 if self.style == "calm" else 0.1),
            "age_ms": rng.choice(AGES) if self.style in ("warm", "churn") else 600_000,
        }

    def _node(self) -> Document:
        rng = self.rng
        names = rng.sample(RESOURCES, rng.choice((0, 1, 2)))
        return {
            "stalled": False,
            "psi": True,
            "resources": {
                name: {"limit": 1000.0, "used": float(rng.choice((0, 200, 500, 990))), "speed": 0.0}
                for name in names
            },
        }

    def _happens(self, *styles: str) -> bool:
        """Something of the style happens; in other styles, rarely."""
        return self.rng.random() < (self.chance * 2 if self.style in styles else self.chance / 5)

    def _live(self) -> None:
        """Joins, leaves, isolation, sickness, lost signals, pressure, changed overrides."""
        rng = self.rng
        self._come_and_go()
        for backend in self.backends.values():
            self._sicken(backend)
        if self._happens("blind"):
            self._lose()
        if self._happens("storm"):
            self.retry = rng.choice(RETRIES)
        for node in self.nodes.values():
            self._load(node)
        if self._happens("churn") and self.nodes:
            del self.nodes[rng.choice(sorted(self.nodes))]
        if self._happens("churn") and len(self.nodes) < 4:
            self.nodes[f"n{rng.randint(0, 6)}"] = self._node()
        if self._happens("mixed"):
            name = rng.choice(CHANGEABLE)
            self.config[name] = rng.choice(OVERRIDES[name])

    def _come_and_go(self) -> None:
        rng = self.rng
        if self._happens("churn", "warm") and self.pool:
            newborn = {**self._backend(), "age_ms": rng.choice((0, 200, None))}
            self.backends[self.pool.pop()] = newborn
        if self._happens("churn") and self.backends:
            self.pool.insert(0, self._leave())
        if rng.random() < self.chance / 20:  # the whole group leaves, mostly for another one
            gone = [self._leave() for _ in range(len(self.backends))]
            if rng.random() < 0.8:
                for _ in range(min(max(1, len(gone)), len(self.pool))):
                    self.backends[self.pool.pop()] = self._backend()
            self.pool = gone + self.pool
        if self._happens("churn", "lonely"):
            share = rng.choice((0, 0.3, 1))
            for backend in self.backends.values():
                backend["isolated"] = rng.random() < share

    def _leave(self) -> str:
        name = self.rng.choice(sorted(self.backends))
        del self.backends[name]
        return name

    def _sicken(self, backend: Document) -> None:
        rng = self.rng
        if self._happens("sick", "mixed"):
            backend["p95_ms"] = rng.choice(LATENCIES)
        if self._happens("sick", "mixed"):
            backend["error_rate"] = rng.choice(ERRORS)
        if self._happens("mixed", "storm"):
            backend["queue"] = rng.choice(QUEUES)
        if self._happens("mixed", "guard", "calm"):
            backend["requests"] = rng.choice(REQUESTS)
        if self._happens("churn", "mixed"):
            backend["isolated"] = not backend["isolated"]
        if self.style == "flap" and rng.random() < 0.3 and backend["p95_ms"] is not None:
            backend["p95_ms"] = 400 if backend["p95_ms"] < 100 else 40

    def _lose(self) -> None:
        """Signals vanish for one backend, for some or for all; or they all come back."""
        rng = self.rng
        fields = rng.sample(SIGNALS, rng.choice((1, 1, 2, 2, 3)))
        if rng.random() < 0.3:
            fields = ["p95_ms", "error_rate"]
        share = rng.choice((0, 0, 0.3, 1, 1))
        for backend in self.backends.values():
            for field in fields:
                pools = {"queue": QUEUES, "p95_ms": LATENCIES, "error_rate": ERRORS}
                lost = rng.random() < share
                backend[field] = None if lost else rng.choice(pools.get(field, REQUESTS))

    def _load(self, node: Document) -> None:
        rng = self.rng
        if self._happens("stall"):
            node["stalled"] = not node["stalled"]
        if self._happens("stall", "blind"):
            node["psi"] = not node["psi"]
        for resource in node["resources"].values():
            if self._happens("ramp"):
                resource["speed"] = rng.choice((0, 0, 0.5, 1, 5, 20, 100, -10, -100))
            resource["used"] = max(0.0, resource["used"] + resource["speed"] * self.step_ms / 1000)
            if self._happens("ramp") and rng.random() < 0.2:
                resource["used"] = rng.choice((0.0, 999.0, 1000.0, 1000.5, 500.0))

    def _snapshot(self, name: str, backend: Document) -> Document:
        """The backend as a document: missing signals null or left out, defaults too."""
        rng = self.rng
        document = {"id": name, **backend}
        if self.style == "guard" and backend["requests"] and rng.random() < 0.3:
            document["requests"] = rng.choice(REQUESTS)
        for field in ("queue", "p95_ms", "error_rate", "requests", "age_ms"):
            if document[field] is None and rng.random() < 0.3:
                del document[field]
        if not document["isolated"] and rng.random() < 0.1:
            del document["isolated"]
        if self.layered:
            for field, values in LAYERS.items():
                if rng.random() < 0.8:
                    document[field] = rng.choice((*values, None))
            document["node"] = rng.choice((*sorted(self.nodes), "nowhere", None))
        return document

    def _node_snapshot(self, name: str, node: Document) -> Document:
        rng = self.rng
        psi: Document | None = None
        if node["psi"]:
            psi = {field: rng.choice((0.0, 0.01, THETAS[field])) for field in PSI}
            if node["stalled"] and rng.random() < 0.9:
                field = rng.choice(PSI)
                psi[field] = rng.choice((1, 1.0, THETAS[field] + 0.001))
            if rng.random() < 0.05:
                psi[rng.choice(PSI)] = None
        resources = [
            {"name": key, "limit": value["limit"], "used": value["used"]}
            for key, value in node["resources"].items()
        ]
        rng.shuffle(resources)
        for resource in resources:
            if rng.random() < 0.02:
                resource[rng.choice(("used", "limit"))] = None
        document = {"id": name, "psi": psi, "resources": resources}
        if self.layered:
            document["stall_score"] = rng.choice((None, 0, 0.5, 3, 20))
            document["iowait_ratio"] = rng.choice((None, 0, 0.05, 1))
        return document

    def _advance(self) -> None:
        """Mostly one step; sometimes a gap, no time at all, or time backwards."""
        rng = self.rng
        step = self.step_ms
        if self.style == "time" or rng.random() < 0.03:
            step = rng.choice(STEPS_MS)
            if rng.random() < 0.2:
                step = -rng.choice((1, 200, 1000, 60_000))
        self.now_ms = max(0, self.now_ms + step)
        for backend in self.backends.values():
            if backend["age_ms"] is not None:
                backend["age_ms"] = max(0, backend["age_ms"] + step)
