"""`fairlead audit outcome`, `void`, `key`, `nonce`, `beacon`: outcomes and their entropy.

These ask the control plane, not the ledger's file: an export opens the names that the caller may
know.
"""

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import click

from fairlead.cli.audit.checkpoints import held_head
from fairlead.cli.audit.owner_keys import keep_key, key_path, make_key, public_bytes, read_key
from fairlead.cli.client import Client, changes_api, reads_api, segment
from fairlead.cli.completion import OWNER
from fairlead.cli.gpu.render import VERIFY, print_outcome
from fairlead.cli.input import reading
from fairlead.cli.options import Integer, flag, option
from fairlead.cli.table import Output, columns, note
from fairlead.core.lottery.owner import key_message, nonce_message

_NONCE = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_HEAD = re.compile(r"[1-9][0-9]{0,15}:[0-9a-f]{64}")
_OUTCOMES = columns(
    "outcome stage flavor MISSING=deficitGPUs cause label COMMITTED@committed", wide=["k"]
)


def kept_head(text: str) -> str:
    """SIZE:ROOT, or the file of a checkpoint, as the server takes it."""
    if _HEAD.fullmatch(text):
        return text
    if not Path(text).is_file():
        expected = "SIZE:ROOT, or a file from `fairlead audit head -o json`"
        raise click.BadParameter(f"must be {expected}, got {text!r}")
    head = held_head(Path(text)).head
    return f"{head.size}:{head.root}"


@click.command("outcome")
@click.argument("number", type=Integer(1), required=False, metavar="[N]")
@option(
    "--export=FILE file",
    click.Path(dir_okay=False, allow_dash=True),
    "Write a file that verifies without Fairlead.",
)
@flag("--public", "Open no names in the export.")
@option("--owner", OWNER, "Open this owner's names [default: all of yours].")
@option(
    "--head=SIZE:ROOT heads",
    kept_head,
    "Prove growth since this checkpoint (repeatable).",
    multiple=True,
)
@reads_api
def outcome(
    client: Client,
    out: Output,
    *,
    number: int | None,
    file: str | None,
    public: bool,
    owner: str | None,
    heads: tuple[str, ...],
) -> None:
    """List outcomes of preemption, show or export one.

    `fairlead explain run/NAME` names the outcome N of a preempted run. Other owners and their runs
    are pseudonyms; yours are opened. An export that opens your names holds your owner's secret:
    keep it private, and share the one made with --public.

    \b
      fairlead audit outcome
      fairlead audit outcome 812
      fairlead audit outcome 812 --export outcome.json --head 790:5f2c…
      python3 verify/fairlead_verify.py outcome.json --head 790:5f2c…
    """
    if file is None and (public or owner or heads):
        raise click.UsageError("--public, --owner and --head belong to --export")
    if public and owner:
        raise click.UsageError("--public opens no names; leave out --owner")
    if number is None:
        if file is not None:
            raise click.UsageError("name the outcome to export")
        out.rows(_all(client), _OUTCOMES, empty="no run was ever preempted")
        return
    if file is None:
        document = client.get(f"/v1/outcomes/{number}")
        out.text(document, lambda: print_outcome(document))
        return
    head = ",".join(heads) or None
    path = f"/v1/outcomes/{number}/export"
    data = client.data(path, owner=owner, public=public or None, head=head)
    _write(file, data, secret=not public)
    if file != "-":
        kept = "".join(f" --head {head}" for head in heads)
        note(f"outcome {number} written to {file}; verify it with\n  {VERIFY} {file}{kept}")


def _all(client: Client) -> list[dict[str, Any]]:
    """Every page, oldest outcome first."""
    page = client.get("/v1/outcomes", limit=500)
    rows = list(page["items"])
    while page["next"] is not None:
        page = client.get("/v1/outcomes", limit=500, cursor=page["next"])
        rows += page["items"]
    return rows[::-1]


def _write(file: str, data: bytes, *, secret: bool) -> None:
    """Write an export; one that opens names is readable by its owner alone."""
    if file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with reading(file):
        mode = 0o600 if secret else 0o644
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as target:
            target.write(data)


