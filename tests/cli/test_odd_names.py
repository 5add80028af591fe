"""Names that are not UTF-8, or hold control characters: refused, or shown harmlessly; no bug."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.terminal import guard
from tests.api.servers import run
from tests.cli.shells import FAIRLEAD, Shell, run_inside

ODD = "a\udcffb"


@pytest.mark.parametrize(
    "command",
    [
        ("get", "run", ODD),
        ("get", "runs", "--owner", ODD),
        ("logs", ODD),
        ("cancel", ODD),
        ("nominate", ODD),
        ("submit", ODD),
        ("apply", "-f", ODD),
        ("node", "status", "--state-dir", ODD),
        ("doctor", ODD),
        ("replay", ODD),
        ("audit", "log", "--plan", ODD),
    ],
    ids=lambda command: " ".join(command[:2]).encode("ascii", "replace").decode(),
)
def test_an_argument_that_is_not_utf8_is_bad_input(
    shell: Shell, command: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [*FAIRLEAD, *command],
        capture_output=True,
        check=False,
        env=shell.environment(FAIRLEAD_STATE=str(tmp_path)),
    )
    assert done.returncode in (1, 2, 3), done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.decode()


@pytest.mark.parametrize(
    "command", [("node", "run", "--dry-run", "--config"), ("traffic", "check")]
)
def test_a_configuration_with_a_nul_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    """No path has one: `root` with it ended the node agent as a bug."""
    file = tmp_path / "agent.yaml"
    file.write_text('{"root": "/sys/fs\\u0000", "state_dir": "x"}')
    done = run_inside(*command, str(file), environment={"PATH": "/bin"})
    said = done.stderr.decode()
    assert (done.returncode, "root: must not contain a NUL character" in said) == (2, True), said


def test_the_guard_lets_no_lone_byte_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream could not encode it, and the command would end as a bug."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    guard()
    print(f"pod {ODD} \x1b]0;title\x07")
    out.flush()
    assert out.buffer.getvalue().decode() == "pod a\ufffdb \ufffd]0;title\ufffd\n"


@pytest.mark.parametrize("command", [("node", "status"), ("node", "explain", "x\x1b[2J")])
def test_escape_sequences_of_pods_do_not_reach_a_terminal(
    shell: Shell, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """From a status file, whose names come from cgroups; and from the command line."""
    shown = shell.on_terminal(*command, "--state-dir", str(tmp_path), FAIRLEAD_STATE=str(tmp_path))
    assert "\x1b[2J" not in shown.text
    assert shown.code in (1, 2, 3)


GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.jsonl"))


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", "\x1b[2J"], ids=["nul", "surrogate", "escape"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_decision_about_odd_names_is_answered_or_refused(path: Path, odd: str) -> None:
    """Every kind, with each of its names in turn: never a bug, and what is answered is JSON."""
    lines = path.read_text().splitlines()
    documents = (json.loads(line)["input"] for line in lines)
    document = max(documents, key=lambda document: len(set(_names(document))))
    names = sorted(set(_names(document)))[:6]
    for name in names:
        text = json.dumps(_renamed(document, name, odd))
        done = run_inside("decide", path.stem, input=text.encode(), environment=dict(os.environ))
        assert done.returncode in (0, 1, 2), done.stderr
        if done.returncode == 0:
            json.loads(done.stdout)


def _names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("owner", "name", "id", "run", "pod", "uid") and isinstance(item, str):
                yield item
            yield from _names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)


def _renamed(value: Any, name: str, odd: str) -> Any:
    if isinstance(value, dict):
        return {_renamed(key, name, odd): _renamed(item, name, odd) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, name, odd) for item in value]
    return odd if value == name else value


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/a%00b",
        "/v1/runs/a%ffb",
        "/v1/runs?owner=a%00b",
        "/v1/objects/run/%00",
        "/v1/events?kind=%ff",
        "/v1/explain/run/%00",
        "/v1/outcomes/%00",
        "/%00",
    ],
)
def test_a_request_with_odd_names_is_answered(shell: Shell, path: str) -> None:
    """And the server goes on."""
    assert shell.server.send("GET", path).status in (200, 400, 404, 422)
    assert shell.server.send("GET", "/healthz").status == 200


def test_an_object_with_odd_names_is_refused(shell: Shell) -> None:
    """With the field; the control plane goes on."""
    for change in ({"owner": "a\0b"}, {"command": ["\0"]}, {"env": {"A": "\0"}}, {"flavor": "\0"}):
        document = json.dumps([{**run("odd"), "spec": {**run("odd")["spec"], **change}}])
        done = shell("apply", "-f", "-", input=document)
        assert done.returncode == 2, (change, done.stderr)
        assert next(iter(change)) in done.stderr
    assert shell.server.send("GET", "/healthz").status == 200
