"""`python -m bench.traffic`: every arm on every scenario, interleaved; medians over repetitions."""

import argparse
import shutil
import sys
from dataclasses import replace
from typing import Any

from bench.side_by_side import options_of, parse, repeat, sit_down, take_machine, try_often
from bench.timing import results_folder
from bench.traffic.arms import VARIANTS, Variant
from bench.traffic.measure import measure, series, usable
from bench.traffic.place import Place, own_place
from bench.traffic.report import write_report
from bench.traffic.runner import Run, run_arm
from bench.traffic.scenarios import BESIDE_EXPERTS, BESIDE_PLAIN, PLAIN, SHORT, Scenario, scenarios

QUICK_ARMS = (PLAIN, "envoy-outlier", "envoy-adaptive", *VARIANTS)
SOURCE = ("core/traffic", "dataplane", "engine/traffic", "node/traffic")
"""What is measured, of ours."""


def main() -> None:
    further = "{name: {plane, config, isolation, scrape}}, our agent with other settings"
    short = "the scenarios of the expert comparison, 10 to 21 s each"
    parser = options_of("bench.traffic", __doc__, variants=further, calm_wait_s=60.0, short=short)
    parser.add_argument(
        "--experts",
        action="store_true",
        help="beside peers whose limits were set by hand; ours with retries",
    )
    options = parse(parser, VARIANTS, Variant)
    options.repetitions = options.repetitions or 1
    length = "quick" if options.quick else "short" if options.short else "full"
    wanted = options.scenario or (SHORT if options.short else None)
    known = scenarios(options.seed, length)
    chosen = [s for s in known.values() if wanted is None or s.name in wanted]
    arms = {arm for scenario in chosen for arm in _arms(scenario, options)}
    for program in ("haproxy", "nginx"):
        if any(program in arm for arm in arms) and shutil.which(program) is None:
            sys.exit(f"{program} is not on PATH (apt-get install {program})")
    take_machine("bench.traffic")
    where = options.results or results_folder(quick=options.quick)
    name = options.name or ("traffic-experts" if options.experts else "traffic")
    sitting = sit_down(where / f"{name}.json", options, SOURCE)
    with own_place() as place:
        cells = repeat(
            chosen,
            options,
            sitting,
            arms=lambda scenario: _arms(scenario, options),
            attempt=lambda scenario, arm, number: _try(place, scenario, arm, number, options),
            series=series,
        )
        # After every scenario: a run that is stopped early keeps what was measured.
        for _, _, runs, drawn in cells:
            document = {
                "name": name,
                "experts": options.experts,
                "seed": options.seed,
                "length": length,
                "runs": list(runs),
                "series": dict(drawn),
            }
            write_report(sitting.joined(document, first=("series",)), where)


def _arms(scenario: Scenario, options: argparse.Namespace) -> list[str]:
    further = [name for name in options.variants if name not in VARIANTS]
    beside = (PLAIN,) if scenario.name in BESIDE_PLAIN else ()
    arms = [*((*beside, *BESIDE_EXPERTS) if options.experts else scenario.arms), *further]
    if options.arms is not None:
        return [arm for arm in arms if arm in options.arms]
    all_of_them = options.experts or not options.quick
    return [arm for arm in arms if all_of_them or arm in (*QUICK_ARMS, *further)]


def _try(
    place: Place, scenario: Scenario, arm: str, repetition: int, options: argparse.Namespace
) -> tuple[Run, dict[str, Any]]:
    seed, variant = options.seed * 1000 + repetition, options.variants.get(arm)
    if variant is not None and options.experts and variant.plane != "ebpf":
        variant = replace(variant, retry="idempotent")

    def run_once() -> tuple[Run, dict[str, Any]]:
        run = run_arm(place, scenario, arm, seed=seed, variant=variant)
        return run, measure(run)

    return try_often(run_once, options, tries=3, calm_s=1.0, usable=usable, say=_say)


def _say(figures: dict[str, Any], note: str) -> None:
    small, restored = figures.get("small_after_s"), figures.get("restored_after_s")
    modes = figures.get("mode_transitions_per_min", 0.0)
    print(
        f"{figures['scenario']:9} {figures['arm']:19} good {figures['goodput_per_s']:6.1f}/s "
        f"({figures['good_share']:6.1%}) p50 {figures['p50_ms']:4.0f} p99 {figures['p99_ms']:5.0f} "
        f"failed {figures['failed']:5} refused {figures['refused']:5}  small {_seconds(small)} "
        f"restored {_seconds(restored)}  modes {modes:4.1f}/min "
        f"cpu {figures['cpu_s_per_10k']:5.2f}  lag {figures['generator_lag_p99_ms']:3.1f} "
        f"outside {figures['outside_cores']:.2f} stolen {figures['stolen_cores']:.2f}{note}",
        flush=True,
    )


def _seconds(value: float | None) -> str:
    return "    -" if value is None else f"{value:5.1f}"


if __name__ == "__main__":
    main()
