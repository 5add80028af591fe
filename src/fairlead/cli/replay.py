"""`fairlead replay`: run recorded decisions again and compare, for all three governors."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.cli.audit.ledger import ledger_option
from fairlead.cli.main import EXIT_FAULT, EXIT_REFUSED
from fairlead.cli.progress import Counter
from fairlead.cli.table import Output, columns, note, output_option, print_table, show
from fairlead.ledger.place import open_for_reading
from fairlead.ledger.replay import replay as replay_entry
from fairlead.ports.ledger import LedgerReader
from fairlead.recorder import CorruptRecord, read
from fairlead.recorder import replay as replay_record
from fairlead.schema.replay import Verdict

HELP = """Run recorded decisions again and compare them.

Without WHAT: every decision in this machine's ledger. WHAT is the number of one entry, a ledger
file, or the record of a node or traffic agent (a directory or one segment).

Exit code 0: every decision is the same. 1: one differs; the first difference is named. 2: bad
usage. 3: a record is damaged, or holds a decision that this release cannot run.

\b
  fairlead replay                                    # the whole ledger
  fairlead replay 4711                               # one decision
  fairlead replay /var/lib/fairlead/node/record      # a node agent's record
  fairlead replay /var/lib/fairlead/traffic/record   # all groups of a traffic agent
"""
PAGE = 1000
_KINDS = columns("kind", "version", "same", "different", "unknown")


@dataclass(frozen=True, slots=True)
class Decision:
    """One recorded decision and the verdict on running it again."""

    source: str
    seq: int
    kind: str
    version: int
    verdict: Verdict
    recorded: Mapping[str, Any] | None
    decided: Mapping[str, Any] | None
    detail: str

    def difference(self) -> str:
        """The first field that differs, or why there is no result."""
        if self.verdict is Verdict.DIFFERENT and not self.detail:
            return first_difference(self.recorded, self.decided) or "the outputs differ"
        return self.detail

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "source": self.source,
            "seq": self.seq,
            "kind": self.kind,
            "version": self.version,
            "verdict": str(self.verdict),
            "detail": self.difference(),
            "recorded": self.recorded,
            "decided": self.decided,
        }


@click.command("replay", help=HELP)
@click.argument("what", nargs=-1)
@ledger_option
@output_option
@click.pass_context
def command(ctx: click.Context, *, what: tuple[str, ...], ledger: str, output: str) -> None:
    """Replay everything that is named, and report."""
    out = Output(output)
    if len(what) == 1 and what[0].isdigit():
        ctx.exit(_replay_one(int(what[0]), ledger, out))
    for name in what:
        if not Path(name).exists():
            raise click.UsageError(f"{name}: no such file or directory, and not an entry's number")
    tally: Tally[tuple[str, int, Verdict]] = Tally()
    problem: Decision | None = None
    try:
        with Counter("replaying") as progress:
            for number, decision in enumerate(_decisions(what or (ledger,)), 1):
                progress(number)
                tally[decision.kind, decision.version, decision.verdict] += 1
                if decision.verdict is not Verdict.SAME and problem is None:
                    problem = decision
    except CorruptRecord as error:
        note(f"fault: the record is damaged: {error}")
        ctx.exit(EXIT_FAULT)
    _report(tally, problem, out)
    found = {verdict for _, _, verdict in tally}
    different, unknown = Verdict.DIFFERENT in found, Verdict.UNKNOWN in found
    ctx.exit(EXIT_REFUSED if different else EXIT_FAULT if unknown else 0)


def _replay_one(seq: int, ledger: str, out: Output) -> int:
    with open_for_reading(ledger) as reader:
        entry = reader.entry(seq)
        if entry is None:
            raise click.BadParameter(f"there is no entry {seq}", param_hint="WHAT")
        answer = replay_entry(reader, entry)
    decision = Decision(
        source=ledger,
        seq=seq,
        kind=entry.kind,
        version=entry.version,
        verdict=answer.verdict,
        recorded=entry.body.get("output"),
        decided=answer.result,
        detail=answer.detail,
    )
    out.text(decision.document(), lambda: [_line(decision)])
    exits = {Verdict.SAME: 0, Verdict.DIFFERENT: EXIT_REFUSED, Verdict.UNKNOWN: EXIT_FAULT}
    return exits[answer.verdict]


def _line(decision: Decision) -> str:
    detail = decision.difference()
    text = f"entry {decision.seq}: {decision.verdict} {decision.kind} v{decision.version}"
    return text + (f" ({detail})" if detail else "")


def _report(
    tally: Mapping[tuple[str, int, Verdict], int], problem: Decision | None, out: Output
) -> None:
    kinds = sorted({(kind, version) for kind, version, _ in tally})
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "version": version,
            **{str(verdict): tally.get((kind, version, verdict), 0) for verdict in Verdict},
        }
        for kind, version in kinds
    ]
    totals = {str(verdict): sum(row[str(verdict)] for row in rows) for verdict in Verdict}
    if not out.is_table:
        first = None if problem is None else problem.document()
        show({**totals, "kinds": rows, "first": first}, out.format)
        return
    if rows:
        print_table(rows, _KINDS)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in totals.items()))
    if problem is not None:
        click.echo(f"first: {problem.source}: {_line(problem)}")


def _decisions(places: Iterable[str]) -> Iterator[Decision]:
    for place in places:
        records = _records(Path(place))
        for record in records:
            for answer in replay_record(read(record)):
                yield Decision(
                    source=str(record),
                    seq=answer.seq,
                    kind=answer.kind,
                    version=answer.version,
                    verdict=answer.verdict,
                    recorded=answer.entry.output,
                    decided=answer.result,
                    detail=answer.detail,
                )
        if not records:
            with open_for_reading(place) as reader:
                yield from _ledger_decisions(place, reader)


def _ledger_decisions(place: str, reader: LedgerReader) -> Iterator[Decision]:
    after = reader.archived_to()
    while page := reader.entries(after, PAGE):
        for entry in page:
            answer = replay_entry(reader, entry)
            if answer.verdict is Verdict.UNKNOWN and entry.input_digest is None:
                continue  # not a decision
            yield Decision(
                source=place,
                seq=entry.seq,
                kind=entry.kind,
                version=entry.version,
                verdict=answer.verdict,
                recorded=entry.body.get("output"),
                decided=answer.result,
                detail=answer.detail,
            )
        after = page[-1].seq


def _records(path: Path) -> list[Path]:
    """The agents' records at a path: one segment, one record, or a directory of records."""
    if path.name.startswith("segment-") or any(path.glob("segment-*.jsonl")):
        return [path]
    if not path.is_dir():
        return []
    return sorted(child for child in path.iterdir() if any(child.glob("segment-*.jsonl")))


def first_difference(one: Any, other: Any, path: str = "") -> str:
    """`slots.b1: recorded 12, decided 13` for the first field that differs; empty if none does."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            found = first_difference(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
            if found:
                return found
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        parts = (first_difference(a, b, f"{path}[{index}]") for index, (a, b) in pairs)
        return next(filter(None, parts), "")
    return "" if one == other else f"{path or 'output'}: recorded {one!r}, decided {other!r}"
