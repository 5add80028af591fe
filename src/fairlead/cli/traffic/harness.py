"""`fairlead traffic harness`: scenarios against the agent's own loop, checked and reported."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import flag, option, output_format
from fairlead.cli.sim import (
    can_plot,
    load_scenario,
    no_plots_option,
    out_option,
    print_result,
    report_target,
    scenario_argument,
    seed_option,
)
from fairlead.core.units import counted
from fairlead.schema.traffic_scenario import read_traffic_scenario, traffic_scenario_schema
from fairlead.sim import traffic
from fairlead.sim.traffic import PromiseCheck, TrafficResult
from fairlead.sim.traffic.report import as_document, write_report
from fairlead.sim.traffic.result import measure

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
@scenario_argument(traffic.__name__, required=False)
@flag("--list listing", "List the bundled scenarios.")
@flag("--schema", "Print the JSON Schema of a scenario.")
@seed_option
@option("--plane", ("memory", "haproxy", "envoy", "ebpf"), "Dataplane.", default="memory")
@flag("--real-time", "Run in real time on a real dataplane.")
@option("--cgroup", str, "For ebpf: govern this cgroup's connections.")
@option("--pins", str, "For ebpf: pin maps in this bpffs folder.")
@out_option
@output_format("table", "json", default="table")
@no_plots_option
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
    if listing or schema:
        click.echo(_listing() if listing else json.dumps(traffic_scenario_schema(), indent=2))
        return
    if scenario is None:
        raise click.UsageError("name a scenario; --list shows the bundled ones")
    if real_time != (plane != "memory"):
        raise click.UsageError("--real-time and --plane haproxy, envoy or ebpf belong together")
    document = load_scenario(scenario, read_traffic_scenario, traffic.__name__)
    target = report_target(out, document.name)
    plots = not no_plots and can_plot()
    with tempfile.TemporaryDirectory(prefix="fairlead-harness-") as spare:
        record = Path(spare) / "record"
        if real_time:
            from fairlead.sim.traffic.real import RealRun

            place = {"kind": plane, "cgroup": cgroup, "pins": pins}
            played = RealRun(document, place, seed, Path(spare)).run(record)
        else:
            played = traffic.play(document, seed=seed, record=record)
        checks = traffic.check_promises(played)
        write_report(played, checks, target, record=record, plots=plots)
    print_result(as_document(played, checks), _summary(played, checks), output, target)
    ctx.exit(0 if all(check.kept for check in checks) else EXIT_REFUSED)


def _listing() -> str:
    names = traffic.bundled_names()
    width = max(map(len, names))
    abouts = (read_traffic_scenario(traffic.read_bundled(name)).about for name in names)
    return "\n".join(f"{name:<{width}}  {about}" for name, about in zip(names, abouts, strict=True))


def _summary(played: TrafficResult, checks: Sequence[PromiseCheck]) -> list[str]:
    figures = measure(played)
    lines = [
        f"{played.scenario.name} on the {played.plane} dataplane, seed {played.seed}: "
        f"{counted(figures.arrivals, 'arrival')}, {figures.good_ratio:.2%} within the SLO, "
        f"{figures.failed_ratio:.2%} failed, {figures.refused_ratio:.2%} refused, "
        f"{counted(figures.mode_changes, 'mode change')}, "
        f"{counted(figures.isolations, 'isolation')}"
    ]
    for check in checks:
        word, problem = ("kept  ", "") if check.kept else ("BROKEN", f": {check.problem}")
        lines.append(f"  {word}  {check.promise}{problem}")
    if not played.real:
        lines.append(f"digest  {played.digest}")
    return lines
