"""`python -m bench.gpu_queue [--quick] [--seeds N]`: waits, utilisation and fairness of the queue.

The load of `bench.queue_shape` in virtual time: through the control plane itself (queue, funding,
placement, ledger in memory), and through FIFO, EASY backfill and Kueue's BestEffortFIFO, each
written from its definition. Every owner has a budget of its entitlement, and the owners share as a
family, so that what an owner leaves is used by others.

| measure | definition |
|---|---|
| wait | from submission to start, by size class |
| utilisation | GPU-time in use until the last submission, over the GPU-time of the cluster |
| Jain | Jain's index over owners of the part of their entitlement that they got when they asked |

Prints tables, writes bench/results/gpu_queue.json, .md and .png (with --quick: into out/bench).
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.engine.gpu.worlds import ADMIN, START, World, budget, envelope, node, run

from bench.gpu_queue_plot import draw
from bench.queue_shape import (
    QUEUES,
    Cluster,
    Load,
    Starts,
    Submission,
    jain,
    make_load,
    satisfaction,
)
from bench.timing import machine, results_folder, write_results
from fairlead.engine.gpu import Config
from fairlead.schema.times import format_duration

GPUS, NODE_GPUS, RUNS, OFFERED = 128, 8, 1_500, 1.0
SEEDS = tuple(range(1, 13))
MADE_WITH = 6
"""The queue was made with the first six of them; the others confirm it."""
CLASSES = {"1": (1, 1), "2-4": (2, 4), "5-8": (5, 8), ">8": (9, 10**9)}
"""The size classes of the paper."""
WIDEST = ">8"
UTILISATION_MIN = 0.97


def fairlead(load: Load) -> Starts:
    """The same load through the control plane."""
    world = World(config=Config(resolver="off", checkpoint_every=10**9))
    apply = world.plane.objects.apply_all
    apply([node(f"n{i:03}", NODE_GPUS) for i in range(load.gpus // NODE_GPUS)], author=ADMIN)
    apply(
        [
            budget(owner, owner, envelope(concurrency=gpus), parents=["all"])
            for owner, gpus in load.entitled.items()
        ],
        author=ADMIN,
    )
    coming, starts = list(load.runs)[::-1], Starts()
    by_name = {each.name: each for each in load.runs}
    ends: dict[str, int] = {}
    while coming or ends or world.projection.live:
        times = [START + coming[-1].at_ms] if coming else []
        world.now_ms = min([*times, *ends.values()])
        for name in [name for name, end_ms in ends.items() if end_ms <= world.now_ms]:
            world.executor.end(name, ends.pop(name), code=0)
        arrived: list[Submission] = []
        while coming and START + coming[-1].at_ms <= world.now_ms:
            arrived.append(coming.pop())
        if arrived:
            apply([_manifest(each) for each in arrived], author=ADMIN)
        world.plane.reconcile(world.now_ms)
        for name, state in world.projection.live.items():
            each = by_name[name]
            if state.started_ms is not None and each.id not in starts:
                starts[each.id] = state.started_ms - START
                ends[name] = state.started_ms + each.runtime_ms
    return starts


def _manifest(each: Submission) -> dict[str, Any]:
    estimate = format_duration(each.estimate_ms)
    return run(each.name, each.owner, each.gpus, duration=estimate, command=["train"])


def measure(load: Load, starts: Starts) -> dict[str, Any]:
    """What one queue made of a load."""
    last_ms = load.runs[-1].at_ms
    used_ms = sum(
        each.gpus * max(0, min(last_ms, starts[each.id] + each.runtime_ms) - starts[each.id])
        for each in load.runs
    )
    waits = {
        name: sorted(starts[each.id] - each.at_ms for each in load.runs if low <= each.gpus <= high)
        for name, (low, high) in CLASSES.items()
    }
    everyone = sorted(wait for rows in waits.values() for wait in rows)
    got = satisfaction(load, starts)
    return {
        "utilisation": round(used_ms / (load.gpus * last_ms), 4),
        "jain": round(jain(list(got.values())), 4),
        "least_satisfied": round(min(got.values()), 3),
        "wait_h": {name: spread(rows) for name, rows in {**waits, "all": everyone}.items()},
    }


def spread(waits_ms: Sequence[int]) -> dict[str, float]:
    def at(percent: int) -> float:
        return waits_ms[min(len(waits_ms) - 1, len(waits_ms) * percent // 100)]

    values = {"mean": sum(waits_ms) / len(waits_ms), "p95": at(95), "p99": at(99)}
    return {name: round(value / 3_600_000, 3) for name, value in values.items()}


def pooled(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over seeds, figure by figure."""
    first = reports[0]
    return {
        key: pooled([report[key] for report in reports])
        if isinstance(first[key], dict)
        else round(sum(report[key] for report in reports) / len(reports), 4)
        for key in first
    }


