"""`fairlead audit`: read the ledger, prove what is in it, verify that it was not changed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fairlead.cli.audit_keep import archive, backup, restore, rotate_key
from fairlead.cli.audit_outcome import beacon, nonce, outcome, void
from fairlead.cli.audit_show import (
    BadFile,
    Counter,
    held_head,
    ledger_option,
    print_document,
    print_entries,
    print_head,
    print_verification,
)
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.show import output_option
from fairlead.core.audit import Proof, SignedHead, check_consistency, check_inclusion, leaf_hash
from fairlead.ledger.place import open_for_reading
from fairlead.ledger.reading import Reading
from fairlead.ledger.segment import open_segment
from fairlead.ports.ledger import Entry, Progress, Verification
from fairlead.schema.border import BadInput

head_option = click.option(
    "--head",
    "held",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A head that was held elsewhere, from `fairlead audit head -o json`.",
)


@click.group("audit")
def command() -> None:
    """Read the ledger, prove what is in it, verify that it was not changed.

    Keep a head somewhere the ledger's operator cannot write; relative to it every change is found.

    \b
      fairlead audit head -o json > head.json
      fairlead audit prove 42 > proof.json
      fairlead audit verify --head head.json
      fairlead audit outcome 812 --export outcome.json
    """


for each in (archive, backup, restore, rotate_key, outcome, void, nonce, beacon):
    command.add_command(each)


@contextmanager
def _reading(place: str) -> Iterator[Reading]:
    with open_for_reading(place) as reader:
        yield reader


@command.command("head")
@ledger_option
@output_option
def head(*, ledger: str, output: str) -> None:
    """Print the signed head: size, root, key, signature.

    \b
      fairlead audit head
      fairlead audit head -o json > head.json
    """
    with _reading(ledger) as reader:
        print_head(reader.head(), output)


@command.command("log")
@click.option("--after", type=click.IntRange(0), help="Begin after this number. Default: the end.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="At most so many.",
)
@click.option("--kind", help="Only entries of this kind, such as gpu.cover.")
@click.option("--plan", "plan_id", help="Only entries of this plan.")
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
    """Print entries: the newest ones, or those after a number.

    With -o json, one line for each: its canonical bytes, as they are hashed.

    \b
      fairlead audit log --kind lease.close --limit 5
      fairlead audit log --after 0 -o json | jq -r .kind
    """
    with _reading(ledger) as reader:
        if after is not None:
            entries = reader.entries(after, limit, kind=kind, plan_id=plan_id)
        else:
            entries = _newest(reader, limit, kind, plan_id)
    print_entries(entries, output)


def _newest(reader: Reading, limit: int, kind: str | None, plan_id: str | None) -> list[Entry]:
    """The last `limit`; a filter is followed backwards, page by page."""
    found, end, page = list[Entry](), reader.head().head.size, limit
    while end > 0 and len(found) < limit:
        start = max(0, end - page)
        part = reader.entries(start, page, kind=kind, plan_id=plan_id)
        found = [entry for entry in part if entry.seq <= end] + found
        end, page = start, min(page * 4, 100_000)
    return found[-limit:]


@command.command("prove")
@click.argument("seq", type=click.IntRange(1), required=False)
@head_option
@ledger_option
@click.pass_context
def prove(ctx: click.Context, *, seq: int | None, held: Path | None, ledger: str) -> None:
    """Print a proof as JSON that a third party can check with SHA-256 and Ed25519 alone.

    With SEQ: that the entry is in the log of the newest head, or of the one given with --head.
    With --head alone: that the log of that head begins the log of the newest head.

    \b
      fairlead audit prove 42 > proof.json
      fairlead audit prove --head head.json
    """
    if seq is None and held is None:
        raise click.UsageError("say which entry, or give a head with --head")
    with _reading(ledger) as reader:
        now = reader.head()
        old = held_head(held) if held else now
        if old.head.ledger != now.head.ledger or old.head.size > now.head.size:
            click.echo("refused: the head is of another ledger, or of a longer one", err=True)
            ctx.exit(EXIT_REFUSED)
        document = _consistency(reader, old, now) if seq is None else _inclusion(reader, seq, old)
        if document is None:
            click.echo("refused: the log does not lead to that head; verify it", err=True)
            ctx.exit(EXIT_REFUSED)
        key = reader.keys()[now.head.key_id].hex()
    print_document({**document, "public_key": key})


def _inclusion(reader: Reading, seq: int, signed: SignedHead) -> dict[str, object] | None:
    head = signed.head
    if seq > head.size:
        raise click.BadParameter(f"the head covers entries 1 to {head.size}", param_hint="SEQ")
    entry = reader.entry(seq)
    if entry is None:
        raise click.BadParameter(f"there is no entry {seq}", param_hint="SEQ")
    leaf, proof = leaf_hash(entry.data), reader.inclusion(seq, head.size)
    root = bytes.fromhex(head.root)
    if not check_inclusion(leaf=leaf, index=seq - 1, size=head.size, proof=proof, root=root):
        return None
    return {
        "entry": entry.data.decode(),
        "leaf_index": seq - 1,
        "leaf_hash": leaf.hex(),
        "proof": _hex(proof),
        "head": signed.as_document(),
    }


def _consistency(reader: Reading, old: SignedHead, new: SignedHead) -> dict[str, object] | None:
    proof = reader.consistency(old.head.size, new.head.size)
    holds = check_consistency(
        old_size=old.head.size,
        old_root=bytes.fromhex(old.head.root),
        new_size=new.head.size,
        new_root=bytes.fromhex(new.head.root),
        proof=proof,
    )
    if not holds:
        return None
    return {"old": old.as_document(), "proof": _hex(proof), "head": new.as_document()}


def _hex(proof: Proof) -> list[str]:
    return [each.hex() for each in proof]


@command.command("verify")
@click.argument("segment", type=click.Path(path_type=Path, dir_okay=False), required=False)
@head_option
@click.option(
    "--archive",
    "archived",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Verify also that the segments in this directory hold all that was archived.",
)
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
    """Follow the whole ledger: every entry, every node of its tree, every signature.

    With --head, a flipped bit, a reordered, dropped or inserted entry before that head is found
    whoever made it; without, only if its maker did not have the key. SEGMENT: verify an export or
    an archive instead. Exit code 1 when it does not verify.

    \b
      fairlead audit verify --head head.json
      fairlead audit verify export.jsonl
    """
    heads = (held_head(held),) if held else ()
    with Counter("verifying") as progress:
        if segment is not None:
            found = _verify_segment(segment, heads, progress)
        else:
            with _reading(ledger) as reader:
                found = reader.verify(heads, progress=progress)
                if found.ok and archived is not None:
                    in_archive = reader.verify_archive(archived, progress=progress)
                    found = found if in_archive.ok else in_archive
    print_verification(found, output)
    ctx.exit(0 if found.ok else EXIT_REFUSED)


def _verify_segment(path: Path, heads: tuple[SignedHead, ...], progress: Progress) -> Verification:
    try:
        with open_segment(path) as segment:
            return segment.verify(heads, progress=progress)
    except BadInput as error:
        raise BadFile(f"{path}: {error}") from error


@command.command("export")
@click.option("--out", type=click.Path(path_type=Path), help="A file. Default: standard output.")
@click.option(
    "--first", type=click.IntRange(1), default=1, show_default=True, help="Begin with this entry."
)
@click.option("--last", type=click.IntRange(1), help="Default: the newest.")
@ledger_option
def export(*, out: Path | None, first: int, last: int | None, ledger: str) -> None:
    """Write entries with what it takes to verify them elsewhere, one JSON text per line.

    The first line holds a signed head and the proofs; `fairlead audit verify FILE` checks it.

    \b
      fairlead audit export --out export.jsonl
    """
    with _reading(ledger) as reader, Counter("exporting") as progress:
        size = reader.head().head.size
        if not first <= (size if last is None else last) <= size:
            raise click.UsageError(f"the ledger has the entries 1 to {size}")
        if out is None:
            reader.export(sys.stdout.buffer, first=first, last=last, progress=progress)
            sys.stdout.buffer.flush()
        else:
            reader.export_file(out, first=first, last=last, progress=progress)
