"""Options, tables and counters that the `fairlead audit` commands share: presentation only."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from fairlead.cli.main import EXIT_BAD_INPUT
from fairlead.cli.show import table, to_yaml
from fairlead.core.audit import SignedHead
from fairlead.core.canonical import canonical
from fairlead.ledger.place import default_ledger
from fairlead.ports.ledger import Entry, Verification
from fairlead.schema.audit import read_head
from fairlead.schema.border import BadInput

F = TypeVar("F", bound=Callable[..., Any])

ledger_option: Callable[[F], F] = click.option(
    "--ledger",
    envvar="FAIRLEAD_LEDGER",
    default=lambda: str(default_ledger()),
    show_default="ledger.db in the state directory",
    help="The ledger's file, or postgresql://…",
)


class BadFile(click.ClickException):
    """Input that is not what it should be: one line, exit code 2."""

    exit_code = EXIT_BAD_INPUT

    def show(self, file: object = None) -> None:
        """As `fairlead decide` says it."""
        click.echo(f"error: {self.message}", err=True)


class Counter:
    """Says on a terminal how far long work is; silent in a pipe and for short work."""

    QUIET_S, EVERY_S = 0.5, 0.1

    def __init__(self, doing: str) -> None:
        self._doing, self._shown = doing, False
        self._next = time.monotonic() + self.QUIET_S

    def __call__(self, done: int, total: int) -> None:
        """Told from time to time."""
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._shown = now + self.EVERY_S, True
        share = 100 * done // max(1, total)
        click.echo(f"\r{self._doing} {done} of {total} entries ({share} %)", err=True, nl=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\033[K", err=True, nl=False)


def held_head(path: Path) -> SignedHead:
    """A head from a file that a user gives."""
    try:
        return read_head(path.read_bytes())
    except BadInput as error:
        raise BadFile(f"{path}: {error}") from error
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from error


def print_document(document: dict[str, Any], output: str = "json") -> None:
    """YAML if asked for; else JSON, indented on a terminal, canonical in a pipe."""
    if output == "yaml":
        click.echo(to_yaml(document), nl=False)
    elif sys.stdout.isatty():
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo(canonical(document))


def print_head(signed: SignedHead, output: str) -> None:
    """A head as a document or as lines."""
    if output != "table":
        print_document(signed.as_document(), output)
        return
    shown = {**signed.as_document(), "time_ms": moment(signed.head.time_ms)}
    for name, value in shown.items():
        click.echo(f"{name.removesuffix('_ms'):<10} {value}")


def print_entries(entries: Sequence[Entry], output: str) -> None:
    """One line each; one document each as YAML."""
    if output != "table":
        for entry in entries:
            if output == "yaml":
                click.echo("---")
                click.echo(to_yaml(json.loads(entry.data)), nl=False)
            else:
                click.echo(entry.data)
        return
    header = ("SEQ", "TIME", "KIND", "AUTHOR", "PLAN", "EFFECT", "REASONS")
    rows = [
        (
            str(entry.seq),
            moment(entry.time_ms),
            entry.kind,
            entry.author,
            entry.plan_id or "-",
            entry.effect or "-",
            ", ".join(entry.reasons) or "-",
        )
        for entry in entries
    ]
    table(header, rows)


def print_verification(found: Verification, output: str) -> None:
    """The verdict."""
    if output != "table":
        document = {
            "ok": found.ok,
            "size": found.size,
            "root": found.root,
            "problem": found.problem,
            "seq": found.seq,
        }
        print_document(document, output)
    elif found.ok:
        click.echo(f"verified: {found.size} entries, root {found.root}")
    else:
        click.echo(f"NOT VERIFIED after {found.size} good entries: {found.problem}")


def moment(time_ms: int) -> str:
    """A time for eyes: UTC, to the millisecond."""
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return text.replace("+00:00", "Z")
