"""The newest checkpoint of each ledger, and `fairlead heads`.

Every reply carries the ledger's checkpoint (a signed tree head). The client keeps the newest one
and checks that the next continues it, signed with a known key or one that a known key introduced:
a server that rewrites its ledger is detected by every client that ever asked it anything.

Checkpoints are kept by the ledger's id, and for each address which ledger it had: a rollback that
was seen on the socket is noticed over HTTP, too. A request that changes something carries the
checkpoint that is kept, and a server whose ledger does not continue it refuses the request.

The first time a server is asked, its keys are taken from its own log: the first entry names the
ledger and its key, and every later key was introduced by the one before.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

from fairlead.cli.input import BadFile, reading
from fairlead.cli.options import dry_run_option, output_option
from fairlead.cli.table import Output, columns, moment_ms, show_canonical
from fairlead.core.audit import (
    Head,
    Proof,
    SignedHead,
    check_consistency,
    check_inclusion,
    leaf_hash,
)
from fairlead.host.files import replace
from fairlead.host.paths import user_state_directory
from fairlead.ports.faults import PermanentFault
from fairlead.schema.convert import convert

if TYPE_CHECKING:
    from fairlead.ledger.statements import LedgerIdentity

FILE = "heads.json"
HEADERS = ("Fairlead-Head", "Fairlead-Ledger", "Fairlead-Signature")


class LedgerChanged(PermanentFault):
    """The server's ledger does not continue the one that was seen before, or cannot prove it."""


class Prover(Protocol):
    """The server as a source of proofs."""

    def consistency(self, old: int, new: int) -> tuple[bytes, ...] | None:
        """Proof that the new log continues the old one; None where the server has none."""

    def own_entries(self, size: int) -> list[dict[str, Any]]:
        """The ledger's entries about its keys and epochs, each with a proof of inclusion."""


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of one server: its newest checkpoint, as evidence, and its known keys."""

    ledger: str
    epoch: int
    size: int
    root: str
    time_ms: int
    key_id: str
    signature: str
    keys: dict[str, str]


class KnownLedgers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is kept: each address with its ledger's id, and the ledgers."""

    servers: dict[str, str] = {}
    ledgers: dict[str, Seen] = {}

    def seen(self, server: str) -> Seen | None:
        return self.ledgers.get(self.servers.get(server, ""))

    def without(self, server: str) -> "KnownLedgers":
        """Without the ledger of a server, at whichever address it was seen."""
        gone = self.servers.get(server, "")
        servers = {name: ledger for name, ledger in self.servers.items() if ledger != gone}
        return KnownLedgers(
            servers, {name: kept for name, kept in self.ledgers.items() if name != gone}
        )


def heads_file() -> Path:
    """$FAIRLEAD_HEADS; else heads.json in the XDG state directory of the user."""
    named = os.environ.get("FAIRLEAD_HEADS")
    if named:
        return Path(named)
    return user_state_directory() / FILE


def read_heads() -> KnownLedgers:
    path = heads_file()
    try:
        data = path.read_bytes()
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.json.decode(data, type=KnownLedgers)
        # As 0.2 wrote it: one checkpoint for each address.
        found = msgspec.json.decode(data, type=dict[str, Seen])
        newest = sorted(found.values(), key=lambda kept: (kept.epoch, kept.size))
        servers = {server: kept.ledger for server, kept in found.items()}
        return KnownLedgers(servers, {kept.ledger: kept for kept in newest})
    except FileNotFoundError:
        return KnownLedgers()
    except (OSError, msgspec.MsgspecError) as error:
        raise PermanentFault(
            f"cannot read the checkpoints in {path}: {error} (remove the file to start over, or "
            "name another one in FAIRLEAD_HEADS)"
        ) from error


def held_checkpoint(server: str) -> str | None:
    """What a request that changes something carries: `LEDGER:EPOCH:SIZE:ROOT`."""
    kept = read_heads().seen(server)
    return None if kept is None else f"{kept.ledger}:{kept.epoch}:{kept.size}:{kept.root}"


