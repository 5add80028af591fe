"""`fairlead decide`: one decision as a function, JSON in, JSON out."""

import json
import sys
from difflib import get_close_matches
from typing import BinaryIO

import click

from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_REFUSED
from fairlead.cli.options import flag
from fairlead.cli.table import escaped
from fairlead.core.canonical import canonical
from fairlead.schema.border import DOCUMENT_BYTES_MAX, BadInput
from fairlead.schema.kinds import KINDS, Kind

HELP = """Run one decision: JSON in, JSON out.

KIND names the decision (see --list), FILE holds the input document (default: standard input).
The result is indented on a terminal and canonical (RFC 8785) in a pipe. Bad input is refused with
the path of the offending field and exit code 2; a refusal is a result with exit code 1.

\b
  echo '{"capacity_millicores": 1000, "pods": [{"uid": "a", "min_millicores": 100,
         "max_millicores": 900, "demand": 0.5}]}' | fairlead decide cpu.clear
  fairlead decide cpu.clear --jsonl < documents.jsonl > decisions.jsonl
  fairlead decide cpu.clear --schema
"""


@click.command("decide", help=HELP)
@click.argument(
    "kind",
    required=False,
    shell_complete=lambda _, __, typed: [kind for kind in sorted(KINDS) if kind.startswith(typed)],
)
@click.argument("file", type=click.File("rb"), default="-")
@flag("--jsonl", "Read one document per line, print one result per line.")
@flag("--schema", "Print the JSON Schema of input and output.")
@flag("--list list_kinds", "List the kinds of decisions.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    kind: str | None,
    file: BinaryIO,
    jsonl: bool,
    schema: bool,
    list_kinds: bool,
) -> None:
    if list_kinds:
        for name in sorted(KINDS):
            click.echo(f"{name:<14} {KINDS[name].summary}" if sys.stdout.isatty() else name)
        return
    if kind is None:
        raise click.UsageError("KIND is missing; `fairlead decide --list` lists the kinds")
    if kind not in KINDS:
        close = get_close_matches(kind, KINDS, 1)
        known = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(sorted(KINDS))}"
        raise click.UsageError(f"unknown kind {kind!r}: {known}")
    if schema:
        click.echo(json.dumps(KINDS[kind].json_schema(), indent=2))
        return
    ctx.exit(_stream(KINDS[kind], file) if jsonl else _one(KINDS[kind], file))


def _one(kind: Kind, file: BinaryIO) -> int:
    try:
        outcome = kind.run(file.read(DOCUMENT_BYTES_MAX + 1))
        written = outcome.written()
    except BadInput as error:
        click.echo(f"error: {error}", err=True)
        return EXIT_BAD_INPUT
    if sys.stdout.isatty():
        click.echo(escaped(json.dumps(outcome.result, indent=2, ensure_ascii=False)))
    else:
        sys.stdout.buffer.write(written + b"\n")
        sys.stdout.buffer.flush()
    return EXIT_REFUSED if outcome.refused else 0


def _stream(kind: Kind, file: BinaryIO) -> int:
    """Flush each result, so that a co-process can wait for it."""
    status, out = 0, sys.stdout.buffer
    while line := file.readline(DOCUMENT_BYTES_MAX + 1):
        if not line.strip(b" \t\r\n"):  # what is blank in JSON
            continue
        try:
            answer = kind.run(line).written()
        except BadInput as error:
            answer = canonical({"error": {"path": error.path, "message": error.message}})
            status = EXIT_BAD_INPUT
            while len(line) > DOCUMENT_BYTES_MAX and not line.endswith(b"\n"):
                line = file.readline(DOCUMENT_BYTES_MAX + 1)  # the rest of an oversized line
        out.write(answer + b"\n")
        out.flush()
    return status
