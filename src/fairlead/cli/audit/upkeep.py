"""Maintenance of the ledger: `audit backup`, `restore`, `archive`, `rotate-key`."""

import getpass
from pathlib import Path

import click

from fairlead.cli.audit.ledger import held_head, ledger_option, print_head
from fairlead.cli.input import dry_run_option
from fairlead.cli.progress import Counter
from fairlead.compose.archive import archivable
from fairlead.host.clock import now_ms
from fairlead.ledger import sqlite
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.place import KEYS, file_of, open_file, open_for_reading
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged

_target = click.Path(path_type=Path, dir_okay=False)


@click.command("backup")
@click.argument("target", type=_target)
@dry_run_option
@ledger_option
def backup(*, target: Path, dry_run: bool, ledger: str) -> None:
    """Copy the ledger's file, also while it is in use.

    The signing keys are not part of the backup.

    \b
      fairlead audit backup /backups/ledger-$(date +%F).db
    """
    if dry_run:
        if target.exists():
            raise PermanentFault(f"{target} exists already")
        with open_for_reading(ledger) as reader:
            size = reader.head().head.size
        click.echo(f"{size} entries would be copied to {target} (dry run)")
    else:
        print_head(sqlite.backup(file_of(ledger), target), "table")


@click.command("restore")
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--reason", required=True, help="Reason to record.")
@click.option(
    "--lost",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Newest known checkpoint of the lost ledger (a file).",
)
@dry_run_option
@ledger_option
def restore(*, source: Path, reason: str, lost: Path | None, dry_run: bool, ledger: str) -> None:
    """Restore the ledger from the backup SOURCE.

    The place must have no ledger, and its keys must be there. A signed entry starts a new epoch.
    Clients that saw the lost ledger report the change until they run `fairlead heads forget`.

    \b
      fairlead audit restore ledger-2026-01-31.db --reason "the disk died" --lost head.json
    """
    path = file_of(ledger)
    keys = KeyDirectory(path.parent / KEYS)
    held = held_head(lost) if lost else None
    if dry_run:
        if path.exists():
            raise PermanentFault(f"{path} exists already; move it away first")
        with open_for_reading(source) as reader, Counter("verifying") as progress:
            verification = reader.verify(progress=progress)
            if not verification.ok:
                raise Damaged(f"the backup {source} does not verify: {verification.problem}")
            keys.load(reader.head().head.key_id)
        click.echo(f"{verification.size} entries would be restored to {path} (dry run)")
        return
    entry = sqlite.restore(
        source, path, keys, time_ms=now_ms(), author=_author(), reason=reason, lost=held
    )
    click.echo(f"epoch {entry.body['epoch']} starts with entry {entry.seq}")


@click.command("archive")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--last", type=click.IntRange(1), required=True, help="Archive entries up to this one."
)
@dry_run_option
@ledger_option
def archive(*, directory: Path, last: int, dry_run: bool, ledger: str) -> None:
    """Move old entries into a segment in DIRECTORY.

    The segment verifies on its own. The entries keep their places in the tree, so the ledger
    verifies as before. Stop the control plane first.

    \b
      fairlead audit archive /archive --last 1000000 --dry-run
      fairlead audit verify --archive /archive
    """
    if dry_run:
        with open_for_reading(ledger) as reader:
            size, first = reader.head().head.size, reader.archived_to() + 1
        if not first <= last <= size:
            raise click.UsageError(f"entries {first} to {size} can be archived")
        click.echo(
            f"entries {first} to {last} would be moved to a segment in {directory} (dry run)"
        )
        return
    with archivable(file_of(ledger), last) as opened, Counter("archiving"):
        size = opened.head().head.size
        if last > size:
            raise click.UsageError(f"the ledger has entries 1 to {size}")
        path = opened.archive(directory, last=last, time_ms=now_ms(), author=_author())
    click.echo(str(path))


@click.command("rotate-key")
@dry_run_option
@ledger_option
def rotate_key(*, dry_run: bool, ledger: str) -> None:
    """Replace the signing key; the old key signs the new one.

    Stop the control plane first.

    \b
      fairlead audit rotate-key
    """
    if dry_run:
        with open_for_reading(ledger) as reader:
            key = reader.head().head.key_id
        click.echo(f"a new key would take over from {key} (dry run)")
        return
    with open_file(file_of(ledger)) as opened:
        entry = opened.rotate_key(time_ms=now_ms(), author=_author())
    click.echo(f"key {entry.body['new_key_id']} signs from entry {entry.seq} on")


def _author() -> str:
    return f"cli:{getpass.getuser()}"
