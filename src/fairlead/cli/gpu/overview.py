"""`status`: the governors at a glance, the page's first view in text; `clock`: ledger time."""

from collections.abc import Iterator
from typing import Any

import click

from fairlead.cli.client import Client, changes_api, reads_api
from fairlead.cli.gpu.render import told
from fairlead.cli.table import Output, columns, moment, print_table
from fairlead.core.units import counted
from fairlead.schema.times import format_duration

_ATTENTION = columns(
    "SEVERITY=severity",
    ("SINCE", lambda row: moment(row["since"])),
    ("WHAT", lambda row: told(row["text"])),
)


@click.command("status")
@reads_api
def status(client: Client, out: Output) -> None:
    """Show the governors at a glance, and what needs attention.

    First what is wrong with the ledger or the clock; then open outcomes, reservations at risk, runs
    that are not funded, used up envelopes, quarantined devices and cordoned nodes.

    \b
      fairlead status
      fairlead status -o json | jq -r '.attention[] | select(.severity == "bad") | .text'
    """
    document = client.get("/v1/overview")

    def lines() -> Iterator[str]:
        yield from _gpu(document["gpu"])
        yield from _agents(document["cpu"], document["traffic"])
        rows = document["attention"]
        yield "" if rows else "Nothing needs attention."
        if rows:
            print_table(rows, _ATTENTION)

    out.text(document, lines)


def _gpu(sums: dict[str, Any]) -> Iterator[str]:
    devices, queue, hours = sums["devices"], sums["queue"], sums["hours"]
    yield (
        f"GPU      {counted(devices['total'], 'device')}: {devices['used']} used, "
        f"{devices['held']} held as spares, {devices['free']} free, "
        f"{devices['unavailable']} unavailable"
    )
    oldest = queue["oldestWaitMs"]
    since = "" if oldest is None else f", the oldest for {format_duration(oldest // 1000 * 1000)}"
    yield (
        f"Runs     {queue['running']} running, {queue['waiting']} waiting{since}; "
        f"{queue['notFunded']} not funded, {queue['later']} for later"
    )
    yield f"Hours    {hours['used']:.2f} GPU-hours used, {hours['held']:.2f} held"


def _agents(cpu: dict[str, Any], traffic: dict[str, Any]) -> Iterator[str]:
    """Nodes and services, where agents report any."""
    if cpu["nodes"]:
        need, capacity = cpu["needMillicores"] / 1000, cpu["capacityMillicores"] / 1000
        yield (
            f"CPU      {counted(cpu['nodes'], 'node')}: {cpu['congested']} congested, "
            f"{cpu['overloaded']} overloaded, {cpu['stale']} stale; "
            f"{need:.1f} of {capacity:.1f} cores needed"
        )
    if traffic["groups"]:
        yield (
            f"Traffic  {counted(traffic['groups'], 'service')}: {traffic['soft']} shed load, "
            f"{traffic['hard']} closed, {traffic['stale']} stale; "
            f"{traffic['ejected']} of {counted(traffic['backends'], 'backend')} ejected"
        )


# -- the clock ------------------------------------------------------------------------------------


@click.command("clock")
@click.argument("judgement", type=click.Choice(("accept", "reject")), required=False)
@changes_api
def clock(client: Client, out: Output, *, judgement: str | None) -> None:
    """Compare the clock with ledger time; judge a jump.

    Ledger time passes as the monotonic clock does, so leases are charged for time that passed. When
    the wall clock differs by more than `up --max-clock-jump`, no run is started. It goes on by
    itself when the clock is set right. Otherwise an operator says which of the two is right, and
    the ledger records who did:

    \b
      accept    the wall clock. Ledger time moves forward to it; open leases are
                restated and not charged for the difference. Ledger time never
                moves back: behind it, the ledger keeps its own time.
      reject    ledger time. It goes on, and the wall clock is ignored until the
                two agree again.

    \b
      fairlead clock
      fairlead clock accept
    """
    if judgement is None:
        report = client.get("/v1/clock")
        out.text(report, lambda: _lines(report))
        return
    report = client.change("POST", "/v1/clock", {"judgement": judgement})
    done = "accepted" if judgement == "accept" else "rejected"
    out.done(report, f"the clock is {done}: {report['message']}")


def _lines(report: dict[str, Any]) -> list[str]:
    difference_ms = report["differenceMs"]
    side = "ahead" if difference_ms > 0 else "behind"
    difference = f"{format_duration(abs(difference_ms))} {side}" if difference_ms else "none"
    return [
        f"state        {report['state']}",
        f"ledger time  {report['ledgerTime']}",
        f"wall clock   {report['wallTime']}",
        f"difference   {difference} (bound {format_duration(report['boundMs'])})",
        report["message"],
    ]
