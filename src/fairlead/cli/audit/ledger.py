"""Options and checkpoints that the ledger's commands share."""

from pathlib import Path

import click

from fairlead.cli.input import reading
from fairlead.cli.table import moment_ms, show_canonical
from fairlead.core.audit import SignedHead
from fairlead.schema.audit import read_head


def held_head(path: Path) -> SignedHead:
    with reading(path):
        return read_head(path.read_bytes())


def print_head(signed: SignedHead, output: str) -> None:
    if output in ("json", "yaml"):
        show_canonical(signed.as_document(), output)
        return
    shown = {**signed.as_document(), "time_ms": moment_ms(signed.head.time_ms)}
    for name, value in shown.items():
        click.echo(f"{name.removesuffix('_ms'):<10} {value}")
