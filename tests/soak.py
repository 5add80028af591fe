"""`make soak`: the counts that the promises name, in full, with a stored report.

`make test` runs samples of the same functions. A soak is a name and a function that returns what it
counted; it raises when a promise breaks. `python -m tests.soak NAME ...` runs some of them.

Each count is stored with its commit and with the digest of the source that it depends on. Its
result is `passed` where all that was promised (`PROMISED`) was counted, `partial` with both numbers
where less was, and `failed` where a promise broke. Without names, those that passed on the source
as it is are kept, and not run again. FAIRLEAD_SOAK_S: after so many seconds no further soak begins,
and no further part of one that has parts (`IN_PARTS`). FAIRLEAD_SOAK_RECORD: a file that keeps the
schedules of a cluster that ended, so that the next call plays the others.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.core.cpu import Policy
from fairlead.executor.confine import KINDS
from tests import compiled, mutants, ratios
from tests.core.cpu import cases, test_oracle
from tests.core.gpu import chance as gpu_chance
from tests.core.gpu import test_oracle as gpu_oracle
from tests.core.gpu import test_resolve_oracle
from tests.core.traffic import test_oracle as traffic_oracle
from tests.e2e import histories, kills, plane_kills
from tests.engine import traffic_life as traffic_lives
from tests.engine.gpu.test_resolver_model import ResolverModel
from tests.executor import kills as executor_kill
from tests.executor.worlds import open_folder
from tests.fuzz.__main__ import look
from tests.fuzz.targets import TARGETS
from tests.kube import fault_soak
from tests.ledger import kill as ledger_kill
from tests.recorder import kill as recorder_kill
from tests.sim import vopr_plants, vopr_soak
from tests.sources import commit, digest

REPORT = Path(__file__).resolve().parents[1] / "bench" / "results" / "soak.json"
CASES = 100_000
CHUNK = 5_000
COVERS = 20_000
COVER_CHUNK = 1_000
RESOLVES = 20_000
RESOLVE_CHUNK = 1_000
DRAW_SEEDS = 20_000
TRAFFIC_SEQUENCES = 10_000
TRAFFIC_CHUNK = 250
TRAFFIC_TICKS = 100_000
KILLS = 1_000
LEDGER_KILLS = 500
REPLICA_KILLS = 100
EXECUTOR_TURNS = 250
LAB_HISTORIES = 2_000
PLANE_KILLS = 500
HISTORIES = 50
FUZZ_S = 60
HISTORY_KILLS, HISTORY_LANES = 3, 4
KUBE_SCHEDULES = 200
VOPR_STEPS = 2_000_000
KUBE_CRASHES = 20


def cpu_clear_invariants() -> dict[str, object]:
    """Every invariant of `cpu.clear` on 100 000 random and hostile clearings per policy."""
    counted: dict[str, object] = {}
    with ProcessPoolExecutor() as pool:
        for policy in Policy:
            seeds = range(CASES // CHUNK)
            totals: dict[str, int] = {}
            for modes in pool.map(partial(cases.run_cases, policy, CHUNK), seeds):
                for mode, count in modes.items():
                    totals[mode] = totals.get(mode, 0) + count
            counted[policy.value] = {"cases": CASES, **totals}
    return counted


def cpu_clear_oracle() -> dict[str, object]:
    """The core against the independent implementation: 100 000 clearings per policy, and 10 000
    whole decisions of a node (`cpu.allocate`).
    """
    with ProcessPoolExecutor() as pool:
        for policy in Policy:
            seeds = range(1_000, 1_000 + CASES // CHUNK)
            list(pool.map(partial(test_oracle.compare, policy, CHUNK), seeds))
            list(pool.map(partial(test_oracle.compare_nodes, policy, CHUNK // 10), seeds))
    return {policy.value: {"cases": CASES} for policy in Policy}


def gpu_cover_oracle() -> dict[str, object]:
    """`gpu.cover` against the independent implementation: 20 000 documents, each spoiled too."""
    met: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        chunks = range(1_000, 1_000 + COVERS // COVER_CHUNK)
        for each in pool.map(partial(gpu_oracle.compare, COVER_CHUNK), chunks):
            met.update(each)
    return {"cases": COVERS, **met}


def gpu_resolve_chance() -> dict[str, object]:
    """Chi-square of owners and tokens over 20 000 seeds, first and second draw."""
    return {**gpu_chance.judge(DRAW_SEEDS)}


def gpu_resolve_oracle() -> dict[str, object]:
    """`gpu.resolve` against the independent implementation: 20 000 documents, each spoiled too."""
    met: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        chunks = range(1_000, 1_000 + RESOLVES // RESOLVE_CHUNK)
        for each in pool.map(partial(test_resolve_oracle.compare, RESOLVE_CHUNK), chunks):
            met.update(each)
    return {"cases": RESOLVES, **met}


def traffic_tick_oracle() -> dict[str, object]:
    """`traffic.tick` against the independent implementation: 10 000 lives of groups, and as many
    documents with a defect.
    """
    met: Counter[str] = Counter()
    chunks = range(1_000, 1_000 + TRAFFIC_SEQUENCES // TRAFFIC_CHUNK)
    with ProcessPoolExecutor() as pool:
        for each in pool.map(partial(traffic_oracle.compare, TRAFFIC_CHUNK), chunks):
            met.update(each)
        refused = pool.map(partial(traffic_oracle.refusals, TRAFFIC_CHUNK), chunks)
        met["refused"] = sum(sum(each.values()) for each in refused)
    return {"sequences": TRAFFIC_SEQUENCES, **met}


def traffic_life() -> dict[str, object]:
    """A life of 100 000 ticks with faults, restarts and members that change replays from its record
    alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        traffic_lives.live(Path(folder), TRAFFIC_TICKS)
        counted = traffic_lives.verdicts(Path(folder))
    if counted != {"same": TRAFFIC_TICKS}:
        raise AssertionError(f"not all the same: {dict(counted)}")
    return {"ticks": TRAFFIC_TICKS}