def check_reply(server: str, signed: SignedHead | None, prover: Prover) -> None:
    """Check a reply's checkpoint against the one kept, keep the newer; or `LedgerChanged`."""
    heads = read_heads()
    kept = heads.seen(server)
    if kept is None and signed is not None:
        kept = heads.ledgers.get(signed.head.ledger)  # seen at another address
    if signed is None and kept is None:
        raise PermanentFault(f"{server} does not answer like a Fairlead control plane")
    if signed is None:
        raise _alarm(server, "its reply carries no checkpoint", kept, None)
    head = signed.head
    if kept is None:
        keys = follow_keys(signed, prover.own_entries(head.size))
    elif kept.ledger != head.ledger:
        keys = "it is not the ledger that was seen before"
    elif kept.epoch != head.epoch:
        keys = "the ledger was restored from a backup"
    elif (kept.size, kept.root, kept.signature) == (head.size, head.root, signed.signature):
        if server in heads.servers:
            return
        keys = kept.keys
    else:
        keys = _known_keys(kept, signed, prover)
        if isinstance(keys, dict) and not _same_log(kept, head, prover):
            keys = f"the log of {head.size} entries does not continue the one of {kept.size}"
    if isinstance(keys, str):
        raise _alarm(server, keys, kept, signed)
    if kept is not None and head.size < kept.size:
        return  # another command has already kept a newer one
    document = {**signed.as_document(), "keys": keys}
    ledgers = {**heads.ledgers, head.ledger: convert(document, Seen)}
    _write(KnownLedgers({**heads.servers, server: head.ledger}, ledgers))


def _alarm(server: str, what: str, kept: Seen | None, now: SignedHead | None) -> LedgerChanged:
    """A warning that is hard to overlook; both checkpoints are kept as evidence."""
    lines = [f"THE LEDGER OF {server} CANNOT BE TRUSTED: {what}"]
    if kept is not None:
        lines.append(f"  seen before: {kept.size} entries, root {kept.root}, key {kept.key_id}")
    if now is not None:
        head = now.head
        lines.append(f"  now:         {head.size} entries, root {head.root}, key {head.key_id}")
    if kept is not None and now is not None:
        path = heads_file().with_name(f"evidence-{kept.size}-{now.head.size}.json")
        both = {"before": msgspec.to_builtins(kept), "now": now.as_document()}
        document = {"server": server, "problem": what, **both}
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(document, indent=2) + "\n")
            told = "ask the operator what happened"
            lines.append(f"  both checkpoints are kept in {path}; {told}")
    lines.append(
        "  if the change is intended (a new installation, a restored backup):\n"
        f"    fairlead heads forget {server}"
    )
    return LedgerChanged("\n".join(lines))


def _write(heads: KnownLedgers) -> None:
    """Best effort: a user without a writable home can still work."""
    path = heads_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(heads), indent=2) + b"\n"
        replace(path, data, durable=False, mode=0o644)


def read_headers(headers: Mapping[str, str]) -> SignedHead | None:
    """The checkpoint that a reply carries; None where there is none or it is malformed."""
    try:
        size, root = headers[HEADERS[0]].split(":")
        ledger, _, epoch = headers[HEADERS[1]].rpartition(":")
        time_ms, key_id, signature = headers[HEADERS[2]].split(":")
        head = Head(
            ledger=ledger,
            epoch=int(epoch),
            size=int(size),
            root=bytes.fromhex(root).hex(),
            time_ms=int(time_ms),
            key_id=key_id,
        )
    except (KeyError, ValueError):
        return None
    return SignedHead(head, signature)


def follow_keys(signed: SignedHead, own: Sequence[dict[str, Any]]) -> dict[str, str] | str:
    """The keys that the log of a checkpoint introduces, by id, or what is wrong with it.

    `own` are the entries about the ledger itself with their proofs of inclusion, as the server
    sends them. The checkpoint must be signed with the key in force.
    """
    from fairlead.ledger.statements import LedgerIdentity
    from fairlead.ports.ledger import Damaged

    standing = LedgerIdentity()
    try:
        for row in own:
            problem = _follow(standing, signed.head, row)
            if problem:
                return f"entry {row['seq']}, about its keys: {problem}"
    except (KeyError, TypeError, ValueError, Damaged) as error:
        return f"its list of keys is malformed ({error!r})"
    problem = standing.check(signed)
    if problem:
        return f"the checkpoint {problem}"
    return {name: key.hex() for name, key in standing.keys.items()}


def _follow(standing: "LedgerIdentity", head: Head, row: dict[str, Any]) -> str:
    from fairlead.ledger.entries import parse

    data, proof = str(row["entry"]).encode(), tuple(bytes.fromhex(node) for node in row["proof"])
    if not includes(head, int(row["seq"]), data, proof):
        return "it is not in the log of this checkpoint"
    return standing.follow(parse(data, int(row["seq"])))


