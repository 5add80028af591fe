"""Verbs on runs and nodes, their output, and the stream of events."""

import contextlib
import json
import sys
from typing import Any

import click

from fairlead.cli.client import Client, segment, server_option
from fairlead.cli.show import cell, moment


def _act(kind: str, name: str, verb: str, done: str, server: str | None) -> None:
    name = name.removeprefix(f"{kind.lower()}/")
    Client(server).call("POST", f"/v1/objects/{kind}/{segment(name)}/actions/{verb}")
    click.echo(f"{kind.lower()}/{name} {done}")


def _verb(kind: str, verb: str, done: str, text: str, example: str) -> click.Command:
    """One command for one verb; they differ in words only."""

    @click.command(verb, help=f"{text}\n\n\b\n  fairlead {verb} {example}")
    @click.argument("names", nargs=-1, required=True)
    @server_option
    def command(*, names: tuple[str, ...], server: str | None) -> None:
        for name in names:
            _act(kind, name, verb, done, server)

    return command


cancel = _verb(
    "Run",
    "cancel",
    "is being cancelled",
    "End runs: SIGTERM, then SIGKILL after the "
    "grace. What they used is charged, the rest of the hold is void.",
    "train-7",
)
pause = _verb(
    "Run",
    "pause",
    "paused",
    "Stop the processes of runs in place. Their leases, and the charges, go on.",
    "train-7",
)
resume = _verb("Run", "resume", "resumed", "Let paused runs go on.", "train-7")
cordon = _verb("Node", "cordon", "cordoned", "Place nothing new on nodes.", "gpu-1")
uncordon = _verb("Node", "uncordon", "uncordoned", "Place on nodes again.", "gpu-1")
drain = _verb("Node", "drain", "drained", "Cordon nodes and take their runs off: gangs go on with "
              "their spares, or wait again.", "gpu-1")  # fmt: skip


@click.command("logs")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--tail", type=click.IntRange(0, 100_000), help="Begin so many lines before the end.")
@server_option
def logs(*, name: str, follow: bool, tail: int | None, server: str | None) -> None:
    """Print what a run wrote, to those who may act for its owner.

    \b
      fairlead logs -f train-7
    """
    path = f"/v1/runs/{segment(name.removeprefix('run/'))}/logs"
    out = sys.stdout.buffer
    with contextlib.suppress(KeyboardInterrupt):
        for data in Client(server).lines(path, follow=follow, tail=tail):
            out.write(data)
            out.flush()


@click.command("watch")
@click.option("--after", type=click.IntRange(0), help="Begin after this entry [default: now].")
@click.option("--limit", type=click.IntRange(1), help="End after so many events.")
@click.option("--owner", help="Only those of an owner.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table",
              show_default=True, help="A line for eyes, or a line of JSON.")  # fmt: skip
@server_option
def watch(
    *, after: int | None, limit: int | None, owner: str | None, output: str, server: str | None
) -> None:  # fmt: skip
    """Print what happens, as it happens. Ctrl-C ends it.

    \b
      fairlead watch
      fairlead watch --after 0 -o json | jq .kind
    """
    left, rest = limit, b""
    asked = None if owner else limit
    with contextlib.suppress(KeyboardInterrupt):
        for data in Client(server).lines("/v1/watch", after=after, limit=asked):
            *lines, rest = (rest + data).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if owner is not None and event["owner"] != owner:
                    continue
                click.echo(line if output == "json" else _line(event))
                left = None if left is None else left - 1
                if left == 0:
                    return


def _line(event: dict[str, Any]) -> str:
    about = event["object"]
    what = f"{about['kind'].lower()}/{about['name']}" if about else "-"
    parts = (str(event["seq"]).rjust(6), moment(event["time"]), event["kind"].ljust(16), what,
             event["reason"] or "", event["message"])  # fmt: skip
    return "  ".join(cell(part) for part in parts if part)
