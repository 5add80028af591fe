"""What commands that play scenarios share: where a scenario comes from, where its report goes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from fairlead.cli.main import EXIT_BAD_INPUT
from fairlead.schema.border import BadInput
from fairlead.schema.yaml import YAML_BYTES_MAX
from fairlead.sim.plots import INSTALL_HINT, PlotsMissing, load_matplotlib
from fairlead.sim.report import NotAReport, check_target

Document = TypeVar("Document")


class BadScenario(click.ClickException):
    """Input that cannot be played: one line, exit code 2."""

    exit_code = EXIT_BAD_INPUT

    def show(self, file: object = None) -> None:
        """As `fairlead decide` says it."""
        click.echo(f"error: {self.message}", err=True)


def load_scenario(
    scenario: str,
    names: Sequence[str],
    bundled: Callable[[str], bytes],
    parse: Callable[[bytes], Document],
) -> Document:
    """The document; a file is preferred to a bundled one of the same name."""
    path = Path(scenario)
    try:
        if not path.exists() and scenario in names:
            data = bundled(scenario)
        else:
            with path.open("rb") as file:
                data = file.read(YAML_BYTES_MAX + 1)
        return parse(data)
    except BadInput as error:
        raise BadScenario(str(error)) from error
    except OSError as error:
        hint = f"; those that come with Fairlead are: {', '.join(names)}"
        raise BadScenario(f"{scenario}: {error.strerror}{hint}") from error


def report_target(out: Path | None, name: str, *, option: str = "--out") -> Path:
    """The report's folder, refused before the long work if it holds something else."""
    target = out or Path("out") / name
    try:
        check_target(target)
    except NotAReport as error:
        raise BadScenario(f"{option}: {error}") from error
    return target


def can_plot() -> bool:
    """Whether matplotlib is there; if not, say how to get it, before the long work."""
    try:
        load_matplotlib()
    except PlotsMissing:
        click.echo(f"note: no plots without matplotlib; install it with: {INSTALL_HINT}", err=True)
        return False
    return True
