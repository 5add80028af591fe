"""What `bench.cpu` and `bench.traffic` share: repeated runs of many arms, verdicts, the page.

All arms of a scenario run one after the other in a random order, again and again. A run is
discarded and repeated when its generator was late or the machine was busy. Every promise is judged
on the medians, for each of our arms by itself, with its numbers, kept or not. `--go-on` adds
repetitions to a stored page, which says on which source each of them ran.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.sources import digest

from bench.cpu.processes import machine_cpu_seconds
from bench.timing import ROOT
from fairlead.sim.report import table

# A hypervisor that takes the CPU away makes every arm look bad, and not every arm alike.
STOLEN_MAX = 0.06

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise for one of our arms."""

    promise: str
    arm: str
    passed: bool
    numbers: str


class Figures:
    """Figures of all repetitions, by scenario and arm."""

    def __init__(self, runs: Iterable[Line]) -> None:
        self._runs: dict[tuple[str, str], list[Line]] = {}
        for run in runs:
            self._runs.setdefault((run["scenario"], run["arm"]), []).append(run)

    def arms(self, scenario: str) -> list[str]:
        return [arm for where, arm in self._runs if where == scenario]

    def runs(self, scenario: str, arm: str) -> list[Line]:
        return self._runs[scenario, arm]

    def values(self, scenario: str, arm: str, name: str, *part: str) -> list[Any]:
        """One figure of every repetition; with `part`, of that part of the run."""
        found = []
        for run in self._runs[scenario, arm]:
            for key in part:
                run = run[key] or {}  # noqa: PLW2901 - one step down per key
            found.append(run.get(name))
        return found

    def of(self, scenario: str, arm: str, name: str, *part: str) -> Any:
        """The median; None where it never came to that, or did not always."""
        values = self.values(scenario, arm, name, *part)
        return None if None in values else median(values)

    def best(
        self, scenario: str, arms: Sequence[str], name: str, *, most: bool = False
    ) -> tuple[float, str] | None:
        """The best median among some arms, and whose it is."""
        here = [arm for arm in arms if (scenario, arm) in self._runs]
        found = [(self.of(scenario, arm, name) or 0.0, arm) for arm in here]
        return (max if most else min)(found, default=None)


