"""`logs` and `watch`: the output of runs and the stream of events."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from fairlead.cli.client import Client, reads_api, segment
from fairlead.cli.completion import OBJECT, RUN, owner_option
from fairlead.cli.options import flag, option, server_option
from fairlead.cli.table import Output, cell, moment, note, show


@click.command("logs")
@click.argument("run", type=RUN)
@flag("-f --follow", "Follow until the run ends.")
@option("--tail", click.IntRange(0, 100_000), "Start this many lines from the end.")
@server_option
def logs(*, run: str, follow: bool, tail: int | None, server: str | None) -> None:
    """Print the output of a run.

    Standard output and errors in the order of writing. Requires that you act for the run's owner.
    Of a long output the end is kept. -f also waits for a run that has not started; Ctrl-C stops
    following, and the run continues.

    \b
      fairlead logs train-7
      fairlead logs -f train-7 --tail 20
    """
    client, empty, out = Client(server), True, sys.stdout.buffer
    with contextlib.suppress(KeyboardInterrupt):
        with client.about("Run", run):
            for data in client.lines(f"/v1/runs/{segment(run)}/logs", follow=follow, tail=tail):
                out.write(data)
                out.flush()
                empty = False
        if empty and tail != 0:
            status = client.get_object("Run", run)["status"]
            why = f": {cell(status['message'])}" if status["message"] else ""
            note(f"run/{run} has no output; it is {status['phase']} ({status['reason']}){why}")


@click.command("watch")
@click.argument("which", type=OBJECT, required=False)
@option("--after", click.IntRange(0), "Start after this entry [default: now].")
@option("--limit", click.IntRange(1), "Stop after this many events.")
@owner_option
@reads_api
def watch(
    client: Client,
    out: Output,
    *,
    which: tuple[str, str] | None,
    after: int | None,
    limit: int | None,
    owner: str | None,
) -> None:
    """Print events as they happen, of all objects or one.

    Each event is an entry of the ledger. -o json prints one JSON document per line, -o yaml one
    YAML document each. Ctrl-C stops it.

    \b
      fairlead watch
      fairlead watch run/train-7
      fairlead watch --owner team-a --after 0 -o json | jq -r .kind
    """
    left = limit
    with contextlib.suppress(KeyboardInterrupt):
        for event in _events(client, after):
            about = event["object"] or {"kind": None, "name": None}
            if owner not in (None, event["owner"]):
                continue
            if which not in (None, (about["kind"], about["name"])):
                continue
            print_event(event, out.format)
            left = None if left is None else left - 1
            if left == 0:
                return


def _events(client: Client, after: int | None) -> Iterator[dict[str, Any]]:
    rest = b""
    for data in client.lines("/v1/watch", after=after):
        *lines, rest = (rest + data).split(b"\n")
        for line in filter(None, lines):
            yield json.loads(line)


def print_event(event: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
    elif output == "yaml":
        click.echo("---")
        show(event, "yaml")
    else:
        about = event["object"]
        parts = (
            "" if event["seq"] is None else str(event["seq"]).rjust(6),
            moment(event["time"]),
            event["kind"].ljust(16),
            f"{about['kind'].lower()}/{about['name']}" if about else "-",
            event["reason"] or "",
            event["message"],
        )
        click.echo("  ".join(cell(part) for part in parts if part))
    sys.stdout.flush()
