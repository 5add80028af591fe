"""A group to play with: ticks of `traffic.tick` in the contract's own documents.

`by_core` is the kind as `fairlead decide` runs it, from bytes; the other player is the oracle. The
contract tests hold for both, so that the two cannot agree on a mistake that the page excludes.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

from fairlead.schema.kinds import KINDS
from tests.core.traffic import oracle

Document = dict[str, Any]
Decide = Callable[[Document], Document]


def by_core(document: Document) -> Document:
    """The kind `traffic.tick`, from the bytes of the document."""
    return KINDS["traffic.tick"].run(json.dumps(document).encode()).result


PLAYERS: dict[str, Decide] = {"core": by_core, "oracle": oracle.tick}


def backend(name: str, **signals: Any) -> Document:
    """A healthy, warm backend: P 0.43, as in the page's example."""
    healthy = {
        "id": name,
        "queue": 3,
        "p95_ms": 40,
        "error_rate": 0.0,
        "requests": 200,
        "isolated": False,
        "age_ms": 600_000,
    }
    return {**healthy, **signals}


def node(name: str = "n1", *, used: float | None = None, **psi: float | None) -> Document:
    """A quiet node, with 1000 of memory where `used` is given."""
    quiet = dict.fromkeys(("cpu_some", "mem_some", "mem_full", "io_some", "io_full"), 0.0)
    resources = [] if used is None else [{"name": "memory", "limit": 1000, "used": used}]
    return {"id": name, "psi": {**quiet, **psi}, "resources": resources}


class Group:
    """Backends by name, nodes, a clock and the state that goes round."""

    def __init__(self, decide: Decide, *backends: Document, **config: Any) -> None:
        self.decide = decide
        self.backends = {each["id"]: each for each in backends}
        self.nodes: list[Document] = []
        self.config = config
        self.retry_index: float | None = None
        self.now_ms = 1_000_000
        self.state: Document | None = None
        self.last: Document = {}

    def document(self) -> Document:
        """What the next tick will see."""
        return copy.deepcopy(
            {
                "config": self.config,
                "state": self.state,
                "now_ms": self.now_ms,
                "group": "web",
                "backends": list(self.backends.values()),
                "nodes": self.nodes,
                "retry_index": self.retry_index,
            }
        )

    def tick(self, step_ms: int = 200) -> Document:
        """One tick, `step_ms` after the last one (the first is at the start)."""
        if self.state is not None:
            self.now_ms += step_ms
        self.last = self.decide(self.document())
        self.state = self.last["state"]
        return self.last

    def run(self, duration_ms: int, step_ms: int = 200) -> Document:
        """Ticks for so long; the last output."""
        for _ in range(duration_ms // step_ms):
            self.tick(step_ms)
        return self.last

    def set(self, *names: str, **signals: Any) -> None:
        """Change signals of the named backends."""
        for name in names:
            self.backends[name].update(signals)

    def follow(self, requests: int = 1000) -> None:
        """Requests of the window are spread as the slots are."""
        slots = self.last["slots"]
        whole = sum(slots.values())
        for name, each in self.backends.items():
            each["requests"] = requests * slots.get(name, 0) // whole


def group_of(decide: Decide, count: int, **config: Any) -> Group:
    """`count` equal, healthy backends b1, b2, ..."""
    return Group(decide, *(backend(f"b{i}") for i in range(1, count + 1)), **config)
