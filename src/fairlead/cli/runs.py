"""`cancel`, `pause`, `resume`, `runs`, `cordon`, `uncordon`, `drain`: verbs on runs and nodes."""

from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment, server_option
from fairlead.cli.giving_way import print_forecast
from fairlead.cli.manifests import dry_run_option
from fairlead.cli.names import complete_names, nearly
from fairlead.cli.show import output_option, show


def _verb(kind: str, verb: str, done: str, *text: str) -> click.Command:
    """One command for one verb; they differ in words only."""
    noun = kind.lower()
    example = {"Run": "train-7", "Node": "gpu-1"}[kind]
    lines = [*text, f"\b\n  fairlead {verb} {example}\n  fairlead {verb} {example} --dry-run"]

    @click.command(verb, help="\n\n".join(lines))
    @click.argument(
        "names",
        nargs=-1,
        required=True,
        metavar=f"{noun.upper()}...",
        shell_complete=complete_names(kind),
    )
    @dry_run_option
    @output_option
    @server_option
    def command(*, names: tuple[str, ...], dry_run: bool, output: str, server: str | None) -> None:
        client, changes = Client(server), []
        for given in names:
            name = given.removeprefix(f"{noun}/")
            change = _ask(client, kind, name, verb, dry_run=dry_run)
            changes.append(change)
            if output == "table":
                _print(f"{noun}/{name} {done}", change, dry_run=dry_run)
        if output != "table":
            show(changes, output)

    return command


def _ask(client: Client, kind: str, name: str, verb: str, **query: Any) -> dict[str, Any]:
    path = f"/v1/objects/{kind}/{segment(name)}/actions/{verb}"
    try:
        return dict(client.call("POST", path, query=query))
    except Answer as error:
        raise nearly(client, error, kind, name) from None


def _print(line: str, change: dict[str, Any], *, dry_run: bool) -> None:
    unchanged = ", as before" if change["change"] == "unchanged" else ""
    click.echo(f"{line}{unchanged}{' (dry run)' if dry_run else ''}")
    for each in (change["preview"] or {}).get("runs", ()):
        message = f": {each['message']}" if each["message"] else ""
        click.echo(f"  run {each['run']} would be {each['phase']} ({each['reason']}){message}")
    for lease in (change["preview"] or {}).get("leases", ()):
        click.echo(f"  lease {lease} would end")
    forecast = (change["preview"] or {}).get("forecast")
    if forecast is not None:
        print_forecast(forecast, "  ")


cancel = _verb(
    "Run",
    "cancel",
    "is being cancelled",
    "End runs: SIGTERM, then SIGKILL after the server's grace.",
    "What they used is charged, grace included; the rest of the hold is void.",
)
pause = _verb(
    "Run",
    "pause",
    "paused",
    "Stop the processes of runs in place.",
    "Their leases go on, and so do the charges: the devices are taken.",
)
resume = _verb("Run", "resume", "resumed", "Let paused runs go on.")
cordon = _verb("Node", "cordon", "cordoned", "Place nothing new on nodes; what runs there goes on.")
uncordon = _verb("Node", "uncordon", "uncordoned", "Place on nodes again.")
drain = _verb(
    "Node",
    "drain",
    "drained",
    "Cordon nodes and take their runs off.",
    "A gang goes on with its spares where it has enough, and waits again where it has not; "
    "with `fairlead up --resolver enforce` elastic runs shrink first. --dry-run says which.",
)


@click.group("runs")
def runs() -> None:
    """Say how your own runs give way, before somebody else's rules do.

    \b
      fairlead runs nominate sweep-3
      fairlead runs shrink train-7 --to 16
    """


@runs.command("nominate")
@click.argument(
    "names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_names("Run")
)
@click.option("--take-back", is_flag=True, help="They are like your other runs again.")
@dry_run_option
@output_option
@server_option
def nominate(
    *, names: tuple[str, ...], take_back: bool, dry_run: bool, output: str, server: str | None
) -> None:
    """Offer runs of yours to give way first, so that your others are spared longer.

    They go after runs whose hours ran out, and before all others; among several nominated ones
    chance decides as ever.

    \b
      fairlead runs nominate sweep-3 sweep-4
      fairlead runs nominate sweep-3 --take-back
    """
    verb, done = ("withdraw", "like any other") if take_back else ("nominate", "nominated")
    client, changes = Client(server), []
    for given in names:
        name = given.removeprefix("run/")
        changes.append(_ask(client, "Run", name, verb, dry_run=dry_run))
        if output == "table":
            _print(f"run/{name} {done}", changes[-1], dry_run=dry_run)
    if output != "table":
        show(changes, output)


@runs.command("shrink")
@click.argument("name", metavar="RUN", shell_complete=complete_names("Run"))
@click.option(
    "--to",
    "width",
    type=click.IntRange(1, 100_000),
    required=True,
    help="How many GPUs it goes on with.",
)
@dry_run_option
@output_option
@server_option
def shrink(*, name: str, width: int, dry_run: bool, output: str, server: str | None) -> None:
    """Let an elastic run of yours go on with fewer GPUs.

    Its process is told (SIGWINCH, and the file that FAIRLEAD_WIDTH_FILE names) and has its
    `checkpointGrace`; then the groups with the highest numbers are given back, for good: it does
    not grow again. Not below `malleable.minTotalGPUs`, and by whole steps and groups.

    \b
      fairlead runs shrink train-7 --to 16
      fairlead runs shrink train-7 --to 16 --dry-run
    """
    name = name.removeprefix("run/")
    change = _ask(Client(server), "Run", name, "shrink", width=width, dry_run=dry_run)
    if output != "table":
        show([change], output)
    else:
        _print(f"run/{name} shrinks to {width} GPUs", change, dry_run=dry_run)
