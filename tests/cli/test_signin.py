"""`login` and `sessions`: a link for a browser, and what is signed in."""

import json
import re
import stat
from pathlib import Path

from tests.api.test_sessions import code_of, sign_in
from tests.cli.shells import Shell


def test_login_prints_a_link_that_signs_in_once(shell: Shell) -> None:
    """The code is in the fragment, which browsers do not send; -o json has it as a field."""
    done = shell("login")
    assert done.returncode == 0, done.stderr
    port = shell.server.port
    found = re.fullmatch(rf"http://127\.0\.0\.1:{port}/signin#code=(\S+)\n", done.stdout)
    assert found, done.stdout
    assert "works once, within a minute" in done.stderr
    assert sign_in(shell.server, code=found[1]).who()["admin"]
    made = json.loads(shell("login", "-o", "json").stdout)
    assert made["address"].endswith(made["code"])


def test_login_with_a_token_has_the_rights_of_the_token(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(shell.server.token("ada", "team-a"))
    server = f"http://127.0.0.1:{shell.server.port}"
    done = shell(
        *("login", "-o", "json"),
        FAIRLEAD_SERVER=server,
        FAIRLEAD_TOKEN_FILE=str(tmp_path / "token"),
    )
    who = sign_in(shell.server, code=json.loads(done.stdout)["code"]).who()
    assert (who["user"], who["owners"], who["admin"]) == ("ada", ["team-a"], False)


def test_login_opens_a_browser_without_showing_others_the_link(
    shell: Shell, tmp_path: Path
) -> None:
    """Arguments of a program can be read by every user of the machine; its file cannot."""
    seen, program = tmp_path / "seen", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$@" > {seen}\n')
    program.chmod(0o755)
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "BROWSER": f"{program} %s"}
    done = shell("login", "--browser", **state)
    assert done.returncode == 0, done.stderr
    shell.server.until("the browser was opened", lambda: seen.exists() and seen.read_text())
    code = done.stdout.strip().partition("#code=")[2]
    assert code
    assert code not in seen.read_text()
    file = Path(seen.read_text().strip().removeprefix("file://"))
    assert code in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_login_without_a_browser_says_so(shell: Shell) -> None:
    done = shell("login", "--browser", DISPLAY="", WAYLAND_DISPLAY="", BROWSER="")
    assert done.returncode == 0
    assert "there is no browser here: open the link yourself" in done.stderr


def test_sessions_are_listed_and_ended(shell: Shell) -> None:
    browser = sign_in(shell.server, code=code_of(shell.server))
    listed = shell("sessions", "list")
    assert browser.session in listed.stdout
    assert "link" in listed.stdout
    done = shell("sessions", "end", browser.session)
    assert (done.returncode, f"session {browser.session}" in done.stdout) == (0, True)
    assert browser.send("GET", "/v1/whoami").status == 401
    again = shell("sessions", "end", browser.session)
    assert (again.returncode, "no session" in again.stderr) == (2, True), again.stderr
