"""`apply`, `submit`, `get`, `describe`, `delete`: objects as files and as tables."""

from collections.abc import Sequence
from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment, server_option
from fairlead.cli.giving_way import forecast_of, print_outlook
from fairlead.cli.manifests import dry_run_option, explained, file_option, read_manifests, what
from fairlead.cli.names import (
    ObjectName,
    complete_kind,
    complete_names,
    get_object,
    kind_of,
    nearly,
    owner_option,
)
from fairlead.cli.plans_show import print_plan
from fairlead.cli.show import COLUMNS, cell, moment, note, output_option, show, table, to_yaml

EVENTS_SEARCHED, EVENTS_SHOWN = 1000, 10


def _apply(
    files: Sequence[str], server: str | None, output: str, *, dry_run: bool, only: str = ""
) -> None:
    sources = read_manifests(files, only=only)
    body = {"manifests": [each.document for each in sources], "dry_run": dry_run}
    with explained(sources):
        changes = Client(server).call("POST", "/v1/apply", body=body)["items"]
    if output != "table":
        show(changes, output)
        return
    for each in changes:
        click.echo(f"{what(each['object'])} {each['change']}{' (dry run)' if dry_run else ''}")
        _print_preview(each["object"], each["preview"] or {})


def _print_preview(document: dict[str, Any], preview: dict[str, Any]) -> None:
    if document["kind"] == "Run" and preview:
        print_plan(preview, indent="  ")
    lost = preview.get("unfunded", ())
    for each in lost:
        over = f"{'hours' if each['hours'] else 'GPUs'} of {each['cap']} {cell(each['name'])}"
        click.echo(
            f"  run {each['run']} of {cell(each['owner'])}: {each['gpus']} GPUs would be "
            f"unfunded ({over}, lease {each['lease']})"
        )
    if lost:
        cap = f"{document['metadata']['name']}/{cell(lost[0]['name'])}"
        click.echo(
            "  They would run on, and be the first to give way; once it is applied, "
            f"`fairlead resolve --cap {cap}` ends them."
        )
    if preview.get("forecast") is not None:
        print_outlook(preview["forecast"], "  ", reserved=True)
    for lease in preview.get("leases", ()):
        click.echo(f"  lease {lease} stands on it")


@click.command("apply")
@file_option
@dry_run_option
@output_option
@server_option
def apply(*, files: tuple[str, ...], dry_run: bool, output: str, server: str | None) -> None:
    """Create or change objects: all that the files hold in one step, or nothing.

    Budgets, runs, nodes and reservations; their order in the files does not matter. An error names
    the file, the document and the field. With --dry-run each object is shown with what it would
    lead to beside the others: who would pay for a run, whose leases a lowered budget would pay for
    no longer.

    \b
      fairlead apply -f lab.yaml
      fairlead apply -f nodes.yaml -f budgets/ --dry-run
      fairlead get budgets -o yaml | sed s/128/256/ | fairlead apply -f -
    """
    _apply(files, server, output, dry_run=dry_run)


@click.command("submit")
@file_option
@dry_run_option
@output_option
@server_option
def submit(*, files: tuple[str, ...], dry_run: bool, output: str, server: str | None) -> None:
    """Submit runs. They start as soon as somebody pays and there are devices.

    A run that cannot start yet waits; `fairlead explain run/NAME` says for what. To ask before:
    `fairlead plan`, or --dry-run.

    \b
      fairlead submit -f run.yaml && fairlead logs -f train-7
      fairlead submit -f sweep/ --dry-run
    """
    _apply(files, server, output, dry_run=dry_run, only="Run")


@click.command("get")
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", required=False, shell_complete=complete_names())
@owner_option
@output_option
@server_option
def get(*, kind: str, name: str | None, owner: str | None, output: str, server: str | None) -> None:
    """List objects, or show one: budgets, runs, nodes, reservations, leases.

    -o yaml is what `apply` takes again; several objects become several documents.

    \b
      fairlead get runs
      fairlead get runs --owner team-a -o json | jq -r '.[].metadata.name'
      fairlead get run train-7 -o yaml
    """
    if "/" in kind and name is None:
        kind, _, name = kind.partition("/")
    found, client = kind_of(kind), Client(server)
    if name is None:
        items = client.get(f"/v1/objects/{found}", owner=owner)["items"]
        show(items, output, COLUMNS[found])
        if not items and output == "table":
            note(f"there are no {found.lower()}s" + (f" of owner {owner!r}" if owner else ""))
        return
    one = get_object(client, found, name)
    show([one] if output == "table" else one, output, COLUMNS[found])


@click.command("describe")
@click.argument("which", type=ObjectName())
@output_option
@server_option
def describe(*, which: tuple[str, str], output: str, server: str | None) -> None:
    """Show one object in full, with what happened to it last.

    A reservation comes with its forecast: the earliest start, how many GPUs are missing, who would
    give way for it by rule, and who is at risk with which odds.

    \b
      fairlead describe run/train-7
      fairlead describe reservation/monday
      fairlead describe budget/team-a -o json | jq .object.status.headroom
    """
    (kind, name), client = which, Client(server)
    found = get_object(client, kind, name)
    size = client.get("/v1/head")["size"]
    recent = client.get("/v1/events", after=max(0, size - EVENTS_SEARCHED), limit=EVENTS_SEARCHED)[
        "items"
    ]
    mine = [each for each in recent if each["object"] == {"kind": kind, "name": name}]
    mine = mine[-EVENTS_SHOWN:]
    forecast = forecast_of(client, name)[0] if kind == "Reservation" else None
    if output != "table":
        more = {"forecast": forecast} if kind == "Reservation" else {}
        show({"object": found, **more, "events": mine}, output)
        return
    click.echo(to_yaml(found), nl=False)
    if forecast is not None:
        click.echo("forecast:")
        print_outlook(forecast, "  ", reserved=True)
    click.echo(f"events: {'' if mine else f'none in the last {EVENTS_SEARCHED}'}".rstrip())
    if mine:
        rows = [
            [str(e["seq"]), moment(e["time"]), e["kind"], cell(e["reason"]), cell(e["message"])]
            for e in mine
        ]
        table(("SEQ", "TIME", "KIND", "REASON", "MESSAGE"), rows)


@click.command("delete")
@click.argument("which", type=ObjectName(), nargs=-1, required=True)
@dry_run_option
@output_option
@server_option
def delete(
    *, which: tuple[tuple[str, str], ...], dry_run: bool, output: str, server: str | None
) -> None:
    """Remove objects that nothing uses, one after the other; the first that cannot go ends it.

    A run that is active has to be cancelled first, a node with leases drained, a budget's leases
    ended. Charges and the log of what happened stay.

    \b
      fairlead delete run/train-7 budget/team-a
      fairlead delete node/gpu-1 --dry-run
    """
    client, done = Client(server), []
    for kind, name in which:
        path = f"/v1/objects/{kind}/{segment(name)}"
        try:
            done.append(client.call("DELETE", path, query={"dry_run": dry_run}))
        except Answer as error:
            raise nearly(client, error, kind, name) from None
        if output == "table":
            click.echo(f"{kind.lower()}/{name} deleted{' (dry run)' if dry_run else ''}")
    if output != "table":
        show(done, output)
