"""`fairlead import slurm|kueue FILE…`: manifests on standard output, a report on stderr."""

from pathlib import Path

import click

from fairlead.cli.importing.report import Imported
from fairlead.cli.input import BadFile, head_of, reading
from fairlead.cli.options import Integer, option, output_format
from fairlead.cli.table import cell, note, show, to_yaml
from fairlead.core.units import counted
from fairlead.schema.border import BadInput

_files = click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True))
_output = output_format("yaml", "json", default="yaml", text="Manifests, or all of it as JSON.")


@click.group("import")
def command() -> None:
    """Make budgets from what another scheduler has.

    Nothing is changed: manifests go to standard output, what could not be carried over to standard
    error, with the reason. Read both, then apply.

    \b
      sacctmgr dump lab File=lab.cfg && fairlead import slurm lab.cfg --flavor H100 > budgets.yaml
      kubectl get clusterqueues,cohorts -o yaml | fairlead import kueue - > budgets.yaml
      fairlead apply -f budgets.yaml --dry-run
    """


@command.command("slurm")
@_files
@option("--flavor", str, "Flavor of GPUs without a type.", default="GPU")
@option("--gpus", Integer(1, 100_000), "GPUs of the cluster, for accounts without a limit.")
@option(
    "--every recurrence",
    ("monthly", "quarterly"),
    "Period of the hours [default: hours are for good].",
)
@_output
def slurm(
    *, files: tuple[str, ...], flavor: str, gpus: int | None, recurrence: str | None, output: str
) -> None:
    """Read accounts from the output of `sacctmgr`.

    Of `sacctmgr dump`, or `sacctmgr show assoc|qos -P`. GrpTRES of GPUs becomes the concurrency,
    GrpTRESMins the hours; the limits of a QOS that one account alone has hold for that account.
    Users become commands that bind them.

    \b
      fairlead import slurm lab.cfg --flavor H100 --every monthly
      sacctmgr show assoc -P format=account,parentname,user,grptres,grptresmins,qos |
        fairlead import slurm - qos.txt -o json
    """
    from fairlead.cli.importing.slurm import Defaults, NotSlurm, import_slurm

    texts = []
    for name in files:
        with reading(_shown(name)):
            texts.append(head_of(name).decode(errors="replace"))
    try:
        made = import_slurm(texts, Defaults(flavor, gpus, recurrence))
    except NotSlurm as error:
        raise BadFile(f"{', '.join(map(_shown, files))}: {error}") from error
    _print(made, output)


@command.command("kueue")
@_files
@_output
def kueue(*, files: tuple[str, ...], output: str) -> None:
    """Read ClusterQueues and Cohorts, as YAML or JSON.

    Lists of kubectl, too.

    \b
      kubectl get clusterqueues,cohorts -o yaml | fairlead import kueue - > budgets.yaml
    """
    from fairlead.cli.importing.kueue import NotKueue, import_kueue
    from fairlead.schema.yaml import parse_yaml_documents

    documents = []
    for name in files:
        with reading(_shown(name)):
            for document in parse_yaml_documents(head_of(name)):
                if isinstance(document, dict) and isinstance(document.get("items"), list):
                    documents += document["items"]
                elif document is not None:
                    documents.append(document)
    try:
        made = import_kueue(documents)
    except NotKueue as error:
        raise BadFile(f"{', '.join(map(_shown, files))}: {error}") from error
    except (AttributeError, TypeError, ValueError, BadInput) as error:
        raise BadFile(
            f"{', '.join(map(_shown, files))}: is not of Kueue's form: {error}"
        ) from error
    _print(made, output)


def _shown(name: str) -> str:
    return "standard input" if name == "-" else str(Path(name))


def _print(made: Imported, output: str) -> None:
    if output == "json":
        show(made.document(), "json")
        return
    if made.manifests:
        click.echo(to_yaml(made.manifests), nl=False)
    were = "was" if len(made.lost) == 1 else "were"
    lost = f"{counted(len(made.lost), 'thing')} {were} not carried over as in the input"
    note(f"{counted(len(made.manifests), 'budget')}; {lost}")
    for one in made.lost:
        value = f"={cell(one.value)}" if one.value else ""
        note(f"  {cell(one.object)}: {cell(one.field)}{value}: {cell(one.why)}")
    if made.commands:
        note("then bind the users:")
    for line in made.commands:
        note(f"  {cell(line)}")