def as_lines(verdicts: Iterable[Verdict]) -> list[Line]:
    return [asdict(verdict) for verdict in verdicts]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of ours beside that of the best of some peers, which the regression gate keeps."""

    scenario: str
    figure: str
    peers: tuple[str, ...]
    more_is_better: bool
    what: str
    """As the ratio is called: `goodput`, `p99`."""
    part: tuple[str, ...] = ()
    """Of which part of the run the figure is."""

    def ratio(self, figures: Figures, arm: str) -> Line | None:
        """Ours to the best peer's, repetition by repetition; None where one of them did not run.

        The name says which way is better, as `tests.ratios` reads it.
        """
        ran = figures.arms(self.scenario)
        medians = {
            peer: figures.of(self.scenario, peer, self.figure, *self.part)
            for peer in self.peers
            if peer in ran and peer != arm
        }
        peers = [peer for peer, value in medians.items() if value is not None]
        if not peers or arm not in ran:
            return None
        best = (max if self.more_is_better else min)(peers, key=medians.__getitem__)
        pairs = zip(
            figures.values(self.scenario, arm, self.figure, *self.part),
            figures.values(self.scenario, best, self.figure, *self.part),
            strict=False,  # a sitting may have been stopped between two arms
        )
        found = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
        if not found:
            return None
        word = "better" if self.more_is_better else "worse"
        spread = {"median": median(found), "low": min(found), "high": max(found)}
        contest = f"{self.scenario} {arm}"
        return {"contest": contest, f"{self.what}_times_{word}_than_best_peer": spread}


def compare(figures: Figures, ours: Sequence[str], rows: Iterable[Comparison]) -> list[Line]:
    """Every comparison of every arm of ours that has both sides."""
    found = (row.ratio(figures, arm) for row in rows for arm in ours)
    return [line for line in found if line is not None]


# --- running


def options_of(
    prog: str, about: str | None, *, variants: str, calm_wait_s: float, short: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=about)
    parser.add_argument("--quick", action="store_true", help="a smoke test of a few minutes")
    parser.add_argument("--short", action="store_true", help=short)
    parser.add_argument("--go-on", action="store_true", help="add repetitions to the stored page")
    parser.add_argument("--name", help="of the page that is written")
    parser.add_argument("--scenario", action="append", help="only these")
    parser.add_argument("--arms", help="only these, with commas")
    parser.add_argument("--repetitions", type=int)
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
        default=calm_wait_s,
        help="how many seconds at most to wait for an idle machine before a run",
    )
    parser.add_argument("--variants", type=Path, help=f"JSON of further arms: {variants}")
    return parser


def parse(parser: argparse.ArgumentParser, ours: dict[str, Any], make: Callable[..., Any]) -> Any:
    """The options, with our arms and the further ones made."""
    options = parser.parse_args()
    further = json.loads(options.variants.read_text()) if options.variants else {}
    options.variants = ours | {name: make(**values) for name, values in further.items()}
    options.arms = options.arms.split(",") if options.arms else None
    return options


def take_machine(prog: str) -> None:
    """Root, and before other work."""
    if os.geteuid() != 0:
        sys.exit(f"{prog} makes cgroups: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.nice(-10)


@dataclass(frozen=True, slots=True)
class Sitting:
    """One sitting of a benchmark: what its page has from those before, and what it runs on."""

    earlier: Line
    """The stored page; empty where a new one begins."""
    source: str
    """A digest of what is measured."""
    commit: str
    began_s: float

    def done(self, scenario: str) -> int:
        """How many repetitions of a scenario the page has."""
        runs = self.earlier.get("runs", ())
        return max(
            (run["repetition"] + 1 for run in runs if run["scenario"] == scenario), default=0
        )

    def joined(self, now: Line, *, first: Sequence[str]) -> Line:
        """The page with what this sitting has measured so far. Of the parts named `first` the page
        keeps what it has. A source that the page knows keeps the name that it had then."""
        earlier = self.earlier
        now["sources"] = {self.source: self.commit} | earlier.get("sources", {})
        now["sittings"] = earlier.get("sittings", int(bool(earlier))) + 1
        now["wall_s"] = earlier.get("wall_s", 0.0) + time.monotonic() - self.began_s
        now["runs"] = [*earlier.get("runs", ()), *now["runs"]]
        for part in first:
            now[part] = now[part] | earlier.get(part, {})
        return now


def sit_down(page: Path, options: argparse.Namespace, parts: Sequence[str]) -> Sitting:
    """Begin; `parts` are the packages of ours that are measured."""
    earlier = json.loads(page.read_text()) if options.go_on and page.exists() else {}
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Sitting(earlier, digest(parts), done.stdout.strip() or "unknown", time.monotonic())


def circumstances(document: Line) -> str:
    """In how many sittings a page was measured, for how long, with which seed and on what."""
    sittings = document.get("sittings", 1)
    together = "one run of" if sittings == 1 else f"{sittings} sittings of together"
    minutes = f"{document['wall_s'] / 60:.0f} min"
    return f"{together} {minutes}, seed {document['seed']}, {_sources_of(document)}"


def _sources_of(document: Line) -> str:
    """On which source the repetitions ran, by commit."""
    commits: Line = document.get("sources", {})
    seen = dict.fromkeys(
        (run["scenario"], run["repetition"], run.get("source")) for run in document["runs"]
    )
    counts = Counter((scenario, source) for scenario, _, source in seen)
    most: dict[str | None, int] = {}
    for (_, source), count in counts.items():
        most[source] = max(count, most.get(source, 0))
    named = {source: commits.get(source or "", "an unknown commit") for source in most}
    if len(most) == 1:
        return f"at {next(iter(named.values()))}"
    return "by commit: " + ", ".join(
        f"{most[source]} at {commit}" for source, commit in named.items()
    )


def repeat(
    chosen: Sequence[Any],
    options: argparse.Namespace,
    sitting: Sitting,
    *,
    arms: Callable[[Any], list[str]],
    attempt: Callable[[Any, str, int], tuple[Any, Line]],
    series: Callable[[Any], Line],
) -> Iterator[tuple[str, int, list[Line], Line]]:
    """(scenario, repetition, all runs of this sitting, their series) after every scenario."""
    before = {scenario.name: sitting.done(scenario.name) for scenario in chosen}
    chance = random.Random(f"{options.seed}/{sum(before.values())}")
    runs: list[Line] = []
    drawn: Line = {}
    for repetition in range(options.repetitions):
        for scenario in chosen:
            order = arms(scenario)
            chance.shuffle(order)
            for arm in order:
                number = before[scenario.name] + repetition
                run, figures = attempt(scenario, arm, number)
                figures |= {"repetition": number, "source": sitting.source}
                runs.append(figures)
                if number == 0:
                    drawn[f"{scenario.name}/{arm}"] = series(run)
            yield scenario.name, repetition, runs, drawn


def try_often(
    run_once: Callable[[], tuple[Any, Line]],
    options: argparse.Namespace,
    *,
    tries: int,
    calm_s: float,
    usable: Callable[[Line], bool],
    say: Callable[[Line, str], None],
) -> tuple[Any, Line]:
    """One run; discarded and repeated when the generator was late or the machine was busy."""
    for number in range(tries):
        wait_for_calm(calm_s, options.calm_wait)
        run, figures = run_once()
        figures["discarded_before"] = number
        kept = (
            usable(figures)
            and figures["outside_cores"] <= options.outside_max
            and figures["stolen_cores"] <= STOLEN_MAX
        )
        say(figures, "" if kept else "  DISCARDED")
        if kept:
            return run, figures
    figures["noisy"] = True
    return run, figures


def wait_for_calm(span_s: float, wait_s: float) -> None:
    """Begin when the machine is idle and no hypervisor takes it away, or after a while anyway."""
    give_up = time.monotonic() + wait_s
    while time.monotonic() < give_up:
        before = machine_cpu_seconds()
        time.sleep(span_s)
        busy, stolen = (b - a for a, b in zip(before, machine_cpu_seconds(), strict=True))
        if busy / span_s < 0.3 and stolen / span_s < 0.03:
            return


# --- reporting


def write_page(
    name: str, document: Line, where: Path, text: str, draw: Callable[[Line, Path], None]
) -> None:
    """NAME.json, NAME.md and the pictures; prints the page."""
    where.mkdir(parents=True, exist_ok=True)
    packed = json.dumps(rounded(document), separators=(",", ":"))
    (where / f"{name}.json").write_text(packed + "\n")
    (where / f"{name}.md").write_text(text)
    draw(document, where)
    print(text)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def verdict_lines(verdicts: Iterable[Line], who: str) -> list[str]:
    lines = ["## Promises", "", f"| promise | {who} | | numbers |", "|---|---|---|---|"]
    for verdict in verdicts:
        word = "PASS" if verdict["passed"] else "FAIL"
        lines.append(f"| {verdict['promise']} | {verdict['arm']} | {word} | {verdict['numbers']} |")
    return lines


def arm_table(
    figures: Figures,
    scenario: str,
    *,
    who: str,
    columns: Sequence[tuple[str, str, str]],
    labels: dict[str, str],
    further: Callable[[str], list[str]] = lambda _: [],
    further_heads: Sequence[str] = (),
) -> list[str]:
    """A row per arm: (heading, figure, format) per column."""
    rows = []
    for arm in sorted(figures.arms(scenario), key=lambda arm: order_of(arm, labels)):
        cells = [cell(figures.values(scenario, arm, key), form) for _, key, form in columns]
        rows.append([labels.get(arm, arm), *cells, *further(arm)])
    return table([who, *(name for name, _, _ in columns), *further_heads], rows)


def cell(values: Sequence[float | None], form: str) -> str:
    """The median and the spread; a dash where it never came to that."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    middle, low, high = (form.format(part) for part in (median(known), min(known), max(known)))
    return middle if low == high else f"{middle} [{low}–{high}]"


def order_of(arm: str, labels: dict[str, str]) -> tuple[int, str]:
    """Arms in the order of the labels, further ones behind."""
    names = list(labels)
    return (names.index(arm) if arm in names else len(names), arm)