def node_kills() -> dict[str, object]:
    """1 000 kill -9 of the node agent on real cgroups, with an outside witness of every limit."""
    with tempfile.TemporaryDirectory() as folder:
        return {**kills.run_kills(KILLS, seed=1, folder=Path(folder))}


def control_plane_kills() -> dict[str, object]:
    """500 kill -9 of the control plane under load: nothing acknowledged lost, nothing twice."""
    with tempfile.TemporaryDirectory() as folder:
        return plane_kills.run_kills(PLANE_KILLS, seed=1, folder=Path(folder))


def linearizable_histories() -> dict[str, object]:
    """50 histories of objects and 50 of leases, each through 3 kills: all linearizable."""
    counted: Counter[str] = Counter()
    with ProcessPoolExecutor(HISTORY_LANES) as pool:
        seeds = range(1_000, 1_000 + HISTORIES)
        for each in pool.map(partial(_two_histories, time.monotonic() + _left_s()), seeds):
            counted.update(each)
    return dict(counted)


def _two_histories(end_s: float, seed: int) -> dict[str, int]:
    """None after the end. Most of it is waiting for turns of a control plane, a second each."""
    counted: Counter[str] = Counter()
    if time.monotonic() < end_s:
        counted.update(histories.check_objects(HISTORY_KILLS, seed))
        counted.update(histories.check_leases(HISTORY_KILLS, seed))
        counted["histories"] = 2
    return dict(counted)


def fuzzing() -> dict[str, object]:
    """A minute of guided search per border; nothing but refusals."""
    seconds = int(max(1, min(FUZZ_S, _left_s() / len(TARGETS))))
    counted = {name: {"seconds": 0, "cases": 0, "kept": 0, "defects": 0} for name in TARGETS}
    for name in TARGETS:
        if _left_s() > 0:
            counted[name] = {"seconds": seconds, **look(name, seconds)}
    defects = [name for name, each in counted.items() if each["defects"]]
    if defects:
        raise AssertionError(f"borders with defects: {', '.join(defects)}; {counted}")
    return dict(counted)


