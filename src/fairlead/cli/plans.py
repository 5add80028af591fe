"""`plan` and `explain`: who pays and why, or what stands in the way and what would help."""

from typing import Any

import click

from fairlead.cli.client import Answer, Client, segment, server_option
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.manifests import BadManifest, file_option, read_manifests
from fairlead.cli.names import ObjectName, nearly
from fairlead.cli.show import cell, moment, output_option, rows_of, show

_LINE = ("budget", "envelope", "owner", "gpus", "tier", "borrowed")
# What each kind of remedy asks for, in words that point at the manifest.
_CHANGES = {
    "envelope-concurrency": "concurrency of envelope",
    "aggregate-concurrency": "maxConcurrency of aggregate cap",
    "envelope-hours": "maxGPUHours of envelope",
    "aggregate-hours": "maxGPUHours of aggregate cap",
    "lending-concurrency": "lending.maxConcurrency of envelope",
    "lending-hours": "lending.maxGPUHours of envelope",
    "lending-acl": "lending.to of envelope",
    "borrow-limit": "the run's",
}
_FIELDS = {"max_borrow_gpus": "funding.maxBorrowGPUs", "allow_borrow": "funding.allowBorrow"}


@click.command("plan")
@file_option
@output_option
@server_option
@click.pass_context
def plan(
    ctx: click.Context, *, files: tuple[str, ...], output: str, server: str | None
) -> None:  # fmt: skip
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


def print_plan(found: dict[str, Any], indent: str = "") -> None:
    """Who pays, where it starts, what to mind; or the refusal."""
    if not found["funded"]:
        print_refusal(found["refusal"], indent)
        return
    rows_of(
        found["plan"],
        [(key.upper(), lambda row, key=key: row[key]) for key in _LINE],  # type: ignore[misc]
        indent=indent,
    )
    if found["starts"]:
        slots = [slot for group in found["placement"]["groups"] for slot in group["active"]]
        click.echo(f"{indent}starts now on {', '.join(slots)}")
    else:
        missing = found["placement"]["shortfall_gpus"]
        click.echo(f"{indent}funded, but {missing} GPUs find no place now: it would wait")
    for warning in found.get("warnings", ()):
        click.echo(f"{indent}mind: {warning}")


def print_refusal(refusal: dict[str, Any], indent: str = "") -> None:
    """Why a run is not funded, and the smallest change that would fund it."""
    remedy, message = refusal["remedy"], refusal["message"]
    # The sentence ends with the remedy; below it is said in the manifest's words.
    short = message if remedy is None else message.rpartition("; ")[0]
    click.echo(f"{indent}{refusal['code']}: {short}")
    for each in refusal["binding"]:
        where = "/".join(filter(None, (each["budget"], each["name"])))
        click.echo(f"{indent}  {each['kind']} {where}: {each['used']} of {each['limit']} used")
    if remedy is None:
        click.echo(f"{indent}  no single change would fund it")
        return
    where = "/".join(filter(None, (remedy["budget"], _FIELDS.get(remedy["name"], remedy["name"]))))
    change = _CHANGES.get(remedy["change"], remedy["change"])
    click.echo(
        f"{indent}  would help: {change} {where} from {_value(remedy['from'])} to "
        f"{_value(remedy['to'])}"
    )


def _value(value: Any) -> str:
    """As it is written in a manifest."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else str(value)


@click.command("explain")
@click.argument("which", type=ObjectName())
@output_option
@server_option
def explain(*, which: tuple[str, str], output: str, server: str | None) -> None:
    """Say why an object is as it is, from the recorded decisions.

    A run: what it waits for, or who pays and where it stands. A budget: its conditions and what it
    pays for. A node: who stands on it. A lease: the decisions that made it. The numbers of entries
    are for `fairlead replay`, which decides them again.

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
            click.echo(f"  {step}: entry {decided['seq']} of the ledger, {moment(decided['time'])}"
                       f" (fairlead replay {decided['seq']})")  # fmt: skip


def _explain_run(name: str, found: dict[str, Any]) -> None:
    status = found["object"]["status"]
    click.echo(f"{name}: {status['phase']} ({status['reason']}) since {moment(status['since'])}")
    if status["refusal"] is not None:
        print_refusal(status["refusal"], "  ")
    elif status["message"]:
        click.echo(f"  {cell(status['message'])}")
    _print_leases(found["leases"])


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
        click.echo(f"  lease {lease['lease']}: {', '.join(lease['slots'])} for {lease['run']}, "
                   f"paid by {lease['budget']}/{lease['envelope']}{loan}{lost}")  # fmt: skip


_EXPLAIN = {
    "Run": _explain_run, "Budget": _explain_budget, "Node": _explain_node, "Lease": _explain_lease,
}  # fmt: skip
