"""`fairlead doctor`: what this machine supports, and how to fix the rest."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import click

from fairlead import __version__
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import flag, output_format
from fairlead.cli.table import show_canonical
from fairlead.cli.terminal import printable, raw
from fairlead.node.doctor.checks import ALL_CHECKS
from fairlead.node.doctor.machine import (
    Check,
    CheckResult,
    CheckStatus,
    Finding,
    Governor,
    Machine,
    base_works,
    examine,
)

HELP = """Check what this machine supports, and how to fix the rest.

Each check is ok, a warning (works with restrictions) or missing, with a command that fixes it,
grouped by the governor that needs it. The doctor changes nothing: it removes the one cgroup that it
creates to try a CPU quota (fairlead-doctor-PID). Run it as the user that will run the agents.

Exit code 0: the base works. Exit code 1: it does not, or with --strict any check is not ok.

\b
  fairlead doctor
  fairlead doctor -o json | jq -r '.checks[] | select(.status != "ok") | .cure'
"""
_STYLES = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.MISSING: "red"}


def ebpf_plane(_: Machine) -> Finding:
    """Ask the dataplane itself what it lacks: a second list would go stale."""
    from fairlead.dataplane.ebpf import missing, object_file

    lacking = missing()
    if lacking:
        return Finding(
            CheckStatus.MISSING,
            "; ".join(lacking),
            "do what the brackets say, then run `fairlead doctor` again",
        )
    return Finding(CheckStatus.OK, f"can be opened, compiled in {object_file()}")


def device_filter(_: Machine) -> Finding:
    """Ask the executor itself what it can hold a run to."""
    from fairlead.executor import bounds, confine

    controls = bounds.find(*confine.find())
    cure = "run `fairlead up` as root on Linux 5.14 or later, with cgroup v2 (or v1 devices)"
    if controls.missing:
        status = CheckStatus.MISSING if "devices" in controls.missing else CheckStatus.WARN
        return Finding(status, controls.words(), cure)
    how = "eBPF, cgroup v2" if controls.places["devices"] == bounds.V2 else "cgroup v1 devices"
    return Finding(CheckStatus.OK, f"{controls.words()} ({how})")


CHECKS = (
    *(check for check in ALL_CHECKS if check.governor is not Governor.TRAFFIC),
    Check(
        Governor.GPU,
        "device filter",
        "whether a run can be held to the GPUs that it leases, its cpus, memory and processes",
        device_filter,
    ),
    *(check for check in ALL_CHECKS if check.governor is Governor.TRAFFIC),
    Check(
        Governor.TRAFFIC,
        "eBPF plane",
        "what `fairlead traffic run` with plane ebpf still needs",
        ebpf_plane,
    ),
)
_NAME_COLUMNS = max(len(check.name) for check in CHECKS)


@click.command("doctor", help=HELP)
@output_format("table", "json", "yaml", default="table")
@flag("--strict", "Exit with 1 unless every check is ok.")
@click.pass_context
def command(ctx: click.Context, *, output: str, strict: bool) -> None:
    results = examine(Machine(), CHECKS)
    if output != "table":
        document = {
            "version": __version__,
            "base_works": base_works(results),
            "summary": _counts(results),
            "checks": [asdict(result) for result in results],
        }
        show_canonical(json.loads(json.dumps(document)), output)
    elif sys.stdout.isatty():
        _print_rich(results)
    else:
        _print_plain(results)
    healthy = base_works(results)
    if strict:
        healthy = all(result.status is CheckStatus.OK for result in results)
    ctx.exit(0 if healthy else EXIT_REFUSED)


def _print_plain(results: Sequence[CheckResult]) -> None:
    """In a pipe: no colour, no wrapping, a cure below each check that is not ok."""
    for governor, members in groupby(results, key=lambda result: result.governor):
        click.echo(governor)
        for result in members:
            click.echo(f"  {result.status:<7}  {result.name:<{_NAME_COLUMNS}}  {result.found}")
            for label, text in _advice(result):
                click.echo(f"  {'':<7}  {'':<{_NAME_COLUMNS}}  {label}: {text}")
    click.echo(_verdict(results))


def _print_rich(results: Sequence[CheckResult]) -> None:
    """On a terminal: coloured (rich honours NO_COLOR), wrapped to its width."""
    from rich.console import Console  # 60 ms that no pipe should pay
    from rich.table import Table
    from rich.text import Text

    console = Console(file=raw(sys.stdout), highlight=False)
    for governor, members in groupby(results, key=lambda result: result.governor):
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=9)
        table.add_column(min_width=_NAME_COLUMNS)
        table.add_column(overflow="fold")
        for result in members:
            shown = Text(
                printable(result.found)
            )  # as text: a path may hold what markup takes for a tag
            for label, text in _advice(result):
                shown.append(f"\n{label}: ", "bold" if label == "cure" else "dim")
                shown.append(printable(text), "" if label == "cure" else "dim")
            table.add_row(Text(f"  {result.status}", _STYLES[result.status]), result.name, shown)
        console.print(Text(governor, "bold"))
        console.print(table)
    console.print(Text(_verdict(results), "bold"))


def _advice(result: CheckResult) -> list[tuple[str, str]]:
    """Why a check that is not ok matters, and its cure."""
    if result.status is CheckStatus.OK:
        return []
    return [("why", result.why), *([("cure", result.cure)] if result.cure else [])]


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    counted = Counter(result.status for result in results)
    return {str(status): counted[status] for status in CheckStatus}


def _verdict(results: Sequence[CheckResult]) -> str:
    counts = ", ".join(f"{number} {status}" for status, number in _counts(results).items())
    if base_works(results):
        return f"{counts}: the base works"
    missing = (result for result in results if result.status is CheckStatus.MISSING)
    broken = [result.name for result in missing if result.required]
    verdict = f"{counts}: the base does not work ({', '.join(broken)})"
    if os.geteuid() == 0:
        return verdict
    return f"{verdict} for this user; the cures above say what to do"
