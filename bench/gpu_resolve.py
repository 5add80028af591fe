"""`python -m bench.gpu_resolve [--quick]`: what a resolve costs, and what it costs whom.

Conflicts of 1 000 to 100 000 candidate leases, ten to a run, fifty runs to an owner, with a deficit
of a fifth of all GPUs: a tenth of the leases are spares, a quarter of the runs can shrink by a
third, the rest is drawn. Core time is `resolve` alone; end to end is JSON in, conflict digest,
decision, canonical JSON out. A second shape, `lottery`, has neither spares nor malleable runs, so
that everything is drawn. Then the load of `bench.philly_shape`: GPUs removed for each GPU that was
missing, and how evenly the losses fall, beside two ways without rules.

Times are CPU seconds of the process; the calls of functions in core are counted as well, which no
neighbour disturbs. Prints tables, writes bench/results/gpu_resolve.json and .png
(with --quick: into out/bench).
"""

import argparse
import gc
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.gpu_resolve_plot import draw
from bench.philly_shape import measure as measure_philly
from bench.timing import Spread, interleave, machine, write_results
from fairlead.core.canonical import canonical
from fairlead.core.gpu import Conflict, Resolution, conflict_digest, resolve
from fairlead.schema.border import check_shape, parse_json
from fairlead.schema.gpu import ResolveDocument, to_conflict
from fairlead.schema.kinds import KINDS

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
LEASES_PER_RUN, RUNS_PER_OWNER = 10, 50
CORE_LIMIT_S, END_LIMIT_S = 1.0, 3.0
SLICE_S = 0.3
MEASURED = ("core", "digest", "end_to_end")
PROMISED = ("core", "end_to_end")
SEED = "5eed" * 16

Line = dict[str, Any]


def conflict_document(leases: int, *, by_lottery: bool = False) -> Line:
    """A `gpu.resolve` document with this many candidates."""
    rng = random.Random(f"resolve {leases}")
    runs: list[Line] = []
    held: list[Line] = []
    for r in range(leases // LEASES_PER_RUN):
        name = f"ns-{r % 97}/run-{r:05}"
        malleable = None
        if not by_lottery and rng.random() < 0.25:
            malleable = {"min_gpus": 24, "step_gpus": 4}
        owner = f"team-{r // RUNS_PER_OWNER:03}"
        runs.append({"id": name, "owner": owner, "malleable": malleable, "nominated": r % 20 == 0})
        for i in range(LEASES_PER_RUN):
            spare = not by_lottery and i == LEASES_PER_RUN - 1
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
    return canonical(KINDS["gpu.resolve"].run(data).result)


def measure(sizes: Sequence[int], *, by_lottery: bool, repetitions: int) -> tuple[list[Line], Line]:
    """Seconds of core and end to end for each size, and how they grow.

    The sizes take turns too, each for as long as the largest: a machine that gets slower while the
    sizes grow would look like cost that grows.
    """
    data = {n: json.dumps(conflict_document(n, by_lottery=by_lottery)).encode() for n in sizes}
    conflicts = {n: to_conflict(check_shape(parse_json(data[n]), ResolveDocument)) for n in sizes}
    # What is there before the call is not the call's to collect: a fresh process has none of it.
    gc.collect()
    gc.freeze()
    contestants: dict[str, Callable[[], object]] = {}
    for n in sizes:
        contestants[f"core {n}"] = partial(resolve, conflicts[n], bytes.fromhex(SEED))
        contestants[f"digest {n}"] = partial(conflict_digest, conflicts[n])
        contestants[f"end_to_end {n}"] = partial(end_to_end, data[n])
    timed = interleave(contestants, repetitions=repetitions, slice_s=SLICE_S)
    lines = [
        describe(n, conflicts[n], data[n])
        | {
            "shape": "lottery" if by_lottery else "mixed",
            "seconds": {w: Spread.of(timed[f"{w} {n}"]).as_json() for w in MEASURED},
        }
        for n in sizes
    ]
    return lines, {what: growth(timed, what, sizes) for what in MEASURED}


def describe(leases: int, conflict: Conflict, data: bytes) -> Line:
    """One size: how much came in and went out, and what was decided."""
    done, calls = counted(partial(resolve, conflict, bytes.fromhex(SEED)))
    return {
        "leases": leases,
        "runs": len(conflict.runs),
        "input_mb": round(len(data) / 1e6, 1),
        "output_mb": round(len(end_to_end(data)) / 1e6, 1),
        "calls_per_lease": round(calls / leases, 2),
        "deficit_gpus": done.deficit_gpus,
        "freed_gpus": done.freed_gpus,
        "actions": len(done.actions),
        "withdrawn": len(done.withdrawn),
        "draws": sum(1 for _ in done.draws()),
    }


def counted(call: Callable[[], Resolution]) -> tuple[Resolution, int]:
    """The result, and how many functions were called for it: a cost without a noisy machine."""
    events: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: events.update((event,)))
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, events["call"] + events["c_call"]


