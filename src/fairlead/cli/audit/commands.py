"""`fairlead audit`: read the ledger, prove its entries, verify that it was not changed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fairlead.cli.audit.ledger import held_head, ledger_option, print_head
from fairlead.cli.audit.outcomes import beacon, nonce, outcome, void
from fairlead.cli.audit.upkeep import archive, backup, restore, rotate_key
from fairlead.cli.input import reading
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.progress import Counter
from fairlead.cli.table import Output, columns, moment_ms, output_option, show_canonical, to_yaml
from fairlead.core.audit import Proof, SignedHead, check_consistency, check_inclusion, leaf_hash
from fairlead.ledger.place import open_for_reading
from fairlead.ledger.reading import StoreReader
from fairlead.ledger.segment import open_segment
from fairlead.ports.ledger import Entry, Progress, Verification

_ENTRIES = columns(
    ("SEQ", lambda e: e.seq),
    ("TIME", lambda e: moment_ms(e.time_ms)),
    ("KIND", lambda e: e.kind),
    ("AUTHOR", lambda e: e.author),
    ("PLAN", lambda e: e.plan_id),
    ("EFFECT", lambda e: e.effect),
    ("REASONS", lambda e: ", ".join(e.reasons)),
    wide=[("VERSION", lambda e: e.version), ("INPUT", lambda e: (e.input_digest or "")[:16])],
)
head_option = click.option(
    "--head",
    "held",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Compare with a checkpoint kept elsewhere (a file).",
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


for subcommand in (archive, backup, restore, rotate_key, outcome, void, nonce, beacon):
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
@click.option("--after", type=click.IntRange(0), help="Start after this entry [default: the end].")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=20, help="Print at most this many."
)
@click.option("--kind", help="Show only entries of this kind.")
@click.option("--plan", "plan_id", help="Show only entries of this plan.")
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
    _print_entries(entries, output)


def _print_entries(entries: Sequence[Entry], output: str) -> None:
    if output == "yaml":
        for entry in entries:
            click.echo("---")
            click.echo(to_yaml(json.loads(entry.data)), nl=False)
    elif output == "json":
        for entry in entries:
            click.echo(entry.data)
    else:
        Output(output).rows(entries, _ENTRIES)


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
@click.argument("seq", type=click.IntRange(1), required=False)
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
            click.echo("refused: the checkpoint is of another ledger, or of a longer one", err=True)
            ctx.exit(EXIT_REFUSED)
        document = _consistency(reader, old, now) if seq is None else _inclusion(reader, seq, old)
        if document is None:
            click.echo(
                "refused: the log does not match that checkpoint; run `fairlead audit verify`",
                err=True,
            )
            ctx.exit(EXIT_REFUSED)
        key = reader.keys()[now.head.key_id].hex()
    show_canonical({**document, "public_key": key})


def _inclusion(reader: StoreReader, seq: int, signed: SignedHead) -> dict[str, object] | None:
    head = signed.head
    if seq > head.size:
        raise click.BadParameter(
            f"the checkpoint covers entries 1 to {head.size}", param_hint="SEQ"
        )
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


def _consistency(reader: StoreReader, old: SignedHead, new: SignedHead) -> dict[str, object] | None:
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
    return [node.hex() for node in proof]


@command.command("verify")
@click.argument("segment", type=click.Path(path_type=Path, dir_okay=False), required=False)
@head_option
@click.option(
    "--archive",
    "archived",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Verify the archived segments in this directory, too.",
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
    """Verify every entry, tree node and signature.

    With --head, any change before that checkpoint is found. Without it, a change by the holder of
    the signing key is not found. SEGMENT: verify an export or an archive instead. Exit code 1: not
    verified.

    \b
      fairlead audit verify --head head.json
      fairlead audit verify export.jsonl
    """
    heads = (held_head(held),) if held else ()
    with Counter("verifying") as progress:
        if segment is not None:
            verification = _verify_segment(segment, heads, progress)
        else:
            with open_for_reading(ledger) as reader:
                verification = reader.verify(heads, progress=progress)
                if verification.ok and archived is not None:
                    in_archive = reader.verify_archive(archived, progress=progress)
                    verification = verification if in_archive.ok else in_archive
    _print_verification(verification, output)
    ctx.exit(0 if verification.ok else EXIT_REFUSED)


def _print_verification(verification: Verification, output: str) -> None:
    if output in ("json", "yaml"):
        names = ("ok", "size", "root", "problem", "seq")
        show_canonical({name: getattr(verification, name) for name in names}, output)
    elif verification.ok:
        click.echo(f"verified: {verification.size} entries, root {verification.root}")
    else:
        good = verification.size
        click.echo(f"NOT VERIFIED after {good} good entries: {verification.problem}")


def _verify_segment(path: Path, heads: tuple[SignedHead, ...], progress: Progress) -> Verification:
    with reading(path), open_segment(path) as segment:
        return segment.verify(heads, progress=progress)


@command.command("export")
@click.option("--out", type=click.Path(path_type=Path), help="Write a file [default: stdout].")
@click.option("--first", type=click.IntRange(1), default=1, help="Start with this entry.")
@click.option("--last", type=click.IntRange(1), help="Stop after this entry [default: the newest].")
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
