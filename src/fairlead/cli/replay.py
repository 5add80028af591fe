"""`fairlead replay`: decide a recorded decision again and compare the bytes."""

import click

from fairlead.cli.audit_show import ledger_option, print_document
from fairlead.cli.main import EXIT_FAULT, EXIT_REFUSED
from fairlead.cli.show import output_option
from fairlead.ledger.place import open_for_reading
from fairlead.ledger.replay import replay
from fairlead.schema.replay import Verdict

HELP = """Decide entry SEQ of the ledger again and compare the bytes.

Exit code 0: the same; 1: different; 3: it cannot be said, because the entry is no decision or this
release does not have that version of it.

\b
  fairlead audit log --kind gpu.cover
  fairlead replay 42
"""
_EXIT = {Verdict.SAME: 0, Verdict.DIFFERENT: EXIT_REFUSED, Verdict.UNKNOWN: EXIT_FAULT}


@click.command("replay", help=HELP)
@click.argument("seq", type=click.IntRange(1))
@ledger_option
@output_option
@click.pass_context
def command(ctx: click.Context, *, seq: int, ledger: str, output: str) -> None:
    """Look it up, run it, say what came of it."""
    with open_for_reading(ledger) as reader:
        entry = reader.entry(seq)
        if entry is None:
            raise click.BadParameter(f"there is no entry {seq}", param_hint="SEQ")
        answer = replay(reader, entry)
    if output != "table":
        document = {
            "seq": seq,
            "kind": entry.kind,
            "version": entry.version,
            "verdict": str(answer.verdict),
            "detail": answer.detail,
            "recorded": entry.body.get("output"),
            "decided": None if answer.result is None else dict(answer.result),
        }
        print_document(document, output)
    else:
        detail = f" ({answer.detail})" if answer.detail else ""
        click.echo(f"entry {seq}: {answer.verdict} {entry.kind} v{entry.version}{detail}")
    ctx.exit(_EXIT[answer.verdict])