def resolver_model() -> dict[str, object]:
    """The resolver in a random lab: 2 000 histories of 50 steps, invariants after each."""
    settled = settings(max_examples=LAB_HISTORIES, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(ResolverModel, settings=settled)
    return {"histories": LAB_HISTORIES}


def recorder_kills() -> dict[str, object]:
    """1 000 kill -9 of a writer of the flight recorder: what was acknowledged is read back."""
    with tempfile.TemporaryDirectory() as folder:
        return {**recorder_kill.kill_writers(Path(folder), count=KILLS, seed=1)}


def executor_kills() -> dict[str, object]:
    """250 turns of killed executors and shims per way of confining: no job lost or run twice."""
    counted: dict[str, object] = {}
    for kind in KINDS:
        with open_folder() as folder:
            counted[kind] = executor_kill.run_kills(
                EXECUTOR_TURNS, seed=1, folder=folder, kind=kind
            )
    return counted


def whole_system() -> dict[str, object]:
    """Two million steps of users, operators and faults against the whole control plane."""
    source = digest(SOURCES["whole system"])
    return vopr_soak.soak(VOPR_STEPS, commit=commit(), digest=source, within_s=_left_s())


def forgeries() -> dict[str, object]:
    """Every published forgery is refused by both verifiers, and the honest stories are accepted."""
    _run_tests("tests/verify/test_forgeries.py")
    published = json.loads((REPORT.parents[2] / "verify" / "forgeries.json").read_text())
    return {"forgeries": len(published["forgeries"]), "bases": len(published["bases"])}


def mutants_of_core() -> dict[str, object]:
    """What `make mutants` has counted so far; it runs by itself, because it takes hours."""
    found = mutants.summary(json.loads(mutants.REPORT.read_text())["modules"])
    as_it_is = found["modules"] - len(found["modules_changed_since"])
    return {**found, "modules_as_they_are": as_it_is}


def planted_faults() -> dict[str, object]:
    """Each fault that is planted is found by the simulation, and which attack it stands for."""
    return vopr_plants.report()


def kube_faults() -> dict[str, object]:
    """200 schedules of faults in a cluster: each ends as it would have without them."""
    source = digest(SOURCES.get("faults of a cluster", WHOLE))
    return fault_soak.soak(KUBE_SCHEDULES, commit=commit(), digest=source, within_s=_left_s())


def kube_crashes() -> dict[str, object]:
    """A leader killed before and after each append of a resolve, leaders that all die, and leaders
    that are halted in the middle of a request."""
    for file in ("tests/kube/test_crash_points.py", "tests/kube/test_halted.py"):
        _run_tests(file, FAIRLEAD_KUBE_CRASHES=str(KUBE_CRASHES))
    return {"appends": KUBE_CRASHES}


def compiled_core() -> dict[str, object]:
    """The compiled core decides byte for byte as the interpreted one, and passes all its tests."""
    different = compiled.differing(compiled.FORMS_ALL, seed=1_000)
    if different:
        raise AssertionError(f"the compiled core decides otherwise: {', '.join(different)}")
    if compiled.run_tests(compiled.ALL, "-n", "2"):
        raise AssertionError("tests of the core fail on its compiled form")
    return {"lives": compiled.FORMS_ALL, "clearings": 60 * compiled.FORMS_ALL}


def _run_tests(file: str, **settings: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", file]
    env = {**os.environ, **settings, "FAIRLEAD_STRICT": "1"}
    subprocess.run(command, env=env, check=True, cwd=REPORT.parents[2])


_BEGAN_S = time.monotonic()


def _left_s() -> float:
    """Of the time that this call may take."""
    return float(os.environ.get("FAIRLEAD_SOAK_S", "inf")) + _BEGAN_S - time.monotonic()


SOAKS: dict[str, Callable[[], dict[str, object]]] = {
    "ledger kills": partial(ledger_kill.soak_sqlite, LEDGER_KILLS),
    "ledger kills, two replicas on PostgreSQL": partial(ledger_kill.soak_postgres, REPLICA_KILLS),
    "cpu.clear invariants": cpu_clear_invariants,
    "cpu.clear against the oracle": cpu_clear_oracle,
    "gpu.cover against the oracle": gpu_cover_oracle,
    "gpu.resolve against the oracle": gpu_resolve_oracle,
    "recorder kills": recorder_kills,
    "executor kills": executor_kills,
    "gpu.resolve draws": gpu_resolve_chance,
    "traffic.tick against the oracle": traffic_tick_oracle,
    "traffic life replayed": traffic_life,
    "node agent kills": node_kills,
    "control plane kills": control_plane_kills,
    "linearizable histories": linearizable_histories,
    "rubbish at every border": fuzzing,
    "resolver in a random lab": resolver_model,
    "whole system": whole_system,
    "faults of a cluster": kube_faults,
    "crashes in a resolve in a cluster": kube_crashes,
    "compiled core": compiled_core,
    "stored ratios": ratios.judge,
    "forgeries": forgeries,
    "mutants of core": mutants_of_core,
    "planted faults": planted_faults,
}
SOURCES: dict[str, tuple[str, ...]] = {
    "cpu.clear invariants": ("core", "fleet"),
    "cpu.clear against the oracle": ("core", "fleet", "schema"),
    "gpu.cover against the oracle": ("core", "schema"),
    "gpu.resolve against the oracle": ("core", "schema"),
    "gpu.resolve draws": ("core",),
    "traffic.tick against the oracle": ("core", "schema"),
    "recorder kills": ("recorder", "ports", "host"),
    "executor kills": ("executor", "ports", "host"),
    "ledger kills": ("core/audit", "ledger", "ports", "host"),
    "ledger kills, two replicas on PostgreSQL": ("core/audit", "ledger", "ports", "host"),
    "whole system": ("api", "core", "engine", "ledger", "ports", "recorder", "schema", "sim"),
}
"""The packages that a count depends on; of all others it is the whole product."""
WHOLE = ("",)
IN_PARTS = ("whole system", "faults of a cluster", "mutants of core")
"""These keep what was played: without time left they sum up what there is."""
PROMISED: dict[str, tuple[str, int]] = {
    "ledger kills": ("kills", LEDGER_KILLS),
    "ledger kills, two replicas on PostgreSQL": ("kills", 2 * REPLICA_KILLS),
    "cpu.clear invariants": ("cases", CASES),
    "cpu.clear against the oracle": ("cases", CASES),
    "gpu.cover against the oracle": ("cases", COVERS),
    "gpu.resolve against the oracle": ("cases", RESOLVES),
    "recorder kills": ("kills", KILLS),
    "executor kills": ("turns", EXECUTOR_TURNS),
    "gpu.resolve draws": ("seeds", DRAW_SEEDS),
    "traffic.tick against the oracle": ("sequences", TRAFFIC_SEQUENCES),
    "traffic life replayed": ("ticks", TRAFFIC_TICKS),
    "node agent kills": ("kills", KILLS),
    "control plane kills": ("kills", PLANE_KILLS),
    "linearizable histories": ("histories", 2 * HISTORIES),
    "rubbish at every border": ("seconds", FUZZ_S),
    "resolver in a random lab": ("histories", LAB_HISTORIES),
    "whole system": ("steps", VOPR_STEPS),
    "faults of a cluster": ("passed", KUBE_SCHEDULES),
    "crashes in a resolve in a cluster": ("appends", KUBE_CRASHES),
    "compiled core": ("lives", compiled.FORMS_ALL),
    "mutants of core": ("modules_as_they_are", len(mutants.modules(()))),
    "planted faults": ("found", len(vopr_plants.PLANTED)),
}
"""What has to be counted, of each part where there are several; of the others all is run."""


def main(names: list[str]) -> int:
    """Run the soaks, print and store each as it ends; exit 1 if any failed."""
    unknown = set(names) - set(SOAKS)
    if unknown:
        print(f"no such soak: {', '.join(sorted(unknown))}; there are: {', '.join(SOAKS)}")
        return 2
    failed = False
    for name in names or due(_stored()):
        if _left_s() <= 0 and name not in IN_PARTS:
            print(f"{name}: no time is left for it")
            continue
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        try:
            counted, ok = SOAKS[name](), True
        except Exception:  # noqa: BLE001 - the report must name every failure, not the first
            counted, ok = {"failure": traceback.format_exc(limit=-3)}, False
        seconds = round(time.monotonic() - began, 1)
        row: dict[str, Any] = {"commit": commit(), "digest": digest(SOURCES.get(name, WHOLE))}
        row |= {**judged(name, counted, ok=ok), "seconds": seconds, "counted": counted}
        failed = failed or not ok
        print(f"{name}: {row['result']} in {seconds} s {json.dumps(counted)}")
        _store(_stored() | {name: row})  # another call may have stored others meanwhile
    return 1 if failed else 0


def judged(name: str, counted: dict[str, Any], *, ok: bool) -> dict[str, Any]:
    """The result of a soak, with what was promised and what was counted of it."""
    if not ok:
        return {"result": "failed"}
    if name not in PROMISED:
        return {"result": "passed"}
    unit, promised = PROMISED[name]
    parts = [part for part in counted.values() if isinstance(part, dict) and unit in part]
    done = counted.get(unit, min((part[unit] for part in parts), default=0))
    result = "passed" if done >= promised else "partial"
    return {"result": result, "unit": unit, "promised": promised, "done": done}


def due(results: dict[str, Any]) -> list[str]:
    """Those that did not pass, in full, on the source as it is."""
    found = []
    for name in SOAKS:
        row = results.get(name, {})
        same = row.get("digest") == digest(SOURCES.get(name, WHOLE))
        if row.get("result") != "passed" or not same:
            found.append(name)
        else:
            print(f"{name}: kept, it passed on this source at {row['commit']}")
    return found


def _stored() -> dict[str, Any]:
    return dict(json.loads(REPORT.read_text())["soaks"]) if REPORT.exists() else {}


def _store(results: dict[str, Any]) -> None:
    """At once: a soak takes many minutes, and the next may be cut short."""
    report = {"python": platform.python_version(), "soaks": results}
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
