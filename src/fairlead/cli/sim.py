"""`fairlead sim`: scenarios in virtual time, and recorded snapshots under another policy."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from fairlead.cli.input import BadFile, head_of
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import Integer, flag, option, output_format, output_option
from fairlead.cli.table import Counter, Output, figures, note
from fairlead.core.cpu import Policy
from fairlead.schema.border import BadInput
from fairlead.schema.scenario import ScenarioDocument, read_scenario, scenario_schema
from fairlead.sim import PolicyRun, ScenarioResult, bundled_names, play, read_bundled
from fairlead.sim import whatif_report as answers
from fairlead.sim.clock import SEED_MAX
from fairlead.sim.plots import INSTALL_HINT, PlotsMissing, load_matplotlib
from fairlead.sim.record import NodeFigures
from fairlead.sim.report import NotAReport, as_document, check_target, pod_row, write_report
from fairlead.sim.whatif import NoDecisions, WhatIf, what_if

Document = TypeVar("Document")
seed_option = option("--seed", Integer(0, SEED_MAX), "Random seed [default: the scenario's].")
out_option = option("--out", click.Path(path_type=Path), "Report folder [default: out/NAME].")
no_plots_option = flag("--no-plots", "Write the report without plots.")
_policy_choice = click.Choice([policy.value for policy in Policy])
_PODS = ("POD", "WANT", "GRANTED", "USED", "THROTTLED", "SLACK", "REVERSALS/MIN")
_POLICIES = ("POLICY", "USED", "GRANTED", "UNSERVED", "CONGESTED", "OVERLOADED", "REVERSALS/MIN")


def scenario_argument(
    package: str = "fairlead.sim", *, required: bool = True
) -> Callable[[Any], Any]:
    """SCENARIO; the shell completes the bundled ones, or files where none fits."""

    def offer(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        names = [CompletionItem(n) for n in bundled_names(package) if n.startswith(typed)]
        return names or [CompletionItem(typed, type="file")]

    return click.argument("scenario", required=required, shell_complete=offer)


@click.group("sim")
def command() -> None:
    """Simulate the governors in virtual time.

    \b
      fairlead sim list
      fairlead sim run bursty-mix
      fairlead sim whatif /var/lib/fairlead/node/record --policy market
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
@scenario_argument()
@seed_option
@option(
    "--policy policies", _policy_choice, "Run under this policy; repeat to compare.", multiple=True
)
@out_option
@output_format("table", "json", default="table")
@no_plots_option
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
    document = load_scenario(scenario, read_scenario)
    if policies:
        document = _under(document, policies)
    target = report_target(out, document.name)
    plots = not no_plots and can_plot()
    with Counter(f"{document.name}: simulated", "s") as progress:
        played = play(
            document, seed=seed, progress=lambda second: progress(second, document.duration_s)
        )
    write_report(played, target, plots=plots)
    for played_run in played.runs:
        if played_run.broken:
            click.echo(f"broken: {played_run.broken}", err=True)
    print_result(as_document(played), summary(played), output, target)
    ctx.exit(EXIT_REFUSED if played.broken else 0)


@command.command("whatif")
@click.argument(
    "records", metavar="RECORD...", nargs=-1, required=True, type=click.Path(True, path_type=Path)
)
@option("--policy", _policy_choice, "Decide under this policy.", required=True)
@flag("--guardrails", "Keep the recorded guardrail bounds.")
@option("--top", Integer(0), "List this many changes.", default=5)
@option("--report", click.Path(path_type=Path), "Write a report to this folder.")
@no_plots_option
@output_option
def whatif(
    *,
    records: tuple[Path, ...],
    policy: str,
    guardrails: bool,
    top: int,
    report: Path | None,
    no_plots: bool,
    output: str,
) -> None:
    """Decide recorded CPU snapshots under another policy.

    RECORD is the flight record of a node agent (its `record` folder, or the state directory around
    it); name several to compare many nodes. The answer says which pods would have got more or less,
    how long they were below their need, and how much need stayed unmet.

    Each snapshot is decided by itself: how pods would have reacted to the other policy, and what
    later snapshots would have shown, is not part of the answer. Guardrails are left out unless
    --guardrails keeps the recorded bounds, which hold every answer close to the record.

    Exit codes: 0 done, 2 bad input or no CPU decisions in a record, 3 a damaged record.

    \b
      fairlead sim whatif /var/lib/fairlead/node/record --policy market
      fairlead sim whatif records/* --policy demand-capped --report out/whatif
    """
    if report is not None:
        report_target(report, "whatif", option="--report")
    try:
        with Counter("decided", "snapshots") as progress:
            result = what_if(
                records,
                Policy(policy),
                guardrails=guardrails,
                progress=lambda _, count: progress(count),
            )
    except NoDecisions as error:
        raise BadFile(str(error)) from error
    document = answers.as_document(result, top=top)
    Output(output).text(document, lambda: whatif_table(result, top))
    if report is not None:
        answers.write_whatif(result, report, top=top, plots=not no_plots and can_plot())
        click.echo(f"report: {report / 'report.md'}", err=True)


