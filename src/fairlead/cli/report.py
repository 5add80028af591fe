"""`fairlead report`: GPU-hours for chargeback, and devices that stand idle."""

import sys
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import click

from fairlead.cli.client import Client, server_option
from fairlead.cli.show import Column, moment, note, rows_of, show

BY = ("owner", "envelope", "budget", "run")
PERIODS = ("day", "week", "month", "quarter")
_TOLD = ("owner", "run", "payer", "budget", "envelope", "borrowed")
_USAGE: list[Column] = [
    ("GPU-HOURS", lambda r: r["gpu_hours"]),
    ("OVERDRAFT", lambda r: r["overdraft_gpu_hours"] or None),
]
_IDLE: list[Column] = [
    ("PERIOD", lambda r: r["period"]),
    ("NODE", lambda r: r["node"]),
    ("IDLE-GPU-HOURS", lambda r: r["idle_gpu_hours"]),
    ("IDLE-AT-END", lambda r: r["idle_gpus"]),
    ("LONGEST-SINCE", lambda r: moment(r["idle_since"])),
]


class Day(click.ParamType[str]):
    """`2026-01-31` (UTC) or a time with its zone, as RFC 3339 says it."""

    name = "DAY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As the server takes it."""
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"must be a day like 2026-01-31, or 2026-01-31T12:00:00Z, got {value!r}", param, ctx
            )
        if found.tzinfo is None and (found.hour, found.minute, found.second) != (0, 0, 0):
            self.fail(f"needs a zone, such as {value}Z", param, ctx)
        zoned = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        return zoned.isoformat(timespec="seconds").replace("+00:00", "Z")


@click.command("report")
@click.option(
    "--by", type=click.Choice(BY), default="envelope", show_default=True, help="What to tell apart."
)
@click.option(
    "--period",
    type=click.Choice(PERIODS),
    default="month",
    show_default=True,
    help="How to cut the time; UTC, weeks from Monday.",
)
@click.option(
    "--since",
    type=Day(),
    help="First day, UTC [default: 30 days ago, and the whole of that period].",
)
@click.option("--until", type=Day(), help="Up to here, UTC [default: now].")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "json", "yaml"]),
    help="For eyes, for a spreadsheet, or for scripts [default: table on a terminal, csv "
    "in a pipe].",
)
@server_option
def report(
    *,
    by: str,
    period: str,
    since: str | None,
    until: str | None,
    output: str | None,
    server: str | None,
) -> None:
    """GPU-hours by period and owner, envelope, budget or run; then devices that stood idle.

    `owner` is who used them and `payer` whose budget paid; `borrowed` ones were lent. Overdraft is
    what was used after hours ran out, and is part of the GPU-hours. Every charge is in exactly one
    row, open leases up to now. Idle rows (kind `idle`) have the GPU-hours that nobody leased, how
    many devices were idle at the period's end, and since when the longest of them.

    \b
      fairlead report --since 2026-01-01 --until 2026-04-01 --period quarter > q1.csv
      fairlead report --by owner --period week -o table
      fairlead report --by run --period day --since 2026-03-01 -o json
    """
    output = output or ("table" if sys.stdout.isatty() else "csv")
    query = {"by": by, "period": period, "since": since, "until": until}
    form = "csv" if output == "csv" else "json"
    found = Client(server).get("/v1/report", **query, format=form)
    if output == "csv":
        click.echo(found, nl=False)
    elif output != "table":
        show(found, output)
    else:
        _print(found)


def _print(rows: list[dict[str, Any]]) -> None:
    used = [row for row in rows if row["kind"] == "usage"]
    told = [name for name in _TOLD if any(row[name] is not None for row in used)]
    columns: list[Column] = [("PERIOD", lambda r: r["period"])]
    columns += [(name.upper(), itemgetter(name)) for name in told]
    if used:
        rows_of(used, [*columns, *_USAGE])
    else:
        note("nothing was used in that time")
    idle = [row for row in rows if row["kind"] == "idle"]
    if idle:
        click.echo()
        rows_of(idle, _IDLE)
