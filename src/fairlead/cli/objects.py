"""`apply`, `submit`, `get`, `describe`, `delete`, `plan`, `explain`: objects, and why."""

from typing import Any, BinaryIO

import click

from fairlead.cli.client import Client, segment, server_option
from fairlead.cli.main import EXIT_BAD_INPUT, EXIT_REFUSED
from fairlead.cli.show import COLUMNS, output_option, show, to_yaml
from fairlead.schema.border import BadInput
from fairlead.schema.yaml import YAML_BYTES_MAX, parse_yaml_documents

KINDS = {
    word: kind
    for kind, words in {
        "Budget": ("budget", "budgets"),
        "Run": ("run", "runs"),
        "Node": ("node", "nodes"),
        "Lease": ("lease", "leases"),
    }.items()
    for word in words
}
file_option = click.option(
    "-f", "--file", type=click.File("rb"), required=True,
    help="A YAML or JSON file with one or more manifests; - is standard input.",
)  # fmt: skip
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen, only.")


class BadManifest(click.ClickException):
    """A manifest that cannot be read: one line, exit code 2."""

    exit_code = EXIT_BAD_INPUT

    def show(self, file: object = None) -> None:
        """As everywhere."""
        click.echo(f"error: {self.message}", err=True)


class ObjectName(click.ParamType[tuple[str, str]]):
    """`run/train-7` as its kind and name."""

    name = "KIND/NAME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split and look up the kind."""
        word, slash, name = str(value).partition("/")
        if not slash or not name:
            self.fail(f"must be KIND/NAME such as run/train-7, got {value!r}", param, ctx)
        return kind_of(word), name


def kind_of(word: str) -> str:
    """The kind that a word means."""
    found = KINDS.get(word.lower())
    if found is None:
        known = "budgets, runs, nodes, leases"
        raise click.BadParameter(f"there are {known}, no {word!r}", param_hint="KIND")
    return found


def read_manifests(file: BinaryIO) -> list[Any]:
    """All documents of a file; empty ones are passed over."""
    try:
        found = parse_yaml_documents(file.read(YAML_BYTES_MAX + 1))
    except BadInput as error:
        raise BadManifest(f"{file.name}: {error}") from error
    found = [each for each in found if each is not None]
    if not found:
        raise BadManifest(f"{file.name}: has no manifest")
    return found


def _apply(
    file: BinaryIO, server: str | None, output: str, *, dry_run: bool, only: str = ""
) -> list[dict[str, Any]]:
    manifests = read_manifests(file)
    for i, each in enumerate(manifests):
        if only and (not isinstance(each, dict) or each.get("kind") != only):
            raise BadManifest(f"{file.name}: manifests[{i}].kind: must be {only}")
    client = Client(server)
    body = {"manifests": manifests, "dry_run": dry_run}
    changes: list[dict[str, Any]] = client.call("POST", "/v1/apply", body=body)["items"]
    if output != "table":
        show([each["object"] for each in changes], output)
        return changes
    note = " (dry run)" if dry_run else ""
    for each in changes:
        document = each["object"]
        name = f"{document['kind'].lower()}/{document['metadata']['name']}"
        click.echo(f"{name} {each['change']}{note}")
        for key, value in (each["preview"] or {}).items():
            if key in ("unfunded", "leases") and value:
                click.echo(f"  would leave unfunded or touch: {', '.join(value)}")
    return changes


@click.command("apply")
@file_option
@dry_run_option
@output_option
@server_option
def apply(*, file: BinaryIO, dry_run: bool, output: str, server: str | None) -> None:
    """Create or change objects. All are checked before the first is written.

    \b
      fairlead apply -f budgets.yaml
      fairlead get budgets -o yaml | sed ... | fairlead apply -f - --dry-run
    """
    _apply(file, server, output, dry_run=dry_run)


@click.command("submit")
@file_option
@dry_run_option
@output_option
@server_option
def submit(*, file: BinaryIO, dry_run: bool, output: str, server: str | None) -> None:
    """Submit runs. They start as soon as somebody pays and there are devices.

    \b
      fairlead submit -f run.yaml && fairlead logs -f train-7
    """
    changes = _apply(file, server, output, dry_run=dry_run, only="Run")
    if dry_run and output == "table":
        for each in changes:
            if each["preview"]:
                _print_plan(each["preview"])


@click.command("get")
@click.argument("kind")
@click.argument("name", required=False)
@click.option("--owner", help="Only those of an owner.")
@output_option
@server_option
def get(
    *, kind: str, name: str | None, owner: str | None, output: str, server: str | None
) -> None:  # fmt: skip
    """List objects, or show one: budgets, runs, nodes, leases.

    \b
      fairlead get runs
      fairlead get run train-7 -o yaml
    """
    if "/" in kind and name is None:
        kind, _, name = kind.partition("/")
    found, client = kind_of(kind), Client(server)
    if name is None:
        items = client.get(f"/v1/objects/{found}", owner=owner)["items"]
        show(items, output, COLUMNS[found])
        return
    one = client.get(f"/v1/objects/{found}/{segment(name)}")
    show([one] if output == "table" else one, output, COLUMNS[found])


