"""Tables, YAML and JSON for the control plane's commands: presentation only."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Column = tuple[str, Callable[[dict[str, Any]], object]]

output_option: Callable[[F], F] = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="For eyes, or for scripts.",
)


def show(value: Any, output: str, columns: Sequence[Column] | None = None) -> None:
    """Rows as a table, anything as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif output == "yaml" or columns is None:
        click.echo(to_yaml(value), nl=False)
    else:
        rows_of(value, columns)


def rows_of(rows: Sequence[dict[str, Any]], columns: Sequence[Column], indent: str = "") -> None:
    """Rows as a table."""
    cells = [[cell(get(row)) for _, get in columns] for row in rows]
    table([name for name, _ in columns], cells, indent)


def note(text: str) -> None:
    """Something beside the result: for the reader, not for the pipe."""
    click.echo(text, err=True)


def to_yaml(value: Any) -> str:
    """Block style, in the order given; several objects become several documents."""
    import yaml

    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
    if (
        isinstance(value, list)
        and value
        and all(isinstance(each, dict) and "kind" in each and "metadata" in each for each in value)
    ):
        return str(yaml.safe_dump_all(value, explicit_start=True, **options))
    return str(yaml.safe_dump(value, **options))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Bold, coloured and folded to the width on a terminal, plain columns in a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        found = Table(box=None, header_style="bold", pad_edge=False)
        for name in header:
            found.add_column(name, overflow="fold")
        for row in rows:
            found.add_row(*[Text(each, style=_style(each)) for each in row])
        Console().print(Padding(found, (0, 0, 0, len(indent))))
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = (each.ljust(width) for each, width in zip(row, widths, strict=True))
        click.echo(indent + "  ".join(cells).rstrip())


def _style(text: str) -> str:
    """The worst of the words in a cell decides."""
    found = {_STYLES[word] for word in text.split(",") if word in _STYLES}
    return next((style for style in ("red", "yellow", "green") if style in found), "")


def cell(value: object) -> str:
    """A value in a table."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in sorted(value.items()))
    if isinstance(value, list):
        return ",".join(map(str, value))
    # What others named must not move the cursor.
    return "".join(each if each.isprintable() else "�" for each in str(value))


def moment(text: str | None) -> str:
    """A time in the reader's zone on a terminal, as it is in a pipe."""
    if not text or not sys.stdout.isatty():
        return text or "-"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def used_of(used: float, limit: float | None) -> str:
    """`3/8`, hours with two digits."""
    shown = f"{used:.2f}" if isinstance(used, float) else str(used)
    return f"{shown}/-" if limit is None else f"{shown}/{limit:g}"


_STYLES = {
    "Running": "green",
    "Completed": "green",
    "Failed": "red",
    "Pending": "yellow",
    "Exhausted": "red",
    "Overcommitted": "red",
    "NearLimit": "yellow",
    "Healthy": "green",
    "UnusedLendingEntry": "yellow",
    "unfunded": "red",
    "idle": "yellow",
    "Reserved": "yellow",
    "Shrunk": "yellow",
    "Active": "green",
    "Blocked": "red",
}

COLUMNS: dict[str, list[Column]] = {
    "Budget": [
        ("NAME", lambda o: o["metadata"]["name"]),
        ("OWNER", lambda o: o["spec"]["owner"]),
        ("PARENTS", lambda o: o["spec"]["parents"]),
        ("ENVELOPES", lambda o: [e["name"] for e in o["spec"]["envelopes"]]),
        (
            "CONDITIONS",
            lambda o: [c["type"] for c in o["status"]["conditions"] if c["status"] == "True"],
        ),
    ],
    "Run": [
        ("NAME", lambda o: o["metadata"]["name"]),
        ("OWNER", lambda o: o["spec"]["owner"]),
        ("FLAVOR", lambda o: o["spec"]["flavor"]),
        ("GPUS", lambda o: f"{o['status']['width']}/{o['spec']['totalGPUs']}"),
        ("PHASE", lambda o: o["status"]["phase"]),
        ("REASON", lambda o: "Paused" if o["status"]["paused"] else o["status"]["reason"]),
        ("SINCE", lambda o: moment(o["status"]["since"])),
    ],
    "Node": [
        ("NAME", lambda o: o["metadata"]["name"]),
        ("FLAVOR", lambda o: o["spec"]["flavor"]),
        ("LOCATION", lambda o: o["spec"]["location"]),
        ("DEVICES", lambda o: o["spec"]["devices"]),
        ("FREE", lambda o: o["status"]["free"]),
        ("CORDONED", lambda o: o["spec"]["cordoned"]),
    ],
    "Reservation": [
        ("NAME", lambda o: o["metadata"]["name"]),
        ("RUN", lambda o: o["spec"]["run"]),
        ("START", lambda o: moment(o["spec"]["earliestStart"])),
        ("STATE", lambda o: o["status"]["state"]),
        ("REASON", lambda o: o["status"]["reason"]),
        ("SHORT", lambda o: o["status"]["shortfallGPUs"] or None),
        ("OUTCOME", lambda o: o["status"]["outcome"]),
        ("SINCE", lambda o: moment(o["status"]["since"])),
    ],
    "Lease": [
        ("NAME", lambda o: o["metadata"]["name"]),
        ("RUN", lambda o: o["spec"]["run"]),
        ("OWNER", lambda o: o["spec"]["owner"]),
        ("ROLE", lambda o: o["spec"]["role"]),
        ("SLOTS", lambda o: o["spec"]["slots"]),
        ("PAYER", lambda o: f"{o['spec']['payer']['budget']}/{o['spec']['payer']['envelope']}"),
        ("FUNDED", lambda o: o["status"]["funded"]),
        ("GPU-HOURS", lambda o: o["status"]["gpuHours"]),
    ],
}