def _under(document: ScenarioDocument, policies: tuple[str, ...]) -> ScenarioDocument:
    """A policy on the command line overrides those of the acts."""
    return msgspec.structs.replace(
        document,
        policies=[Policy(policy) for policy in dict.fromkeys(policies)],
        acts=[msgspec.structs.replace(act, policy=None) for act in document.acts],
    )


def load_scenario(
    scenario: str, parse: Callable[[bytes], Document], package: str = "fairlead.sim"
) -> Document:
    """A scenario's document; a file wins over a bundled one of the same name."""
    path, names = Path(scenario), bundled_names(package)
    try:
        if scenario in names and not path.exists():
            return parse(read_bundled(scenario, package))
        return parse(head_of(str(path.absolute())))
    except BadInput as error:
        raise BadFile(str(error)) from error
    except OSError as error:
        known = f"; bundled scenarios: {', '.join(names)}"
        raise BadFile(f"{scenario}: {error.strerror}{known}") from error


def report_target(out: Path | None, name: str, *, option: str = "--out") -> Path:
    """The report's folder, refused before the long work if it holds something else."""
    target = out or Path("out") / name
    try:
        check_target(target)
    except NotAReport as error:
        raise BadFile(f"{option}: {error}") from error
    return target


def can_plot() -> bool:
    """Whether matplotlib is installed; if not, note how to install it, before the long work."""
    try:
        load_matplotlib()
    except PlotsMissing:
        note(f"note: no plots without matplotlib; install it with: {INSTALL_HINT}")
        return False
    return True


def print_result(document: dict[str, Any], lines: Iterable[str], output: str, target: Path) -> None:
    """A played scenario: its document or its lines, and where the report is."""
    if output == "json":
        click.echo(json.dumps({**document, "report": str(target)}, indent=2))
    else:
        for line in lines:
            click.echo(line)
    click.echo(f"report: {target / 'report.md'}", err=True)


def summary(played: ScenarioResult) -> Iterator[str]:
    """Line by line: a table per policy, then the policies side by side, then seed and digest."""
    for run in played.runs:
        yield f"{played.scenario.name}: policy {run.name.replace('-act', ' act')}"
        yield ""
        yield from figures(_PODS, [pod_row(pod, missing="-") for pod in run.pods])
        yield ""
        yield from _node(run.node)
        if run.faults:
            fired = ", ".join(f"{point} {count}" for point, count in run.faults.items())
            yield f"faults     {fired}"
        if len(played.runs) > 1:
            yield f"digest     {run.digest}"
            yield ""
    if len(played.runs) > 1:
        yield from figures(_POLICIES, [_policy_row(run) for run in played.runs])
        yield ""
    yield f"seed       {played.seed}"
    yield f"digest     {played.digest}"


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


def _policy_row(run: PolicyRun) -> tuple[str, ...]:
    governed = [pod for pod in run.pods if not pod.opted_out]
    return (
        run.name,
        f"{run.node.used_core_s:.1f}",
        f"{run.node.granted_core_s:.1f}",
        f"{sum(pod.unserved_core_s for pod in governed):.1f}",
        f"{run.node.seconds_congested} s",
        f"{run.node.seconds_overloaded} s",
        f"{sum(pod.reversals_per_minute for pod in governed):.1f}",
    )


def whatif_table(result: WhatIf, top: int) -> Iterator[str]:
    yield f"what if: {answers.title(result)}"
    yield ""
    yield from figures(answers.NODE_HEAD, answers.node_rows(result))
    for name, pods in (("gains", result.winners(top)), ("losses", result.losers(top))):
        yield ""
        yield f"largest {name}:" if pods else f"no {name}"
        if pods:
            yield from figures(answers.POD_HEAD, answers.pod_rows(pods))
    yield ""
    yield answers.LIMITS_OF_THE_ANSWER
