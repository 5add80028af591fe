"""`tokens`, `users`, `whoami`: who may act for which owners; `login`, `sessions`: browsers."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

import click

from fairlead.cli.client import Client, changes_api, reads_api, segment
from fairlead.cli.completion import OWNER
from fairlead.cli.options import dry_run_option, flag, option, output_format, server_option
from fairlead.cli.table import Output, columns, note, show
from fairlead.host.paths import user_state_directory

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


# -- sessions of browsers -------------------------------------------------------------------------


_SESSIONS = columns("id user how token SINCE@since USED@used EXPIRES@expires")
_FORWARD = """<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}">
<title>Fairlead</title><p><a href="{0}">Sign in</a></p>
"""


@click.command("login")
@flag("--browser", "Open the link in a browser of this machine.")
@reads_api
def login(client: Client, out: Output, *, browser: bool) -> None:
    """Print a link that signs a browser in to the page as you.

    The link works once, within a minute. The session has your rights, or those of the token in
    FAIRLEAD_TOKEN_FILE, and ends after an hour without use, after twelve hours, when you sign out,
    or with the token. A session cannot create tokens or bind users.

    The page is on loopback of the control plane's machine. From elsewhere, forward the port first:
    `ssh -L 8470:127.0.0.1:8470 MACHINE`, with the same number on both sides. Without this command,
    sign in on the page with a token (`fairlead tokens create`).

    \b
      fairlead login --browser
      fairlead sessions list
    """
    made = client.call("POST", "/v1/signin/codes")
    out.done(made, made["address"])
    if not out.is_table:
        return
    note(f"signs a browser in as {made['user']}; works once, within a minute")
    if browser and not _open(made["address"]):
        note("there is no browser here: open the link yourself")


def _open(address: str) -> bool:
    """Open a file that leads there: other users of the machine see the arguments of a program, and
    the link is a secret."""
    shows = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not shows and sys.platform.startswith("linux"):
        return False  # there may be one for terminals, and the link would be opened in it
    file = user_state_directory() / "signin.html"
    write_private(file, _FORWARD.format(address))
    try:
        return webbrowser.open(file.as_uri())
    except webbrowser.Error:
        return False


def write_private(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # with the mode of another time, or a link
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)


@click.group("sessions")
def sessions() -> None:
    """List and end the sessions of browsers.

    A session is a browser that is signed in to the page, by a token or by `fairlead login`.
    Revoking a token ends its sessions; a restart of the control plane ends all.

    \b
      fairlead sessions list
      fairlead sessions end 1f2e3d4c
    """


@sessions.command("list")
@reads_api
def list_sessions(client: Client, out: Output) -> None:
    """List your sessions; an admin sees all.

    \b
      fairlead sessions list
    """
    out.rows(client.get("/v1/sessions"), _SESSIONS)


@sessions.command("end")
@click.argument("session_id", metavar="ID")
@reads_api
def end(client: Client, out: Output, *, session_id: str) -> None:
    """End a session at once; its browser is signed out.

    \b
      fairlead sessions list
      fairlead sessions end 1f2e3d4c
    """
    session = client.call("DELETE", f"/v1/sessions/{segment(session_id)}")
    out.done(session, f"session {session_id} of {session['user']} ended")
