"""The upkeep commands of `fairlead audit`: backup, restore, archive, rotate-key."""

import getpass
import time
from pathlib import Path

import click

from fairlead.cli.audit_show import Counter, held_head, ledger_option, print_head
from fairlead.cli.manifests import dry_run_option
from fairlead.compose.archive import archivable
from fairlead.ledger import backup as backups
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
    """Copy the ledger's file as it is now, beside a running control plane. Keys are not in it.

    \b
      fairlead audit backup /backups/ledger-$(date +%F).db
    """
    if dry_run:
        if target.exists():
            raise PermanentFault(f"{target} is there already")
        with open_for_reading(ledger) as reader:
            size = reader.head().head.size
        click.echo(f"{size} entries would be copied to {target} (dry run)")
    else:
        print_head(backups.backup(file_of(ledger), target), "table")


@click.command("restore")
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--reason", required=True, help="Recorded for whoever finds entries missing.")
@click.option(
    "--lost",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The newest known head of the ledger that went.",
)
@dry_run_option
@ledger_option
def restore(*, source: Path, reason: str, lost: Path | None, dry_run: bool, ledger: str) -> None:
    """Put the backup SOURCE in the ledger's place; a signed entry begins a new epoch.

    There must be no ledger in that place, and its keys must be beside it. Whoever saw the ledger
    that went will be told; `fairlead heads forget` is their answer.

    \b
      fairlead audit restore ledger-2026-01-31.db --reason "the disk died" --lost head.json
    """
    path = file_of(ledger)
    keys = KeyDirectory(path.parent / KEYS)
    held = held_head(lost) if lost else None
    if dry_run:
        if path.exists():
            raise PermanentFault(f"{path} is there already; move it away first")
        with open_for_reading(source) as reader, Counter("verifying") as progress:
            found = reader.verify(progress=progress)
            if not found.ok:
                raise Damaged(f"the backup {source} does not verify: {found.problem}")
            keys.load(reader.head().head.key_id)
        click.echo(f"{found.size} entries would be restored to {path} (dry run)")
        return
    entry = backups.restore(
        source, path, keys, time_ms=_now_ms(), author=_author(), reason=reason, lost=held
    )
    click.echo(f"epoch {entry.body['epoch']} begins with entry {entry.seq}")


@click.command("archive")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--last", type=click.IntRange(1), required=True, help="Move entries up to this one.")
@dry_run_option
@ledger_option
def archive(*, directory: Path, last: int, dry_run: bool, ledger: str) -> None:
    """Move the content of old entries into a segment in DIRECTORY, which verifies by itself.

    Their places in the tree stay, so the ledger verifies as before. Not while a control plane runs.

    \b
      fairlead audit archive /archive --last 1000000 --dry-run
      fairlead audit verify --archive /archive
    """
    if dry_run:
        with open_for_reading(ledger) as reader:
            size, first = reader.head().head.size, reader.archived_to() + 1
        if not first <= last <= size:
            raise click.UsageError(f"the ledger has the entries {first} to {size} to archive")
        click.echo(
            f"entries {first} to {last} would be moved to a segment in {directory} (dry run)"
        )
        return
    with archivable(file_of(ledger), last) as opened, Counter("archiving"):
        size = opened.head().head.size
        if last > size:
            raise click.UsageError(f"the ledger has the entries 1 to {size}")
        path = opened.archive(directory, last=last, time_ms=_now_ms(), author=_author())
    click.echo(str(path))


@click.command("rotate-key")
@dry_run_option
@ledger_option
def rotate_key(*, dry_run: bool, ledger: str) -> None:
    """Go on with a new key, introduced by the old one. Not while a control plane runs.

    \b
      fairlead audit rotate-key
    """
    if dry_run:
        with open_for_reading(ledger) as reader:
            key = reader.head().head.key_id
        click.echo(f"a new key would take over from {key} (dry run)")
        return
    with open_file(file_of(ledger)) as opened:
        entry = opened.rotate_key(time_ms=_now_ms(), author=_author())
    click.echo(f"key {entry.body['new_key_id']} signs from entry {entry.seq} on")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _author() -> str:
    return f"cli:{getpass.getuser()}"
