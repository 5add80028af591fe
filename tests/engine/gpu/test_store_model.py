"""The store against a dictionary, with restarts, checkpoints and a second replica at any moment."""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead.engine.gpu import Denied, NotFound
from fairlead.engine.gpu.projection import Projection
from fairlead.ledger.replay import replay_ledger
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import ADMIN, HOUR, World, budget, envelope, node, run, state_of

names = st.sampled_from(["a", "b", "c"])
KINDS = ("Budget", "Run", "Node")


class StoreModel(RuleBasedStateMachine):
    """apply, delete, get, list, watch, turns of the loop; a dict says what must be there."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.model: dict[tuple[str, str], dict[str, Any]] = {}
        self.versions: dict[tuple[str, str], int] = {}
        self.seen = 0
        self.settled: set[str] = set()
        self.charged: dict[Any, list[int]] = {}
        self.totals: dict[str, float] = {}
        self.heard = False
        """Whether a turn was made since the control plane was opened."""

    def applied(self, manifest: dict[str, Any]) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        try:
            result = self.world.plane.objects.apply(manifest, author=ADMIN)
        except (Denied, ValueError):
            return  # in use, or a field of a run that cannot change: nothing was written
        change = "configured" if key in self.model else "created"
        if result.change == "unchanged":
            assert self.versions[key] == result.object["metadata"]["resourceVersion"]
        else:
            assert result.change == change
            assert result.object["metadata"]["resourceVersion"] > self.versions.get(key, 0)
        self.model[key] = manifest["spec"]
        self.versions[key] = result.object["metadata"]["resourceVersion"]

    @rule(
        name=names,
        gpus=st.integers(1, 6),
        hours=st.none() | st.integers(0, 20),
        recurrence=st.sampled_from([None, "daily"]),
    )
    def apply_budget(self, name: str, gpus: int, hours: int | None, recurrence: str | None) -> None:
        self.applied(
            budget(name, name, envelope(concurrency=gpus, maxGPUHours=hours, recurrence=recurrence))
        )

    @rule(name=names, devices=st.integers(0, 6))
    def apply_node(self, name: str, devices: int) -> None:
        self.applied(node(name, devices))

    @rule(
        name=names,
        owner=names,
        gpus=st.integers(1, 4),
        command=st.booleans(),
        duration=st.sampled_from([None, "1h", "5h"]),
    )
    def apply_run(
        self, name: str, owner: str, gpus: int, duration: str | None, command: bool
    ) -> None:
        words = ["train"] if command else []
        self.applied(run(name, owner, gpus, duration=duration, command=words))

    @rule(name=names, other=names, gpus=st.integers(1, 6), parent=st.booleans())
    def apply_both(self, name: str, other: str, gpus: int, parent: bool) -> None:
        """Two objects in one step: both, or neither."""
        given = [
            budget(name, name, envelope(concurrency=gpus), parents=[other] if parent else []),
            node(other, gpus),
        ]
        before = len(self.world.log)
        try:
            done = self.world.plane.objects.apply_all(given, author=ADMIN)
        except (Denied, ValueError):
            assert [e for e in self.world.log[before:] if e.kind == "object.applied"] == []
            return
        for each, result in zip(given, done, strict=True):
            key = (each["kind"], each["metadata"]["name"])
            self.model[key] = each["spec"]
            self.versions[key] = result.object["metadata"]["resourceVersion"]

    @rule(kind=st.sampled_from(KINDS), name=names)
    def delete(self, kind: str, name: str) -> None:
        try:
            self.world.plane.objects.delete(kind, name, author=ADMIN)
        except NotFound:
            assert (kind, name) not in self.model
            return
        except Denied:
            return  # in use
        del self.model[kind, name]
        del self.versions[kind, name]

    @rule(
        kind=st.sampled_from(KINDS),
        name=names,
        verb=st.sampled_from(["cancel", "pause", "resume", "cordon", "uncordon", "drain", "fail"]),
    )
    def act(self, kind: str, name: str, verb: str) -> None:
        try:
            found = self.world.plane.verbs.act(kind, name, verb, author=ADMIN).object
        except Denied:
            return
        if (kind, name) in self.versions:
            self.versions[kind, name] = found["metadata"]["resourceVersion"]
            self.model[kind, name] = found["spec"]

    @rule(hours=st.sampled_from([0.01, 0.5, 3, 30]))
    def turn(self, hours: float) -> None:
        self.world.turn(hours)
        self.heard = True
        # Draining and cordoning are edits by the store's own hand.

    @rule(code=st.integers(0, 1))
    def a_job_ends(self, code: int) -> None:
        for job in sorted(self.world.executor.running()):
            run_name = job.rsplit(".", 2)[0]
            self.world.executor.end(run_name, self.world.now_ms, code=code)
            return

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        if checkpoint:
            self.world.plane.committer.checkpoint()
        before = state_of(self.world)
        self.world.plane = self.world.open()
        self.heard = False
        assert state_of(self.world) == before

    @invariant()
    def objects_are_the_models(self) -> None:
        for kind in KINDS:
            found = {each["metadata"]["name"]: each for each in self.world.plane.objects.list(kind)}
            assert set(found) == {name for key, name in self.model if key == kind}
            for name, each in found.items():
                wanted = self.model[kind, name]
                assert {key: each["spec"][key] for key in wanted if key != "envelopes"} == {
                    key: value for key, value in wanted.items() if key != "envelopes"
                }
                assert each == self.world.plane.objects.get(kind, name)

    @invariant()
    def the_watch_misses_nothing(self) -> None:
        events = self.world.plane.events.read(self.seen, 10_000)
        assert [each["seq"] for each in events] == list(
            range(self.seen + 1, self.seen + 1 + len(events))
        )
        self.seen += len(events)
        for each in events:
            if each["kind"] == "charge.post":
                assert each["body"]["lease"] not in self.settled, "a lease settles once"
                self.settled.add(each["body"]["lease"])

    @invariant()
    def books_balance(self) -> None:
        """Nothing negative; free + held + spent = granted; ended runs hold no leases."""
        projection = self.world.projection
        now_ms = max(self.world.now_ms, projection.time_ms)
        for found in projection.budgets.values():
            for each in found.envelopes:
                account = projection.accounts.get(found.name, each.name)
                assert account is not None
                statement = account.statement(now_ms)
                if statement.granted_ms is not None and statement.free_ms is not None:
                    parts = (statement.free_ms, statement.held_ms, statement.spent_ms)
                    assert min(parts) >= 0
                    assert sum(parts) == statement.granted_ms
        for state in projection.runs.values():
            assert not (state.phase.ended and state.leases)

    @invariant()
    def what_is_kept_beside_the_objects_agrees_with_them(self) -> None:
        """Live runs, runs by owner: never a walk over history, and never stale."""
        projection = self.world.projection
        runs = projection.runs.items()
        assert projection.live == {name: each for name, each in runs if not each.phase.ended}
        assert projection.run_owners == Counter(projection.run_spec(name).owner for name, _ in runs)

    @invariant()
    def what_was_charged_stays_charged(self) -> None:
        """Whatever is edited: no day of no payer ever costs less than it did."""
        charges = self.world.projection.charges
        for key, (used_ms, overdraft_ms) in self.charged.items():
            assert charges[key][0] >= used_ms
            assert charges[key][1] >= overdraft_ms
        self.charged = {key: list(sums) for key, sums in charges.items()}

    @invariant()
    def hour_counters_never_go_down(self) -> None:
        """budget_gpu_hours_total, also over restarts, after which the first turn shows it again."""
        found = {
            str(labels): value
            for labels, value in self.world.plane.reports.metrics()["budget_gpu_hours_total"]
        }
        if not self.heard:
            assert found == {}
            return
        for key, value in self.totals.items():
            assert found[key] >= value
        self.totals = found

    def teardown(self) -> None:
        """Rebuilt from the first entry on, the projection is the same, and so is every decision."""
        if not hasattr(self, "world"):
            return
        again = Projection()
        for entry in self.world.ledger.entries(0, 100_000):
            again.apply(entry)
        live = self.world.projection
        now_ms = max(self.world.now_ms, live.time_ms) + HOUR
        assert dict(again.accounts.at(now_ms)) == dict(live.accounts.at(now_ms))
        assert (again.leases, again.runs) == (live.leases, live.runs)
        assert {row.verdict for row in replay_ledger(self.world.ledger)} <= {Verdict.SAME}


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
