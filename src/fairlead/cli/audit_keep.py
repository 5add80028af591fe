"""The upkeep commands of `fairlead audit`: backup, restore, archive, rotate-key."""

import getpass
import time
from pathlib import Path

import click

from fairlead.cli.audit_show import Counter, held_head, ledger_option, print_head
from fairlead.ledger import backup as backups
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.place import KEYS, open_file

_target = click.Path(path_type=Path, dir_okay=False)


@click.command("backup")
@click.argument("target", type=_target)
@ledger_option
def backup(*, target: Path, ledger: str) -> None:
    """Copy the ledger's file as it is now, beside a running control plane. Keys are not in it."""
    print_head(backups.backup(Path(ledger), target), "table")


@click.command("restore")
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--reason", required=True, help="Recorded for whoever finds entries missing.")
@click.option("--lost", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              help="The newest known head of the ledger that went.")  # fmt: skip
@ledger_option
def restore(*, source: Path, reason: str, lost: Path | None, ledger: str) -> None:
    """Put the backup SOURCE in the ledger's place; a signed entry begins a new epoch.

    There must be no ledger in that place, and its keys must be beside it.
    """
    path = Path(ledger)
    entry = backups.restore(
        source, path, KeyDirectory(path.parent / KEYS), time_ms=_now_ms(), author=_author(),
        reason=reason, lost=held_head(lost) if lost else None,
    )  # fmt: skip
    click.echo(f"epoch {entry.body['epoch']} begins with entry {entry.seq}")


@click.command("archive")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--last", type=click.IntRange(1), required=True, help="Move entries up to this one.")
@ledger_option
def archive(*, directory: Path, last: int, ledger: str) -> None:
    """Move the content of old entries into a segment in DIRECTORY, which verifies by itself.

    Their places in the tree stay, so the ledger verifies as before. Not while a control plane runs.
    """
    with open_file(Path(ledger)) as opened, Counter("archiving"):
        size = opened.head().head.size
        if last > size:
            raise click.UsageError(f"the ledger has the entries 1 to {size}")
        path = opened.archive(directory, last=last, time_ms=_now_ms(), author=_author())
    click.echo(str(path))


@click.command("rotate-key")
@ledger_option
def rotate_key(*, ledger: str) -> None:
    """Go on with a new key, introduced by the old one. Not while a control plane runs."""
    with open_file(Path(ledger)) as opened:
        entry = opened.rotate_key(time_ms=_now_ms(), author=_author())
    click.echo(f"key {entry.body['new_key_id']} signs from entry {entry.seq} on")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _author() -> str:
    return f"cli:{getpass.getuser()}"
