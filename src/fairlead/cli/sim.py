"""`fairlead sim`: run a scenario against the real decision code in virtual time."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from fairlead.cli.input import BadFile, load_scenario
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.table import Column, output_format, percent, plain_table
from fairlead.core.cpu import Policy
from fairlead.schema.scenario import ScenarioDocument, read_scenario, scenario_schema
from fairlead.sim import Played, Run, play
from fairlead.sim.bundled import bundled_names, read_bundled
from fairlead.sim.entropy import SEED_MAX
from fairlead.sim.measure import NodeFigures, PodFigures
from fairlead.sim.play import Progress
from fairlead.sim.plots import INSTALL_HINT, PlotsMissing, draw_plots, load_matplotlib
from fairlead.sim.report import Draw, NotAReport, as_document, check_target, write_report


@click.group("sim")
def command() -> None:
    """Simulate the governors in virtual time.

    Scenarios run against the real decision code.

    \b
      fairlead sim list
      fairlead sim run bursty-mix
      fairlead sim run my.yaml --seed 42 --policy nash --policy demand-capped
    """


@command.command("list")
def list_scenarios() -> None:
    """List the bundled scenarios.

    \b
      fairlead sim list
    """
    for name in bundled_names():
        about = read_scenario(read_bundled(name)).about
        click.echo(f"{name:<14} {about}" if sys.stdout.isatty() else name)


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of a scenario.

    \b
      fairlead sim schema > scenario.schema.json
    """
    click.echo(json.dumps(scenario_schema(), indent=2))


@command.command("run")
@click.argument("scenario")
@click.option(
    "--seed", type=click.IntRange(0, SEED_MAX), help="Random seed [default: the scenario's]."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice([p.value for p in Policy]),
    help="Run under this policy; repeat to compare.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Report folder [default: out/NAME].")
@output_format("table", "json", default="table")
@click.option("--no-plots", is_flag=True, help="Write the report without plots.")
@click.pass_context
def run(
    ctx: click.Context,
    *,
    scenario: str,
    seed: int | None,
    policies: tuple[str, ...],
    out: Path | None,
    output: str,
    no_plots: bool,
) -> None:
    """Run SCENARIO and write a report.

    SCENARIO is a YAML file or a name from `fairlead sim list`. Prints a summary and writes
    report.json, report.md, every decision with its result, a timeline and plots. Exit codes: 0
    done, 1 a checker found a broken promise, 2 bad input.

    \b
      fairlead sim run bursty-mix
      fairlead sim run my.yaml --seed 42 --policy nash --policy demand-capped
    """
    document = _load(scenario)
    if policies:
        document = _under(document, policies)
    target = out or Path("out") / document.name
    try:
        check_target(target)
    except NotAReport as error:
        raise BadFile(f"--out: {error}") from error
    draw = None if no_plots else _plots()
    with _progress(document) as progress:
        played = play(document, seed=seed, progress=progress)
    write_report(played, target, draw)
    _print(played, output, target)
    ctx.exit(EXIT_REFUSED if played.broken else 0)


def _load(scenario: str) -> ScenarioDocument:
    return load_scenario(scenario, bundled_names(), read_bundled, read_scenario)


def _under(document: ScenarioDocument, policies: tuple[str, ...]) -> ScenarioDocument:
    """A policy on the command line overrides those of the acts."""
    return msgspec.structs.replace(
        document,
        policies=[Policy(policy) for policy in dict.fromkeys(policies)],
        acts=[msgspec.structs.replace(act, policy=None) for act in document.acts],
    )


def _plots() -> Draw | None:
    """The plotter, or None with a note on how to install matplotlib. Before the long work."""
    try:
        load_matplotlib()
    except PlotsMissing:
        click.echo(f"note: no plots without matplotlib; install it with: {INSTALL_HINT}", err=True)
        return None
    return draw_plots


@contextmanager
def _progress(document: ScenarioDocument) -> Iterator[Progress | None]:
    """A progress bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks = {
            policy: bar.add_task(f"{document.name} {policy.value}", total=document.duration_s)
            for policy in document.policies
        }
        yield lambda policy, second: bar.update(tasks[policy], completed=second)


def _print(played: Played, output: str, target: Path) -> None:
    if output == "json":
        click.echo(json.dumps({**as_document(played), "report": str(target)}, indent=2))
    else:
        for line in summary(played):
            click.echo(line)
    for one in played.runs:
        if one.broken:
            click.secho(f"broken: {one.broken}", err=True, fg="red")
    click.echo(f"report: {target / 'report.md'}", err=True)


# --- the summary


def summary(played: Played) -> Iterator[str]:
    """Line by line: a table per policy, then the policies side by side, then seed and digest."""
    for run in played.runs:
        yield f"{played.scenario.name}: policy {run.name.replace('-act', ' act')}"
        yield ""
        yield from _figures(_PODS, run.pods)
        yield ""
        yield from _node(run.node)
        if run.faults:
            fired = ", ".join(f"{point} {count}" for point, count in run.faults.items())
            yield f"faults     {fired}"
        if len(played.runs) > 1:
            yield f"digest     {run.digest}"
            yield ""
    if len(played.runs) > 1:
        yield from _figures(_POLICIES, played.runs)
        yield ""
    yield f"seed       {played.seed}"
    yield f"digest     {played.digest}"


def _figures(columns: Sequence[Column], rows: Sequence[Any]) -> Iterator[str]:
    cells = [[str(column.read(row)) for column in columns] for row in rows]
    yield from plain_table(columns, cells)


def _right(title: str, read: Callable[[Any], object]) -> Column:
    return Column(title, read, right=True)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _pod_name(pod: PodFigures) -> str:
    return f"{pod.pod} (opted out)" if pod.opted_out else pod.pod


def _governed(run: Run) -> list[PodFigures]:
    return [pod for pod in run.pods if not pod.opted_out]


_PODS = [
    Column("POD", _pod_name),
    _right("WANT", lambda pod: _seconds(pod.want_core_s)),
    _right("GRANTED", lambda pod: _seconds(pod.granted_core_s)),
    _right("USED", lambda pod: _seconds(pod.used_core_s)),
    _right("THROTTLED", lambda pod: percent(pod.throttled_ratio, 1)),
    _right("SLACK", lambda pod: percent(pod.slack, 1)),
    _right("REVERSALS/MIN", lambda pod: f"{pod.reversals_per_minute:.1f}"),
]
_POLICIES = [
    Column("POLICY", lambda run: run.name),
    _right("USED", lambda run: _seconds(run.node.used_core_s)),
    _right("GRANTED", lambda run: _seconds(run.node.granted_core_s)),
    _right("UNSERVED", lambda run: _seconds(sum(p.unserved_core_s for p in _governed(run)))),
    _right("CONGESTED", lambda run: f"{run.node.seconds_congested} s"),
    _right("OVERLOADED", lambda run: f"{run.node.seconds_overloaded} s"),
    _right(
        "REVERSALS/MIN", lambda run: _seconds(sum(p.reversals_per_minute for p in _governed(run)))
    ),
]


def _node(node: NodeFigures) -> Iterator[str]:
    yield (
        f"modes      uncongested {node.seconds_uncongested} s, congested "
        f"{node.seconds_congested} s, overloaded {node.seconds_overloaded} s"
    )
    yield (
        f"node       {node.decisions} decisions in {node.seconds:g} s, limits above the capacity "
        f"for {node.seconds_over_capacity:g} s"
    )
    yield (
        f"core-s     wanted {node.want_core_s:.1f}, granted {node.granted_core_s:.1f}, "
        f"used {node.used_core_s:.1f}"
    )
