"""`budgets`, `leases`, `sponsors`, `owes` and `report`: usage and money in tables."""

import sys
from datetime import UTC, datetime
from typing import Any

import click

from fairlead.cli.client import Client, reads_api
from fairlead.cli.completion import FLAVOR, OWNER, owner_option
from fairlead.cli.gpu.render import slots_text
from fairlead.cli.options import option, output_format, server_option
from fairlead.cli.table import Column, Output, columns, note, print_table, show, used_of

_BUDGETS = columns(
    "budget owner envelope flavor location",
    ("GPUS", lambda r: used_of(r["used_gpus"], r["limit_gpus"])),
    "LENT=lent_gpus",
    ("GPU-HOURS", lambda r: used_of(r["used_gpu_hours"], r["limit_gpu_hours"])),
    "HELD=held_gpu_hours LEFT=free_gpu_hours",
    ("OVERDRAFT", lambda r: r["overdraft_gpu_hours"] or None),
    "REFILLS@period_end conditions",
    wide=["FREE-GPUS=free_gpus"],
)
_LEASES = columns(
    "lease run owner role",
    ("SLOTS", lambda r: slots_text(r["slots"], virtual=r.get("virtual", False))),
    ("PAYER", lambda r: f"{r['budget']}/{r['envelope']}"),
    "borrowed",
    ("FUNDED", lambda r: "yes" if r["funded"] else "unfunded"),
    "START@start GPU-HOURS=gpu_hours",
    wide=["group gpus EXPECTED-END@expected_end"],
)
_SPONSORS = columns(
    "owner budget envelope location FREE=free_gpus LENT=lent_gpus",
    "FREE-HOURS=free_gpu_hours open family",
)
_OWES = columns("borrower lender gpus GPU-HOURS=gpu_hours")


def _of_owner(rows: list[dict[str, Any]], owner: str | None) -> list[dict[str, Any]]:
    return [row for row in rows if owner in (None, row["owner"])]


@click.command("budgets")
@owner_option
@reads_api
def budgets(client: Client, out: Output, *, owner: str | None) -> None:
    """Show what each envelope grants, uses and has left.

    GPUS and GPU-HOURS are used/limit in the current period. HELD is promised to running leases, and
    LEFT excludes it. OVERDRAFT was used after the hours ran out. REFILLS is the end of the period.
    Conditions are explained in docs/operate/conditions.md.

    \b
      fairlead budgets
      fairlead budgets --owner team-a -o json | jq '.[].free_gpu_hours'
    """
    rows = client.get("/v1/budgets")
    owners = sorted({row["owner"] for row in rows})
    empty = "there are no budgets yet; `fairlead apply -f budgets.yaml` creates some"
    if rows:
        empty = f"{owner!r} has no envelope; owners are {', '.join(owners)}"
    out.rows(_of_owner(rows, owner), _BUDGETS, empty=empty)


@click.command("leases")
@owner_option
@reads_api
def leases(client: Client, out: Output, *, owner: str | None) -> None:
    """Show open leases: run, devices, start and payer.

    An unfunded lease keeps running, is preempted first, and its use counts as overdraft;
    `fairlead describe run/NAME` says which cap ran out.

    \b
      fairlead leases
      fairlead leases --owner team-a -o json | jq '[.[].gpus] | add'
    """
    rows = _of_owner(client.get("/v1/leases"), owner)
    empty = f"{owner} holds no lease" if owner else "no device is leased"
    out.rows(rows, _LEASES, empty=empty)


@click.command("sponsors")
@option("--owner", OWNER, "Name the borrower.", required=True)
@option("--flavor", FLAVOR, "Name the GPU flavor.", required=True)
@reads_api
def sponsors(client: Client, out: Output, *, owner: str, flavor: str) -> None:
    """Show who lends to an owner, and how much is free.

    A run borrows with `funding: {allowBorrow: true, sponsors: [OWNER, ...]}`. FAMILY marks owners
    that share without lending; they need not be named as sponsors.

    \b
      fairlead sponsors --owner team-b --flavor H100
    """
    rows = client.get("/v1/sponsors", owner=owner, flavor=flavor)
    empty = (
        f"no envelope lends {flavor} to {owner}; one that should needs "
        f"`lending: {{allow: true, to: [{owner}]}}`"
    )
    out.rows(rows, _SPONSORS, empty=empty)


