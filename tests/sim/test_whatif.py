"""`fairlead.sim.whatif`: recorded snapshots under another policy, with numpy and without."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.canonical import canonical
from fairlead.core.cpu import Pod, Policy, Snapshot, allocate, clear
from fairlead.ports.faults import PermanentFault
from fairlead.recorder import read
from fairlead.schema.border import check_shape
from fairlead.schema.cpu import from_plan, from_snapshot
from fairlead.schema.cpu_govern import CpuGovernDocument, follow
from fairlead.schema.kinds import KINDS
from fairlead.sim import whatif
from fairlead.sim.whatif import NoDecisions, decide_fleet, decide_one_by_one, what_if
from fairlead.sim.whatif_report import as_document
from tests.engine.test_cpu_replay import live
from tests.sim.records import append, record_of
from tests.sim.scenarios import pod, scenario

CROWD = (
    pod("api", {"kind": "constant", "millicores": 1500}, request_millicores=600),
    pod("batch", {"kind": "constant", "millicores": 3000}, request_millicores=100),
    pod("web", {"kind": "steps", "millicores": [100, 1200], "every_s": 20}),
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("records")
    crowd = scenario(*CROWD, duration_s=90)
    return [
        record_of(crowd, folder / name / "record", seed=seed) for seed, name in ((1, "a"), (2, "b"))
    ]


def congested(policy: Policy = Policy.NASH) -> Snapshot:
    """2 000m for needs of far more."""
    pods = (
        Pod("small", 100, 2000, 0.2, current_millicores=100, upper_millicores=150),
        Pod("large", 100, 4000, 1.0, weight=10.0),
    )
    return Snapshot(2000, pods, policy)


def put(folder: Path, snapshot: Snapshot, time_ms: int) -> None:
    append(folder, "cpu.clear", time_ms, from_snapshot(snapshot), from_plan(clear(snapshot)))


@pytest.mark.component("numpy")
@pytest.mark.parametrize("policy", Policy)
def test_the_same_answer_with_numpy_and_without(
    records: list[Path], policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, whatever the size of a batch."""
    answers = set()
    for decide in (decide_fleet, decide_one_by_one):
        for batch in (1, 7, 2_000):
            monkeypatch.setattr(whatif, "decider", lambda decide=decide: decide)
            monkeypatch.setattr(whatif, "BATCH", batch)
            document = as_document(what_if(records, policy), top=5)
            answers.add(json.dumps(document))
    assert len(answers) == 1


def test_the_recorded_policy_and_bounds_change_nothing(records: list[Path]) -> None:
    """With the recorded bounds and the recorded policy nothing changes, snapshot by snapshot."""
    result = what_if(records, Policy.NASH, guardrails=True)
    assert result.snapshots == 36
    for change in (*result.nodes, *result.pods):
        assert change.recorded == change.whatif


def test_records_of_both_formats_are_read(tmp_path: Path) -> None:
    """`cpu.clear` of earlier releases beside `cpu.allocate`; another governor's are skipped."""
    put(tmp_path, congested(), 0)
    append(tmp_path, "traffic.tick", 1_000, {}, {})
    node = {"capacity_millicores": 2000, "now_ms": 5_000, "policy": "nash"}
    containers = [{"name": "", "want_millicores": 3000, "current_millicores": 400}]
    large = {"uid": "large", "min_millicores": 100, "max_millicores": 4000, "demand": 1.0}
    document = {**node, "pods": [{**large, "first_seen_ms": 0, "containers": containers}]}
    result = KINDS["cpu.allocate"].run(canonical(document)).result
    append(tmp_path, "cpu.allocate", 5_000, document, result)
    answer = what_if([tmp_path], Policy.MARKET)
    assert answer.snapshots == 2
    assert {p.pod: p.time_ms for p in answer.pods} == {"small": 5_000, "large": 10_000}


@pytest.mark.parametrize("guardrails", [False, True])
def test_recorded_counters_give_the_answer_of_recorded_snapshots(
    tmp_path: Path, guardrails: bool
) -> None:
    """`cpu.govern` is followed; the snapshots that it leads to, as `cpu.allocate`, say the same."""
    live(tmp_path / "govern" / "node")
    life = None
    for entry in read(tmp_path / "govern" / "node"):
        followed = follow(check_shape(dict(entry.input), CpuGovernDocument), life)
        plan = allocate(followed.snapshot)
        life = followed.settle(plan.mode, plan.memory)
        documents = from_snapshot(followed.snapshot), from_plan(plan)
        append(tmp_path / "allocate" / "node", "cpu.allocate", entry.time_ms, *documents)
    answers = [
        as_document(
            what_if([tmp_path / kind / "node"], Policy.MARKET, guardrails=guardrails), top=5
        )
        for kind in ("govern", "allocate")
    ]
    assert answers[0]["snapshots"] == 48
    assert answers[0] == answers[1]


