"""`fairlead traffic harness`: scenarios against the agent's loop, checked and reported."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from fairlead.cli.input import BadFile, load_scenario
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.table import output_format
from fairlead.schema.traffic_scenario import (
    TrafficScenarioDocument,
    read_traffic_scenario,
    traffic_scenario_schema,
)
from fairlead.sim.entropy import SEED_MAX
from fairlead.sim.plots import INSTALL_HINT, PlotsMissing, load_matplotlib
from fairlead.sim.report import NotAReport, check_target
from fairlead.sim.traffic import Played, Verdict, judge, play
from fairlead.sim.traffic.bundled import bundled_names, read_bundled
from fairlead.sim.traffic.figures import measure
from fairlead.sim.traffic.plots import draw_plots
from fairlead.sim.traffic.report import Draw, as_document, write_report

HELP = """Run a traffic SCENARIO and check its promises.

SCENARIO is a YAML file or a name from --list. It runs in virtual time on the in-memory dataplane,
where the same seed gives the same digest; or, with --real-time and --plane, on a real dataplane
with a real agent process, real backends and clients.

Writes report.json, report.md, timeline.csv, the record and a plot. Exit codes: 0 all promises were
kept, 1 one was broken, 2 bad input, 3 the dataplane is not available here.

\b
  fairlead traffic harness --list
  fairlead traffic harness slow
  fairlead traffic harness my.yaml --seed 42 --out /tmp/report
  fairlead traffic harness slow --plane haproxy --real-time
"""


@click.command("harness", help=HELP)
@click.argument("scenario", required=False)
@click.option("--list", "listing", is_flag=True, help="List the bundled scenarios.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a scenario.")
@click.option(
    "--seed", type=click.IntRange(0, SEED_MAX), help="Random seed [default: the scenario's]."
)
@click.option(
    "--plane",
    type=click.Choice(["memory", "haproxy", "envoy", "ebpf"]),
    default="memory",
    show_default=True,
    help="Dataplane.",
)
@click.option("--real-time", is_flag=True, help="Run in real time on a real dataplane.")
@click.option("--cgroup", help="For ebpf: govern this cgroup's connections.")
@click.option("--pins", help="For ebpf: pin maps in this bpffs folder.")
@click.option("--out", type=click.Path(path_type=Path), help="Report folder [default: out/NAME].")
@output_format("table", "json", default="table")
@click.option("--no-plots", is_flag=True, help="Write the report without plots.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    scenario: str | None,
    listing: bool,
    schema: bool,
    seed: int | None,
    plane: str,
    real_time: bool,
    cgroup: str | None,
    pins: str | None,
    out: Path | None,
    output: str,
    no_plots: bool,
) -> None:
    """Play a scenario and report on it."""
    if listing or schema:
        click.echo(_listing() if listing else json.dumps(traffic_scenario_schema(), indent=2))
        return
    if scenario is None:
        raise click.UsageError("name a scenario; --list shows the bundled ones")
    if real_time != (plane != "memory"):
        raise click.UsageError("--real-time and --plane haproxy, envoy or ebpf belong together")
    document = _load(scenario)
    target = out or Path("out") / document.name
    try:
        check_target(target)
    except NotAReport as error:
        raise BadFile(f"--out: {error}") from error
    draw = None if no_plots else _plots()
    with tempfile.TemporaryDirectory(prefix="fairlead-harness-") as spare:
        record = Path(spare) / "record"
        if real_time:
            from fairlead.sim.traffic.real import PlanePlace, play_real

            place = PlanePlace(plane, cgroup, pins)
            played = play_real(document, place, seed=seed, record=record, folder=Path(spare))
        else:
            played = play(document, seed=seed, record=record)
        verdicts = judge(played)
        write_report(played, verdicts, target, record=record, draw=draw)
    _print(played, verdicts, output, target)
    ctx.exit(0 if all(verdict.kept for verdict in verdicts) else EXIT_REFUSED)


def _load(scenario: str) -> TrafficScenarioDocument:
    return load_scenario(scenario, bundled_names(), read_bundled, read_traffic_scenario)


def _listing() -> str:
    abouts = {name: read_traffic_scenario(read_bundled(name)).about for name in bundled_names()}
    width = max(map(len, abouts))
    return "\n".join(f"{name:<{width}}  {about}" for name, about in abouts.items())


def _plots() -> Draw | None:
    """The plotter, or None with a note on how to install matplotlib. Before the long work."""
    try:
        load_matplotlib()
    except PlotsMissing:
        click.echo(f"note: no plots without matplotlib; install it with: {INSTALL_HINT}", err=True)
        return None
    return draw_plots


def _print(played: Played, verdicts: Sequence[Verdict], output: str, target: Path) -> None:
    if output == "json":
        document = {**as_document(played, verdicts), "report": str(target)}
        click.echo(json.dumps(document, indent=2))
    else:
        for line in _summary(played, verdicts):
            click.echo(line)
    click.echo(f"report: {target / 'report.md'}", err=True)


def _summary(played: Played, verdicts: Sequence[Verdict]) -> list[str]:
    figures = measure(played)
    lines = [
        f"{played.scenario.name} on the {played.plane} plane, seed {played.seed}: "
        f"{figures.arrivals} arrivals, {figures.good_ratio:.2%} within the SLO, "
        f"{figures.failed_ratio:.2%} failed, {figures.refused_ratio:.2%} refused, "
        f"{figures.mode_changes} changes of mode, {figures.isolations} isolations"
    ]
    for verdict in verdicts:
        word, problem = ("kept  ", "") if verdict.kept else ("BROKEN", f": {verdict.problem}")
        lines.append(f"  {word}  {verdict.promise}{problem}")
    if not played.real:
        lines.append(f"digest  {played.digest}")
    return lines
