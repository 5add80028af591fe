"""`fairlead tokens` and `fairlead users`: who may act for whom."""

import click

from fairlead.cli.client import Client, segment, server_option
from fairlead.cli.show import moment, output_option, show


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
@click.option("--note", default="", help="What it is for.")
@click.option("-o", "--output", type=click.Choice(["token", "json", "yaml"]), default="token",
              show_default=True, help="The secret alone, or all about it.")  # fmt: skip
@server_option
def create(*, user: str | None, note: str, output: str, server: str | None) -> None:
    """Print a new token's secret; the rest goes to stderr."""
    found = Client(server).call("POST", "/v1/tokens", body={"user": user, "note": note})
    if output != "token":
        show(found, output)
        return
    click.echo(f"token {found['id']} of {found['user']}; this is the only time it is shown",
               err=True)  # fmt: skip
    click.echo(found["token"])


@tokens.command("list")
@output_option
@server_option
def list_tokens(*, output: str, server: str | None) -> None:
    """Show tokens, without their secrets: yours, or as an admin all."""
    show(
        Client(server).get("/v1/tokens"), output,
        [
            ("ID", lambda r: r["id"]), ("USER", lambda r: r["user"]), ("NOTE", lambda r: r["note"]),
            ("CREATED", lambda r: moment(r["created"])),
            ("REVOKED", lambda r: moment(r["revoked"])),
        ],
    )  # fmt: skip


@tokens.command("revoke")
@click.argument("token_id")
@server_option
def revoke(*, token_id: str, server: str | None) -> None:
    """From now on a token opens nothing."""
    Client(server).call("DELETE", f"/v1/tokens/{segment(token_id)}")
    click.echo(f"token {token_id} revoked")


@click.group("users")
def users() -> None:
    """Say which user of this machine acts for which owners.

    \b
      fairlead users bind ada --owner team-a --owner team-b
      fairlead users list
    """


@users.command("bind")
@click.argument("name")
@click.option("--owner", "owners", multiple=True, help="An owner; may be given several times.")
@click.option("--admin", is_flag=True, help="May do everything, for everybody.")
@server_option
def bind(*, name: str, owners: tuple[str, ...], admin: bool, server: str | None) -> None:
    """Bind a user to owners, in place of those it was bound to before."""
    body = {"owners": list(owners), "admin": admin}
    found = Client(server).call("PUT", f"/v1/users/{segment(name)}", body=body)
    what = "everybody" if found["admin"] else ", ".join(found["owners"]) or "nobody"
    click.echo(f"{name} acts for {what}")


@users.command("unbind")
@click.argument("name")
@server_option
def unbind(*, name: str, server: str | None) -> None:
    """Forget a user; it acts for nobody."""
    Client(server).call("DELETE", f"/v1/users/{segment(name)}")
    click.echo(f"{name} acts for nobody")


@users.command("list")
@output_option
@server_option
def list_users(*, output: str, server: str | None) -> None:
    """Show users and their owners."""
    show(
        Client(server).get("/v1/users"), output,
        [
            ("NAME", lambda r: r["name"]), ("OWNERS", lambda r: r["owners"]),
            ("ADMIN", lambda r: r["admin"]),
        ],
    )  # fmt: skip


@click.command("whoami")
@output_option
@server_option
def whoami(*, output: str, server: str | None) -> None:
    """Say who the server takes you for."""
    found = Client(server).get("/v1/whoami")
    if output != "table":
        show(found, output)
        return
    what = "everybody" if found["admin"] else ", ".join(found["owners"]) or "nobody"
    click.echo(f"{found['user']}, acts for {what}")
