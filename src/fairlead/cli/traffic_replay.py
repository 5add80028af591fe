"""`fairlead traffic replay`: recorded ticks decided again, group by group."""

import json
from collections.abc import Iterator
from pathlib import Path

import click

from fairlead.cli.main import EXIT_FAULT, EXIT_REFUSED


def print_replay(path: Path, output: str) -> int:
    """Exit 1 when a tick differs, 3 when a record is damaged."""
    from fairlead.recorder import CorruptRecord, read, replay

    totals = {"same": 0, "different": 0, "unknown": 0}
    for record in records(path):
        counts = dict.fromkeys(totals, 0)
        try:
            for result in replay(read(record)):
                counts[result.verdict] += 1
                if result.verdict != "same" and output == "table":
                    what = f"{result.kind} v{result.version} {result.detail}".strip()
                    click.echo(f"{record.name}: entry {result.seq}: {result.verdict} {what}")
        except CorruptRecord as error:
            click.echo(f"{record}: the record is damaged: {error}", err=True)
            return EXIT_FAULT
        for verdict, count in counts.items():
            totals[verdict] += count
    if output == "json":
        click.echo(json.dumps(totals))
    else:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in totals.items()))
    return EXIT_REFUSED if totals["different"] else 0


def records(path: Path) -> Iterator[Path]:
    """A segment or a record itself; of a directory of records, each group's."""
    if path.is_file() or any(path.glob("segment-*.jsonl")):
        yield path
        return
    yield from sorted(each for each in path.iterdir() if any(each.glob("segment-*.jsonl")))
