"""The language gate of `make check`: refuses Fairlead's former private dialect.

`python -m tests.language` reads every line of `src`, `docs`, `bench`, `verify`, `deploy`,
`scenarios` and the pages at the root, and every help text of the command line. For each phrase that
has an industry word it prints the place and the word to use instead, and exits 1. The words are
listed in `docs/reference/glossary.md`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("src", "docs", "bench", "verify", "deploy", "scenarios")
ENDINGS = (".py", ".md", ".c", ".h", ".html", ".js", ".mjs", ".yaml", ".service")

# Phrase (case-insensitive regular expression) and what to say instead.
DIALECT: dict[str, str] = {
    r"(?:\b|_)g(?:iv(?:e|es|en|ing)|ave)[ _-]?way": "preempt, shrink, drop spares",
    r"\bmade to go\b": "preempted",
    r"denominat(?!or)": "withdraw (a nomination)",
    r"\bdoors?\b": "admission",
    r"\bwhoever\b": "name the actor",
    r"\b(?:somebody|someone|nobody|no one|everybody)\b": "name the actor",
    r"\b(?:drawn )?by lot\b": "selected by the lottery",
    r"\b(?:says?|said|saying) no\b": "rejects, refuses",
    r"\baloud\b": "rejects with 503",
    r"\bwho (?:is well|is sick|stalls?)\b": "healthy, unhealthy, stalled",
    r"\bfaults? of the world\b": "environment error",
    r"\bledger (?:that )?is away\b": "ledger unavailable",
    r"\b(?:for|with|own) eyes\b": "for people; probes",
    r"\b(?:herald|chronicle|outreach|patience)\b": "notifier, event log, HTTP client, timeouts",
    r"\btelling\b|\btightening\b": "reports, caps",
    r"\b(?:tame|wild)\b": "name the property",
    r"\bthe plane\b": "dataplane, proxy, or control plane",
    r"\bthe lot\b": "the lottery",
    # A power cut, a line that is cut off and a limit that is cut by a ratio are plain English.
    r"\b(?:leases?|runs?|gangs?|tenants?|everything)( is| are| was| were)? cut\b(?![,.]| t)": (
        "preempted, shrunk, dropped, ended"
    ),
    r"\b(?:to|will|would) be cut\b(?! (?:off|to|at))|\bcut by rule\b": "preempted, ended by rule",
    # `chance` is a field of reports, and what is red by chance is plain English.
    r"\b(?:without|put|whom|where|before|no|on|seeded) chance\b": "the seed, the lottery",
    r"\bchance (?:selects?|touches|is fair|came)\b": "the seed, the lottery",
}
# A line that says so names a word of a recorded format, which keeps its bytes.
EXEMPT = "recorded format"
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), word) for pattern, word in DIALECT.items()]


class Finding(NamedTuple):
    """A phrase of the dialect, where it stands and what to say instead."""

    place: str
    phrase: str
    instead: str


def findings_in(text: str, place: str) -> Iterator[Finding]:
    """Each phrase of the dialect in a text, with its line number."""
    for number, line in enumerate(text.splitlines(), start=1):
        if EXEMPT in line:
            continue
        for pattern, instead in _PATTERNS:
            for match in pattern.finditer(line):
                yield Finding(f"{place}:{number}", match.group(), instead)


def files() -> list[Path]:
    """The files that the gate reads: what git tracks in the folders, and the root's pages."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *FOLDERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    names = [name for name in listed if name.endswith(ENDINGS)]
    return [ROOT / name for name in (*PAGES, *names) if (ROOT / name).exists()]


def help_texts(command: click.Command, path: str = "fairlead") -> Iterator[tuple[str, str]]:
    """Every help text of the command line, with the command or option that it belongs to."""
    yield path, command.help or ""
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"{path} {option.opts[0]}", option.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from help_texts(found, f"{path} {name}")


def all_findings() -> list[Finding]:
    """Everything that the gate refuses."""
    from fairlead.cli.main import main  # noqa: PLC0415 - the files can be read without the package

    rows = [
        finding
        for file in files()
        for finding in findings_in(file.read_text("utf-8"), str(file.relative_to(ROOT)))
    ]
    for place, text in help_texts(main):
        rows += findings_in(text, f"help of `{place}`")
    return rows


if __name__ == "__main__":
    refused = all_findings()
    for finding in refused:
        print(f"{finding.place}: {finding.phrase!r}: say: {finding.instead}")
    sys.exit(1 if refused else 0)
