"""`tokens`, `users` and `whoami`: who may act for which owners."""

from typing import Any

import click

from fairlead.cli.client import Client, changes_api, reads_api, segment
from fairlead.cli.completion import OWNER
from fairlead.cli.options import dry_run_option, flag, option, output_format, server_option
from fairlead.cli.table import Output, columns, note, show

_TOKENS = columns("id user note CREATED@created REVOKED@revoked", wide=["REPORTS=reports"])
_USERS = columns("name owners admin")


@click.group("tokens")
def tokens() -> None:
    """Create, list and revoke tokens for HTTP.

    A token acts as its user. Its secret is printed once; keep it in a file that only you can read,
    and name that file in FAIRLEAD_TOKEN_FILE.

    \b
      fairlead tokens create --user ada --note laptop > ~/.fairlead-token
      fairlead tokens revoke 1f2e3d4c
    """


@tokens.command("create")
@option("--user", str, "Name the token's user [default: you].")
@option("--agent", str, "Create it for the agent of this node instead.")
@option("--group groups", str, "Let the agent report this route group (repeatable).", multiple=True)
@option("--note about", str, "Describe its use.")
@output_format("token", "json", "yaml", default="token")
@dry_run_option
@server_option
def create(
    *,
    user: str | None,
    agent: str | None,
    groups: tuple[str, ...],
    about: str | None,
    output: str,
    dry_run: bool,
    server: str | None,
) -> None:
    """Create a token and print its secret once.

    Only an admin creates tokens for other users and for agents. An agent's token reports the node
    of its name and the groups that are named, and does nothing else. Everything but the secret goes
    to stderr.

    \b
      fairlead tokens create --user ada --note laptop > ada.token
      fairlead tokens create --agent gpu-1 --group web > agent.token
    """
    body: dict[str, Any] = {"user": user, "note": about or ""}
    if agent is not None or groups:
        body |= {"agent": agent, "groups": list(groups)}
    token = Client(server, dry_run=dry_run).change("POST", "/v1/tokens", body)
    if output != "token":
        show(token, output)
    elif dry_run:
        note(f"a token of {token['user']} would be created (dry run)")
    else:
        note(f"token {token['id']} of {token['user']}; this is the only time it is shown")
        click.echo(token["token"])


@tokens.command("list")
@reads_api
def list_tokens(client: Client, out: Output) -> None:
    """List your tokens; an admin sees all. No secrets.

    \b
      fairlead tokens list
    """
    out.rows(client.get("/v1/tokens"), _TOKENS)


@tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@changes_api
def revoke(client: Client, out: Output, *, token_id: str) -> None:
    """Revoke a token at once; open `logs -f` streams end.

    \b
      fairlead tokens list
      fairlead tokens revoke 1f2e3d4c
    """
    token = client.change("DELETE", f"/v1/tokens/{segment(token_id)}")
    out.done(token, f"token {token_id} revoked")


@click.group("users")
def users() -> None:
    """Bind users of this machine to owners.

    \b
      fairlead users bind ada --owner team-a --owner team-b
      fairlead users list
    """


@users.command("bind")
@click.argument("name")
@option("--owner owners", OWNER, "Act for this owner (repeatable).", multiple=True)
@flag("--admin", "Act for every owner, with all rights.")
@changes_api
def bind(client: Client, out: Output, *, name: str, owners: tuple[str, ...], admin: bool) -> None:
    """Bind a user to owners; replaces earlier bindings.

    \b
      fairlead users bind ada --owner team-a --owner team-b
    """
    body = {"owners": list(owners), "admin": admin}
    user = client.change("PUT", f"/v1/users/{segment(name)}", body)
    out.done(user, f"{name} acts for {_owners(user)}")


@users.command("unbind")
@click.argument("name")
@changes_api
def unbind(client: Client, out: Output, *, name: str) -> None:
    """Remove a user's bindings, also for its tokens.

    \b
      fairlead users unbind ada
    """
    user = client.change("DELETE", f"/v1/users/{segment(name)}")
    out.done(user, f"{name} acts for {_owners(user)}")


def _owners(user: dict[str, Any]) -> str:
    return "all owners" if user["admin"] else ", ".join(user["owners"]) or "no owner"


@users.command("list")
@reads_api
def list_users(client: Client, out: Output) -> None:
    """List users and their owners.

    \b
      fairlead users list
    """
    out.rows(client.get("/v1/users"), _USERS)


@click.command("whoami")
@reads_api
def whoami(client: Client, out: Output) -> None:
    """Show your user and owners as the server sees them.

    \b
      fairlead whoami
    """
    user = client.get("/v1/whoami")
    rights = f"acts for {_owners(user)}"
    if user.get("in_run"):
        itself = "" if user["run"] is None else f", and acts on run {user['run']} only"
        rights = f"a process of a run: reads{itself}"
    out.done(user, f"{user['user']}, {rights}")
