"""`fairlead audit outcome`, `void`, `nonce`, `beacon`: what a resolve decided, and its chance.

Unlike the rest of `fairlead audit` these ask the control plane and not the ledger's file: which
names an export opens depends on who asks.
"""

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import click

from fairlead.cli.audit_show import BadFile, held_head
from fairlead.cli.client import Client, segment, server_option
from fairlead.cli.giving_way import VERIFY, print_outcome
from fairlead.cli.manifests import dry_run_option
from fairlead.cli.names import complete_column
from fairlead.cli.show import Column, moment, note, output_option, show

_HEAD = re.compile(r"[1-9][0-9]{0,15}:[0-9a-f]{64}")
_OUTCOMES: list[Column] = [
    ("OUTCOME", lambda r: r["outcome"]),
    ("STAGE", lambda r: r["stage"]),
    ("FLAVOR", lambda r: r["flavor"]),
    ("MISSING", lambda r: r["deficitGPUs"]),
    ("CAUSE", lambda r: r["cause"]),
    ("LABEL", lambda r: r["label"]),
    ("COMMITTED", lambda r: moment(r["committed"])),
]


class HeldHead(click.ParamType[str]):
    """SIZE:ROOT, or the file of a head."""

    name = "SIZE:ROOT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As the server takes it."""
        text = str(value)
        if _HEAD.fullmatch(text):
            return text
        if not Path(text).is_file():
            self.fail(
                f"must be SIZE:ROOT, or a file from `fairlead audit head -o json`, got {text!r}",
                param,
                ctx,
            )
        head = held_head(Path(text)).head
        return f"{head.size}:{head.root}"


@click.command("outcome")
@click.argument("number", type=click.IntRange(1), required=False, metavar="[N]")
@click.option(
    "--export",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write the file that verifies without Fairlead; - for standard output.",
)
@click.option("--public", is_flag=True, help="Open no names: for everybody.")
@click.option(
    "--owner",
    shell_complete=complete_column("owner"),
    help="Open the names of this owner [default: of all that you act for].",
)
@click.option(
    "--head",
    "heads",
    type=HeldHead(),
    multiple=True,
    help="A head of the ledger that you kept, or its file from `fairlead audit head`: "
    "the export then shows that the log only grew since. May be given several "
    "times.",
)
@output_option
@server_option
def outcome(
    *,
    number: int | None,
    file: str | None,
    public: bool,
    owner: str | None,
    heads: tuple[str, ...],
    output: str,
    server: str | None,
) -> None:
    """Show what a resolve decided, or write it to a file that anybody can check; list them all.

    N is the number of the outcome, which every cut run names (`fairlead explain run/NAME`). Runs
    and owners of others are pseudonyms; yours are opened. An export that opens your names holds
    your owner's secret: keep it, and pass on the one made with --public.

    \b
      fairlead audit outcome
      fairlead audit outcome 812
      fairlead audit outcome 812 --export outcome.json --head 790:5f2c…
      python3 verify/fairlead_verify.py outcome.json --head 790:5f2c…
    """
    client = Client(server)
    if file is None and (public or owner or heads):
        raise click.UsageError("--public, --owner and --head belong to --export")
    if public and owner:
        raise click.UsageError("--public opens nobody's names, so --owner says nothing")
    if number is None:
        if file is not None:
            raise click.UsageError("say which outcome to export")
        rows = client.get("/v1/outcomes")
        show(rows, output, _OUTCOMES)
        if not rows and output == "table":
            note("nobody ever had to give way")
        return
    if file is None:
        found = client.get(f"/v1/outcomes/{number}")
        if output == "table":
            print_outcome(found)
        else:
            show(found, output)
        return
    data = client.data(
        f"/v1/outcomes/{number}/export",
        owner=owner,
        public=public or None,
        head=",".join(heads) or None,
    )
    _write(file, data, secret=not public)
    if file != "-":
        kept = "".join(f" --head {head}" for head in heads)
        note(f"outcome {number} written to {file}; check it with\n  {VERIFY} {file}{kept}")


def _write(file: str, data: bytes, *, secret: bool) -> None:
    """An export that opens names is its owner's alone."""
    if file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        mode = 0o600 if secret else 0o644
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:
            out.write(data)
    except OSError as error:
        raise BadFile(f"{file}: {error.strerror}") from error


@click.command("void")
@click.argument("number", type=click.IntRange(1), metavar="N")
@click.option("--reason", required=True, help="Recorded, with your name, for everybody to see.")
@dry_run_option
@output_option
@server_option
def void(*, number: int, reason: str, dry_run: bool, output: str, server: str | None) -> None:
    """Give up an outcome that waits for a beacon's value that does not come.

    Its entropy is disclosed, and what it would have been where that is known: a void is no way to
    draw again in silence. Until then it blocks every other resolve of its flavor.

    \b
      fairlead audit void 812 --reason "the beacon is down since Monday"
    """
    query, body = {"dry_run": dry_run}, {"reason": reason}
    found = Client(server).call("POST", f"/v1/outcomes/{number}/void", body=body, query=query)
    if output != "table":
        show(found, output)
    else:
        click.echo(f"outcome {number} given up{' (dry run)' if dry_run else ''}")


@click.command("nonce")
@click.argument("owner", shell_complete=complete_column("owner"))
@click.argument("nonce", required=False, metavar="[HEX]")
@dry_run_option
@output_option
@server_option
def nonce(*, owner: str, nonce: str | None, dry_run: bool, output: str, server: str | None) -> None:
    """Put bytes of your own into the next draw that OWNER has a stake in.

    Whoever prepared an outcome did not know them: it is then `verifiable`. 32 random bytes, unless
    you give 1 to 64 in hex. One nonce is used once; another one before that replaces it.

    \b
      fairlead audit nonce team-a
      fairlead audit nonce team-a 00ff
    """
    given = {"nonce": secrets.token_hex(32) if nonce is None else nonce.lower()}
    path = f"/v1/nonces/{segment(owner)}"
    found = Client(server).call("PUT", path, body=given, query={"dry_run": dry_run})
    if output != "table":
        show(found, output)
    else:
        click.echo(
            f"the next draw of {owner} will hold {found['nonce']}{' (dry run)' if dry_run else ''}"
        )


@click.command("beacon")
@click.argument("source")
@click.argument("number", type=click.IntRange(1), metavar="ROUND")
@click.argument("value", metavar="HEX")
@dry_run_option
@output_option
@server_option
def beacon(
    *, source: str, number: int, value: str, dry_run: bool, output: str, server: str | None
) -> None:
    """Supply the value of a public beacon's round, as its source publishes it.

    An outcome that waits for it goes on at once. A round has one value for good: everybody who
    verifies the outcome compares it with the source.

    \b
      fairlead audit outcome 812        # says which round of which source it waits for
      fairlead audit beacon drand-quicknet 4711 5f2c…
    """
    body = {"source": source, "round": number, "value": value.lower()}
    found = Client(server).call("POST", "/v1/beacons", body=body, query={"dry_run": dry_run})
    if output != "table":
        show(found, output)
    else:
        click.echo(f"round {number} of {source} recorded{' (dry run)' if dry_run else ''}")
