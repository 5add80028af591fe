"""`plan` and `explain`: who pays and why, or what stands in the way and what would help."""

from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment, server_option
from fairlead.cli.giving_way import print_cut, print_outlook, print_room
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.manifests import BadManifest, file_option, read_manifests
from fairlead.cli.names import ObjectName, nearly
from fairlead.cli.plans_show import print_plan, print_refusal
from fairlead.cli.show import cell, moment, output_option, show


@click.command("plan")
@file_option
@output_option
@server_option
@click.pass_context
def plan(ctx: click.Context, *, files: tuple[str, ...], output: str, server: str | None) -> None:
    """Show who would pay for a run and where it would start; or why not, and what would help.

    Nothing is written, and each run is planned as if it were alone (`apply --dry-run` plans them
    together). Exit code 1 when one of them is not funded; a run that is funded but finds no free
    devices is not refused, it would wait.

    \b
      fairlead plan -f run.yaml
      fairlead plan -f run.yaml -o json | jq .refusal.remedy
    """
    client, found = Client(server), []
    for source in read_manifests(files, only="Run"):
        try:
            found.append(client.call("POST", "/v1/plan", body=source.document))
        except Answer as error:
            if error.path is None:
                raise
            raise BadManifest(f"{source.place}: {error.message}") from None
    if output == "table":
        for each in found:
            print_plan(each)
    else:
        show(found[0] if len(found) == 1 else found, output)
    ctx.exit(0 if all(each["funded"] for each in found) else EXIT_REFUSED)


@click.command("explain")
@click.argument("which", type=ObjectName())
@output_option
@server_option
def explain(*, which: tuple[str, str], output: str, server: str | None) -> None:
    """Say why an object is as it is, from the recorded decisions.

    A run: what it waits for, or who pays and where it stands; why it was cut, by which outcome,
    and what it can do now. A budget: its conditions and what it pays for. A node: who stands on
    it. A reservation: whether it can start, and who would give way. A lease: the decisions that
    made it. The numbers of entries are for `fairlead replay`, which decides them again.

    \b
      fairlead explain run/train-7
      fairlead explain budget/team-a
      fairlead explain run/train-7 -o json | jq .cover.output
    """
    (kind, name), client = which, Client(server)
    try:
        found = client.get(f"/v1/explain/{kind}/{segment(name)}")
    except Answer as error:
        raise nearly(client, error, kind, name) from None
    if output != "table":
        show(found, output)
        return
    _EXPLAIN[kind](name, found)
    for step in ("cover", "placement"):
        if found.get(step) is not None:
            decided = found[step]
            click.echo(
                f"  {step}: entry {decided['seq']} of the ledger, {moment(decided['time'])}"
                f" (fairlead replay {decided['seq']})"
            )


def _explain_run(name: str, found: dict[str, Any]) -> None:
    status = found["object"]["status"]
    click.echo(f"{name}: {status['phase']} ({status['reason']}) since {moment(status['since'])}")
    if status["refusal"] is not None:
        print_refusal(status["refusal"], "  ")
    elif status["message"]:
        click.echo(f"  {cell(status['message'])}")
    if status["nominated"]:
        click.echo("  nominated by its owner: it gives way before the owner's other runs")
    if found["cut"] is not None:
        print_cut(found["object"], found["cut"])
    waits, outlook = status["phase"] == "Pending", found["forecast"]
    if waits and outlook is not None and status["refusal"] is None:
        print_room(outlook, "  ")
        if outlook["deficitGPUs"]:
            click.echo(f"  who would give way for it: fairlead resolve --run {name} --dry-run")
    if status["phase"] == "Reserved":
        click.echo(f"  it waits for its time: fairlead explain reservation/{status['reservation']}")
    _print_leases(found["leases"])


def _explain_reservation(name: str, found: dict[str, Any]) -> None:
    spec, status = found["object"]["spec"], found["object"]["status"]
    short = f", {status['shortfallGPUs']} GPUs short" if status["shortfallGPUs"] else ""
    click.echo(
        f"{name}: {status['state']} ({status['reason']}){short} since {moment(status['since'])}"
    )
    click.echo(f"  run {spec['run']} is to start at {moment(spec['earliestStart'])}")
    if status["message"]:
        click.echo(f"  {cell(status['message'])}")
    if status["outcome"] is not None:
        number = status["outcome"]
        click.echo(f"  outcome {number} made room for it (fairlead audit outcome {number})")
    if found["forecast"] is not None:
        print_outlook(found["forecast"], "  ", reserved=True)


def _explain_budget(name: str, found: dict[str, Any]) -> None:
    spec, status = found["object"]["spec"], found["object"]["status"]
    click.echo(f"{name}: of {spec['owner']}, {len(spec['envelopes'])} envelopes")
    for each in status["conditions"]:
        if each["status"] == "True":
            about = f": {each['message']}" if each["message"] else ""
            since = moment(each["lastTransitionTime"])
            click.echo(f"  {each['type']} ({each['reason']}) since {since}{about}")
    for row in status["headroom"]:
        left = f"{row['concurrency']} GPUs left"
        if row["gpuHours"] is not None:
            left = f"{row['concurrency']} GPUs and {row['gpuHours']:.2f} GPU-hours left"
        closed = "" if row["open"] else ", closed now"
        click.echo(f"  envelope {row['name']}: {left}{closed}")
    _print_leases(found["leases"])


def _explain_node(name: str, found: dict[str, Any]) -> None:
    spec, status = found["object"]["spec"], found["object"]["status"]
    state = "cordoned: nothing new is placed on it" if spec["cordoned"] else "open"
    click.echo(f"{name}: {state}; {status['leased']} of {status['devices']} devices leased")
    for run in found["runs"]:
        click.echo(f"  run {run}")


def _explain_lease(name: str, found: dict[str, Any]) -> None:
    spec, status = found["object"]["spec"], found["object"]["status"]
    payer = f"{spec['payer']['budget']}/{spec['payer']['envelope']}"
    end = "open" if status["open"] else f"ended {moment(status['end'])} ({status['reason']})"
    click.echo(f"{name}: {spec['role']} lease of run {spec['run']}, {end}")
    click.echo(f"  {', '.join(spec['slots'])} since {moment(spec['start'])} ({spec['reason']})")
    loan, lost = spec["borrowed"] * ", borrowed", (not status["funded"]) * ", unfunded"
    click.echo(f"  paid by {payer}{loan}: {status['gpuHours']:.2f} GPU-hours{lost}")


def _print_leases(leases: list[dict[str, Any]]) -> None:
    for lease in leases:
        loan, lost = lease["borrowed"] * ", borrowed", (not lease["funded"]) * ", unfunded"
        click.echo(
            f"  lease {lease['lease']}: {', '.join(lease['slots'])} for {lease['run']}, "
            f"paid by {lease['budget']}/{lease['envelope']}{loan}{lost}"
        )


_EXPLAIN = {
    "Run": _explain_run,
    "Budget": _explain_budget,
    "Node": _explain_node,
    "Lease": _explain_lease,
    "Reservation": _explain_reservation,
}
