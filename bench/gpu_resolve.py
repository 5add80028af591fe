"""`python -m bench.gpu_resolve [--quick]`: what a resolve costs, and what it costs whom.

Conflicts of 1 000 to 100 000 candidate leases, ten to a run, fifty runs to an owner, with a deficit
of a fifth of all GPUs: a tenth of the leases are spares, a quarter of the runs can shrink by a
third, the rest is drawn. Core time is `resolve` alone; end to end is JSON in, conflict digest,
decision, canonical JSON out. A second shape, `by lot`, has neither spares nor malleable runs, so
that everything is drawn. Then the load of `bench.philly_shape`: GPUs removed for each GPU that was
missing, and how evenly the losses fall, beside two ways without rules.

Times are CPU seconds of the process. Prints tables, writes bench/results/gpu_resolve.json and .png
(with --quick: into out/bench).
"""

import argparse
import gc
import json
import math
import random
from pathlib import Path
from typing import Any

from bench.gpu_resolve_plot import draw
from bench.philly_shape import measure as measure_philly
from bench.timing import Spread, interleave, machine
from fairlead.core.canonical import canonical
from fairlead.core.gpu import Conflict, conflict_digest, resolve
from fairlead.schema.border import check_shape, parse_json
from fairlead.schema.kinds import KINDS
from fairlead.schema.resolve import ResolveDocument, to_conflict

ROOT = Path(__file__).resolve().parents[1]
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
LEASES_PER_RUN, RUNS_PER_OWNER = 10, 50
CORE_LIMIT_S, END_LIMIT_S = 1.0, 3.0
SEED = "5eed" * 16

Line = dict[str, Any]


