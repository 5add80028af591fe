"""`fairlead-vopr`: play seeded schedules against the whole control plane; shorten what fails."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import structlog

from fairlead.sim.clock import SEED_MAX
from fairlead.sim.vopr.actors import VoprStep
from fairlead.sim.vopr.play import STEPS_EACH, Played, play, schedule, shrink
from fairlead.sim.vopr.steps import STEPS


def play_seed(count: int, seed: int) -> Played:
    return play(seed, schedule(seed, count))


def play_seeds(seeds: Iterable[int], count: int, jobs: int) -> Iterator[Played]:
    """In order of seeds, by several processes."""
    if jobs == 1:
        yield from map(partial(play_seed, count), seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(play_seed, count), seeds, chunksize=4)


def summary(results: Iterable[Played]) -> dict[str, Any]:
    """What was played, and every schedule that broke a promise."""
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    seeds = steps = crashes = entries = 0
    for played in results:
        seeds, steps, crashes = seeds + 1, steps + played.done, crashes + played.crashes
        entries += played.entries
        counts.update(played.counts)
        if not played.ok:
            failures.append({"seed": played.seed, "check": played.check, "message": played.message})
    faults = sum(number for name, number in counts.items() if STEPS[name].fault)
    return {
        "seeds": seeds,
        "steps": steps,
        "faults": faults,
        "crashes": crashes,
        "entries": entries,
        "failures": failures,
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--seeds", type=click.IntRange(1), default=20, help="Number of schedules to play.")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=None, help="Play this one only.")
@click.option("--first", type=click.IntRange(0, SEED_MAX), default=0, help="First seed.")
@click.option("--steps", type=click.IntRange(1), default=STEPS_EACH, help="Steps of a schedule.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, help="Processes to play with.")
@click.option("--replay", type=click.Path(path_type=Path, exists=True), help="Play a stored file.")
@click.option("--store", type=click.Path(path_type=Path), help="Store the shortened schedule.")
@click.option("-o", "output", type=click.Choice(("table", "json")), default="table", help="Format.")
def main(
    *,
    seeds: int,
    seed: int | None,
    first: int,
    steps: int,
    jobs: int,
    replay: Path | None,
    store: Path | None,
    output: str,
) -> None:
    """Simulate the whole control plane under faults, in virtual time.

    Each seed is a schedule of users, operators and faults: crashes at any write, sync or call,
    torn and lost writes, full disks, clocks that jump, reboots, failovers, lost nodes. After every
    step the promises are checked. With --seed, a schedule that fails is shortened and printed. Exit
    code 1: a promise was broken.

    \b
      fairlead-vopr --seeds 200 --jobs 2
      fairlead-vopr --seed 12 --store tests/sim/vopr/charges.json
    """
    # What the control plane says of its faults is not what was found.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    if replay is not None or seed is not None:
        _one(seed, steps, replay, store, output)
        return
    report = summary(play_seeds(range(first, first + seeds), steps, jobs))
    if output == "json":
        click.echo(json.dumps(report, indent=2))
    else:
        for failure in report["failures"]:
            click.echo(f"seed {failure['seed']}: {failure['check']}: {failure['message']}")
        told = ", ".join(
            f"{report[name]} {name}" for name in ("seeds", "steps", "faults", "crashes")
        )
        click.echo(f"{told}, {len(report['failures'])} failures")
    sys.exit(1 if report["failures"] else 0)


def _one(
    seed: int | None, count: int, replay: Path | None, store: Path | None, output: str
) -> None:
    played = play(*read(replay)) if replay is not None else play_seed(count, seed or 0)
    if not played.ok and replay is None:
        played = shrink(played)
    document = as_document(played)
    if store is not None and not played.ok:
        store.write_text(json.dumps(document, indent=1) + "\n")
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    elif played.ok:
        click.echo(f"seed {played.seed}: {played.done} steps, every promise was kept")
    else:
        click.echo(f"seed {played.seed}: {played.check}: {played.message}")
        for step in played.steps:
            click.echo("  " + " ".join(map(str, step)))
    sys.exit(0 if played.ok else 1)


def as_document(played: Played) -> dict[str, Any]:
    """A schedule to be stored, with what it broke when it was found."""
    steps = [list(step) for step in played.steps]
    return {"seed": played.seed, "check": played.check, "message": played.message, "steps": steps}


def read(path: Path) -> tuple[int, list[VoprStep]]:
    """The seed and the steps of a stored schedule."""
    document = json.loads(path.read_text())
    return document["seed"], [VoprStep(*step) for step in document["steps"]]