@click.command("void")
@click.argument("number", type=Integer(1), metavar="N")
@option("--reason", str, "Reason to record publicly.", required=True)
@flag("--beacon-lost", "Give up the round: the network will never sign it.")
@changes_api
def void(client: Client, out: Output, *, number: int, reason: str, beacon_lost: bool) -> None:
    """Void an outcome whose beacon value does not come.

    The entropy and, where known, the result it would have had are disclosed, and the void counts in
    every later outcome of the flavor. The next one has the same entropy, nonces and round, so
    voiding is no second draw; it is labelled operator-trusted. Until then the outcome blocks every
    other resolve of its flavor.

    \b
      fairlead audit void 812 --reason "the run that it is for is gone"
      fairlead audit void 812 --reason "the network was shut down" --beacon-lost
    """
    body = {"reason": reason, "beaconLost": beacon_lost}
    reply = client.change("POST", f"/v1/outcomes/{number}/void", body)
    out.done(reply, f"outcome {number} voided")


_KEY_FILE = option(
    "--key-file=FILE",
    click.Path(dir_okay=False, path_type=Path),
    "The owner's private key [default: in your state directory].",
)


@click.command("key")
@click.argument("owner", type=OWNER)
@_KEY_FILE
@flag("--replace", "Make a new key, approved with the one you have.")
@changes_api
def key(client: Client, out: Output, *, owner: str, key_file: Path | None, replace: bool) -> None:
    """Register the key that OWNER signs its nonces with.

    The key is made here and its private half never leaves this machine, so the operator cannot add
    entropy in OWNER's name. Keep the file: a lost key cannot be replaced.

    \b
      fairlead audit key team-a
      fairlead audit key team-a --replace
    """
    path = key_file or key_path(owner)
    old = read_key(path) if path.exists() else None
    if old is not None and not replace:
        new, approves = old, None
    else:
        new, approves = make_key(path, old), old
    message = key_message(client.get("/v1/head")["ledger"], owner, public_bytes(new))
    body = {
        "publicKey": public_bytes(new).hex(),
        "signature": new.sign(message).hex(),
        "approval": None if approves is None else approves.sign(message).hex(),
    }
    reply = client.change("PUT", f"/v1/owner-keys/{segment(owner)}", body)
    if not client.dry_run:
        keep_key(path, new)
    out.done(reply, f"{owner} signs with {reply['public_key']}, kept in {path}")


@click.command("nonce")
@click.argument("owner", type=OWNER)
@click.argument("nonce", required=False, metavar="[HEX]")
@_KEY_FILE
@changes_api
def nonce(
    client: Client, out: Output, *, owner: str, nonce: str | None, key_file: Path | None
) -> None:
    """Add your own entropy to OWNER's next lottery.

    It is signed with OWNER's key. The operator does not know the seed of that lottery before: to
    OWNER it is then `owner-nonced`. Default: 32 random bytes; or give 1 to 64 bytes in hex. A nonce
    is used once; a new one replaces an unused one. `fairlead audit key OWNER` makes the key.

    \b
      fairlead audit nonce team-a
      fairlead audit nonce team-a 00ff
    """
    path = key_file or key_path(owner)
    if not path.exists():
        raise click.UsageError(f"there is no {path}; `fairlead audit key {owner}` makes a key")
    text, head = secrets.token_hex(32) if nonce is None else nonce.lower(), client.get("/v1/head")
    if not _NONCE.fullmatch(text):
        raise click.BadParameter("nonce: must be 1 to 64 bytes in hex")
    message = nonce_message(head["ledger"], owner, bytes.fromhex(text), head["size"])
    signature = read_key(path).sign(message).hex()
    body = {"nonce": text, "size": head["size"], "signature": signature}
    reply = client.change("PUT", f"/v1/nonces/{segment(owner)}", body)
    out.done(reply, f"the next lottery of {owner} will use {reply['nonce']}")


@click.command("beacon")
@click.argument("source")
@click.argument("number", type=Integer(1), metavar="ROUND")
@click.argument("value", metavar="HEX")
@changes_api
def beacon(client: Client, out: Output, *, source: str, number: int, value: str) -> None:
    """Supply the value of a public network's round.

    It is the signature of the round, which drand publishes as `signature`. The control plane checks
    it against the network's key, and so does every verifier. An outcome that waits for it continues
    at once.

    \b
      fairlead audit outcome 812        # names the round and network it waits for
      fairlead audit beacon drand-quicknet 4711 b446…
    """
    body = {"source": source, "round": number, "value": value.lower()}
    reply = client.change("POST", "/v1/beacons", body)
    out.done(reply, f"round {number} of {source} recorded")
