"""Plans and refusals in words: who pays, or what stands in the way and what would help."""

from operator import itemgetter
from typing import Any

import click

from fairlead.cli.show import rows_of
from fairlead.schema.place import no_room

_LINE = ("budget", "envelope", "owner", "gpus", "tier", "borrowed")
# What each kind of remedy asks for, in words that point at the manifest.
_CHANGES = {
    "envelope-concurrency": "concurrency of envelope",
    "aggregate-concurrency": "maxConcurrency of aggregate cap",
    "envelope-hours": "maxGPUHours of envelope",
    "aggregate-hours": "maxGPUHours of aggregate cap",
    "lending-concurrency": "lending.maxConcurrency of envelope",
    "lending-hours": "lending.maxGPUHours of envelope",
    "lending-acl": "lending.to of envelope",
    "borrow-limit": "the run's",
}
_FIELDS = {"max_borrow_gpus": "funding.maxBorrowGPUs", "allow_borrow": "funding.allowBorrow"}


def print_plan(found: dict[str, Any], indent: str = "") -> None:
    """Who pays, where it starts, what to mind; or the refusal."""
    if not found["funded"]:
        print_refusal(found["refusal"], indent)
        return
    rows_of(found["plan"], [(key.upper(), itemgetter(key)) for key in _LINE], indent=indent)
    if found["starts"]:
        slots = [slot for group in found["placement"]["groups"] for slot in group["active"]]
        click.echo(f"{indent}starts now on {', '.join(slots)}")
    else:
        why = no_room(found["placement"]["shortfall_gpus"], found["gpus"])
        click.echo(f"{indent}funded, but {why}: it would wait")
    for warning in found.get("warnings", ()):
        click.echo(f"{indent}mind: {warning}")


def print_refusal(refusal: dict[str, Any], indent: str = "") -> None:
    """Why a run is not funded, and the smallest change that would fund it."""
    remedy, message = refusal["remedy"], refusal["message"]
    # The sentence ends with the remedy; below it is said in the manifest's words.
    short = message if remedy is None else message.rpartition("; ")[0]
    click.echo(f"{indent}{refusal['code']}: {short}")
    for each in refusal["binding"]:
        where = "/".join(filter(None, (each["budget"], each["name"])))
        click.echo(f"{indent}  {each['kind']} {where}: {each['used']} of {each['limit']} used")
    if remedy is None:
        click.echo(f"{indent}  no single change would fund it")
        return
    where = "/".join(filter(None, (remedy["budget"], _FIELDS.get(remedy["name"], remedy["name"]))))
    change = _CHANGES.get(remedy["change"], remedy["change"])
    click.echo(
        f"{indent}  would help: {change} {where} from {_value(remedy['from'])} to "
        f"{_value(remedy['to'])}"
    )


def _value(value: Any) -> str:
    """As it is written in a manifest."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else str(value)
