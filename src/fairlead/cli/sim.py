"""`fairlead sim`: play a scenario against the real decision code in virtual time."""

import json
from pathlib import Path

import click

from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_REFUSED
from fairlead.schema.border import BadInput
from fairlead.schema.scenario import read_scenario, scenario_schema
from fairlead.sim import play


@click.group("sim")
def command() -> None:
    """Play a scenario against the real decision code, in virtual time."""


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of a scenario."""
    click.echo(json.dumps(scenario_schema(), indent=2))


@command.command("run")
@click.argument("scenario")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Default: the scenario's own.")
@click.pass_context
def run(ctx: click.Context, *, scenario: str, seed: int | None) -> None:
    """Play SCENARIO (a YAML file) and report what happened."""
    try:
        document = read_scenario(Path(scenario).read_bytes())
    except BadInput as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(EXIT_BAD_INPUT)
    played = play(document, seed=seed)
    click.echo(f"seed {played.seed}  digest {played.digest}")
    for each in played.runs:
        for pod in each.pods:
            click.echo(str(pod))
        click.echo(str(each.node))
    ctx.exit(EXIT_REFUSED if played.broken else 0)
