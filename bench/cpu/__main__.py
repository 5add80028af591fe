"""`python -m bench.cpu`: every policy on every scenario, interleaved, medians over repetitions."""

import argparse
from typing import Any

from bench.cpu.measure import measure, series, usable
from bench.cpu.peers import percentile
from bench.cpu.report import write_report
from bench.cpu.runner import Run, Timing, Variant, make_rule, run_arm, usage_per_second
from bench.cpu.scenarios import NODE_MILLICORES, OURS, WEIGHTED, Scenario, scenarios
from bench.cpu.tree import BenchTree, bench_tree
from bench.side_by_side import options_of, parse, repeat, sit_down, take_machine, try_often
from bench.timing import results_folder

FULL = {"mixed": Timing(8, 20), "bursty": Timing(8, 60), "adversary": Timing(8, 12)}
SHORT = {"mixed": Timing(7, 9), "bursty": Timing(7, 12), "adversary": Timing(7, 8)}
QUICK = {"mixed": Timing(7, 8), "bursty": Timing(7, 20), "adversary": Timing(7, 6)}
PROFILE = {False: Timing(2, 30), True: Timing(1, 10)}
SOURCE = ("core/cpu", "engine/cpu", "node")
"""What is measured, of ours."""


def main() -> None:
    further = "{name: {policy, config, burst}}, our agent with other settings"
    short = "runs of 15 to 19 s each"
    parser = options_of("bench.cpu", __doc__, variants=further, calm_wait_s=120.0, short=short)
    options = parse(parser, _ours(), Variant)
    options.repetitions = options.repetitions or (1 if options.quick or options.go_on else 3)
    take_machine("bench.cpu")
    chosen = [s for s in scenarios().values() if _wanted(s.name, options.scenario)]
    where, page = options.results or results_folder(quick=False), options.name or "cpu"
    sitting = sit_down(where / f"{page}.json", options, SOURCE)
    with bench_tree() as tree:
        for scenario in chosen:
            _add(tree, scenario)
        usage = {s.name: _profile(tree, s, options) for s in chosen}
        needs = {
            name: {path: percentile(seen, 0.95) for path, seen in paths.items()}
            for name, paths in usage.items()
        }
        cells = repeat(
            chosen,
            options,
            sitting,
            arms=lambda scenario: _arms(scenario, options),
            attempt=lambda scenario, arm, number: _try(
                tree, scenario, arm, usage, repetition=number, options=options
            ),
            series=series,
        )
        # After every repetition: a run that is stopped early keeps what was measured.
        for name, _, runs, drawn in cells:
            if name == chosen[-1].name or options.go_on:
                document = {
                    "name": page,
                    "seed": options.seed,
                    "quick": options.quick,
                    "timing": _length(options),
                    "needs": needs,
                    "runs": runs,
                    "series": drawn,
                }
                write_report(sitting.joined(document, first=("needs", "series")), where)


def _ours() -> dict[str, Variant]:
    arms = {name: Variant(name, {"actuate": "limits"}) for name in OURS}
    for name in WEIGHTED:
        policy, _, actuate = name.rpartition("-")
        arms[name] = Variant(policy, {"actuate": actuate})
    return arms


def _timing(options: argparse.Namespace) -> dict[str, Timing]:
    return QUICK if options.quick else SHORT if options.short else FULL


def _length(options: argparse.Namespace) -> str:
    parts = [f"{name} {timing.measure_s:.0f}" for name, timing in _timing(options).items()]
    return f"seconds measured per run: {', '.join(parts)}"


def _arms(scenario: Scenario, options: argparse.Namespace) -> list[str]:
    named = (*OURS, *WEIGHTED)
    arms = [*scenario.arms, *(name for name in options.variants if name not in named)]
    return [arm for arm in arms if options.arms is None or arm in options.arms]


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
    timing = PROFILE[options.quick or options.short]
    run = run_arm(tree, scenario, "no-limits", rule=None, seed=options.seed, timing=timing)
    return usage_per_second(run)


def _try(
    tree: BenchTree,
    scenario: Scenario,
    arm: str,
    usage: dict[str, dict[str, list[float]]],
    *,
    repetition: int,
    options: argparse.Namespace,
) -> tuple[Run, dict[str, Any]]:
    timing = _timing(options)[scenario.name.split("-")[0]]
    seed, variant = options.seed * 1000 + repetition, options.variants.get(arm)

    def run_once() -> tuple[Run, dict[str, Any]]:
        rule = make_rule(arm, scenario, usage[scenario.name])
        run = run_arm(tree, scenario, arm, rule=rule, seed=seed, timing=timing, variant=variant)
        return run, measure(run)

    return try_often(run_once, options, tries=6, calm_s=2.0, usable=usable, say=_say)


def _say(figures: dict[str, Any], note: str) -> None:
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
