"""Nothing acts without a recorded decision: ports, call sites, and whole lives of each governor.

The ports that act (CPU actuators, executor, dataplane) demand the id of the decision of every call,
and the type checker holds every caller to that. Here: that every method of every port is one that
demands it or one that is known not to act, that only the three loops call them, that pods are
resized in one place, and that the id which each call carries is in the record before the call.
"""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, Protocol

import pytest

from fairlead import ports
from fairlead.core.canonical import canonical
from fairlead.core.invariant import InvariantBroken
from fairlead.engine.gpu.entries import LeaseClose, LeaseOpen, decode
from fairlead.kube.cpu.pods import RESIZE, PodResize, resize_patch
from fairlead.ledger.replay import replay_ledger
from fairlead.ports.cpu import CpuActuator, LimitActuator
from fairlead.ports.dataplane import Dataplane
from fairlead.ports.executor import Executor
from fairlead.recorder import FileRecorder
from fairlead.recorder import read as read_record
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import reserve, world_of
from tests.engine.gpu.test_choices import demoted, grown, narrow_start, shrunk_by_its_owner, swapped
from tests.engine.gpu.test_grow import ELASTIC
from tests.engine.gpu.worlds import ADMIN, FakeExecutor, run
from tests.engine.test_cpu_loop import World as CpuWorld
from tests.engine.test_cpu_loop import turned
from tests.engine.test_cpu_weights import Node as WeightsNode
from tests.engine.test_cpu_weights import live
from tests.engine.traffic_worlds import TrafficWorld

SRC = Path(__file__).resolve().parents[2] / "src" / "fairlead"
ACTS = {
    CpuActuator: ("write",),
    LimitActuator: ("contain",),
    Executor: ("stop", "pause", "resume", "resize", "warn"),
    Dataplane: ("apply", "limit", "drain"),
}
OTHERS = {
    # A job's id is the plan's; `test_processes_start_and_stop_by_decisions_of_the_ledger`.
    Executor: {
        *("start", "held", "poll", "acknowledge", "running", "devices_of", "ended", "log_parts")
    },
    # Each group names its decision; the other ones change no table.
    Dataplane: {"configure", "schema_version", "heartbeat", "read", "detach", "remove"},
}
"""Methods of these ports that are called without a decision."""
NO_ACTS = {
    *("CpuSensor", "PodRoster", "DeviceMeter", "SignalSource", "NodeSensor", "EntropySource"),
    *("Recorder", "FlightRecorder", "LedgerReader", "Ledger", "EventLog", "Notifier", "Tracer"),
    *("Prober", "Glancing"),
}
"""Ports that sense, record or tell. A glance only reads counters. A probe is one request to an
ejected backend, begun by a recorded decision
(`test_a_decision_that_was_not_recorded_probes_no_backend`)."""
LOOPS = ("engine/cpu/loop.py", "engine/traffic/loop.py", "engine/gpu/effects.py")
LAUNCHER = "executor/launcher.py"
"""Carries out what the loop of the runs asks for, once it has verified the entries."""
TRACER = "compose/tracing.py"
"""Hands the same call with the same decision on, inside a span."""
WEIGHTS = "node/limits.py"
"""Contains a container by a limit, with the decision that it was given."""
RESIZER = "kube/cpu/resizer.py"
"""Carries out the decisions of node agents, which PodAllocations name."""
RECEIVERS = ("actuator", "limits", "executor", "plane", "dataplane")
ENDS_A_LEASE = {"run.cut", "run.phase", "object.applied", "gpu.resolve.draw"}


@pytest.mark.parametrize(
    ("port", "name"), [(port, name) for port, names in ACTS.items() for name in names]
)
def test_every_acting_call_of_a_port_demands_a_decision(port: type, name: str) -> None:
    """`decision` is a parameter without a default, so no caller can leave it out."""
    parameter = inspect.signature(getattr(port, name)).parameters["decision"]
    assert parameter.default is inspect.Parameter.empty


def methods(port: type) -> set[str]:
    """The public ones, also those that it inherits."""
    return {
        name for name in dir(port) if not name.startswith("_") and callable(getattr(port, name))
    }


def test_every_method_of_every_port_is_known_to_act_or_not_to() -> None:
    """A new one fails here until it demands a decision, or is listed with the reason."""
    found = {
        port
        for module in pkgutil.iter_modules(ports.__path__)
        for port in vars(importlib.import_module(f"fairlead.ports.{module.name}")).values()
        if isinstance(port, type) and getattr(port, "_is_protocol", False) and port is not Protocol
    }
    assert {port.__name__ for port in found} == {*(port.__name__ for port in ACTS), *NO_ACTS}
    for port, names in ACTS.items():
        assert methods(port) == {*names, *OTHERS.get(port, ())}, port.__name__


