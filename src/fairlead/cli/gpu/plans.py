"""`plan` and `explain`: who pays for a run and why, or what is missing and what would help."""

from typing import Any

import click

from fairlead.cli.client import Client, ServerError, reads_api
from fairlead.cli.completion import EXPLAINED, find_object
from fairlead.cli.gpu.render import (
    print_cut,
    print_plan,
    print_preview,
    print_refusal,
    print_room,
    queue_text,
    told,
)
from fairlead.cli.input import BadFile, read_manifests
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import file_option
from fairlead.cli.table import Output, as_called, cell, moment, show
from fairlead.core.units import are, counted


@click.command("plan")
@file_option
@reads_api
def plan(client: Client, out: Output, *, files: tuple[str, ...]) -> None:
    """Show who would pay for a run, or what would fund it.

    Nothing is written, and each run is planned alone (`apply --dry-run` plans several together).
    A run that no budget pays for may start by recall, where others use its owner's envelopes, or
    unfunded, where its manifest allows it. Exit code 1: a run would wait for funding. A funded run
    without free devices is not refused; it would wait.

    \b
      fairlead plan -f run.yaml
      fairlead plan -f run.yaml -o json | jq .refusal.remedy
    """
    plans, sources = [], list(read_manifests(files, only="Run"))
    for source in sources:
        try:
            plans.append(client.call("POST", "/v1/plan", body=source.document))
        except ServerError as error:
            if error.path is None:
                raise
            raise BadFile(f"{source.place}: {error.message}") from None
    if out.is_table:
        for source, one in zip(sources, plans, strict=True):
            if len(plans) > 1:
                click.echo(f"run/{source.document['metadata']['name']}, planned alone:")
            print_plan(one, "  " if len(plans) > 1 else "")
    else:
        show(plans[0] if len(plans) == 1 else plans, out.format)
    ways = ("funded", "recall", "overdraft")
    refused = not all(any(one.get(way) for way in ways) for one in plans)
    click.get_current_context().exit(EXIT_REFUSED if refused else 0)


@click.command("explain")
@click.argument("which", type=EXPLAINED)
@reads_api
def explain(client: Client, out: Output, *, which: tuple[str, str]) -> None:
    """Explain the state of an object from recorded decisions.

    Run: what it waits for, or who pays and where it runs; which outcome preempted it and what it
    can do now. Budget: its conditions and leases. Node: its runs. Reservation: whether it can start
    and the preemption candidates. Lease: the decisions behind it. `fairlead replay N` runs the
    decision of entry N again.

    \b
      fairlead explain run/train-7
      fairlead explain train-7                    # where only one object has this name
      fairlead explain budget/team-a
      fairlead explain run/train-7 -o json | jq .cover.output
    """
    kind, name = find_object(client, which)
    with client.about(kind, name) as path:
        reply = client.get(f"/v1/explain/{path}")
    if not out.is_table:
        show(reply, out.format)
        return
    _EXPLAIN[kind](name, reply)
    for step in ("cover", "placement"):
        if reply.get(step) is not None:
            decision = reply[step]
            replay = f" (fairlead replay {decision['seq']})" if "replay" in _may(reply) else ""
            click.echo(
                f"  {step}: entry {decision['seq']} of the ledger, {moment(decision['time'])}"
                f"{replay}"
            )


def _may(reply: dict[str, Any]) -> list[str]:
    """What the reader may do, as the server says; one of an earlier version does not say."""
    return list(reply.get("may", ("budget", "nonce", "replay", "reserve", "resolve", "uncordon")))


def _reason(status: dict[str, Any], field: str) -> str:
    """`Running (Admitted)`."""
    return f"{status[field]} ({status['reason']})" if status["reason"] else str(status[field])


def _explain_run(name: str, reply: dict[str, Any]) -> None:
    status = reply["object"]["status"]
    click.echo(f"{name}: {_reason(status, 'phase')} since {moment(status['since'])}")
    if status["refusal"] is not None:
        print_refusal(status["refusal"], "  ", asks="budget" not in _may(reply))
    elif status["message"]:
        click.echo(f"  {cell(status['message'])}")
    if reply.get("left") and reply["cut"] is None and reply["left"] != status["message"]:
        click.echo(f"  it ran before: {cell(reply['left'])}")
    if status.get("queue") is not None:
        queue, spec = status["queue"], reply["object"]["spec"]
        if "earliestStart" in queue:
            click.echo(f"  {queue_text(queue, spec['flavor'])}")
        place = f"{queue['position']} of {queue['waiting']} in the queue for {cell(spec['flavor'])}"
        click.echo(f"  {place}")
    if status["nominated"]:
        click.echo("  nominated by its owner: preempted before the owner's other runs")
    for row in reply.get("atRisk", ()):
        click.echo(f"  at risk: {row['message']}")
    if reply["cut"] is not None:
        print_cut(reply["object"], reply["cut"], may=_may(reply))
    for row in reply.get("cordoned", ()):
        uncordon = f" (fairlead uncordon {row['node']})" if "uncordon" in _may(reply) else ""
        free = counted(row["free"], "free GPU")
        unused = f"{free} of it {are(row['free'])} not given out"
        click.echo(f"  node {cell(row['node'])} is cordoned: {unused}{uncordon}")
    pending = status["phase"] == "Pending" and status["reason"] != "DependencyPending"
    forecast = reply["forecast"]
    if pending and forecast is not None and status["refusal"] is None:
        print_room(forecast, "  ")
        if forecast["deficitGPUs"] and "resolve" in _may(reply):
            preview = f"  preemption preview: fairlead resolve --run {name} --dry-run"
            click.echo(as_called(preview))
    if status["phase"] == "Reserved":
        click.echo(as_called(f"  reserved: fairlead explain reservation/{status['reservation']}"))
    _print_leases(reply["leases"])


