"""Manifests from files, and errors in the words of whoever wrote them: file, document, field."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from fairlead.cli.client import Answer
from fairlead.cli.main import EXIT_BAD_INPUT
from fairlead.schema.border import BadInput
from fairlead.schema.yaml import YAML_BYTES_MAX, parse_yaml_documents

SUFFIXES = (".yaml", ".yml", ".json")
F = TypeVar("F", bound=Callable[..., Any])
_PLACE = re.compile(r"manifests\[(\d+)\]\.?")

file_option: Callable[[F], F] = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Manifests as YAML or JSON, one or several documents: a file, a folder, or - for standard "
    "input. May be given several times.",
)
dry_run_option: Callable[[F], F] = click.option(
    "--dry-run", is_flag=True, help="Say what would happen, only: nothing is written."
)


class BadManifest(click.ClickException):
    """A manifest that cannot be read: one line, exit code 2."""

    exit_code = EXIT_BAD_INPUT

    def show(self, file: object = None) -> None:
        """As everywhere."""
        click.echo(f"error: {self.message}", err=True)


@dataclass(frozen=True, slots=True)
class Source:
    """One document and where it stands."""

    file: str
    number: int
    """Which document of its file, from 1; empty ones are counted, as an editor shows them."""
    document: Any

    @property
    def place(self) -> str:
        """`lab.yaml, document 2 (run/train-7)`."""
        about = what(self.document)
        return f"{self.file}, document {self.number}" + (f" ({about})" if about else "")


def what(document: Any) -> str:
    """`run/train-7`, as far as a document says so."""
    try:
        return f"{str(document['kind']).lower()}/{document['metadata']['name']}"
    except (KeyError, TypeError):
        return ""


def read_manifests(files: Sequence[str], *, only: str = "") -> list[Source]:
    """All documents of all files, in order; `only`: of that kind alone."""
    found = [source for path in _expand(files) for source in _read(path)]
    if not found:
        raise BadManifest(f"{', '.join(files)}: no manifest is in there")
    for source in found:
        kind = source.document.get("kind") if isinstance(source.document, dict) else None
        if only and kind != only:
            raise BadManifest(f"{source.place}: kind: must be {only}, got {kind!r}")
    return found


@contextmanager
def explained(sources: Sequence[Source]) -> Iterator[None]:
    """An error about `manifests[3].spec.x` as one about that document of that file."""
    try:
        yield
    except Answer as error:
        match = _PLACE.match(error.path or "")
        if match is None or int(match[1]) >= len(sources):
            raise
        inside = (error.path or "")[match.end() :]
        parts = [sources[int(match[1])].place, *([inside] if inside else []), error.about]
        raise error.saying(": ".join(parts)) from None


def _expand(files: Sequence[str]) -> Iterator[str]:
    for each in files:
        if each != "-" and Path(each).is_dir():
            inside = sorted(p for p in Path(each).iterdir() if p.suffix in SUFFIXES and p.is_file())
            if not inside:
                raise BadManifest(f"{each}: has no {', '.join(SUFFIXES)} file")
            yield from map(str, inside)
        else:
            yield each


def _read(path: str) -> Iterator[Source]:
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(YAML_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(YAML_BYTES_MAX + 1)
        documents = parse_yaml_documents(data)
    except OSError as error:
        raise BadManifest(f"{name}: {error.strerror}") from error
    except BadInput as error:
        raise BadManifest(f"{name}: {error}") from error
    for number, document in enumerate(documents, 1):
        if document is not None:
            yield Source(name, number, document)
