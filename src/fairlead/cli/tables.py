"""`budgets`, `leases`, `sponsors`, `owes`, `report`: the tables of the control plane."""

from datetime import UTC, datetime

import click

from fairlead.cli.client import Client, server_option
from fairlead.cli.show import moment, output_option, show, used_of


@click.command("budgets")
@click.option("--owner", help="Only those of an owner.")
@output_option
@server_option
def budgets(*, owner: str | None, output: str, server: str | None) -> None:
    """Show what every envelope grants, uses, holds and has left.

    \b
      fairlead budgets --owner team-a
    """
    rows = [row for row in Client(server).get("/v1/budgets") if owner in (None, row["owner"])]
    show(
        rows, output,
        [
            ("BUDGET", lambda r: r["budget"]), ("OWNER", lambda r: r["owner"]),
            ("ENVELOPE", lambda r: r["envelope"]), ("FLAVOR", lambda r: r["flavor"]),
            ("LOCATION", lambda r: r["location"]),
            ("GPUS", lambda r: used_of(r["used_gpus"], r["limit_gpus"])),
            ("LENT", lambda r: r["lent_gpus"]),
            ("GPU-HOURS", lambda r: used_of(r["used_gpu_hours"], r["limit_gpu_hours"])),
            ("HELD", lambda r: r["held_gpu_hours"]), ("LEFT", lambda r: r["free_gpu_hours"]),
            ("CONDITIONS", lambda r: r["conditions"]),
        ],
    )  # fmt: skip


@click.command("leases")
@click.option("--owner", help="Only those of an owner.")
@output_option
@server_option
def leases(*, owner: str | None, output: str, server: str | None) -> None:
    """Show open leases: which run holds which devices, and who pays."""
    rows = [row for row in Client(server).get("/v1/leases") if owner in (None, row["owner"])]
    show(
        rows, output,
        [
            ("LEASE", lambda r: r["lease"]), ("RUN", lambda r: r["run"]),
            ("OWNER", lambda r: r["owner"]), ("ROLE", lambda r: r["role"]),
            ("SLOTS", lambda r: r["slots"]),
            ("PAYER", lambda r: f"{r['budget']}/{r['envelope']}"),
            ("BORROWED", lambda r: r["borrowed"]), ("FUNDED", lambda r: r["funded"]),
            ("START", lambda r: moment(r["start"])), ("GPU-HOURS", lambda r: r["gpu_hours"]),
        ],
    )  # fmt: skip


@click.command("sponsors")
@click.option("--owner", required=True, help="Who would borrow.")
@click.option("--flavor", required=True, help="Of which GPUs.")
@output_option
@server_option
def sponsors(*, owner: str, flavor: str, output: str, server: str | None) -> None:
    """Show who lends to an owner, and how much they still can.

    \b
      fairlead sponsors --owner team-b --flavor H100
    """
    rows = Client(server).get("/v1/sponsors", owner=owner, flavor=flavor)
    show(
        rows, output,
        [
            ("OWNER", lambda r: r["owner"]), ("BUDGET", lambda r: r["budget"]),
            ("ENVELOPE", lambda r: r["envelope"]), ("LOCATION", lambda r: r["location"]),
            ("FREE", lambda r: r["free_gpus"]), ("LENT", lambda r: r["lent_gpus"]),
            ("FREE-HOURS", lambda r: r["free_gpu_hours"]), ("OPEN", lambda r: r["open"]),
            ("FAMILY", lambda r: r["family"]),
        ],
    )  # fmt: skip


@click.command("owes")
@output_option
@server_option
def owes(*, output: str, server: str | None) -> None:
    """Show who owes whom: GPUs lent now, GPU-hours lent ever."""
    show(
        Client(server).get("/v1/owes"), output,
        [
            ("BORROWER", lambda r: r["borrower"]), ("LENDER", lambda r: r["lender"]),
            ("GPUS", lambda r: r["gpus"]), ("GPU-HOURS", lambda r: r["gpu_hours"]),
        ],
    )  # fmt: skip


_DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])


@click.command("report")
@click.option("--from", "start", type=_DAY, help="First day, UTC [default: 30 days ago].")
@click.option("--to", "end", type=_DAY, help="Up to here, UTC [default: now].")
@click.option("-o", "--output", type=click.Choice(["csv", "table", "json", "yaml"]), default="csv",
              show_default=True, help="For a spreadsheet, for eyes, or for scripts.")  # fmt: skip
@server_option
def report(
    *, start: datetime | None, end: datetime | None, output: str, server: str | None
) -> None:  # fmt: skip
    """GPU-hours by day, owner and envelope for chargeback; then the devices that stand idle.

    \b
      fairlead report --from 2026-01-01 --to 2026-04-01 > q1.csv
    """
    form = "csv" if output == "csv" else "json"
    found = Client(server).get("/v1/report", start=_time(start), end=_time(end), format=form)
    if output == "csv":
        click.echo(found, nl=False)
        return
    names = ("day", "kind", "owner", "payer", "budget", "envelope", "borrowed", "gpu_hours",
             "overdraft_gpu_hours", "node", "idle_gpus")  # fmt: skip
    show(found, output, [(name.upper().replace("_", "-"), lambda r, name=name: r[name])  # type: ignore[misc]
                         for name in names])  # fmt: skip


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
