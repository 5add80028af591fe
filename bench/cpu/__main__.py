"""`python -m bench.cpu`: every policy on every scenario, interleaved, medians over repetitions."""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.cpu.measure import measure, series, usable
from bench.cpu.peers import percentile
from bench.cpu.processes import machine_cpu_seconds
from bench.cpu.report import write_report
from bench.cpu.runner import Run, Timing, Variant, make_rule, run_arm, usage_per_second
from bench.cpu.scenarios import NODE_MILLICORES, OURS, Scenario, scenarios
from bench.cpu.tree import BenchTree, bench_tree

RESULTS = Path(__file__).resolve().parents[1] / "results"
TRIES_MAX = 6
# A hypervisor that takes the CPU away makes every arm look bad, and not every arm alike.
STOLEN_MAX = 0.06
CALM_S, CALM_WAIT_S = 2.0, 120.0
FULL = {"mixed": Timing(8, 20), "bursty": Timing(8, 60), "adversary": Timing(8, 12)}
QUICK = {"mixed": Timing(7, 8), "bursty": Timing(7, 20), "adversary": Timing(7, 6)}
PROFILE = {False: Timing(2, 30), True: Timing(1, 10)}


def main() -> None:
    """Parse, run, report."""
    options = _options()
    if os.geteuid() != 0:
        sys.exit("bench.cpu writes cgroups: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [s for s in scenarios().values() if _wanted(s.name, options.scenario)]
    os.nice(-10)
    begun = time.monotonic()
    with bench_tree() as tree:
        for scenario in chosen:
            _add(tree, scenario)
        usage = {s.name: _profile(tree, s, options) for s in chosen}
        needs = {
            name: {path: percentile(seen, 0.95) for path, seen in paths.items()}
            for name, paths in usage.items()
        }
        # After every repetition: whoever stops it early keeps what was measured.
        for runs, drawn in _repeat(tree, chosen, usage, options):
            document = {
                "seed": options.seed,
                "quick": options.quick,
                "needs": needs,
                "runs": runs,
                "series": drawn,
            }
            write_report(document, options.results, wall_s=time.monotonic() - begun)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test of a few minutes")
    parser.add_argument("--scenario", action="append", help="only these (by prefix)")
    parser.add_argument("--arms", help="only these, with commas")
    parser.add_argument("--repetitions", type=int, help="default 3, or 1 when quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write")
    parser.add_argument(
        "--outside-max",
        type=float,
        default=0.5,
        help="repeat a run when other work used more cores than this (default 0.5)",
    )
    parser.add_argument(
        "--variants",
        type=Path,
        help="JSON of further arms: {name: {policy, config, burst}}, our agent with other settings",
    )
    options = parser.parse_args()
    given = json.loads(options.variants.read_text()) if options.variants else {}
    options.variants = {name: Variant(name) for name in OURS}
    options.variants |= {name: Variant(**values) for name, values in given.items()}
    options.repetitions = options.repetitions or (1 if options.quick else 3)
    options.arms = options.arms.split(",") if options.arms else None
    return options


def _wanted(name: str, prefixes: list[str] | None) -> bool:
    return prefixes is None or any(name.startswith(prefix) for prefix in prefixes)


def _add(tree: BenchTree, scenario: Scenario) -> None:
    tree.add(scenario.name, request_millicores=NODE_MILLICORES)
    for pod in scenario.pods:
        tree.add(f"{scenario.name}/{pod.name}", request_millicores=pod.request_millicores)
        for path in pod.paths().values():
            if path != pod.name:
                tree.add(f"{scenario.name}/{path}", request_millicores=pod.request_millicores // 2)


def _profile(
    tree: BenchTree, scenario: Scenario, options: argparse.Namespace
) -> dict[str, list[float]]:
    """What the pods use when nothing limits them: for static p95 and as history for VPA."""
    timing = PROFILE[options.quick]
    run = run_arm(tree, scenario, "no-limits", rule=None, seed=options.seed, timing=timing)
    return usage_per_second(run)


def _repeat(
    tree: BenchTree, chosen: list[Scenario], usage: dict[str, Any], options: argparse.Namespace
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """All arms of a scenario one after the other in a drawn order, again and again."""
    chance = random.Random(options.seed)
    runs: list[dict[str, Any]] = []
    drawn: dict[str, Any] = {}
    for repetition in range(options.repetitions):
        for scenario in chosen:
            arms = [*scenario.arms, *(name for name in options.variants if name not in OURS)]
            arms = [arm for arm in arms if options.arms is None or arm in options.arms]
            chance.shuffle(arms)
            for arm in arms:
                run, figures = _try(
                    tree,
                    scenario,
                    arm,
                    usage[scenario.name],
                    repetition=repetition,
                    options=options,
                )
                figures["repetition"] = repetition
                runs.append(figures)
                if repetition == 0:
                    drawn[f"{scenario.name}/{arm}"] = series(run)
        yield runs, drawn


def _try(
    tree: BenchTree,
    scenario: Scenario,
    arm: str,
    usage: dict[str, list[float]],
    *,
    repetition: int,
    options: argparse.Namespace,
) -> tuple[Run, dict[str, Any]]:
    """One run; discarded and repeated when the generator was late or the machine was busy."""
    timing = (QUICK if options.quick else FULL)[scenario.name.split("-")[0]]
    for attempt in range(TRIES_MAX):
        _wait_for_calm()
        rule = make_rule(arm, scenario, usage)
        seed = options.seed * 1000 + repetition
        variant = options.variants.get(arm)
        run = run_arm(tree, scenario, arm, rule=rule, seed=seed, timing=timing, variant=variant)
        figures = measure(run)
        figures["discarded_before"] = attempt
        quiet = (
            figures["outside_cores"] <= options.outside_max
            and figures["stolen_cores"] <= STOLEN_MAX
        )
        _say(figures, kept=usable(figures) and quiet)
        if usable(figures) and quiet:
            return run, figures
    figures["noisy"] = True
    return run, figures


def _wait_for_calm() -> None:
    """Begin when the machine is idle and nobody takes it away, or after a while anyway."""
    give_up = time.monotonic() + CALM_WAIT_S
    while time.monotonic() < give_up:
        busy, stolen = machine_cpu_seconds()
        time.sleep(CALM_S)
        busy, stolen = (b - a for a, b in zip((busy, stolen), machine_cpu_seconds(), strict=True))
        if busy / CALM_S < 0.3 and stolen / CALM_S < 0.03:
            return


def _say(figures: dict[str, Any], *, kept: bool) -> None:
    note = "" if kept else "  DISCARDED"
    print(
        f"{figures['scenario']:17} {figures['arm']:13} p50 {figures['p50_ms']:7.1f} "
        f"p99 {figures['p99_ms']:8.1f} ms  alloc {figures['allocated_core_s']:6.1f} "
        f"used {figures['used_core_s']:6.1f}  slack {figures['slack']:6.1%}  "
        f"thr {figures['throttled_ratio']:6.2%}  rev {figures['reversals_per_pod_minute']:5.2f}  "
        f"over {figures['over_capacity_s']:5.1f} s  lag {figures['generator_lag_p99_ms']:4.1f}  "
        f"outside {figures['outside_cores']:.2f} stolen {figures['stolen_cores']:.2f}{note}",
        flush=True,
    )


if __name__ == "__main__":
    main()
