"""`cancel`, `pause`, `resume`, `cordon`, `uncordon`, `drain`: verbs on runs and nodes."""

from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment, server_option
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
        "names", nargs=-1, required=True, metavar=f"{noun.upper()}...",
        shell_complete=complete_names(kind),
    )  # fmt: skip
    @dry_run_option
    @output_option
    @server_option
    def command(*, names: tuple[str, ...], dry_run: bool, output: str, server: str | None) -> None:
        client, changes = Client(server), []
        for given in names:
            name = given.removeprefix(f"{noun}/")
            path = f"/v1/objects/{kind}/{segment(name)}/actions/{verb}"
            try:
                change = client.call("POST", path, query={"dry_run": dry_run})
            except Answer as error:
                raise nearly(client, error, kind, name) from None
            changes.append(change)
            if output == "table":
                _print(f"{noun}/{name} {done}", change, dry_run=dry_run)
        if output != "table":
            show(changes, output)

    return command


def _print(line: str, change: dict[str, Any], *, dry_run: bool) -> None:
    unchanged = ", as before" if change["change"] == "unchanged" else ""
    click.echo(f"{line}{unchanged}{' (dry run)' if dry_run else ''}")
    for each in (change["preview"] or {}).get("runs", ()):
        message = f": {each['message']}" if each["message"] else ""
        click.echo(f"  run {each['run']} would be {each['phase']} ({each['reason']}){message}")


cancel = _verb(
    "Run", "cancel", "is being cancelled",
    "End runs: SIGTERM, then SIGKILL after the server's grace.",
    "What they used is charged, grace included; the rest of the hold is void.",
)  # fmt: skip
pause = _verb(
    "Run", "pause", "paused",
    "Stop the processes of runs in place.",
    "Their leases go on, and so do the charges: the devices are taken.",
)  # fmt: skip
resume = _verb("Run", "resume", "resumed", "Let paused runs go on.")
cordon = _verb("Node", "cordon", "cordoned", "Place nothing new on nodes; what runs there goes on.")
uncordon = _verb("Node", "uncordon", "uncordoned", "Place on nodes again.")
drain = _verb(
    "Node", "drain", "drained",
    "Cordon nodes and take their runs off.",
    "A gang goes on with its spares where it has enough, and waits again where it has not; "
    "--dry-run says which.",
)  # fmt: skip
