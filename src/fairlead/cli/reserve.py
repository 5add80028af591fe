"""`fairlead reserve`: a run that is to start at its time, if need be by others giving way."""

import time
from contextlib import suppress
from typing import Any

import click

from fairlead.cli.client import Answer, Client, server_option
from fairlead.cli.giving_way import forecast_of, print_outlook
from fairlead.cli.manifests import dry_run_option, explained, read_manifests, what
from fairlead.cli.names import complete_names, get_object
from fairlead.cli.show import moment, note, output_option, show
from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION, parse_duration
from fairlead.schema.times import format_time, parse_time


class Moment(click.ParamType[str]):
    """A time with its zone, or `+2h` from now."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As the server takes it."""
        text = str(value)
        try:
            if text.startswith("+"):
                ahead_ms = 0 if text in ("+0", "+0s") else parse_duration(text[1:], "TIME")
                return format_time(time.time_ns() // 1_000_000 + ahead_ms)
            return format_time(parse_time(text, "TIME"))
        except BadInput as error:
            self.fail(f"{error.message}; or +30m, from now", param, ctx)


@click.command("reserve")
@click.argument("run", required=False, shell_complete=complete_names("Run"))
@click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="The manifest of a run that is not submitted yet; it is, together with its reservation.",
)
@click.option(
    "--at",
    "at",
    type=Moment(),
    required=True,
    help="The earliest start: 2026-01-05T08:00:00+01:00, or +2h from now.",
)
@click.option("--name", help="The reservation's name [default: the run's].")
@dry_run_option
@output_option
@server_option
def reserve(
    *,
    run: str | None,
    file: str | None,
    at: str,
    name: str | None,
    dry_run: bool,
    output: str,
    server: str | None,
) -> None:
    """Reserve a time for a run; if devices are missing then, others give way by the rules.

    The run starts at that time and not before, however much room there is. It has to be paid for
    like any other; a budget that is short makes nobody give way. Saying it again with another time
    moves the reservation. What it would take is shown now, and later by `fairlead describe
    reservation/NAME`; whether anybody is really asked is `fairlead up --resolver`.

    \b
      fairlead reserve -f big.yaml --at 2026-01-05T08:00:00+01:00
      fairlead reserve train-7 --at +2h --dry-run
      fairlead get reservations
    """
    if (run is None) == (file is None):
        raise click.UsageError("say which run, or give its manifest with -f")
    client, sources = Client(server), read_manifests([file], only="Run") if file else []
    if len(sources) > 1:
        raise click.UsageError(f"{file} has {len(sources)} runs; reserve one after the other")
    runs = [source.document for source in sources]
    of = what(runs[0]).removeprefix("run/") if runs else str(run).removeprefix("run/")
    if not runs:
        get_object(client, "Run", of)  # says which name was perhaps meant
    name = name or of
    wanted = {
        "apiVersion": API_VERSION,
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {"run": of, "earliestStart": at},
    }
    with explained(sources):
        body = {"manifests": [*runs, wanted], "dry_run": dry_run}
        changes = client.call("POST", "/v1/apply", body=body)["items"]
    # None: a control plane that cannot draw lots foretells nothing.
    found, why = changes[-1]["preview"].get("forecast") if dry_run else None, ""
    if not dry_run:
        found, why = forecast_of(client, name)
    if output != "table":
        show({"changes": changes, "forecast": found}, output)
        return
    for each in changes:
        click.echo(f"{what(each['object'])} {each['change']}{' (dry run)' if dry_run else ''}")
    click.echo(f"  run {of} is to start at {moment(at)}")
    if found is not None:
        print_outlook(found, "  ", reserved=True)
    elif why:
        click.echo(f"  {why}")
    if found is None or not found["deficitGPUs"]:
        return
    with suppress(Answer):  # a server that cannot record just now; the reservation is recorded
        mode = client.get("/healthz")["resolver"]
        if mode != "enforce":
            why = "the reservation would be Blocked, and nobody would give way"
            note(f"the resolver is {mode}: {why}")
