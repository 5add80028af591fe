"""The resolver in a random lab, whatever is submitted, reserved, drained and restarted."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead.engine.gpu import Denied
from fairlead.engine.gpu.fold import COUNTED
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase
from fairlead.ledger.replay import replay_ledger
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import reserve, world_of
from tests.engine.gpu.worlds import ADMIN, budget, envelope, node, run, state_of

owners = st.sampled_from(["a", "b", "c"])
names = st.sampled_from(["r1", "r2", "r3", "f1", "f2", "f3", "f4"])


class ResolverModel(RuleBasedStateMachine):
    """Three teams, two nodes in two domains, one flavor."""

    @initialize()
    def begin(self) -> None:
        self.world = world_of(devices=6, gpus=12)
        place = {"region": "west", "cluster": "a", "domain": "d2"}
        self.world.apply(node("n2", 6, location=place))
        elastic = {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}}
        self.world.apply(
            run("f1", "a", 2, groupGPUs=2, sparesPerGroup=1),
            run("f2", "b", 3, command=["x"]),
            run("f3", "c", 3, **elastic),
            run("f4", "b", 3, command=["x"], **elastic),
        )
        self.world.turn()

    @rule(
        name=names,
        owner=owners,
        gpus=st.integers(1, 4),
        shape=st.integers(0, 3),
        process=st.booleans(),
        reserved=st.booleans(),
    )
    def submit(  # noqa: PLR0917 - hypothesis names them all
        self, name: str, owner: str, gpus: int, shape: int, process: bool, reserved: bool
    ) -> None:
        more = {
            0: {},
            1: {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}},
            2: {"groupGPUs": gpus, "sparesPerGroup": 1},
            3: {"groupGPUs": 1},
        }[shape]
        mine = run(name, owner, gpus * 2 if shape == 3 else gpus, command=["x"] * process, **more)
        try:
            if reserved:
                reserve(self.world, mine)  # due at once
            else:
                self.world.plane.objects.apply(mine, author=ADMIN)
        except (Denied, ValueError):
            return

    @rule(name=names)
    def remove(self, name: str) -> None:
        for kind, about in (("Reservation", f"{name}-slot"), ("Run", name)):
            try:
                self.world.plane.objects.delete(kind, about, author=ADMIN)
            except Denied:
                continue

    @rule(name=names, verb=st.sampled_from(["cancel", "nominate", "withdraw", "resolve"]))
    def act(self, name: str, verb: str) -> None:
        try:
            self.world.plane.verbs.act("Run", name, verb, author=ADMIN)
        except Denied:
            return

    @rule(owner=owners, gpus=st.integers(1, 12), cap_gpus=st.none() | st.integers(1, 12))
    def tighten(self, owner: str, gpus: int, cap_gpus: int | None) -> None:
        cap = {"name": "all", "flavor": "H100", "envelopes": ["west"], "maxConcurrency": cap_gpus}
        self.world.apply(budget(owner, owner, envelope(concurrency=gpus), aggregateCaps=[cap]))
        try:
            if cap_gpus is None:
                self.world.plane.resolver.resolve_cap(owner, "west", author=ADMIN)
            else:
                self.world.plane.resolver.resolve_budget(owner, author=ADMIN)
        except Denied:
            return

    @rule(which=st.sampled_from(["n1", "n2"]), verb=st.sampled_from(["drain", "uncordon", "fail"]))
    def service(self, which: str, verb: str) -> None:
        try:
            self.world.plane.verbs.act("Node", which, verb, author=ADMIN)
        except Denied:
            return

    @rule(seconds=st.sampled_from([0, 1, 15, 4_000]))
    def turn(self, seconds: int) -> None:
        self.world.turn(seconds / 3600)

    @rule(code=st.integers(0, 1))
    def a_job_ends(self, code: int) -> None:
        for job in sorted(self.world.executor.running()):
            self.world.executor.end(job.rsplit(".", 2)[0], self.world.now_ms, code=code)
            return

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        if checkpoint:
            self.world.plane.committer.checkpoint()
        before = state_of(self.world)
        self.world.plane = self.world.open()
        assert state_of(self.world) == before

    @invariant()
    def a_gang_is_whole_or_not_running(self) -> None:
        """Every group of a running run has all its active GPUs; what waits or ended has none."""
        projection = self.world.projection
        for name, state in projection.runs.items():
            spec = projection.run_spec(name)
            if state.phase is not Phase.RUNNING:
                assert (state.leases, state.reclaim) == ({}, None), name
                continue
            least = spec.gpus if spec.malleable is None else spec.malleable.min_gpus
            assert least <= state.width <= spec.gpus, name
            groups: Counter[int] = Counter()
            for lease in state.leases.values():
                groups[lease.group] += lease.gpus if lease.is_active else 0
            assert len(set(groups.values())) <= 1, name

    @invariant()
    def counters_are_what_was_applied(self) -> None:
        """Each closure that cites an outcome is counted once, and nothing else is."""
        closed = Counter(
            entry.body["reason"]
            for entry in self.world.log
            if entry.kind == "lease.close" and entry.body.get("outcome") is not None
        )
        counters = self.world.projection.resolver.counters
        for reason in ("DropSpare", "Shrink"):
            assert counters.get(COUNTED[reason], 0) == closed[reason]
        applied = sum(entry.kind == "gpu.resolve.applied" for entry in self.world.log)
        assert counters.get(COUNTED["applied"], 0) == applied

    @invariant()
    def every_commitment_is_answered_once(self) -> None:
        """And at most the last one of a flavor is open."""
        commits = [e.seq for e in self.world.log if e.kind == "gpu.resolve.commit"]
        answers = [
            e.body["commit_seq"]
            for e in self.world.log
            if e.kind in ("gpu.resolve.draw", "gpu.resolve.void")
        ]
        assert answers == commits, "without a beacon nothing waits"

    def teardown(self) -> None:
        """Rebuilt from the first entry on, the projection is the same, and so is every decision."""
        if not hasattr(self, "world"):
            return
        again = Projection()
        for entry in self.world.ledger.entries(0, 100_000):
            again.apply(entry)
        live = self.world.projection
        assert (again.leases, again.runs) == (live.leases, live.runs)
        assert again.resolver == live.resolver
        assert self.world.ledger.verify().ok
        assert {row.verdict for row in replay_ledger(self.world.ledger)} <= {Verdict.SAME}


TestResolverModel = ResolverModel.TestCase
TestResolverModel.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
