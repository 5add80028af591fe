"""`clock`: the machine's clock beside ledger time, and the operator's judgement of a jump."""

from typing import Any

import click

from fairlead.cli.client import Client, changes_api
from fairlead.cli.table import Output
from fairlead.schema.times import format_duration


@click.command("clock")
@click.argument("judgement", type=click.Choice(("accept", "reject")), required=False)
@changes_api
def command(client: Client, out: Output, *, judgement: str | None) -> None:
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