@click.command("describe")
@click.argument("which", type=ObjectName())
@server_option
def describe(*, which: tuple[str, str], server: str | None) -> None:
    """Show one object in full, with what happened to it last.

    \b
      fairlead describe run/train-7
    """
    (kind, name), client = which, Client(server)
    found = client.get(f"/v1/objects/{kind}/{segment(name)}")
    click.echo(to_yaml(found), nl=False)
    size = client.get("/v1/head")["size"]
    recent = client.get("/v1/events", after=max(0, size - 1000), limit=1000)["items"]
    mine = [each for each in recent if each["object"] == {"kind": kind, "name": name}]
    if mine:
        click.echo("events:")
    for each in mine[-10:]:
        click.echo(f"  {each['time']}  {each['kind']}  {each['reason'] or ''}  {each['message']}")


@click.command("delete")
@click.argument("which", type=ObjectName(), nargs=-1, required=True)
@dry_run_option
@server_option
def delete(*, which: tuple[tuple[str, str], ...], dry_run: bool, server: str | None) -> None:
    """Remove objects that nothing uses.

    \b
      fairlead delete run/train-7 budget/team-a
    """
    client = Client(server)
    for kind, name in which:
        path = f"/v1/objects/{kind}/{segment(name)}"
        client.call("DELETE", path, query={"dry_run": dry_run})
        click.echo(f"{kind.lower()}/{name} deleted{' (dry run)' if dry_run else ''}")


@click.command("plan")
@file_option
@output_option
@server_option
@click.pass_context
def plan(ctx: click.Context, *, file: BinaryIO, output: str, server: str | None) -> None:
    """Show who would pay for a run and where it would start; or why not, and what would help.

    Nothing is written. Exit code 1 when it is not funded.

    \b
      fairlead plan -f run.yaml
    """
    client, refused = Client(server), False
    for manifest in read_manifests(file):
        found = client.call("POST", "/v1/plan", body=manifest)
        refused = refused or not found["funded"]
        if output == "table":
            _print_plan(found)
        else:
            show(found, output)
    ctx.exit(EXIT_REFUSED if refused else 0)


def _print_plan(found: dict[str, Any]) -> None:
    if not found["funded"]:
        print_refusal(found["refusal"])
        return
    show(
        found["plan"], "table",
        [(key.upper(), lambda row, key=key: row[key])  # type: ignore[misc]
         for key in ("budget", "envelope", "owner", "gpus", "tier", "borrowed")],
    )  # fmt: skip
    if found["starts"]:
        slots = [slot for group in found["placement"]["groups"] for slot in group["active"]]
        click.echo(f"starts now on {', '.join(slots)}")
    else:
        click.echo(f"funded, but {found['placement']['shortfall_gpus']} GPUs find no place now")


def print_refusal(refusal: dict[str, Any]) -> None:
    """Why a run is not funded, and the smallest change that would fund it."""
    click.echo(f"{refusal['code']}: {refusal['message']}")
    for each in refusal["binding"]:
        where = "/".join(filter(None, (each["budget"], each["name"])))
        click.echo(f"  {each['kind']} {where}: {each['used']} of {each['limit']} used")
    remedy = refusal["remedy"]
    if remedy is None:
        click.echo("  no single change would fund it")
    else:
        where = "/".join(filter(None, (remedy["budget"], remedy["name"])))
        click.echo(f"  would help: {remedy['change']} of {where} from {remedy['from']} to "
                   f"{remedy['to']}")  # fmt: skip


@click.command("explain")
@click.argument("which", type=ObjectName())
@output_option
@server_option
def explain(*, which: tuple[str, str], output: str, server: str | None) -> None:
    """Say why an object is as it is, from the recorded decisions.

    \b
      fairlead explain run/train-7
    """
    kind, name = which
    found = Client(server).get(f"/v1/explain/{kind}/{segment(name)}")
    if output != "table" or kind != "Run":
        show(found, "yaml" if output == "table" else output)
        return
    status = found["object"]["status"]
    click.echo(f"{name}: {status['phase']} ({status['reason']}) since {status['since']}")
    if status["message"]:
        click.echo(f"  {status['message']}")
    if status["refusal"] is not None:
        print_refusal(status["refusal"])
    for lease in found["leases"]:
        click.echo(f"  lease {lease['lease']}: {', '.join(lease['slots'])}, paid by "
                   f"{lease['budget']}/{lease['envelope']}"
                   f"{', borrowed' if lease['borrowed'] else ''}"
                   f"{'' if lease['funded'] else ', unfunded'}")  # fmt: skip
    for step in ("cover", "placement"):
        if found[step] is not None:
            click.echo(f"  {step}: entry {found[step]['seq']} of the ledger, {found[step]['time']}")
