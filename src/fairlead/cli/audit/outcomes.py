"""`fairlead audit outcome`, `void`, `nonce`, `beacon`: results of preemption and their entropy.

These ask the control plane, not the ledger's file: an export opens the names that the caller may
know.
"""

import os
import re
import secrets
import sys
from pathlib import Path

import click

from fairlead.cli.audit.checkpoints import held_head
from fairlead.cli.client import Client, changes_api, reads_api, segment
from fairlead.cli.completion import OWNER
from fairlead.cli.gpu.render import VERIFY, print_outcome
from fairlead.cli.input import reading
from fairlead.cli.options import flag, option
from fairlead.cli.table import Output, columns, note

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
@click.argument("number", type=click.IntRange(1), required=False, metavar="[N]")
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
        out.rows(client.get("/v1/outcomes"), _OUTCOMES, empty="no run was ever preempted")
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
@click.argument("number", type=click.IntRange(1), metavar="N")
@option("--reason", str, "Reason to record publicly.", required=True)
@changes_api
def void(client: Client, out: Output, *, number: int, reason: str) -> None:
    """Void an outcome whose beacon value does not come.

    The entropy and, where known, the result it would have had are disclosed, so voiding is no
    silent second draw. Until then the outcome blocks every other resolve of its flavor.

    \b
      fairlead audit void 812 --reason "the beacon is down since Monday"
    """
    reply = client.change("POST", f"/v1/outcomes/{number}/void", {"reason": reason})
    out.done(reply, f"outcome {number} voided")


@click.command("nonce")
@click.argument("owner", type=OWNER)
@click.argument("nonce", required=False, metavar="[HEX]")
@changes_api
def nonce(client: Client, out: Output, *, owner: str, nonce: str | None) -> None:
    """Add your own entropy to OWNER's next lottery.

    The operator cannot know it in advance, which makes the outcome `verifiable`. Default: 32 random
    bytes; or give 1 to 64 bytes in hex. A nonce is used once; a new one replaces an unused one.

    \b
      fairlead audit nonce team-a
      fairlead audit nonce team-a 00ff
    """
    body = {"nonce": secrets.token_hex(32) if nonce is None else nonce.lower()}
    reply = client.change("PUT", f"/v1/nonces/{segment(owner)}", body)
    out.done(reply, f"the next lottery of {owner} will use {reply['nonce']}")


@click.command("beacon")
@click.argument("source")
@click.argument("number", type=click.IntRange(1), metavar="ROUND")
@click.argument("value", metavar="HEX")
@changes_api
def beacon(client: Client, out: Output, *, source: str, number: int, value: str) -> None:
    """Supply the value of a public beacon's round.

    Use the value that the source publishes; verification compares it with the source. An outcome
    that waits for it continues at once. A round has one value and keeps it.

    \b
      fairlead audit outcome 812        # names the round and source it waits for
      fairlead audit beacon drand-quicknet 4711 5f2c…
    """
    body = {"source": source, "round": number, "value": value.lower()}
    reply = client.change("POST", "/v1/beacons", body)
    out.done(reply, f"round {number} of {source} recorded")
