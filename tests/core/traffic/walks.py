"""Random lives of a group: snapshots in sequence, each with the state of the plan before it.

`random_config` and `random_view` draw everyday and hostile values; `walk` plays them through a
decider (core's by default) and yields every snapshot with its plan.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot, TickPlan, tick

IDS = ("a", "b", "c", "d", "e", "f", "g", "ä", "\U0001f600", "")
Decide = Callable[[Snapshot], TickPlan]


def random_config(rng: random.Random) -> Config:
    """Mostly the defaults; else shorter times, so that a walk of 60 ticks sees everything."""
    if rng.random() < 0.3:
        return Config()
    return Config(
        s_total=rng.choice((256, 256, 100, 7, 1, 1000)),
        delta_max=rng.choice((None, None, 1, 3, 64)),
        delta_w=rng.choice((0.02, 0.0, 0.1)),
        t_hold_ms=rng.choice((0, 400, 1_000)),
        t_recover_min_ms=rng.choice((0, 600, 2_000)),
        warmup_ms=rng.choice((0, 2_000, 30_000)),
        derivative_window_ms=rng.choice((400, 1_000, 5_000)),
        stall_m=rng.choice((1, 3, 10)),
        stall_p=rng.choice((0.1, 0.5, 0.7, 1.0)),
        g_min=rng.choice((0.3, 0.3, 1.5, 0.0)),
        guard_quiet_ms=rng.choice((600, 5_000)),
        skew_requests_min=rng.choice((1, 50)),
        error_keep_ms=rng.choice((0, 1_000, 5_000)),
        w_q=rng.choice((0.5, 0.0)),
        p_min=rng.choice((0.1, 1.0)),
    )


class Life:
    """A group whose members drift: latencies jump, backends come, go, hide and are isolated."""

    def __init__(self, rng: random.Random, *, calm: bool = False, size: int | None = None) -> None:
        self.rng, self.calm = rng, calm
        count = rng.choice((0, 1, 2, 3, 4, 4, 6, 8)) if size is None else size
        names = IDS if count <= len(IDS) else tuple(f"b{i:03d}" for i in range(count))
        self.names = names
        self.members = {name: self._newcomer(name, None) for name in names[:count]}
        self.used = rng.uniform(0, 8e9)
        self.now_ms = rng.choice((0, 1_000, 123_456))

    def _newcomer(self, name: str, age_ms: int | None) -> Backend:
        rng = self.rng
        return Backend(
            name,
            queue=rng.choice((0, 3, rng.randint(0, 200))),
            p95_ms=rng.choice((40.0, 40.0, rng.uniform(1, 300))),
            error_rate=0.0,
            requests=rng.randint(0, 300),
            age_ms=rng.choice((None, 600_000)) if age_ms is None else age_ms,
        )

    def view(self) -> tuple[Backend, ...]:
        """The members now, in any order."""
        for name in list(self.members):
            self.members[name] = self._drift(self.members[name])
        if not self.calm:
            self._come_and_go()
        members = list(self.members.values())
        self.rng.shuffle(members)
        return tuple(members)

    def _drift(self, b: Backend) -> Backend:
        rng = self.rng
        changes: dict[str, object] = {}
        if b.age_ms is not None:
            changes["age_ms"] = b.age_ms + 200
        if rng.random() < 0.3:
            changes["requests"] = rng.choice((0, 5, 19, 20, rng.randint(0, 400)))
        if rng.random() < 0.1:
            changes["p95_ms"] = rng.choice((40.0, 400.0, rng.uniform(0, 1_000)))
        if rng.random() < 0.08:
            changes["error_rate"] = rng.choice((0.0, 0.04, 0.06, 1.0, rng.random()))
        if rng.random() < 0.1:
            changes["queue"] = rng.choice((0.0, 50.0, rng.uniform(0, 500)))
        if not self.calm and rng.random() < 0.06:
            lost = rng.choice(("p95_ms", "error_rate", "queue", "requests"))
            changes[lost] = None
        if not self.calm and rng.random() < 0.06:
            changes["isolated"] = not b.isolated
        return replace(b, **changes)  # type: ignore[arg-type]

    def _come_and_go(self) -> None:
        rng = self.rng
        if rng.random() < 0.03:
            self.members.pop(rng.choice(self.names), None)
        if rng.random() < 0.03:
            name = rng.choice(self.names)
            if name not in self.members:
                self.members[name] = self._newcomer(name, rng.choice((0, 400, None)))
        if rng.random() < 0.02:  # everything goes dark, or comes back
            dark = rng.random() < 0.5
            for name, b in self.members.items():
                signal = None if dark else 40.0
                rate = None if dark else 0.0
                self.members[name] = replace(b, p95_ms=signal, error_rate=rate)

    def nodes(self) -> tuple[Node, ...]:
        """One or two machines; now and then one of them is not reported."""
        rng = self.rng
        self.used = max(0.0, self.used + rng.choice((0, 0, 1e7, 3e8, -5e8)))
        used = None if rng.random() < 0.05 else self.used
        stall = rng.choice((0.0, 0.0, 0.0, 0.9, None)) if rng.random() < 0.3 else 0.05
        first = Node(
            "n1",
            Psi(cpu_some=stall, mem_some=0.0, io_some=1.0),
            (Resource("memory", 8e9, used), Resource("cpu", 1.0, 2.0)),
        )
        second = Node("n0", None, (Resource("fds", 1000, rng.choice((10, 999, 1000))),))
        chosen = [first, second] if rng.random() < 0.2 and not self.calm else [first]
        if not self.calm and rng.random() < 0.05:
            chosen.pop(0)
        return tuple(chosen)

    def time(self) -> int:
        """200 ms later, mostly."""
        step = 200 if self.rng.random() < 0.85 else self.rng.choice((0, -700, 50, 1_000, 6_000))
        self.now_ms = max(0, self.now_ms + step)
        return self.now_ms

    def retries(self) -> float | None:
        """Unknown, quiet, or a storm."""
        return self.rng.choice((None, None, None, 0.0, 0.1, 0.1, 0.1, 0.1, 0.5, 2.5))


def walk(
    rng: random.Random,
    ticks: int,
    *,
    calm: bool = False,
    config: Config | None = None,
    size: int | None = None,
    decide: Decide = tick,
) -> Iterator[tuple[Snapshot, TickPlan]]:
    """One life, tick by tick."""
    life = Life(rng, calm=calm, size=size)
    config = config or random_config(rng)
    state = None
    for _ in range(ticks):
        snapshot = Snapshot(
            now_ms=life.time(),
            group="web",
            backends=life.view(),
            nodes=life.nodes(),
            retry_index=None if calm else life.retries(),
            config=config,
            state=state,
        )
        plan = decide(snapshot)
        state = plan.state
        yield snapshot, plan
