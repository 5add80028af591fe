"""`fairlead replay`: run recorded decisions again and compare, for all three governors."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairlead import recorder
from fairlead.cli.input import reading
from fairlead.cli.main import EXIT_FAULT, EXIT_REFUSED
from fairlead.cli.options import ledger_option, output_option
from fairlead.cli.table import Counter, Output, columns, note, print_table, show
from fairlead.ledger.place import is_postgres, open_for_reading
from fairlead.ledger.replay import (
    Anchors,
    is_decision,
    read_anchors,
    replay,
    replay_ledger,
    replay_segment,
)
from fairlead.recorder import CorruptRecord
from fairlead.schema.replay import Replayed, explain_difference

HELP = """Run recorded decisions again and compare them.

Without WHAT: every decision in this machine's ledger. WHAT is the number of one entry, a ledger
file, an export or archived segment of a ledger, or the record of a node or traffic agent (a
directory or one segment). With --ledger the records of a traffic agent are compared with what
that ledger anchored of them: a record that was cut off or written anew is damaged.

Exit code 0: every decision is the same. 1: one differs; the first difference is named. 2: bad
usage. 3: a record is damaged, or holds a decision that this release cannot run.

\b
  fairlead replay                                    # the whole ledger
  fairlead replay 4711                               # one decision
  fairlead replay /var/lib/fairlead/node/record      # a node agent's record
  fairlead replay /var/lib/fairlead/traffic/record   # all groups of a traffic agent
  fairlead replay /var/lib/fairlead/traffic/record --ledger FILE   # and their anchors
"""
_KINDS = columns("kind version same different unknown")
_EXITS = {"same": 0, "different": EXIT_REFUSED, "unknown": EXIT_FAULT}


@click.command("replay", help=HELP)
@click.argument("what", nargs=-1)
@ledger_option
@output_option
@click.pass_context
def command(ctx: click.Context, *, what: tuple[str, ...], ledger: str, output: str) -> None:
    out = Output(output)
    if len(what) == 1 and what[0].isdigit():
        ctx.exit(_replay_one(int(what[0]), ledger, out))
    for name in what:
        if not Path(name).exists() and not is_postgres(name):
            raise click.UsageError(f"{name}: no such file or directory, and not an entry's number")
    if not (what or is_postgres(ledger) or Path(ledger).exists()):
        raise click.UsageError(f"there is no ledger {ledger}: name one with --ledger, or as WHAT")
    tally: Tally[tuple[str, int, str]] = Tally()
    first: tuple[str, Replayed] | None = None
    damaged: list[str] = []
    anchors = _anchors(ctx, ledger) if what else {}
    with Counter("replaying") as progress:
        decisions = _decisions(what or (ledger,), damaged, anchors)
        for number, (source, decision) in enumerate(decisions, 1):
            progress(number)
            tally[decision.kind, decision.version, decision.verdict] += 1
            if decision.verdict != "same" and first is None:
                first = (source, decision)
    _report(tally, first, out)
    for problem in damaged:
        note(f"fault: the record is damaged: {problem}")
    if damaged:
        ctx.exit(EXIT_FAULT)
    verdicts = {verdict for _, _, verdict in tally}
    worst = next((word for word in ("different", "unknown") if word in verdicts), "same")
    ctx.exit(_EXITS[worst])


def _replay_one(seq: int, ledger: str, out: Output) -> int:
    with open_for_reading(ledger) as reader:
        entry = reader.entry(seq)
        if entry is None:
            raise click.BadParameter(f"there is no entry {seq}", param_hint="WHAT")
        if not is_decision(entry):
            message = f"entry {seq} ({entry.kind}) is not a decision: there is nothing to run again"
            raise click.BadParameter(message, param_hint="WHAT")
        decision = replay(reader, entry)
    out.text(_document(ledger, decision), lambda: [_line(decision)])
    return _EXITS[decision.verdict]


def _anchors(ctx: click.Context, ledger: str) -> Anchors:
    """What the ledger that was named anchored of records; before these are read, because an agent
    may be at work."""
    if ctx.get_parameter_source("ledger") is ParameterSource.DEFAULT:
        return {}
    with open_for_reading(ledger) as reader:
        return read_anchors(reader)


def _verify(record: Path, anchors: Anchors) -> None:
    """Raise `CorruptRecord` unless one agent's anchors of this group are all in the record. A
    segment alone is less than was anchored."""
    problem: CorruptRecord | None = None
    for heads in anchors.get(record.name, {}).values() if record.is_dir() else ():
        try:
            recorder.verify(record, anchors=heads)
            return
        except CorruptRecord as error:
            problem = error
    if problem is not None:
        raise problem


def _decisions(
    places: Iterable[str], damaged: list[str], anchors: Anchors
) -> Iterator[tuple[str, Replayed]]:
    """Every decision of every place, with where it is recorded; of a damaged record those before
    the damage. The traffic agent puts such a record aside, beside those of its groups."""
    for place in places:
        path = Path(place)
        records = [] if is_postgres(place) else _records(path)
        for record in records:
            try:
                again = recorder.replay(recorder.read(record))
                yield from zip(repeat(str(record)), again, strict=False)
                _verify(record, anchors)
            except CorruptRecord as error:
                damaged.append(f"{record}: {error}")
        if records:
            continue
        if not is_postgres(place) and _is_segment(path):
            with reading(place):
                yield from zip(repeat(place), replay_segment(path), strict=False)
        else:
            with open_for_reading(place) as reader:
                yield from zip(repeat(place), replay_ledger(reader), strict=False)


def _is_segment(path: Path) -> bool:
    """Whether a file is an export or an archived segment: its first line is JSON."""
    with path.open("rb") as file:
        return file.read(1) == b"{"


def _records(path: Path) -> list[Path]:
    """The agents' records at a path: one segment, or all records in or below a directory."""
    if path.name.startswith("segment-"):
        return [path]
    with reading(path):
        records = sorted({segment.parent for segment in path.rglob("segment-*")})
    if path.is_dir() and not records:
        raise click.UsageError(f"{path}: has no record (no segment-* file)")
    return records


def _report(
    tally: Mapping[tuple[str, int, str], int], first: tuple[str, Replayed] | None, out: Output
) -> None:
    rows: list[dict[str, Any]] = []
    for kind, version in sorted({(kind, version) for kind, version, _ in tally}):
        counts = {verdict: tally.get((kind, version, verdict), 0) for verdict in _EXITS}
        rows.append({"kind": kind, "version": version, **counts})
    totals = {verdict: sum(row[verdict] for row in rows) for verdict in _EXITS}
    if not out.is_table:
        document = None if first is None else _document(*first)
        show({**totals, "kinds": rows, "first": document}, out.format)
        return
    if rows:
        print_table(rows, _KINDS)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in totals.items()))
    if first is not None:
        click.echo(f"first: {first[0]}: {_line(first[1])}")


def _line(decision: Replayed) -> str:
    detail = explain_difference(decision)
    text = f"entry {decision.seq}: {decision.verdict} {decision.kind} v{decision.version}"
    return text + (f" ({detail})" if detail else "")


def _document(source: str, decision: Replayed) -> dict[str, Any]:
    about = {name: getattr(decision, name) for name in ("seq", "kind", "version")}
    results = {"recorded": decision.recorded, "decided": decision.result}
    verdict = {"verdict": str(decision.verdict), "detail": explain_difference(decision)}
    return {"source": source, **about, **verdict, **results}
