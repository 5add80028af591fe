"""Manifests from files; errors name the file, the document and the field."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.cli.main import EXIT_BAD_INPUT
from fairlead.schema.border import BadInput

SUFFIXES = (".yaml", ".yml", ".json")


class BadFile(click.ClickException):
    """Input that cannot be read: one line, exit code 2."""

    exit_code = EXIT_BAD_INPUT

    def show(self, file: object = None) -> None:
        click.echo(f"error: {self.message}", err=True)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn what is wrong with a file into `BadFile` with its name."""
    try:
        yield
    except BadInput as error:
        raise BadFile(f"{path}: {error}") from error
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Source:
    """One document and where it was read."""

    file: str
    number: int
    """Which document of its file, from 1; empty ones count, as in an editor."""
    document: Any

    @property
    def place(self) -> str:
        """`lab.yaml, document 2 (run/train-7)`."""
        about = object_name(self.document)
        return f"{self.file}, document {self.number}" + (f" ({about})" if about else "")


def object_name(document: Any) -> str:
    """`run/train-7`, or nothing where the document does not have both."""
    try:
        return f"{str(document['kind']).lower()}/{document['metadata']['name']}"
    except (KeyError, TypeError):
        return ""


def read_manifests(files: Sequence[str], *, only: str = "") -> list[Source]:
    """All documents of all files, in order; `only` refuses other kinds."""
    sources = [source for path in _expand(files) for source in _read(path)]
    if not sources:
        raise BadFile(f"{', '.join(files)}: has no manifest")
    for source in sources:
        kind = source.document.get("kind") if isinstance(source.document, dict) else None
        if only and kind != only:
            raise BadFile(f"{source.place}: kind: must be {only}, got {kind!r}")
    return sources


def _expand(files: Sequence[str]) -> Iterator[str]:
    for name in files:
        if name != "-" and Path(name).is_dir():
            inside = sorted(p for p in Path(name).iterdir() if p.suffix in SUFFIXES and p.is_file())
            if not inside:
                raise BadFile(f"{name}: has no {', '.join(SUFFIXES)} file")
            yield from map(str, inside)
        else:
            yield name


def _read(path: str) -> Iterator[Source]:
    from fairlead.schema.yaml import parse_yaml_documents  # 12 ms that a table does not pay

    name = "standard input" if path == "-" else path
    with reading(name):
        documents = parse_yaml_documents(head_of(path))
    for number, document in enumerate(documents, 1):
        if document is not None:
            yield Source(name, number, document)


def head_of(path: str) -> bytes:
    """As much of a file as is ever parsed, and one byte more."""
    from fairlead.schema.yaml import YAML_BYTES_MAX

    with click.open_file(path, "rb") as file:
        return bytes(file.read(YAML_BYTES_MAX + 1))


MANIFEST_PATH = re.compile(r"manifests\[(\d+)\]\.?")
