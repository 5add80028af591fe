"""`fairlead heads`: the ledgers that this user has seen, and forgetting one."""

import click
import msgspec
from click.shell_completion import CompletionItem

from fairlead.cli.heads import all_seen, forget, heads_file
from fairlead.cli.manifests import BadManifest
from fairlead.cli.show import note, output_option, show
from fairlead.schema.times import format_time


@click.group("heads")
def command() -> None:
    """Show the ledgers that you have seen, or forget one.

    Every reply of a control plane carries the signed head of its ledger. The newest of each server
    is kept here, and the next one must continue it: a rewritten past is noticed by everybody who
    ever asked. The file is $FAIRLEAD_HEADS, else heads.json in your state directory.

    \b
      fairlead heads list
      fairlead heads forget /var/lib/fairlead/fairlead.sock
    """


@command.command("list")
@output_option
def list_heads(*, output: str) -> None:
    """Show the newest head seen of each server.

    \b
      fairlead heads list -o json
    """
    rows = [{"server": server, **msgspec.to_builtins(each)} for server, each in all_seen().items()]
    show(
        rows,
        output,
        [
            ("SERVER", lambda r: r["server"]),
            ("LEDGER", lambda r: r["ledger"]),
            ("ENTRIES", lambda r: r["size"]),
            ("NEWEST", lambda r: format_time(r["time_ms"])),
            ("KEY", lambda r: r["key_id"]),
            ("ROOT", lambda r: r["root"][:16]),
        ],
    )
    if not rows and output == "table":
        note(f"no server was seen yet ({heads_file()})")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(each) for each in all_seen() if each.startswith(incomplete)]


@command.command("forget")
@click.argument("server", shell_complete=_complete)
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten, only.")
def forget_head(*, server: str, dry_run: bool) -> None:
    """Begin anew with a server: its next reply is believed, as at the first time.

    Do this when you know why its ledger is another one: a new installation, a restored backup.

    \b
      fairlead heads forget http://127.0.0.1:8470
    """
    if server not in all_seen():
        raise BadManifest(f"no head of {server!r} is kept (see `fairlead heads list`)")
    if not dry_run:
        forget(server)
    click.echo(f"{server} forgotten{' (dry run)' if dry_run else ''}")