def verdicts(mean: Mapping[str, Any]) -> list[str]:
    """What the queue is to keep, each with whether it does; means over seeds."""
    mine, easy, kueue = mean["fairlead"], mean["easy"], mean["kueue"]
    ratio = mine["utilisation"] / easy["utilisation"]
    wide, theirs = mine["wait_h"][WIDEST]["p99"], easy["wait_h"][WIDEST]["p99"]
    best = max(easy["jain"], kueue["jain"])
    rows = (
        (f"utilisation is {ratio:.1%} of EASY's, at least 97 %", ratio >= UTILISATION_MIN),
        (
            f"p99 wait of runs wider than 8 GPUs is {wide:.2f} h, EASY's {theirs:.2f} h",
            wide <= theirs,
        ),
        (
            f"Jain's index is {mine['jain']:.4f}, above EASY and Kueue, {best:.4f}",
            mine["jain"] > best,
        ),
    )
    return [f"{'kept' if kept else 'NOT kept'}: {text}" for text, kept in rows]


def widest(report: Mapping[str, Any]) -> str:
    """p99 of the widest class seed by seed: of so few runs it is the wait of one of them."""
    head = f"| seed | runs wider than 8 GPUs | p99 wait in h: {' | '.join(QUEUES)} | fairlead |"
    rows = [head, "|---|" + "---:|" * (2 + len(QUEUES))]
    for i, seed in enumerate(report["seeds"]):
        waits = (
            report["by_seed"][name][i]["wait_h"][WIDEST]["p99"] for name in (*QUEUES, "fairlead")
        )
        cells = (seed, report["widest_runs"][i], *(f"{wait:.2f}" for wait in waits))
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def one_seed(seed: int, runs: int) -> dict[str, Any]:
    """One load through every queue."""
    load = make_load(seed=seed, runs=runs, gpus=GPUS, offered=OFFERED)
    found = {name: measure(load, Cluster(load).play(pick)) for name, pick in QUEUES.items()}
    began = time.process_time()
    found["fairlead"] = measure(load, fairlead(load))
    cpu_s = time.process_time() - began
    widest_runs = sum(each.gpus >= CLASSES[WIDEST][0] for each in load.runs)
    return {"queues": found, "cpu_s": cpu_s, "widest_runs": widest_runs}


def run_all(*, quick: bool, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    seeds = seeds[:1] if quick else seeds
    runs = 300 if quick else RUNS
    with ProcessPoolExecutor() as processes:
        rows = list(processes.map(one_seed, seeds, [runs] * len(seeds)))
    return together(rows, seeds, runs=runs, quick=quick)


def together(
    rows: Sequence[Mapping[str, Any]], seeds: Sequence[int], *, runs: int, quick: bool
) -> dict[str, Any]:
    """The report of all seeds."""
    by_seed = {name: [row["queues"][name] for row in rows] for name in (*QUEUES, "fairlead")}
    cpu_s = sum(row["cpu_s"] for row in rows)
    return {
        **machine(),
        "quick": quick,
        "gpus": GPUS,
        "runs": runs,
        "offered": OFFERED,
        "seeds": list(seeds),
        "widest_runs": [row["widest_runs"] for row in rows],
        "control_plane_cpu_ms_per_run": round(cpu_s * 1000 / runs / len(seeds), 1),
        "mean": {name: pooled(reports) for name, reports in by_seed.items()},
        "confirming": {
            name: pooled(reports[MADE_WITH:] or reports) for name, reports in by_seed.items()
        },
        "by_seed": by_seed,
    }


def tables(report: Mapping[str, Any]) -> str:
    """The means over the seeds, as Markdown."""
    names = ("fifo", "easy", "kueue", "fairlead")
    head = "| queue | utilisation | Jain | least satisfied owner | " + " | ".join(
        f"{name} GPU, mean / p95 / p99 wait in h" for name in CLASSES
    )
    rows = [f"{head} |", "|---|" + "---:|" * (3 + len(CLASSES))]
    for name in names:
        mine = report["mean"][name]
        waits = [
            "{mean:.2f} / {p95:.2f} / {p99:.2f}".format(**mine["wait_h"][size]) for size in CLASSES
        ]
        figures = (f"{mine['utilisation']:.3f}", f"{mine['jain']:.4f}")
        cells = (name, *figures, f"{mine['least_satisfied']:.2f}", *waits)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def page(report: Mapping[str, Any]) -> str:
    """The results as a page."""
    about = (
        f"{report['runs']} runs on {report['gpus']} GPUs for each of the seeds {report['seeds']}, "
        f"offered load {report['offered']:g}; means over the seeds. The control plane used "
        f"{report['control_plane_cpu_ms_per_run']:g} ms of CPU per run, ledger included."
    )
    kept = "\n".join(f"- {sentence}" for sentence in verdicts(report["mean"]))
    confirmed = ""
    if len(report["seeds"]) > MADE_WITH:
        others = "\n".join(f"- {sentence}" for sentence in verdicts(report["confirming"]))
        confirmed = (
            f"\n\nThe queue was made with the first {MADE_WITH} seeds. Of the others alone:"
            f"\n\n{others}"
        )
    return (
        "# bench.gpu_queue\n\nWritten by `python -m bench.gpu_queue`; what is measured stands at "
        f"the top of that file, the load in `bench/queue_shape.py`.\n\n{about}\n\n{tables(report)}"
        f"\n\n{kept}{confirmed}\n\n{widest(report)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small load, into out/bench")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="only the first so many")
    options = parser.parse_args()
    quick = options.quick
    report = run_all(quick=quick, seeds=SEEDS[: options.seeds])
    print(page(report))
    write_results("gpu_queue", report, quick=quick, draw=draw)
    (results_folder(quick=quick) / "gpu_queue.md").write_text(page(report))


if __name__ == "__main__":
    main()
