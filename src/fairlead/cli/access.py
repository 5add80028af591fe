"""`fairlead tokens` and `fairlead users`: who may act for whom."""

from typing import Any

import click

from fairlead.cli.client import Client, segment, server_option
from fairlead.cli.manifests import dry_run_option
from fairlead.cli.names import complete_column
from fairlead.cli.show import moment, note, output_option, show


@click.group("tokens")
def tokens() -> None:
    """Make, list and revoke tokens for HTTP.

    A token acts as its user. Its secret is printed once; keep it in a file that only you can read,
    and name that file in FAIRLEAD_TOKEN_FILE.

    \b
      fairlead tokens create --user ada --note laptop > ~/.fairlead-token
      fairlead tokens revoke 1f2e3d4c
    """


@tokens.command("create")
@click.option("--user", help="Whose token [default: yours]; only an admin makes them for others.")
@click.option("--note", "about", default="", help="What it is for.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["token", "json", "yaml"]),
    default="token",
    show_default=True,
    help="The secret alone, or all about it.",
)
@dry_run_option
@server_option
def create(*, user: str | None, about: str, output: str, dry_run: bool, server: str | None) -> None:
    """Print a new token's secret; the rest goes to stderr.

    \b
      fairlead tokens create --user ada --note laptop > ada.token
    """
    body, query = {"user": user, "note": about}, {"dry_run": dry_run}
    found = Client(server).call("POST", "/v1/tokens", body=body, query=query)
    if output != "token":
        show(found, output)
    elif dry_run:
        note(f"a token of {found['user']} would be made (dry run)")
    else:
        note(f"token {found['id']} of {found['user']}; this is the only time it is shown")
        click.echo(found["token"])


@tokens.command("list")
@output_option
@server_option
def list_tokens(*, output: str, server: str | None) -> None:
    """Show tokens, without their secrets: yours, or as an admin all.

    \b
      fairlead tokens list
    """
    show(
        Client(server).get("/v1/tokens"),
        output,
        [
            ("ID", lambda r: r["id"]),
            ("USER", lambda r: r["user"]),
            ("NOTE", lambda r: r["note"]),
            ("CREATED", lambda r: moment(r["created"])),
            ("REVOKED", lambda r: moment(r["revoked"])),
        ],
    )


@tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@dry_run_option
@output_option
@server_option
def revoke(*, token_id: str, dry_run: bool, output: str, server: str | None) -> None:
    """From now on a token opens nothing; what it follows with `logs -f` ends.

    \b
      fairlead tokens list
      fairlead tokens revoke 1f2e3d4c
    """
    path = f"/v1/tokens/{segment(token_id)}"
    found = Client(server).call("DELETE", path, query={"dry_run": dry_run})
    if output != "table":
        show(found, output)
    else:
        click.echo(f"token {token_id} revoked{' (dry run)' if dry_run else ''}")


@click.group("users")
def users() -> None:
    """Say which user of this machine acts for which owners.

    \b
      fairlead users bind ada --owner team-a --owner team-b
      fairlead users list
    """


@users.command("bind")
@click.argument("name")
@click.option(
    "--owner",
    "owners",
    multiple=True,
    shell_complete=complete_column("owner"),
    help="An owner; may be given several times.",
)
@click.option("--admin", is_flag=True, help="May do everything, for everybody.")
@dry_run_option
@output_option
@server_option
def bind(
    *,
    name: str,
    owners: tuple[str, ...],
    admin: bool,
    dry_run: bool,
    output: str,
    server: str | None,
) -> None:
    """Bind a user to owners, in place of those it was bound to before.

    \b
      fairlead users bind ada --owner team-a --owner team-b
    """
    body, query = {"owners": list(owners), "admin": admin}, {"dry_run": dry_run}
    found = Client(server).call("PUT", f"/v1/users/{segment(name)}", body=body, query=query)
    if output != "table":
        show(found, output)
    else:
        click.echo(f"{name} acts for {_whom(found)}{' (dry run)' if dry_run else ''}")


@users.command("unbind")
@click.argument("name")
@dry_run_option
@output_option
@server_option
def unbind(*, name: str, dry_run: bool, output: str, server: str | None) -> None:
    """Forget a user; it acts for nobody, and its tokens with it.

    \b
      fairlead users unbind ada
    """
    path = f"/v1/users/{segment(name)}"
    found = Client(server).call("DELETE", path, query={"dry_run": dry_run})
    if output != "table":
        show(found, output)
    else:
        click.echo(f"{name} acts for {_whom(found)}{' (dry run)' if dry_run else ''}")


def _whom(found: dict[str, Any]) -> str:
    return "everybody" if found["admin"] else ", ".join(found["owners"]) or "nobody"


@users.command("list")
@output_option
@server_option
def list_users(*, output: str, server: str | None) -> None:
    """Show users and their owners.

    \b
      fairlead users list
    """
    show(
        Client(server).get("/v1/users"),
        output,
        [
            ("NAME", lambda r: r["name"]),
            ("OWNERS", lambda r: r["owners"]),
            ("ADMIN", lambda r: r["admin"]),
        ],
    )


@click.command("whoami")
@output_option
@server_option
def whoami(*, output: str, server: str | None) -> None:
    """Say who the server takes you for.

    \b
      fairlead whoami
    """
    found = Client(server).get("/v1/whoami")
    if output != "table":
        show(found, output)
        return
    click.echo(f"{found['user']}, acts for {_whom(found)}")
