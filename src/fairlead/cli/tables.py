"""`budgets`, `leases`, `sponsors`, `owes`: the tables of the control plane."""

from collections.abc import Sequence
from typing import Any

import click

from fairlead.cli.client import Client, server_option
from fairlead.cli.names import complete_column, owner_option
from fairlead.cli.show import Column, moment, note, output_option, show, used_of

_BUDGETS: list[Column] = [
    ("BUDGET", lambda r: r["budget"]),
    ("OWNER", lambda r: r["owner"]),
    ("ENVELOPE", lambda r: r["envelope"]),
    ("FLAVOR", lambda r: r["flavor"]),
    ("LOCATION", lambda r: r["location"]),
    ("GPUS", lambda r: used_of(r["used_gpus"], r["limit_gpus"])),
    ("LENT", lambda r: r["lent_gpus"]),
    ("GPU-HOURS", lambda r: used_of(r["used_gpu_hours"], r["limit_gpu_hours"])),
    ("HELD", lambda r: r["held_gpu_hours"]),
    ("LEFT", lambda r: r["free_gpu_hours"]),
    ("OVERDRAFT", lambda r: r["overdraft_gpu_hours"] or None),
    ("REFILLS", lambda r: moment(r["period_end"])),
    ("CONDITIONS", lambda r: r["conditions"]),
]
_LEASES: list[Column] = [
    ("LEASE", lambda r: r["lease"]),
    ("RUN", lambda r: r["run"]),
    ("OWNER", lambda r: r["owner"]),
    ("ROLE", lambda r: r["role"]),
    ("SLOTS", lambda r: r["slots"]),
    ("PAYER", lambda r: f"{r['budget']}/{r['envelope']}"),
    ("BORROWED", lambda r: r["borrowed"]),
    ("FUNDED", lambda r: "yes" if r["funded"] else "unfunded"),
    ("START", lambda r: moment(r["start"])),
    ("GPU-HOURS", lambda r: r["gpu_hours"]),
]
_SPONSORS: list[Column] = [
    ("OWNER", lambda r: r["owner"]),
    ("BUDGET", lambda r: r["budget"]),
    ("ENVELOPE", lambda r: r["envelope"]),
    ("LOCATION", lambda r: r["location"]),
    ("FREE", lambda r: r["free_gpus"]),
    ("LENT", lambda r: r["lent_gpus"]),
    ("FREE-HOURS", lambda r: r["free_gpu_hours"]),
    ("OPEN", lambda r: r["open"]),
    ("FAMILY", lambda r: r["family"]),
]
_OWES: list[Column] = [
    ("BORROWER", lambda r: r["borrower"]),
    ("LENDER", lambda r: r["lender"]),
    ("GPUS", lambda r: r["gpus"]),
    ("GPU-HOURS", lambda r: r["gpu_hours"]),
]


def _table(
    rows: Sequence[dict[str, Any]], output: str, columns: list[Column], nothing: str
) -> None:
    show(rows, output, columns)
    if not rows and output == "table":
        note(nothing)


def _of_owner(rows: list[dict[str, Any]], owner: str | None) -> list[dict[str, Any]]:
    return [row for row in rows if owner in (None, row["owner"])]


@click.command("budgets")
@owner_option
@output_option
@server_option
def budgets(*, owner: str | None, output: str, server: str | None) -> None:
    """Show what every envelope grants, uses, holds and has left.

    GPUS and GPU-HOURS are used/limit, of the current period; HELD is promised to running leases,
    LEFT has both taken off; OVERDRAFT was used after hours ran out; REFILLS is when the period
    ends. What the conditions ask of you: docs/operate/conditions.md.

    \b
      fairlead budgets
      fairlead budgets --owner team-a -o json | jq '.[].free_gpu_hours'
    """
    rows = Client(server).get("/v1/budgets")
    owners = sorted({row["owner"] for row in rows})
    nothing = "there are no budgets yet; `fairlead apply -f budgets.yaml` makes some"
    if rows:
        nothing = f"{owner!r} has no envelope; owners are {', '.join(owners)}"
    _table(_of_owner(rows, owner), output, _BUDGETS, nothing)


@click.command("leases")
@owner_option
@output_option
@server_option
def leases(*, owner: str | None, output: str, server: str | None) -> None:
    """Show open leases: which run holds which devices, since when, and who pays.

    A lease that is unfunded runs on, is the first to give way, and what it uses goes to an
    overdraft; `fairlead describe run/NAME` says which cap ran out.

    \b
      fairlead leases
      fairlead leases --owner team-a -o json | jq '[.[].gpus] | add'
    """
    rows = _of_owner(Client(server).get("/v1/leases"), owner)
    _table(rows, output, _LEASES, f"{owner} holds no lease" if owner else "nothing is leased")


@click.command("sponsors")
@click.option(
    "--owner", required=True, help="Who would borrow.", shell_complete=complete_column("owner")
)
@click.option(
    "--flavor", required=True, help="Of which GPUs.", shell_complete=complete_column("flavor")
)
@output_option
@server_option
def sponsors(*, owner: str, flavor: str, output: str, server: str | None) -> None:
    """Show who lends to an owner, and how much they still can.

    To borrow, a run says `funding: {allowBorrow: true, sponsors: [OWNER, ...]}`. FAMILY marks
    owners that share without lending: naming them as sponsors changes nothing.

    \b
      fairlead sponsors --owner team-b --flavor H100
    """
    rows = Client(server).get("/v1/sponsors", owner=owner, flavor=flavor)
    _table(
        rows,
        output,
        _SPONSORS,
        f"nobody lends {flavor} to {owner}: an envelope does with "
        f"`lending: {{allow: true, to: [{owner}]}}`",
    )


@click.command("owes")
@output_option
@server_option
def owes(*, output: str, server: str | None) -> None:
    """Show who owes whom: GPUs lent now, GPU-hours lent ever.

    \b
      fairlead owes
    """
    _table(Client(server).get("/v1/owes"), output, _OWES, "nobody ever borrowed")
