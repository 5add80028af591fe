"""`fairlead audit verify`: whether the ledger, and what decides beside it, is as it was written."""

from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import click

from fairlead.cli.audit.checkpoints import held_head
from fairlead.cli.input import reading
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import FILE, FOLDER, NEW_FILE, ledger_option, option, output_option
from fairlead.cli.table import Counter, show_canonical
from fairlead.compose.inspection import inspect
from fairlead.core.audit import SignedHead
from fairlead.ledger.place import is_postgres, open_for_reading
from fairlead.ledger.segment import open_segment
from fairlead.ports.ledger import Coverage, Damaged, Progress, Verification

head_option = option("--head held", FILE, "Compare with a checkpoint kept elsewhere (a file).")
_NO_HEAD = Coverage(
    "a rewriting by a holder of the signing key, or an older copy of all",
    None,
    "compare with a checkpoint that was kept elsewhere: --head FILE",
)


@click.command("verify")
@click.argument("segment", type=NEW_FILE, required=False)
@head_option
@option("--archive archived", FOLDER, "Verify the archived segments in this directory, too.")
@ledger_option
@output_option
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    segment: Path | None,
    held: Path | None,
    archived: Path | None,
    ledger: str,
    output: str,
) -> None:
    """Verify the ledger, and what decides beside it.

    Entries, tree, signatures, kept states, the archive mark, the schema, and, where you may read
    them, the jobs and keys beside the ledger's file. The answer lists what was covered and what
    was not. With --head, any change before that checkpoint is found. SEGMENT: verify an export
    or an archive instead. Exit code 1: not verified.

    \b
      fairlead audit verify --head head.json
      fairlead audit verify export.jsonl
    """
    heads = (held_head(held),) if held else ()
    with Counter("verifying") as progress:
        if segment is not None:
            with reading(segment), open_segment(segment) as opened:
                verification = opened.verify(heads, progress=progress)
        else:
            verification = _whole(ledger, heads, archived, progress)
    _show(verification, output)
    ctx.exit(0 if verification.ok else EXIT_REFUSED)


def _whole(
    ledger: str, heads: tuple[SignedHead, ...], archived: Path | None, progress: Progress
) -> Verification:
    with ExitStack() as stack:
        reader = stack.enter_context(open_for_reading(ledger, inspect=True))
        done = reader.verify(heads, progress=progress)
        if not done.ok:
            return done
        covered, left_out = list(done.covered), list(done.not_covered)
        if archived is not None:
            in_archive = reader.verify_archive(archived, progress=progress)
            if not in_archive.ok:
                return in_archive
            left_out = [row for row in left_out if row.what != "archived entries"]
            how = "in the segments, against the tree"
            covered.append(Coverage("archived entries", in_archive.size, how))
        try:
            state = None if is_postgres(ledger) else Path(ledger).absolute().parent
            beside = inspect(reader, state, progress)
        except Damaged as damage:
            return replace(done, problem=str(damage), seq=damage.seq, covered=(), not_covered=())
        left_out += beside.not_covered if heads else [*beside.not_covered, _NO_HEAD]
        return replace(done, covered=(*covered, *beside.covered), not_covered=tuple(left_out))


def _show(verification: Verification, output: str) -> None:
    if output in ("json", "yaml"):
        names = ("ok", "size", "root", "problem", "seq")
        document = {name: getattr(verification, name) for name in names}
        for name in ("covered", "not_covered"):
            document[name] = [asdict(row) for row in getattr(verification, name)]
        show_canonical(document, output)
        return
    if not verification.ok:
        good = verification.size
        click.echo(f"NOT VERIFIED after {good} good entries: {verification.problem}")
        return
    click.echo(f"verified: {verification.size} entries, root {verification.root}")
    for title, rows in (
        ("covered", verification.covered),
        ("not covered", verification.not_covered),
    ):
        for row in rows:
            count = "" if row.count is None else f" ({row.count})"
            click.echo(f"  {title}: {row.what}{count}: {row.how}")
