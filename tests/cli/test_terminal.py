"""On a terminal: bold heads, colours that mean something, folded to its width; plain in a pipe."""

import io
import json
import re
import socket
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import click
import pytest
import yaml

from fairlead.cli.table import cell, show, to_yaml
from fairlead.cli.terminal import guard, raw
from tests.api.servers import budget, run
from tests.cli.shells import FAIRLEAD, Shell, on_terminal

STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def busy(shell: Shell) -> Shell:
    """One run that runs, one that waits."""
    shell.server.apply(run("goes", gpus=4, duration="1h"), run("waits", gpus=99))
    running = shell.server
    running.until("running", lambda: running.status("Run", "goes")["phase"] == "Running")
    running.until("refused", lambda: running.status("Run", "waits")["refusal"])
    return shell


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize(
    "command",
    [
        ("get", "runs"),
        ("budgets",),
        ("leases",),
        ("report",),
        ("describe", "run/goes"),
        ("explain", "run/waits"),
    ],
    ids=" ".join,
)
def test_a_table_fits_its_terminal(busy: Shell, command: tuple[str, ...], columns: int) -> None:
    """No line is wider than the terminal, whatever stands in it; what does not fit is folded."""
    shown = busy.on_terminal(*command, columns=columns)
    assert shown.code == 0
    lines = STYLE.sub("", shown.text).splitlines()
    if command[0] not in ("describe", "explain"):  # sentences and YAML wrap where they please
        assert max(map(len, lines)) <= columns
    assert any(each.strip() for each in lines)


def test_colour_means_something_and_can_be_switched_off(busy: Shell) -> None:
    """Green runs, yellow waits; NO_COLOR and a pipe leave the words alone."""
    shown = busy.on_terminal("get", "runs").text
    assert re.search(r"\x1b\[1m ?NAME", shown), "the head is bold"
    assert "\x1b[32mRunning" in shown
    assert "\x1b[33mPending" in shown
    plain = busy.on_terminal("get", "runs", NO_COLOR="1").text
    assert "\x1b[3" not in plain
    assert "Running" in plain
    piped = busy.ok("get", "runs")
    assert "\x1b" not in piped
    assert [line.split()[0] for line in piped.splitlines()] == ["NAME", "goes", "waits"]


def test_times_are_the_readers_on_screen_and_utc_in_data(busy: Shell) -> None:
    """The same moment, in the zone of whoever looks; scripts get UTC."""
    utc = busy.server.status("Run", "goes")["since"]
    assert utc.endswith("Z")
    assert utc in busy.ok("get", "runs")
    shown = busy.on_terminal("get", "runs", columns=200, TZ="Etc/GMT-5").text
    hour = (int(utc[11:13]) + 5) % 24
    assert f"{hour:02d}{utc[13:19]}" in shown


def test_reports_are_tables_for_eyes_and_csv_for_pipes(busy: Shell) -> None:
    """Without asking: who looks sees a table, a file gets CSV."""
    shown = STYLE.sub("", busy.on_terminal("report", "--by", "owner").text)
    assert "PERIOD" in shown
    assert "IDLE-GPU-HOURS" in shown
    assert busy.ok("report").startswith("kind,period,start,end,owner,")


def test_a_slow_server_is_waited_for_with_a_sign_of_life(tmp_path: Path) -> None:
    """After a second it says what it waits for, and wipes that away; never in a pipe."""
    path = tmp_path / "slow.sock"
    seen = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                seen.wait(2.5)  # the slowness itself, not a synchronisation
                peer.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        environment = {"PATH": "/usr/bin", "FAIRLEAD_HEADS": str(tmp_path / "heads.json")}
        shown = on_terminal([*FAIRLEAD, "budgets", "--server", str(path)], environment)
        thread.join(timeout=30)
    assert shown.code == 3
    assert f"waiting for {path}, 1 s" in shown.text
    assert "\x1b[K" in shown.text


HOSTILE = "a\x1b]0;owned\x07\x9b2J\rb\x00\u202e"


def test_no_control_character_of_a_name_reaches_the_terminal(busy: Shell) -> None:
    """A tenant who names an object or writes a message moves no cursor and sets no title."""
    named = budget("named")
    named["spec"]["owner"] = HOSTILE.replace("\x00", "")
    busy.server.apply(named)
    for command in (("get", "budgets"), ("explain", "budget/named"), ("budgets", "--owner", "x")):
        shown = STYLE.sub("", busy.on_terminal(*command, columns=200).text)
        assert not re.search("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202e]", shown), shown
    assert "�]0;owned" in shown
    assert json.loads(busy.ok("get", "budget/named", "-o", "json"))["spec"]["owner"][1] == "\x1b"


def test_a_pipe_gets_no_escape_either() -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        guard()
        guard()
        click.echo(HOSTILE + "\tc")
        raw(sys.stdout).write("\x1b[1m")
        click.echo("\u2066x\u2069 ü 😀\r!")
        sys.stdout.write("of,csv\r\n")
    assert out.getvalue() == "a�]0;owned��2J�b��\tc\n\x1b[1m�x� ü 😀�!\nof,csv\r\n"
    assert cell([HOSTILE]) == cell({"x": HOSTILE})[2:] == "a�]0;owned��2J�b��"


def test_a_refusal_repeats_no_such_character(busy: Shell) -> None:
    """Nor does what names the offender: a pipe is often another way to a terminal."""
    named = {**run("goes"), "metadata": {"name": "r\u202e\x9b2Jx"}}
    refused = busy("apply", "-f", "-", input=json.dumps(named))
    assert refused.returncode == 2
    assert "run/r��2Jx" in refused.stderr


def test_what_turns_a_text_around_is_escaped_in_yaml_and_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a pipe, too; what a reader parses is what was stored."""
    tricky = {
        "a": "x\u202ey",
        "b": ["\u2066z\nline\tend", "plain ü 😀", "\U000e0001"],
        "k\u200f": 1,
    }
    assert yaml.safe_load(to_yaml(tricky)) == tricky
    show(tricky, "json")
    show(tricky, "yaml")
    said = capsys.readouterr().out
    assert json.loads(said[: said.index("\n}") + 2]) == tricky
    assert not {"\u202e", "\u2066", "\u200f", "\U000e0001"} & set(said)
    assert "plain ü 😀" in said
