"""`fairlead audit`: read the ledger, prove its entries, verify that it was not changed; upkeep."""

import getpass
import json
import os
import sys
from pathlib import Path

import click

from fairlead.cli.audit.checkpoints import continues, held_head, includes, print_head
from fairlead.cli.audit.outcomes import beacon, key, nonce, outcome, void
from fairlead.cli.audit.verify import head_option, verify
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import (
    FILE,
    FOLDER,
    NEW_FILE,
    Integer,
    dry_run_option,
    ledger_option,
    option,
    output_option,
)
from fairlead.cli.table import (
    Counter,
    Output,
    columns,
    escaped,
    moment_ms,
    note,
    show_canonical,
    to_yaml,
)
from fairlead.compose.archive import archivable
from fairlead.compose.clock import upkeep_time_ms
from fairlead.compose.rebuild import rebuild as make_again
from fairlead.core.audit import SignedHead, leaf_hash
from fairlead.ledger import sqlite
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.place import KEYS, file_of, open_file, open_for_reading
from fairlead.ledger.reading import StoreReader
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged, Entry

_ENTRIES = columns(
    "seq",
    ("TIME", lambda e: moment_ms(e.time_ms)),
    "kind author PLAN=plan_id effect",
    ("REASONS", lambda e: ", ".join(e.reasons)),
    wide=["version", ("INPUT", lambda e: (e.input_digest or "")[:16])],
)


@click.group("audit")
def command() -> None:
    """Read, prove and verify the ledger.

    Keep a checkpoint (`audit head`) where the ledger's operator cannot write: any later change
    before it is detected.

    \b
      fairlead audit head -o json > head.json
      fairlead audit prove 42 > proof.json
      fairlead audit verify --head head.json
      fairlead audit outcome 812 --export outcome.json
    """


for subcommand in (outcome, void, key, nonce, beacon, verify):
    command.add_command(subcommand)


@command.command("head")
@ledger_option
@output_option
def head(*, ledger: str, output: str) -> None:
    """Print the checkpoint: size, root, key, signature.

    \b
      fairlead audit head
      fairlead audit head -o json > head.json
    """
    with open_for_reading(ledger) as reader:
        print_head(reader.head(), output)


@command.command("log")
@option("--after", Integer(0), "Start after this entry [default: the end].")
@option("--limit", Integer(1, 100_000), "Print at most this many.", default=20)
@option("--kind", str, "Show only entries of this kind.")
@option("--plan plan_id", str, "Show only entries of this plan.")
@ledger_option
@output_option
def log(
    *,
    after: int | None,
    limit: int,
    kind: str | None,
    plan_id: str | None,
    ledger: str,
    output: str,
) -> None:
    """Print entries: the newest, or those after a number.

    -o json prints the canonical bytes of each entry on one line, as they are hashed.

    \b
      fairlead audit log --kind lease.close --limit 5
      fairlead audit log --after 0 -o json | jq -r .kind
    """
    with open_for_reading(ledger) as reader:
        if after is not None:
            entries = reader.entries(after, limit, kind=kind, plan_id=plan_id)
        else:
            entries = _newest(reader, limit, kind, plan_id)
    if output in ("table", "wide"):
        Output(output).rows(entries, _ENTRIES)
        return
    for entry in entries:
        if output == "json":
            click.echo(escaped(entry.data.decode()) if sys.stdout.isatty() else entry.data)
        else:
            click.echo(f"---\n{to_yaml(json.loads(entry.data)).rstrip()}")


def _newest(reader: StoreReader, limit: int, kind: str | None, plan_id: str | None) -> list[Entry]:
    """The last `limit`; a filter is searched backwards, page by page."""
    newest, end, page = list[Entry](), reader.head().head.size, limit
    while end > 0 and len(newest) < limit:
        start = max(0, end - page)
        part = reader.entries(start, page, kind=kind, plan_id=plan_id)
        newest = [entry for entry in part if entry.seq <= end] + newest
        end, page = start, min(page * 4, 100_000)
    return newest[-limit:]


@command.command("prove")
@click.argument("seq", type=Integer(1), required=False)
@head_option
@ledger_option
@click.pass_context
def prove(ctx: click.Context, *, seq: int | None, held: Path | None, ledger: str) -> None:
    """Print a proof that a third party can check.

    The proof is JSON and needs only SHA-256 and Ed25519. With SEQ: the entry is in the log of the
    newest checkpoint, or of the one of --head. With --head alone: the newest log continues the log
    of that checkpoint.

    \b
      fairlead audit prove 42 > proof.json
      fairlead audit prove --head head.json
    """
    if seq is None and held is None:
        raise click.UsageError("name an entry, or give a checkpoint with --head")
    with open_for_reading(ledger) as reader:
        now = reader.head()
        old = held_head(held) if held else now
        if old.head.ledger != now.head.ledger or old.head.size > now.head.size:
            note("refused: the checkpoint is of another ledger, or of a longer one")
            ctx.exit(EXIT_REFUSED)
        document = _consistency(reader, old, now) if seq is None else _inclusion(reader, seq, old)
        if document is None:
            note("refused: the log does not match that checkpoint; run `fairlead audit verify`")
            ctx.exit(EXIT_REFUSED)
        key = reader.keys()[now.head.key_id].hex()
    show_canonical({**document, "public_key": key})


