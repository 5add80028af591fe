"""`login` and `sessions`: sign a browser in to the page, and see or end what is signed in."""

import os
import sys
import webbrowser
from pathlib import Path

import click

from fairlead.cli.client import Client, reads_api, segment
from fairlead.cli.options import flag
from fairlead.cli.table import Output, columns, note
from fairlead.host.paths import user_state_directory

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
