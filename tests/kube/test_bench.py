"""The benchmark's own path, with few workloads: what it reports is there, and adds up."""

import pytest
from bench.kube.arms import fairlead
from bench.kube.load import Load
from bench.kube.server import CONTROLLER

from fairlead.kube.dev.assets import Programs

WORKLOADS = 30


def test_a_small_run_of_the_benchmark(programs: Programs) -> None:
    """Every run is created, admitted and finished, and the calls of the controller are counted."""
    found = fairlead(Load.of(WORKLOADS), limited=True)
    assert (found["created"], found["admitted"], found["finished"]) == (WORKLOADS,) * 3
    assert sum(row["count"] for row in found["latency"].values()) == WORKLOADS
    statuses = found["calls"][CONTROLLER]["patch runs/status"]
    assert statuses >= WORKLOADS, "each shows at least that it was admitted"
    assert found["processes"]["controller"]["peak_mib"] > 10


@pytest.mark.parametrize("workloads", [10, 30, 300, 15_000])
def test_both_sides_get_the_same_load(workloads: int) -> None:
    load = Load.of(workloads)
    (cohorts,) = load.for_kueue()["cohorts"]
    (queues,) = cohorts["queuesSets"]
    kueue = {
        (row["workloads"][0]["className"], row["count"] * queues["count"] * cohorts["count"])
        for row in queues["workloadsSets"]
    }
    ours: dict[str, int] = {}
    for each in load.sets():
        ours[each.of.name] = ours.get(each.of.name, 0) + each.count
    assert kueue == set(ours.items())
    assert load.workloads == workloads == sum(ours.values())
