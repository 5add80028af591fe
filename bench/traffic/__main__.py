"""`python -m bench.traffic`: every arm on every scenario, interleaved; medians over repetitions."""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.cpu.processes import machine_cpu_seconds
from bench.traffic.arms import VARIANTS, Variant
from bench.traffic.measure import measure, series, usable
from bench.traffic.place import Place, own_place
from bench.traffic.report import write_report
from bench.traffic.runner import Run, run_arm
from bench.traffic.scenarios import Scenario, scenarios

RESULTS = Path(__file__).resolve().parents[1] / "results"
TRIES_MAX = 3
# A hypervisor that takes the CPU away makes every arm look bad, and not every arm alike.
STOLEN_MAX = 0.06
CALM_S = 1.0
QUICK_ARMS = ("haproxy-leastconn", "envoy-outlier", "envoy-adaptive", *VARIANTS)


def main() -> None:
    """Parse, run, report."""
    options = _options()
    if os.geteuid() != 0:
        sys.exit("bench.traffic makes cgroups and loads eBPF programs: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = scenarios(options.seed, quick=options.quick)
    chosen = [s for s in known.values() if options.scenario is None or s.name in options.scenario]
    os.nice(-10)
    begun = time.monotonic()
    with own_place() as place:
        # After every scenario: whoever stops it early keeps what was measured.
        for runs, drawn in _repeat(place, chosen, options):
            document = {"seed": options.seed, "quick": options.quick, "runs": runs, "series": drawn}
            write_report(document, options.results, wall_s=time.monotonic() - begun)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.traffic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some arms, a few minutes")
    parser.add_argument("--scenario", action="append", help="only these")
    parser.add_argument("--arms", help="only these, with commas")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="where to write")
    parser.add_argument(
        "--outside-max",
        type=float,
        default=0.5,
        help="repeat a run when other work used more cores than this (default 0.5)",
    )
    parser.add_argument(
        "--calm-wait",
        type=float,
        default=60.0,
        help="how many seconds at most to wait for an idle machine before a run (default 60)",
    )
    parser.add_argument(
        "--variants",
        type=Path,
        help="JSON of further arms, our agent with other settings: "
        "{name: {plane, config, isolation, scrape}}",
    )
    options = parser.parse_args()
    given = json.loads(options.variants.read_text()) if options.variants else {}
    options.variants = {**VARIANTS, **{name: Variant(**values) for name, values in given.items()}}
    options.arms = options.arms.split(",") if options.arms else None
    if options.results is None:
        options.results = RESULTS.parents[1] / "out" / "bench" if options.quick else RESULTS
    for program in ("haproxy", "nginx"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not on PATH (apt-get install {program})")
    return options


def _arms(scenario: Scenario, options: argparse.Namespace) -> list[str]:
    further = [name for name in options.variants if name not in VARIANTS]
    arms = [*scenario.arms, *further]
    if options.arms is not None:
        return [arm for arm in arms if arm in options.arms]
    return [arm for arm in arms if not options.quick or arm in (*QUICK_ARMS, *further)]


def _repeat(
    place: Place, chosen: list[Scenario], options: argparse.Namespace
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """All arms of a scenario one after the other in a drawn order, again and again."""
    chance = random.Random(options.seed)
    runs: list[dict[str, Any]] = []
    drawn: dict[str, Any] = {}
    for repetition in range(options.repetitions):
        for scenario in chosen:
            arms = _arms(scenario, options)
            chance.shuffle(arms)
            for arm in arms:
                run, figures = _try(place, scenario, arm, repetition, options)
                figures["repetition"] = repetition
                runs.append(figures)
                if repetition == 0:
                    drawn[f"{scenario.name}/{arm}"] = series(run)
            yield runs, drawn


def _try(
    place: Place, scenario: Scenario, arm: str, repetition: int, options: argparse.Namespace
) -> tuple[Run, dict[str, Any]]:
    """One run; discarded and repeated when the generator was late or the machine was busy."""
    for attempt in range(TRIES_MAX):
        _wait_for_calm(options.calm_wait)
        seed = options.seed * 1000 + repetition
        run = run_arm(place, scenario, arm, seed=seed, variant=options.variants.get(arm))
        figures = measure(run)
        figures["discarded_before"] = attempt
        kept = (
            usable(figures)
            and figures["outside_cores"] <= options.outside_max
            and figures["stolen_cores"] <= STOLEN_MAX
        )
        _say(figures, kept=kept)
        if kept:
            return run, figures
    figures["noisy"] = True
    return run, figures


def _wait_for_calm(wait_s: float) -> None:
    """Begin when the machine is idle and nobody takes it away, or after a while anyway."""
    give_up = time.monotonic() + wait_s
    while time.monotonic() < give_up:
        before = machine_cpu_seconds()
        time.sleep(CALM_S)
        busy, stolen = (b - a for a, b in zip(before, machine_cpu_seconds(), strict=True))
        if busy / CALM_S < 0.3 and stolen / CALM_S < 0.03:
            return


def _say(figures: dict[str, Any], *, kept: bool) -> None:
    note = "" if kept else "  DISCARDED"
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