@click.command("owes")
@reads_api
def owes(client: Client, out: Output) -> None:
    """Show who owes whom: GPUs lent now, GPU-hours ever.

    \b
      fairlead owes
    """
    out.rows(client.get("/v1/owes"), _OWES, empty="no owner has ever borrowed")


BY = ("owner", "envelope", "budget", "run")
PERIODS = ("day", "week", "month", "quarter")
_GROUPED = ("owner", "run", "payer", "budget", "envelope", "borrowed")
_USAGE = columns("GPU-HOURS=gpu_hours", ("OVERDRAFT", lambda r: r["overdraft_gpu_hours"] or None))
_READ = columns(
    ("GPU%", lambda r: r["utilisation_percent"]),
    ("LEASED-IDLE", lambda r: r["leased_idle_gpu_hours"]),
)
_VIRTUAL = columns(("VIRTUAL", lambda r: "virtual" if r["virtual"] else None))
_IDLE = columns(
    "period node IDLE-GPU-HOURS=idle_gpu_hours IDLE-AT-END=idle_gpus", "LONGEST-SINCE@idle_since"
)


def day(text: str) -> str:
    """`2026-01-31` (UTC) or an RFC 3339 time with its zone, as the server takes it."""
    try:
        time = datetime.fromisoformat(text)
        zoned = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):  # of a time that its zone moves off the calendar
        examples = "2026-01-31, or 2026-01-31T12:00:00Z"
        raise click.BadParameter(f"must be a day like {examples}, got {text!r}") from None
    if time.tzinfo is None and (time.hour, time.minute, time.second) != (0, 0, 0):
        raise click.BadParameter(f"needs a zone, such as {text}Z")
    return zoned.isoformat(timespec="seconds").replace("+00:00", "Z")


@click.command("report")
@option("--by", BY, "Group rows by this.", default="envelope")
@option("--period", PERIODS, "Sum by UTC period; weeks start on Monday.", default="month")
@option("--since=DAY", day, "First day, UTC [default: the period 30 days ago].")
@option("--until=DAY", day, "Last day, UTC [default: now].")
@output_format("table", "csv", "json", "yaml", text="Output format [default: csv in a pipe].")
@server_option
def report(*, output: str | None, server: str | None = None, **query: str | None) -> None:
    """Report GPU-hours for chargeback, and idle devices.

    `owner` used the GPU-hours and `payer` paid for them; `borrowed` ones were lent. Overdraft was
    used after hours ran out and is included in the GPU-hours. Each charge is in exactly one row;
    open leases count up to now. GPU% is how busy leased devices were, and LEASED-IDLE for how many
    GPU-hours they did nothing, as far as that was read (NVML, every 10 s). Rows of kind `idle` have
    the GPU-hours that no run leased, the devices idle at the end of the period, and since when the
    longest of them.

    \b
      fairlead report --since 2026-01-01 --until 2026-04-01 --period quarter > q1.csv
      fairlead report --by owner --period week -o table
      fairlead report --by run --period day --since 2026-03-01 -o json
    """
    output = output or ("table" if sys.stdout.isatty() else "csv")
    form = "csv" if output == "csv" else "json"
    reply = Client(server).get("/v1/report", **query, format=form)
    if output == "csv":
        click.echo(reply, nl=False)
    elif output != "table":
        show(reply, output)
    else:
        _print_report(reply)


def _print_report(rows: list[dict[str, Any]]) -> None:
    used = [row for row in rows if row["kind"] == "usage"]
    grouped = [name for name in _GROUPED if any(row[name] is not None for row in used)]
    shown: list[Column] = [*columns("period", *grouped), *_USAGE]
    shown += _READ if any(row.get("read_gpu_hours") for row in used) else []
    shown += _VIRTUAL if any(row.get("virtual") for row in used) else []
    if used:
        print_table(used, shown)
    else:
        note("no GPU was used in that time")
    idle = [row for row in rows if row["kind"] == "idle"]
    if idle:
        click.echo()
        virtual = any(row.get("virtual") for row in idle)
        print_table(idle, [*_IDLE, *(_VIRTUAL if virtual else ())])
