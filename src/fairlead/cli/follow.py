"""`logs` and `watch`: the output of runs and the stream of events, as they come."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment, server_option
from fairlead.cli.names import ObjectName, complete_names, get_object, nearly, owner_option
from fairlead.cli.show import cell, moment, note, output_option, show


@click.command("logs")
@click.argument("run", shell_complete=complete_names("Run"))
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--tail", type=click.IntRange(0, 100_000), help="Begin so many lines before the end.")
@server_option
def logs(*, run: str, follow: bool, tail: int | None, server: str | None) -> None:
    """Print what a run wrote, to those who may act for its owner.

    Output and errors come together, as they were written. Of a long output the end is kept. With
    -f it waits for a run that has not started yet; Ctrl-C leaves, and the run goes on.

    \b
      fairlead logs train-7
      fairlead logs -f train-7 --tail 20
    """
    name, client, empty = run.removeprefix("run/"), Client(server), True
    out = sys.stdout.buffer
    with contextlib.suppress(KeyboardInterrupt):
        try:
            for data in client.lines(f"/v1/runs/{segment(name)}/logs", follow=follow, tail=tail):
                out.write(data)
                out.flush()
                empty = False
        except Answer as error:
            raise nearly(client, error, "Run", name) from None
        if empty and tail != 0:
            status = get_object(client, "Run", name)["status"]
            why = f": {cell(status['message'])}" if status["message"] else ""
            note(f"run/{name} wrote nothing; it is {status['phase']} ({status['reason']}){why}")


@click.command("watch")
@click.argument("which", type=ObjectName(), required=False)
@click.option("--after", type=click.IntRange(0), help="Begin after this entry [default: now].")
@click.option("--limit", type=click.IntRange(1), help="End after so many events.")
@owner_option
@output_option
@server_option
def watch(
    *,
    which: tuple[str, str] | None,
    after: int | None,
    limit: int | None,
    owner: str | None,
    output: str,
    server: str | None,
) -> None:
    """Print what happens, as it happens: everything, or to one object. Ctrl-C ends it.

    Each line is an entry of the ledger. -o json prints one JSON text per line, -o yaml one document
    each.

    \b
      fairlead watch
      fairlead watch run/train-7
      fairlead watch --owner team-a --after 0 -o json | jq -r .kind
    """
    left = limit
    with contextlib.suppress(KeyboardInterrupt):
        for event in _events(Client(server), after):
            about = event["object"] or {"kind": None, "name": None}
            if owner not in (None, event["owner"]):
                continue
            if which not in (None, (about["kind"], about["name"])):
                continue
            _print(event, output)
            left = None if left is None else left - 1
            if left == 0:
                return


def _events(client: Client, after: int | None) -> Iterator[dict[str, Any]]:
    rest = b""
    for data in client.lines("/v1/watch", after=after):
        *lines, rest = (rest + data).split(b"\n")
        for line in filter(None, lines):
            yield json.loads(line)


def _print(event: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
    elif output == "yaml":
        click.echo("---")
        show(event, "yaml")
    else:
        about = event["object"]
        what = f"{about['kind'].lower()}/{about['name']}" if about else "-"
        parts = (
            str(event["seq"]).rjust(6),
            moment(event["time"]),
            event["kind"].ljust(16),
            what,
            event["reason"] or "",
            event["message"],
        )
        click.echo("  ".join(cell(part) for part in parts if part))
    sys.stdout.flush()