def test_pods_are_resized_in_one_place_and_marked_before() -> None:
    """The patch demands the decision, and that the pod names it already."""
    found = {
        path.relative_to(SRC).as_posix()
        for path in sorted(SRC.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith(("resize_patch", "path_of"))
        and ("resize_patch" in ast.unparse(call.func) or "'resize'" in ast.unparse(call))
    }
    assert found == {RESIZER}
    parameter = inspect.signature(resize_patch).parameters["decision"]
    assert parameter.default is inspect.Parameter.empty
    pod: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "spec": {"containers": []}}
    with pytest.raises(InvariantBroken):
        resize_patch(pod, {}, resource="limits", decision="n1/7")
    pod["metadata"]["annotations"] = {RESIZE: PodResize("n1/6", {}, first=True).text()}
    with pytest.raises(InvariantBroken):
        resize_patch(pod, {}, resource="limits", decision="n1/7")
    pod["metadata"]["annotations"] = {RESIZE: PodResize("n1/7", {}, first=True).text()}
    assert resize_patch(pod, {}, resource="limits", decision="n1/7")["spec"] == {}


def acting_calls() -> list[tuple[str, ast.Call]]:
    """Calls of an acting method on something named for a port, by module."""
    names = {name for group in ACTS.values() for name in group} | {"start"}
    found = []
    for path in sorted(SRC.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            receiver = ast.unparse(call.func.value).rsplit(".", 1)[-1].lstrip("_")
            if call.func.attr in names and receiver in RECEIVERS:
                found.append((path.relative_to(SRC).as_posix(), call))
    return found


def test_only_the_loops_act() -> None:
    """No command, API handler or composition calls an acting method of a port."""
    calls = acting_calls()
    expected = {*LOOPS, LAUNCHER, TRACER, WEIGHTS}
    assert {module for module, _ in calls} <= expected
    assert {module for module, _ in calls} == expected, "the walk must see each of them"


def test_cpu_writes_cite_an_entry_that_is_on_disk_before_the_write(tmp_path: Path) -> None:
    """Each limit is written with the number of a `cpu.govern` entry that can already be read."""
    recorder = FileRecorder(tmp_path)
    seen: list[tuple[int, str]] = []

    class Watching(CpuWorld):
        def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
            (entry,) = [entry for entry in read_record(tmp_path) if entry.seq == decision]
            writes = entry.output["writes"]
            assert {"uid": uid, "after": millicores}.items() <= next(
                row for row in writes if row["uid"] == uid
            ).items()
            seen.append((decision, entry.kind))
            return super().write(decision, uid, container, millicores)

    world = Watching(a=200, b=300)
    loop = turned(world, recorder)
    for second in range(5, 40, 5):
        loop.clear(second * 1000)
        loop.sample(second * 1000 + 500)
    recorder.close()
    assert seen
    assert {kind for _, kind in seen} == {"cpu.govern"}


def test_containment_cites_an_entry_that_is_on_disk_before_the_limit(tmp_path: Path) -> None:
    """Each limit beside the guarantees, with the number of an entry that holds it."""
    cited: list[int] = []

    class Watching(WeightsNode):
        def contain(
            self, decision: int, uid: str, container: str, limit_millicores: int | None
        ) -> None:
            (entry,) = [entry for entry in read_record(tmp_path) if entry.seq == decision]
            rows = [row for row in entry.output["contain"] if row["uid"] == uid]
            assert limit_millicores in [row["limit_millicores"] for row in rows]
            cited.append(decision)
            super().contain(decision, uid, container, limit_millicores)

    live(tmp_path, Watching())
    assert cited


def test_tables_cite_an_entry_that_was_written_before_the_flip(tmp_path: Path) -> None:
    """Each table is applied with the number of a `traffic.govern` entry of its group."""
    recorder = FileRecorder(tmp_path)
    world = TrafficWorld(recorder=recorder)
    applied: list[int | None] = []
    apply = world.plane.apply

    def watching(table: Any, *, decision: int | None) -> None:
        assert decision is not None
        recorded = {entry.seq: entry for entry in read_record(tmp_path)}
        assert recorded[decision].kind == "traffic.govern"
        applied.append(decision)
        apply(table, decision=decision)

    world.plane.apply = watching  # type: ignore[method-assign] - a spy on the real one
    world.backends["a"].latency_ms = 400.0
    for _ in range(40):
        world.tick()
    recorder.close()
    assert len(applied) > 1
    assert applied == sorted(set(applied))


CITED = {
    "start": {"gpu.fund", "gpu.place", "gpu.overdraw"},
    "stop": {"gpu.resolve.commit", "run.phase", "run.cut"},
    "resize": {"gpu.resolve.commit", "run.cut", "run.grown"},
    "pause": {"run.phase"},
    "resume": {"run.phase"},
    "warn": {"run.warned"},
}
"""What each act may cite: a start its plan, the others the outcome or the entry that asked."""


class CitedExecutor(FakeExecutor):
    """Checks with every act that its decision is in the ledger already."""

    pauses = True

    def __init__(self, world: Any) -> None:
        super().__init__()
        self._world, self.cited = world, []

    cited: list[tuple[str, str]]

    def _check(self, act: str, decision: str) -> None:
        log = list(self._world.ledger.entries(0))
        kinds = {
            entry.kind
            for entry in log
            if decision == (entry.plan_id if act == "start" else str(entry.seq))
        }
        assert kinds & CITED[act], f"{act} cites {decision!r}, which no recorded decision has"
        self.cited.append((act, decision))

    def start(self, job: Any) -> None:
        self._check("start", job.id)
        super().start(job)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        self._check("stop", decision)
        super().stop(run, grace_ms, decision=decision)

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        self._check("resize", decision)
        super().resize(run, devices, grace_ms=grace_ms, decision=decision)

    def pause(self, run: str, *, decision: str) -> None:
        self._check("pause", decision)
        super().pause(run, decision=decision)

    def resume(self, run: str, *, decision: str) -> None:
        self._check("resume", decision)
        super().resume(run, decision=decision)

    def warn(self, run: str, notice: Any, *, signal: str | None, decision: str) -> None:
        self._check("warn", decision)
        super().warn(run, notice, signal=signal, decision=decision)


def cited_world(**settings: Any) -> Any:
    world = world_of(**settings)
    world.executor = CitedExecutor(world)
    world.plane = world.open()
    return world


def entry_of(world: Any, decision: str) -> Any:
    (entry,) = [entry for entry in world.log if str(entry.seq) == decision]
    return entry


def test_acts_that_users_ask_for_cite_the_entry_of_the_request() -> None:
    """Cancel, shrink, growth, pause and resume: not the plan by which the run once started."""
    world = cited_world()
    world.apply(run("elastic", owner="b", gpus=8, command=["sleep", "9"], **ELASTIC))
    world.turn()
    act = world.plane.verbs.act
    act("Run", "elastic", "pause", author=ADMIN)
    act("Run", "elastic", "resume", author=ADMIN)
    act("Run", "elastic", "shrink", author=ADMIN, width=4)
    act("Run", "elastic", "cancel", author=ADMIN)
    cited = {done: entry_of(world, by) for done, by in world.executor.cited if done != "start"}
    assert set(cited) == {"pause", "resume", "resize", "stop"}
    assert cited["pause"].body["reason"] == "Paused"
    assert cited["resume"].body["reason"] == "Resumed"
    assert (cited["resize"].kind, cited["resize"].body["outcome"]) == ("run.cut", None)
    assert cited["stop"].body["reason"] == "CancelRequested"


def test_growth_and_a_lost_node_are_cited() -> None:
    """A run that grows cites its growth; a job whose node failed, the entry that displaced it."""
    world = cited_world()
    world.apply(run("elastic", owner="b", gpus=8, duration="9h", command=["sleep", "9"], **ELASTIC))
    world.turn()
    reserve(world, run("new", gpus=4, duration="1h"))
    world.turn()
    world.turn(11 / 3600)
    world.turn(1)
    world.plane.verbs.act("Node", "n1", "fail", author=ADMIN)
    cited = [(act, entry_of(world, by)) for act, by in world.executor.cited if act != "start"]
    assert [(act, entry.kind) for act, entry in cited] == [
        ("resize", "gpu.resolve.commit"),
        ("resize", "run.grown"),
        ("stop", "run.cut"),
    ]
    lost = cited[-1][1].body
    assert (lost["reason"], lost["outcome"], lost["preempts"]) == ("NodeFailed", None, True)


def test_a_warning_cites_the_entry_that_recorded_it() -> None:
    """The chance that a run is told of is in the ledger."""
    world = cited_world(teams="abc")
    warned = {"command": ["x"], "warnBefore": {"before": "30m", "signal": "USR1"}}
    world.apply(run("early", "a", 4, **warned), run("late", "b", 4, command=["x"]))
    world.turn()
    reserve(world, run("big", "c", 4), 1)
    world.turn()
    world.turn(0.51)
    ((_, decision),) = [cited for cited in world.executor.cited if cited[0] == "warn"]
    assert entry_of(world, decision).body["run"] == "early"


def lottery_world() -> Any:
    """Four runs with processes, and a reservation whose start preempts some of them."""
    world = cited_world()
    world.apply(
        *(run(f"r{i}", owner="bc"[i % 2], gpus=2, command=["sleep", "9"]) for i in range(4))
    )
    world.turn()
    reserve(world, run("winner", gpus=4, command=["sleep", "9"]))
    for _ in range(3):
        world.turn(0.01)
        for name in [call[1] for call in world.executor.calls if call[0] == "stop"]:
            if any(
                job.run == name and job.id in world.executor.running()
                for job in world.executor.jobs.values()
            ):
                world.executor.end(name, world.now_ms, signal=15)
    world.turn(0.01)
    return world


def test_processes_start_and_stop_by_decisions_of_the_ledger() -> None:
    """Starts cite their funding and placement, a preempted run's stop cites the outcome."""
    world = lottery_world()
    acts = {act for act, _ in world.executor.cited}
    assert {"start", "stop"} <= acts
    outcome = {str(entry.seq) for entry in world.log if entry.kind == "gpu.resolve.commit"}
    assert {decision for act, decision in world.executor.cited if act == "stop"} <= outcome


def test_leases_open_and_close_by_decisions_of_the_ledger() -> None:
    """A lease opens after the funding and the placement of its plan, and closes after its cause."""
    world = lottery_world()
    log = list(world.ledger.entries(0))
    opened = [entry for entry in log if entry.kind == "lease.open"]
    closed = [entry for entry in log if entry.kind == "lease.close"]
    assert opened
    assert closed
    for entry in opened:
        assert isinstance(decode(entry), LeaseOpen)
        before = {row.kind for row in log if row.plan_id == entry.plan_id and row.seq < entry.seq}
        assert {"gpu.fund", "gpu.place"} <= before, entry.seq
    for entry in closed:
        body = decode(entry)
        assert isinstance(body, LeaseClose)
        assert body.outcome is not None, "every lease of this world ends by the outcome"
        causes = {row.kind for row in log if row.seq < entry.seq and row.kind in ENDS_A_LEASE}
        assert "gpu.resolve.draw" in causes


BEHIND = {
    "lease.unfunded": "gpu.refund",
    "lease.funded": "gpu.refund",
    "run.grown": "gpu.start",
    "gpu.resolve.draw": "gpu.start",
}
"""Facts that follow from a decision of their own, which stands before them."""


@pytest.mark.parametrize("made", [narrow_start, grown, shrunk_by_its_owner, swapped, demoted])
def test_widths_groups_spares_and_funding_change_by_decisions_of_the_ledger(made: Any) -> None:
    """No lease opens, ends by request or with a node, or loses its funding without a decision."""
    world = made()
    latest: dict[str, Any] = {}
    for entry in world.log:
        body = entry.body
        if isinstance(body.get("output"), dict):
            latest[entry.kind] = body["output"]
        ended = {row["lease"] for row in latest.get("gpu.resize", {}).get("ended", ())}
        if entry.kind == "run.cut" and body["outcome"] is None:
            assert set(body["leases"]) == ended
        elif entry.kind == "lease.close" and body["reason"] in ("NodeFailed", "Shrink"):
            assert body.get("outcome") is not None or body["lease"] in ended
        elif entry.kind == "lease.open" and body["reason"] == "Swap":
            begun = [row["slots"] for row in latest["gpu.resize"]["begun"]]
            assert body["slots"] in begun
        elif entry.kind == "lease.open":
            groups = latest["gpu.place"]["groups"]
            assert set(body["slots"]) <= {s for g in groups for s in (*g["active"], *g["spares"])}
        elif entry.kind in BEHIND:
            assert BEHIND[entry.kind] in latest, entry.seq
    assert {row.verdict for row in replay_ledger(world.ledger)} == {Verdict.SAME}


def test_the_whole_ledger_replays() -> None:
    """Every decision of that ledger is the same again; there are some of every kind."""
    world = lottery_world()
    rows = list(replay_ledger(world.ledger))
    assert {row.verdict for row in rows} == {Verdict.SAME}
    kinds = {"gpu.fund", "gpu.place", "gpu.start", "gpu.queue", "gpu.deficit", "gpu.resolve"}
    assert kinds <= {row.kind for row in rows}
    assert canonical([row.seq for row in rows]) == canonical(sorted(row.seq for row in rows))
