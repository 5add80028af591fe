"""Examples in the contracts, the concepts and the README, as they stand: run, and compared."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "docs" / "concepts" / "cpu.md",
    ROOT / "docs" / "reference" / "cli.md",
    *sorted((ROOT / "docs" / "reference").glob("decide-*.md")),
]
# Commands, and right after them what they answer.
EXAMPLE = re.compile(
    r"^```sh\n((?:(?!^```).)*?)^```\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clone after `make venv`, as far as the examples can tell."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("fairlead", "-m fairlead "), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    return tmp_path


def typed(commands: str, folder: Path) -> str:
    """What a shell shows; files that an example puts into /tmp go into its folder."""
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", commands.replace("/tmp/", f"{folder}/")],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_examples_as_they_stand(page: Path, folder: Path) -> None:
    """In one folder, in order; the same bytes as on the page."""
    examples = EXAMPLE.findall(page.read_text())
    assert examples
    for commands, answer in examples:
        assert typed(commands, folder) == answer, commands


def test_the_readme_begins_with_what_it_is_and_two_commands() -> None:
    """What it is, `make up` and `make test` are on the first screen."""
    screen = README.splitlines()[:20]
    assert screen[0] == "# Fairlead"
    assert [line.split("#")[0].strip() for line in screen if line.startswith("make ")] == [
        "make up",
        "make test",
    ]


def test_the_readmes_examples_run(folder: Path) -> None:
    """The library's, and the first decision on the command line."""
    (library,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (folder / "library.py").write_text(library)
    assert "'web': " in typed(".venv/bin/python library.py", folder)
    (decide,) = re.findall(r"^```sh\n(echo .*?)^```", README, re.MULTILINE | re.DOTALL)
    assert '"allocations":{"a":587}' in typed(f"PATH=$PWD/.venv/bin:$PATH\n{decide}", folder)