def test_figures_are_those_of_the_plans(tmp_path: Path) -> None:
    """Means, time below need and unmet need, from two snapshots of 5 and 10 seconds."""
    calm = replace(congested(), capacity_millicores=10_000)
    put(tmp_path, congested(), 0)
    put(tmp_path, calm, 5_000)
    put(tmp_path, calm, 15_000)
    result = what_if([tmp_path], Policy.DEMAND_CAPPED)
    free = [replace(p, upper_millicores=None) for p in congested().pods]
    scarce = clear(replace(congested(Policy.DEMAND_CAPPED), pods=tuple(free)))
    large = next(p for p in result.pods if p.pod == "large")
    need = scarce.needs["large"]
    assert large.time_ms == 25_000, "the last snapshot counts as long as the one before it"
    assert large.mean(large.needed) == need
    granted = scarce.allocations["large"] * 5_000 + need * 20_000
    assert large.whatif.granted == granted
    assert large.whatif.below_ms == 5_000
    assert large.whatif.unmet == (need - scarce.allocations["large"]) * 5_000
    (node,) = result.nodes
    assert (node.scarce_ms, node.scarce_share) == (5_000, 0.2)
    assert sum(p.whatif.unmet for p in result.pods) == node.whatif.unmet


def test_winners_and_losers_are_sorted_by_their_change(records: list[Path]) -> None:
    """The largest change comes first; a pod that keeps its mean is in neither list."""
    result = what_if(records, Policy.MARKET)
    gains = [p.change_millicores for p in result.winners(9)]
    losses = [p.change_millicores for p in result.losers(9)]
    assert gains == sorted(gains, reverse=True)
    assert all(change > 0 for change in gains)
    assert losses == sorted(losses)
    assert all(change < 0 for change in losses)
    assert gains
    assert losses
    assert result.winners(1) == result.winners(9)[:1]


def test_a_gap_counts_for_a_minute_at_most(tmp_path: Path) -> None:
    """The agent was not running for a day: what was needed then is unknown."""
    put(tmp_path, congested(), 0)
    put(tmp_path, congested(), 86_400_000)
    (node,) = what_if([tmp_path], Policy.MARKET).nodes
    assert node.time_ms == 120_000


def test_nodes_are_named_by_folder_or_by_path(records: list[Path], tmp_path: Path) -> None:
    """The folder around `record`; the path where two would have the same name."""
    assert [node.node for node in what_if(records, Policy.NASH).nodes] == ["a", "b"]
    put(tmp_path / "a", congested(), 0)
    names = [node.node for node in what_if([records[0], tmp_path / "a"], Policy.NASH).nodes]
    assert names == [str(records[0]), str(tmp_path / "a")]
    around = what_if([records[0].parent], Policy.NASH)
    assert (around.nodes[0].node, around.snapshots) == ("a", 18)
    with pytest.raises(NoDecisions, match="named twice"):
        what_if([records[0], records[0]], Policy.NASH)


def test_records_without_cpu_decisions_are_refused(tmp_path: Path) -> None:
    """Empty folders, empty records, records of another governor, snapshots that are none."""
    (tmp_path / "none").mkdir()
    with pytest.raises(NoDecisions, match="holds no record"):
        what_if([tmp_path / "none"], Policy.NASH)
    append(tmp_path / "traffic", "traffic.tick", 0, {}, {})
    with pytest.raises(NoDecisions, match=r"no CPU decisions in this record: only traffic\.tick"):
        what_if([tmp_path / "traffic"], Policy.NASH)
    append(tmp_path / "odd", "cpu.clear", 0, {"capacity_millicores": -1, "pods": []}, {})
    with pytest.raises(NoDecisions, match="entry 1 is not a CPU snapshot: capacity_millicores"):
        what_if([tmp_path / "odd"], Policy.NASH)


def test_a_damaged_record_is_a_fault(records: list[Path], tmp_path: Path) -> None:
    """With the record, the segment and the line."""
    put(tmp_path, congested(), 0)
    put(tmp_path, congested(), 5_000)
    (segment,) = tmp_path.glob("segment-*.jsonl")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b'"time_ms":5000', b'"time_ms":5001'))
    with pytest.raises(PermanentFault, match=rf"{tmp_path}: the record is damaged: segment-.*line"):
        what_if([tmp_path], Policy.NASH)
