"""Writes the part of docs/reference/cli.md that lists every command, from the commands themselves.

`make docs` runs it; a test compares the page with what it would write, so that the page is true.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fairlead.cli.kubectl.commands import OWN
from fairlead.cli.kubectl.commands import runs as kubectl_runs
from fairlead.cli.main import SETTINGS
from fairlead.cli.main import main as fairlead

PAGE = Path(__file__).parent / "reference" / "cli.md"
MARK = (
    "<!-- Below this line everything is written by `make docs` from the commands' own help. -->\n"
)


def leaves(
    group: click.Group, context: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command that does something, with its whole name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from leaves(command, inner, (*path, name))
        else:
            yield " ".join(("fairlead", *path, name)), command, inner


def every_command() -> Iterator[tuple[str, click.Command, click.Context]]:
    """All of `fairlead`, and what `kubectl runs` has besides."""
    yield from leaves(
        fairlead, click.Context(fairlead, info_name="fairlead", **fairlead.context_settings)
    )
    context = click.Context(kubectl_runs, info_name="kubectl runs", **SETTINGS)
    for name in OWN:
        command = kubectl_runs.get_command(context, name)
        if command is not None:
            inner = click.Context(command, info_name=name, parent=context)
            yield f"kubectl runs {name}", command, inner


def paragraphs(command: click.Command) -> Iterator[tuple[bool, str]]:
    """The help's paragraphs; True for those that are to be shown as they are: examples."""
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        if text.lstrip().startswith("\b"):
            yield True, inspect.cleandoc(text.lstrip()[1:].strip("\n"))
        else:
            yield False, " ".join(text.split())


def section(name: str, command: click.Command, context: click.Context) -> str:
    """One command: what it is for, examples, arguments and options."""
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"### `{name}`", "", f"`{name} {usage}`".replace(" `", "`"), ""]
    for literal, text in paragraphs(command):
        lines += ["```sh", text, "```", ""] if literal else [text, ""]
    records = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None
        and record[1]
        and "--help" not in parameter.opts
    ]
    if records:
        lines += ["| option | meaning |", "|---|---|"]
        for names, text in records:
            lines.append(f"| `{_cell(names)}` | {_cell(text)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    """The whole page as it should be."""
    before, mark, _ = PAGE.read_text().partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE}: the line that begins the written part is missing")
    written = "\n".join(section(*each) for each in every_command())
    return f"{before}{MARK}\n{written.rstrip()}\n"


if __name__ == "__main__":
    text = page()
    sys.stdout.write("" if text == PAGE.read_text() else f"{PAGE.name} written\n")
    PAGE.write_text(text)