def conflict_document(leases: int, *, by_lot: bool = False) -> Line:
    """A `gpu.resolve` document with this many candidates."""
    rng = random.Random(f"resolve {leases}")
    runs, held = [], []
    for r in range(leases // LEASES_PER_RUN):
        name = f"ns-{r % 97}/run-{r:05}"
        malleable = None
        if not by_lot and rng.random() < 0.25:
            malleable = {"min_gpus": 24, "step_gpus": 4}
        owner = f"team-{r // RUNS_PER_OWNER:03}"
        runs.append({"id": name, "owner": owner, "malleable": malleable, "nominated": r % 20 == 0})
        for i in range(LEASES_PER_RUN):
            spare = not by_lot and i == LEASES_PER_RUN - 1
            held.append(
                {
                    "id": f"lease-{rng.getrandbits(64):016x}",
                    "run": name,
                    "role": "spare" if spare else "active",
                    "group": i % 9,
                    "gpus": 1 if spare else 4,
                    "flavor": "H100",
                    "funded": r % 40 != 7,
                    "budget": owner,
                    "envelope": "west",
                    "location": {"region": "us-west", "cluster": "a", "domain": f"d{r % 64}"},
                }
            )
    deficit = sum(lease["gpus"] for lease in held) // 5
    scope = {"flavor": "H100", "location": {"region": "us-west", "cluster": "a"}, "cap": None}
    return {"scope": scope, "deficit_gpus": deficit, "seed": SEED, "runs": runs, "leases": held}


def end_to_end(data: bytes) -> bytes:
    """As `fairlead decide` does it."""
    return canonical(KINDS["gpu.resolve"].run(data).result)


def measure(leases: int, *, by_lot: bool, repetitions: int) -> Line:
    """One size: seconds of core and end to end, and what was decided."""
    data = json.dumps(conflict_document(leases, by_lot=by_lot)).encode()
    conflict: Conflict = to_conflict(check_shape(parse_json(data), ResolveDocument))
    # What is there before the call is not the call's to collect: a fresh process has none of it.
    gc.collect()
    gc.freeze()
    timed = interleave(
        {
            "core": lambda: resolve(conflict, bytes.fromhex(SEED)),
            "digest": lambda: conflict_digest(conflict),
            "end_to_end": lambda: end_to_end(data),
        },
        repetitions=repetitions,
    )
    done = resolve(conflict, bytes.fromhex(SEED))
    return {
        "leases": leases,
        "runs": len(conflict.runs),
        "shape": "by lot" if by_lot else "mixed",
        "input_mb": round(len(data) / 1e6, 1),
        "output_mb": round(len(end_to_end(data)) / 1e6, 1),
        "seconds": {name: Spread.of(taken).as_json() for name, taken in timed.items()},
        "deficit_gpus": done.deficit_gpus,
        "freed_gpus": done.freed_gpus,
        "actions": len(done.actions),
        "withdrawn": len(done.withdrawn),
        "draws": sum(1 for _ in done.draws()),
    }


def growth(lines: list[Line], what: str) -> float:
    """Time of the largest over that of the smallest, divided by what n log n would give."""
    small, large = lines[0], lines[-1]
    took = large["seconds"][what]["median"] / small["seconds"][what]["median"]
    n, m = large["leases"], small["leases"]
    return round(took / (n * math.log(n) / (m * math.log(m))), 3)


def run(*, quick: bool) -> Line:
    """Everything, printed as it comes."""
    sizes = SIZES[:3] if quick else SIZES
    shapes: dict[str, list[Line]] = {"mixed": [], "by lot": []}
    print(
        f"{'leases':>8} {'shape':7}{'core s':>9}{'digest s':>10}{'end to end s':>14}"
        f"{'actions':>9}{'back':>6}{'draws':>7}{'freed/deficit':>15}"
    )
    for shape, lines in shapes.items():
        for leases in sizes:
            line = measure(leases, by_lot=shape == "by lot", repetitions=3 if quick else 7)
            lines.append(line)
            took = {name: spread["median"] for name, spread in line["seconds"].items()}
            print(
                f"{leases:>8} {shape:7}{took['core']:>9.4f}{took['digest']:>10.4f}"
                f"{took['end_to_end']:>14.4f}{line['actions']:>9}{line['withdrawn']:>6}"
                f"{line['draws']:>7}{line['freed_gpus'] / line['deficit_gpus']:>15.4f}",
                flush=True,
            )
    grown = {shape: {what: growth(lines, what) for what in ("core", "end_to_end")}
             for shape, lines in shapes.items()}  # fmt: skip
    print(f"time over n log n, largest to smallest (1 is n log n): {grown}")
    philly = measure_philly(*((60, 600) if quick else (700, 2_500)))
    show_philly(philly)
    return {**machine(), "quick": quick, "lines": [*shapes["mixed"], *shapes["by lot"]],
            "growth_over_n_log_n": grown, "philly_shape": philly}  # fmt: skip


def show_philly(report: Line) -> None:
    print(f"\nPhilly-like load, {report['conflicts']} conflicts on {report['gpus']} GPUs")
    print(f"{'':24}{'overshoot':>10}{'worst':>8}{'stopped':>9}{'GPU-h lost':>12}{'Jain':>7}")
    for name, each in report["contestants"].items():
        print(
            f"{name:24}{each['overshoot']:>10.3f}{each['overshoot_worst']:>8.2f}"
            f"{each['gangs_stopped']:>9}{each['gpu_hours_lost']:>12}{each['jain']:>7.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, into out/bench")
    quick = parser.parse_args().quick
    folder = ROOT / ("out/bench" if quick else "bench/results")
    folder.mkdir(parents=True, exist_ok=True)
    report = run(quick=quick)
    if not quick:
        for line in report["lines"]:
            if line["leases"] == SIZES[-1]:
                took = {name: spread["median"] for name, spread in line["seconds"].items()}
                kept = took["core"] < CORE_LIMIT_S and took["end_to_end"] < END_LIMIT_S
                print(
                    f"{'kept' if kept else 'NOT kept'}, {line['shape']}: core below "
                    f"{CORE_LIMIT_S:g} s, end to end below {END_LIMIT_S:g} s"
                )
    (folder / "gpu_resolve.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, folder / "gpu_resolve.png")
    print(f"\nwritten: gpu_resolve.json and gpu_resolve.png in {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