def growth(timed: dict[str, list[float]], what: str, sizes: Sequence[int]) -> Line:
    """Time of the largest over that of the smallest, round by round, over what n log n gives."""
    small, large = sizes[0], sizes[-1]
    law = large * math.log(large) / (small * math.log(small))
    times = zip(timed[f"{what} {large}"], timed[f"{what} {small}"], strict=True)
    return Spread.of([more / less / law for more, less in times]).as_json()


def run(*, quick: bool) -> Line:
    sizes = SIZES[:3] if quick else SIZES
    every: list[Line] = []
    grown: dict[str, Line] = {}
    print(
        f"{'leases':>8} {'shape':7}{'core s':>9}{'digest s':>10}{'end to end s':>14}"
        f"{'calls':>8}{'actions':>9}{'back':>6}{'draws':>7}{'freed/deficit':>15}"
    )
    for shape in ("mixed", "lottery"):
        lines, grown[shape] = measure(
            sizes, by_lottery=shape == "lottery", repetitions=3 if quick else 9
        )
        every += lines
        for line in lines:
            took = {name: spread["median"] for name, spread in line["seconds"].items()}
            print(
                f"{line['leases']:>8} {shape:7}{took['core']:>9.4f}{took['digest']:>10.4f}"
                f"{took['end_to_end']:>14.4f}{line['calls_per_lease']:>8}{line['actions']:>9}"
                f"{line['withdrawn']:>6}{line['draws']:>7}"
                f"{line['freed_gpus'] / line['deficit_gpus']:>15.4f}",
                flush=True,
            )
    print("\ntime over n log n, largest to smallest (1 is n log n), median and quartiles:")
    for shape, by_what in grown.items():
        for what, spread in by_what.items():
            print(f"  {shape:7}{what:12}{spread['median']:>7}  {spread['low']} to {spread['high']}")
    philly = measure_philly(*((60, 600) if quick else (700, 2_500)))
    show_philly(philly)
    return {
        **machine(),
        "quick": quick,
        "lines": every,
        "growth_over_n_log_n": grown,
        "philly_shape": philly,
    }


def verdicts(report: Line) -> list[str]:
    """Each promise of the largest size, and whether it is kept."""
    found = []
    for line in report["lines"]:
        if line["leases"] != SIZES[-1]:
            continue
        took = {name: spread["median"] for name, spread in line["seconds"].items()}
        grown = report["growth_over_n_log_n"][line["shape"]]
        for sentence, kept in (
            (f"core {took['core']:.2f} s, below {CORE_LIMIT_S:g}", took["core"] < CORE_LIMIT_S),
            (
                f"end to end {took['end_to_end']:.2f} s, below {END_LIMIT_S:g}",
                took["end_to_end"] < END_LIMIT_S,
            ),
            ("no worse than n log n", all(grown[w]["median"] <= 1 for w in PROMISED)),
        ):
            found.append(f"{'kept' if kept else 'NOT kept'}: {line['shape']}, {sentence}")
    return found


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
    report = run(quick=quick)
    for sentence in verdicts(report):
        print(sentence)
    write_results("gpu_resolve", report, quick=quick, draw=draw)


if __name__ == "__main__":
    main()
