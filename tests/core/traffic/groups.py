"""A group that is easy to change and to play forward: what most tests of a tick need."""

from dataclasses import replace
from typing import Any

from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot, TickPlan, tick

HEALTHY = Psi(cpu_some=0.1, mem_some=0.0, mem_full=0.0, io_some=0.0, io_full=0.0)


def backend(name: str, **changes: Any) -> Backend:
    """A healthy backend: 40 ms, no errors, enough requests to be believed."""
    usual = Backend(name, queue=0, p95_ms=40, error_rate=0, requests=200, age_ms=600_000)
    return replace(usual, **changes)


class Group:
    """Backends, nodes and a clock. `step` is one tick, `run` plays for a while."""

    def __init__(self, *names: str, **config: Any) -> None:
        self.backends = {name: backend(name) for name in names}
        self.nodes: dict[str, Node] = {}
        self.retry_index: float | None = None
        self.config = Config(**config)
        self.now_ms = 1_000_000
        self.plan: TickPlan | None = None
        self.follow = False
        """Do the requests follow the slots, as they do in life?"""

    def set(self, name: str, **changes: Any) -> None:
        self.backends[name] = replace(self.backends[name], **changes)

    def every(self, **changes: Any) -> None:
        for name in self.backends:
            self.set(name, **changes)

    def node(self, name: str = "n1", psi: Psi | None = HEALTHY, **used: float | None) -> None:
        """A node with resources of 1000 units each."""
        resources = tuple(Resource(each, 1000, value) for each, value in used.items())
        self.nodes[name] = Node(name, psi, resources)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now_ms=self.now_ms,
            group="web",
            backends=tuple(self.backends.values()),
            nodes=tuple(self.nodes.values()),
            retry_index=self.retry_index,
            config=self.config,
            state=None if self.plan is None else self.plan.state,
        )

    def step(self, elapsed_ms: int = 200) -> TickPlan:
        if self.plan is not None:
            self.now_ms += elapsed_ms
            if self.follow:
                for name in self.backends:
                    self.set(name, requests=4 * self.plan.slots.get(name, 0))
        self.plan = tick(self.snapshot())
        return self.plan

    def run(self, ms: int) -> TickPlan:
        """Ticks of 200 ms for this long."""
        plan = self.step()
        for _ in range(ms // 200 - 1):
            plan = self.step()
        return plan


def reasons(plan: TickPlan) -> list[str]:
    return [reason.value for reason in plan.reasons]