def _known_keys(kept: Seen, signed: SignedHead, prover: Prover) -> dict[str, str] | str:
    """The keys to trust from now on, or what is wrong."""
    from fairlead.ledger.signatures import signature_holds

    head = signed.head
    key = kept.keys.get(head.key_id)
    if key is not None:
        if head.size >= kept.size and head.key_id != kept.key_id:
            return f"its checkpoint is signed with key {head.key_id}, which was replaced"
        holds = signature_holds(bytes.fromhex(key), head.to_sign(), signed.signature)
        return kept.keys if holds else "the signature of its checkpoint is not valid"
    keys = follow_keys(signed, prover.own_entries(head.size))
    if isinstance(keys, dict) and not kept.keys.items() <= keys.items():
        return "its checkpoint is signed with a key that no known key introduced"
    return keys


def _same_log(kept: Seen, head: Head, prover: Prover) -> bool:
    """Whether the longer of two logs continues the other."""
    old, new = (kept, head) if kept.size <= head.size else (head, kept)
    if old.size == new.size:
        return old.root == new.root
    proof = prover.consistency(old.size, new.size)
    return proof is not None and continues(old, new, proof)


def continues(old: Seen | Head, new: Seen | Head, proof: Proof) -> bool:
    """Whether the proof shows that the new log begins with the old one."""
    return check_consistency(
        old_size=old.size,
        old_root=bytes.fromhex(old.root),
        new_size=new.size,
        new_root=bytes.fromhex(new.root),
        proof=proof,
    )


def includes(head: Head, seq: int, data: bytes, proof: Proof) -> bool:
    """Whether the proof shows that the log has these bytes as entry `seq`."""
    return 1 <= seq <= head.size and check_inclusion(
        leaf=leaf_hash(data),
        index=seq - 1,
        size=head.size,
        proof=proof,
        root=bytes.fromhex(head.root),
    )


def held_head(path: Path) -> SignedHead:
    """A checkpoint from a file that a user names."""
    from fairlead.schema.audit import read_head

    with reading(path):
        return read_head(path.read_bytes())


def print_head(signed: SignedHead, output: str) -> None:
    if output in ("json", "yaml"):
        show_canonical(signed.as_document(), output)
        return
    shown = {**signed.as_document(), "time_ms": moment_ms(signed.head.time_ms)}
    for name, value in shown.items():
        click.echo(f"{name.removesuffix('_ms'):<10} {value}")


@click.group("heads")
def command() -> None:
    """List or forget the ledger checkpoints that you have seen.

    Every reply of a control plane carries a checkpoint of its ledger: a signed tree head. The
    newest one of each ledger is kept here, and the next one must continue it, at whichever address
    of the server, so a rewritten history is detected. The file is $FAIRLEAD_HEADS, else heads.json
    in your state directory.

    \b
      fairlead heads list
      fairlead heads forget /var/lib/fairlead/fairlead.sock
    """


@command.command("list")
@output_option
def list_heads(*, output: str) -> None:
    """Show the newest checkpoint of each server.

    \b
      fairlead heads list -o json
    """
    heads = read_heads()
    rows = [
        {"server": server, **msgspec.to_builtins(heads.ledgers[ledger])}
        for server, ledger in heads.servers.items()
    ]
    shown = columns(
        "server ledger ENTRIES=size",
        ("NEWEST", lambda r: moment_ms(r["time_ms"])),
        "KEY=key_id",
        ("ROOT", lambda r: r["root"][:16]),
        wide=["epoch"],
    )
    Output(output).rows(rows, shown, empty=f"no server was seen yet ({heads_file()})")


@command.command("forget")
@click.argument(
    "server",
    shell_complete=lambda _, __, typed: [
        name for name in read_heads().servers if name.startswith(typed)
    ],
)
@dry_run_option
def forget_head(*, server: str, dry_run: bool) -> None:
    """Forget the checkpoint of a server's ledger.

    At all its addresses; the next reply of the server is trusted.

    Use it when the ledger changed for a known reason: a new installation, a restored backup.

    \b
      fairlead heads forget http://127.0.0.1:8470
    """
    heads = read_heads()
    if server not in heads.servers:
        raise BadFile(f"no checkpoint of {server!r} is kept (see `fairlead heads list`)")
    if not dry_run:
        _write(heads.without(server))
    click.echo(f"{server} forgotten{' (dry run)' if dry_run else ''}")