def _inclusion(reader: StoreReader, seq: int, signed: SignedHead) -> dict[str, object] | None:
    head = signed.head
    entry = reader.entry(seq) if seq <= head.size else None
    if entry is None:
        problem = f"the checkpoint covers entries 1 to {head.size}"
        raise click.BadParameter(
            problem if seq > head.size else f"there is no entry {seq}", param_hint="SEQ"
        )
    proof = reader.inclusion(seq, head.size)
    if not includes(head, seq, entry.data, proof):
        return None
    return {
        "entry": entry.data.decode(),
        "leaf_index": seq - 1,
        "leaf_hash": leaf_hash(entry.data).hex(),
        "proof": [node.hex() for node in proof],
        "head": signed.as_document(),
    }


def _consistency(reader: StoreReader, old: SignedHead, new: SignedHead) -> dict[str, object] | None:
    proof = reader.consistency(old.head.size, new.head.size)
    if not continues(old.head, new.head, proof):
        return None
    hexes = [node.hex() for node in proof]
    return {"old": old.as_document(), "proof": hexes, "head": new.as_document()}


@command.command("export")
@option("--out", click.Path(path_type=Path), "Write a file [default: stdout].")
@option("--first", Integer(1), "Start with this entry.", default=1)
@option("--last", Integer(1), "Stop after this entry [default: the newest].")
@ledger_option
def export(*, out: Path | None, first: int, last: int | None, ledger: str) -> None:
    """Export entries with proofs, as JSON lines.

    The first line holds a checkpoint and the proofs; `fairlead audit verify FILE` checks the file.

    \b
      fairlead audit export --out export.jsonl
    """
    with open_for_reading(ledger) as reader, Counter("exporting") as progress:
        size = reader.head().head.size
        if not first <= (size if last is None else last) <= size:
            raise click.UsageError(f"the ledger has entries 1 to {size}")
        reader.export(out or sys.stdout.buffer, first=first, last=last, progress=progress)
        sys.stdout.buffer.flush()


# --- maintenance of the ledger


@command.command("backup")
@click.argument("target", type=NEW_FILE)
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


@command.command("restore")
@click.argument("source", type=FILE)
@option("--reason", str, "Reason to record.", required=True)
@option("--lost", FILE, "Newest known checkpoint of the lost ledger (a file).")
@click.option("--drop-snapshots", is_flag=True, help="Leave kept states out; rebuild them.")
@dry_run_option
@ledger_option
def restore(
    *,
    source: Path,
    reason: str,
    lost: Path | None,
    drop_snapshots: bool,
    dry_run: bool,
    ledger: str,
) -> None:
    """Restore the ledger from the backup SOURCE.

    A backup in which anything was changed is refused. If only the kept states were, its entries
    can be restored without them (--drop-snapshots): the next start makes them again.

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
            verification = reader.verify(progress=progress, snapshots=not drop_snapshots)
            if not verification.ok:
                raise Damaged(f"the backup {source} does not verify: {verification.problem}")
            keys.load(reader.head().head.key_id)
        click.echo(f"{verification.size} entries would be restored to {path} (dry run)")
        return
    with open_for_reading(source) as reader:
        time_ms = upkeep_time_ms(reader)
    entry = sqlite.restore(
        source,
        path,
        keys,
        time_ms=time_ms,
        author=_author(),
        reason=reason,
        lost=held,
        drop_snapshots=drop_snapshots,
    )
    click.echo(f"epoch {entry.body['epoch']} starts with entry {entry.seq}")
    followed = path.parent / "runs" / "followed.json"
    if followed.exists():
        click.echo(f"remove {followed} as root: the launcher refuses a restored ledger until then")


@command.command("archive")
@click.argument("directory", type=FOLDER)
@option("--last", Integer(1), "Archive entries up to this one.", required=True)
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
        path = opened.archive(
            directory, last=last, time_ms=upkeep_time_ms(opened), author=_author()
        )
    click.echo(str(path))


@command.command("rebuild")
@option("--archive archived", FOLDER, "Directory of the archived segments.")
@dry_run_option
@ledger_option
def rebuild(*, archived: Path | None, dry_run: bool, ledger: str) -> None:
    """Make the control plane's states again from the entries.

    For a ledger whose entries are archived and whose kept states no entry confirms. Archived
    segments are verified first. Stop the control plane first.

    \b
      fairlead audit rebuild --archive /archive
    """
    with open_file(file_of(ledger)) as opened, Counter("rebuilding") as progress:
        last = make_again(opened, archived, progress, dry_run=dry_run)
    if dry_run:
        click.echo(f"the states after entry {last} would be kept and recorded (dry run)")
        return
    click.echo(f"the states after entry {last} are kept and recorded")


@command.command("rotate-key")
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
        entry = opened.rotate_key(time_ms=upkeep_time_ms(opened), author=_author())
    click.echo(f"key {entry.body['new_key_id']} signs from entry {entry.seq} on")


def _author() -> str:
    """In a container the user may have no name."""
    try:
        return f"cli:{getpass.getuser()}"
    except KeyError:
        return f"cli:{os.getuid()}"
