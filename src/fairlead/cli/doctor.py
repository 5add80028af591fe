"""`fairlead doctor`: what this machine can and cannot do, and how to put it right."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import click

from fairlead import __version__
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.show import to_yaml
from fairlead.core.canonical import canonical
from fairlead.node.doctor import (
    ALL_CHECKS,
    Check,
    CheckResult,
    CheckStatus,
    Finding,
    Governor,
    Machine,
    base_works,
    examine,
)

HELP = """Say what this machine can and cannot do, and how to put it right.

Each check is ok, a warning (it works with restrictions) or missing, with the command that cures it,
grouped by the governor that needs it. Nothing is changed: the one cgroup made to try a CPU quota
(fairlead-doctor-PID) is removed again. Run it as the user that will run the agents.

Exit code 0 when the base works, whatever else is missing; 1 when it does not, and with --strict
when any check is not ok.

\b
  fairlead doctor
  fairlead doctor -o json | jq -r '.checks[] | select(.status != "ok") | .cure'
"""
_STYLES = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.MISSING: "red"}


def ebpf_plane(_: Machine) -> Finding:
    """The plane's own word on whether it can be opened here: a second list would go stale."""
    from fairlead.dataplane.ebpf import missing, object_file

    lacking = missing()
    if lacking:
        return Finding(
            CheckStatus.MISSING,
            "; ".join(lacking),
            "do what stands in brackets, then run `fairlead doctor` again",
        )
    return Finding(CheckStatus.OK, f"can be opened, compiled in {object_file()}")


CHECKS = (
    *ALL_CHECKS,
    Check(
        Governor.TRAFFIC,
        "eBPF plane",
        "what `fairlead traffic run` with plane ebpf still needs",
        ebpf_plane,
    ),
)
_NAME_COLUMNS = max(len(check.name) for check in CHECKS)


@click.command("doctor", help=HELP)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="A report for eyes, or one document for scripts.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 unless every check is ok.")
@click.pass_context
def command(ctx: click.Context, *, output: str, strict: bool) -> None:
    """Examine, print, turn the result into an exit code."""
    results = examine(Machine(), CHECKS)
    if output != "table":
        _print_document(results, output)
    elif sys.stdout.isatty():
        _print_rich(results)
    else:
        _print_plain(results)
    healthy = base_works(results)
    if strict:
        healthy = all(each.status is CheckStatus.OK for each in results)
    ctx.exit(0 if healthy else EXIT_REFUSED)


def _print_document(results: Sequence[CheckResult], output: str) -> None:
    document = {
        "version": __version__,
        "base_works": base_works(results),
        "summary": _counts(results),
        "checks": [asdict(each) for each in results],
    }
    if output == "yaml":
        click.echo(to_yaml(json.loads(json.dumps(document))), nl=False)
    elif sys.stdout.isatty():
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo(canonical(document))


def _print_plain(results: Sequence[CheckResult]) -> None:
    """For a pipe: no colour, no wrapping, a cure below each check that is not ok."""
    for governor, members in groupby(results, key=lambda each: each.governor):
        click.echo(governor)
        for each in members:
            click.echo(f"  {each.status:<7}  {each.name:<{_NAME_COLUMNS}}  {each.found}")
            for label, text in _advice(each):
                click.echo(f"  {'':<7}  {'':<{_NAME_COLUMNS}}  {label}: {text}")
    click.echo(_verdict(results))


def _print_rich(results: Sequence[CheckResult]) -> None:
    """For a terminal: coloured (rich honours NO_COLOR), wrapped to its width."""
    from rich.console import Console  # 60 ms that no pipe should pay
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for governor, members in groupby(results, key=lambda each: each.governor):
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=9)
        table.add_column(min_width=_NAME_COLUMNS)
        table.add_column(overflow="fold")
        for each in members:
            found = Text(each.found)  # as text: a path may hold what markup takes for a tag
            for label, text in _advice(each):
                found.append(f"\n{label}: ", "bold" if label == "cure" else "dim")
                found.append(text, "" if label == "cure" else "dim")
            table.add_row(Text(f"  {each.status}", _STYLES[each.status]), each.name, found)
        console.print(Text(governor, "bold"))
        console.print(table)
    console.print(Text(_verdict(results), "bold"))


def _advice(result: CheckResult) -> list[tuple[str, str]]:
    """What a reader needs to know of a check that did not come out ok."""
    if result.status is CheckStatus.OK:
        return []
    return [("why", result.why), *([("cure", result.cure)] if result.cure else [])]


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    counted = Counter(each.status for each in results)
    return {str(status): counted[status] for status in CheckStatus}


def _verdict(results: Sequence[CheckResult]) -> str:
    counts = ", ".join(f"{number} {status}" for status, number in _counts(results).items())
    if base_works(results):
        return f"{counts}: the base works"
    broken = [each.name for each in results if each.required and each.status is CheckStatus.MISSING]
    return f"{counts}: the base does not work ({', '.join(broken)})"