def _explain_reservation(name: str, reply: dict[str, Any]) -> None:
    spec, status = reply["object"]["spec"], reply["object"]["status"]
    short = status["shortfallGPUs"]
    lack = f", {counted(short, 'GPU')} short" if short else ""
    click.echo(f"{name}: {_reason(status, 'state')}{lack} since {moment(status['since'])}")
    click.echo(f"  run {spec['run']} is to start at {moment(spec['earliestStart'])}")
    if status["message"]:
        click.echo(f"  {cell(told(status['message']))}")
    if status["outcome"] is not None:
        number = status["outcome"]
        click.echo(
            as_called(f"  outcome {number} freed its devices (fairlead audit outcome {number})")
        )
    if reply["forecast"] is not None:
        print_preview(reply["forecast"], "  ", reserved=True)


def _explain_budget(name: str, reply: dict[str, Any]) -> None:
    spec, status = reply["object"]["spec"], reply["object"]["status"]
    click.echo(f"{name}: of {spec['owner']}, {counted(len(spec['envelopes']), 'envelope')}")
    for condition in status["conditions"]:
        if condition["status"] == "True":
            about = f": {condition['message']}" if condition["message"] else ""
            since = moment(condition["lastTransitionTime"])
            click.echo(f"  {condition['type']} ({condition['reason']}) since {since}{about}")
    for row in status["headroom"]:
        left = counted(row["concurrency"], "GPU")
        if row["gpuHours"] is not None:
            left += f" and {row['gpuHours']:.2f} GPU-hours"
        closed = "" if row["open"] else ", closed now"
        click.echo(f"  envelope {row['name']}: {left} left{closed}")
    _print_leases(reply["leases"])


def _explain_node(name: str, reply: dict[str, Any]) -> None:
    spec, status = reply["object"]["spec"], reply["object"]["status"]
    state = "cordoned: nothing new is placed on it" if spec["cordoned"] else "open"
    devices = counted(status["devices"], "virtual device" if status["virtual"] else "device")
    click.echo(f"{name}: {state}; {status['leased']} of {devices} leased")
    if status.get("isolation"):
        click.echo(f"  {status['isolation']}")
    for run in reply["runs"]:
        click.echo(f"  run {run}")


def _explain_lease(name: str, reply: dict[str, Any]) -> None:
    spec, status = reply["object"]["spec"], reply["object"]["status"]
    end = "open" if status["open"] else f"ended {moment(status['end'])} ({status['reason']})"
    click.echo(f"{name}: {spec['role']} lease of run {spec['run']}, {end}")
    virtual = " (virtual)" if status.get("virtual") else ""
    click.echo(
        f"  {', '.join(spec['slots'])}{virtual} since {moment(spec['start'])} ({spec['reason']})"
    )
    payer = _payer(spec["payer"], funded=status["funded"]) + spec["borrowed"] * ", borrowed"
    click.echo(f"  {payer}: {status['gpuHours']:.2f} GPU-hours")


def _payer(payer: dict[str, Any], *, funded: bool) -> str:
    """An unfunded lease is counted on an envelope, and is not paid for."""
    return f"{'paid by' if funded else 'unfunded, on'} {payer['budget']}/{payer['envelope']}"


def _print_leases(leases: list[dict[str, Any]]) -> None:
    for lease in leases:
        marks = lease["borrowed"] * ", borrowed"
        virtual = " (virtual)" if lease.get("virtual") else ""
        click.echo(
            f"  lease {lease['lease']}: {', '.join(lease['slots'])}{virtual} for {lease['run']}, "
            f"{_payer(lease, funded=lease['funded'])}{marks}"
        )


_EXPLAIN = {
    "Run": _explain_run,
    "Budget": _explain_budget,
    "Node": _explain_node,
    "Lease": _explain_lease,
    "Reservation": _explain_reservation,
}
