"""`fairlead sim`: play a scenario against the real decision code in virtual time."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.scenarios import can_plot, load_scenario, report_target
from fairlead.cli.sim_table import summary
from fairlead.core.cpu import Policy
from fairlead.schema.scenario import ScenarioDocument, read_scenario, scenario_schema
from fairlead.sim import ScenarioResult, bundled_names, play, read_bundled
from fairlead.sim.clock import SEED_MAX
from fairlead.sim.report import as_document, write_report
from fairlead.sim.simulation import Progress


@click.group("sim")
def command() -> None:
    """Play a scenario against the real decision code, in virtual time.

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
    "--seed", type=click.IntRange(0, SEED_MAX), help="Random seed. Default: the scenario's."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice([p.value for p in Policy]),
    help="Play under this policy; repeat to compare. Default: the scenario's.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="The report's folder. Default: out/<name>."
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format."
)
@click.option("--no-plots", is_flag=True, help="Write the report without pictures.")
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
    """Play SCENARIO (a YAML file, or a name from `fairlead sim list`) and report on it.

    Prints a summary and writes report.json, report.md, every decision with its result, a
    timeline and plots. Exit codes: 0 done, 1 a checker found a broken promise, 2 bad input.

    \b
      fairlead sim run bursty-mix
      fairlead sim run my.yaml --seed 42 --policy nash --policy demand-capped
    """
    document = _load(scenario)
    if policies:
        document = _under(document, policies)
    target = report_target(out, document.name)
    plots = not no_plots and can_plot()
    with _progress(document) as progress:
        played = play(document, seed=seed, progress=progress)
    write_report(played, target, plots=plots)
    _print(played, output, target)
    ctx.exit(EXIT_REFUSED if played.broken else 0)


def _load(scenario: str) -> ScenarioDocument:
    return load_scenario(scenario, bundled_names(), read_bundled, read_scenario)


def _under(document: ScenarioDocument, policies: tuple[str, ...]) -> ScenarioDocument:
    """A policy on the command line holds for the whole play, whatever the acts say."""
    return msgspec.structs.replace(
        document,
        policies=[Policy(policy) for policy in dict.fromkeys(policies)],
        acts=[msgspec.structs.replace(act, policy=None) for act in document.acts],
    )


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


def _print(played: ScenarioResult, output: str, target: Path) -> None:
    if output == "json":
        click.echo(json.dumps({**as_document(played), "report": str(target)}, indent=2))
    else:
        for line in summary(played):
            click.echo(line)
    for each in played.runs:
        if each.broken:
            click.secho(f"broken: {each.broken}", err=True, fg="red")
    click.echo(f"report: {target / 'report.md'}", err=True)
