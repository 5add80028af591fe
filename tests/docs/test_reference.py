"""The command reference is written from the commands; every command teaches by example."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_says_what_the_commands_say(reference: ModuleType) -> None:
    """Every command and option, as `--help` has it; `make docs` puts it right."""
    assert reference.PAGE.read_text() == reference.page(), "run `make docs` and commit cli.md"


def test_the_page_links_to_what_is_there(reference: ModuleType) -> None:
    """The table at the top leads to sections of the page."""
    text = reference.PAGE.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
    linked = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert len(linked) >= 30
    assert linked <= anchors, linked - anchors


def test_every_command_teaches_by_example(reference: ModuleType) -> None:
    """A sentence, an example that names the command, a word on every option."""
    for name, command, _ in reference.every_command():
        shown = list(reference.paragraphs(command))
        assert not shown[0][0], name
        examples = " ".join(text for literal, text in shown if literal)
        assert name.split()[1] in examples, f"{name} --help has no example"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts[-1]} says nothing"


def test_help_is_short(reference: ModuleType) -> None:
    """The first line of a command and the text of an option stay under 60 characters."""
    long = []
    for name, command, _ in reference.every_command():
        texts = [next(iter(reference.paragraphs(command)))[1]]
        texts += [each.help or "" for each in command.params if isinstance(each, click.Option)]
        long += [f"{name}: {text}" for text in texts if len(text) >= 60]
    assert long == []


def test_every_command_that_writes_has_a_dry_run(reference: ModuleType) -> None:
    """And every one that reads speaks JSON and YAML."""
    commands = {name.removeprefix("fairlead "): each for name, each, _ in reference.every_command()}
    writing = {
        "apply",
        "submit",
        "delete",
        "cancel",
        "pause",
        "resume",
        "cordon",
        "uncordon",
        "drain",
        "users bind",
        "users unbind",
        "tokens create",
        "tokens revoke",
        "heads forget",
        "audit archive",
        "audit backup",
        "audit restore",
        "audit rotate-key",
        "node run",
        "reserve",
        "resolve",
        "nominate",
        "shrink",
        "audit void",
        "audit nonce",
        "audit beacon",
    }
    reading = {
        "get",
        "describe",
        "explain",
        "plan",
        "budgets",
        "leases",
        "sponsors",
        "owes",
        "report",
        "watch",
        "whoami",
        "users list",
        "tokens list",
        "heads list",
        "audit head",
        "audit log",
        "audit verify",
        "replay",
        "doctor",
        "node status",
        "node explain",
        "audit outcome",
    }
    for name in writing:
        assert "--dry-run" in {opt for each in commands[name].params for opt in each.opts}, name
    for name in reading | writing - {"heads forget", "node run"} - {
        each for each in writing if each.startswith("audit")
    }:
        (output,) = [each for each in commands[name].params if each.name == "output"]
        assert {"json", "yaml"} <= set(output.type.choices), name  # type: ignore[attr-defined]
