"""Kinds and names on the command line, and completing them from what the server has.

A completion must never get in the way: it asks with a short patience, and whatever goes wrong there
is simply nothing to offer.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlead.cli.client import Answer, Client, segment

PATIENCE_S = 2.0
KINDS = {
    word: kind
    for kind, words in {
        "Budget": ("budget", "budgets"),
        "Run": ("run", "runs"),
        "Node": ("node", "nodes"),
        "Reservation": ("reservation", "reservations"),
        "Lease": ("lease", "leases"),
    }.items()
    for word in words
}
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class ObjectName(click.ParamType[tuple[str, str]]):
    """`run/train-7` as its kind and name."""

    name = "KIND/NAME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split and look up the kind."""
        if isinstance(value, tuple):
            return value
        word, slash, name = str(value).partition("/")
        if not slash or not name:
            self.fail(f"must be KIND/NAME such as run/train-7, got {value!r}", param, ctx)
        return kind_of(word), name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """`run/train-7` for every object; leases only once asked for, there are so many."""
        word = incomplete.partition("/")[0]
        kinds = [kind for name, kind in KINDS.items() if name == kind.lower()]
        found = []
        for kind in kinds:
            if kind == "Lease" and not word.startswith("l"):
                continue
            if kind.lower().startswith(word):
                found += [f"{kind.lower()}/{name}" for name in _names(ctx, kind)]
        return [CompletionItem(each) for each in found if each.startswith(incomplete)]


def kind_of(word: str) -> str:
    """The kind that a word means."""
    found = KINDS.get(word.lower())
    if found is None:
        known = "budgets, runs, nodes, reservations, leases"
        raise click.BadParameter(f"there are {known}, no {word!r}", param_hint="KIND")
    return found


def complete_kind(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """budgets, runs, nodes, reservations, leases."""
    return [
        CompletionItem(word)
        for word, kind in KINDS.items()
        if word.startswith(incomplete) and word != kind.lower()
    ]


def complete_names(kind: str | None = None) -> Complete:
    """Names of a kind; without one, of the kind that the command line says before."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        wanted = kind or KINDS.get(str(ctx.params.get("kind", "")).lower())
        names = [] if wanted is None else _names(ctx, wanted)
        return [CompletionItem(each) for each in names if each.startswith(incomplete)]

    return complete


def complete_column(column: str) -> Complete:
    """What stands in a column of the table of envelopes: owners, flavors."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = {str(row[column]) for row in ask(ctx, "/v1/budgets")}
        return [CompletionItem(each) for each in sorted(found) if each.startswith(incomplete)]

    return complete


def _names(ctx: click.Context, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in ask(ctx, f"/v1/objects/{kind}")]


def ask(ctx: click.Context, path: str) -> list[dict[str, Any]]:
    """Rows for a completion; none where anything is in the way."""
    try:
        found = Client(ctx.params.get("server"), heads=False, timeout_s=PATIENCE_S).get(path)
        return list(found["items"] if isinstance(found, dict) else found)
    except Exception:  # noqa: BLE001 - a shell that completes shows no errors
        return []


def get_object(client: Client, kind: str, name: str) -> dict[str, Any]:
    """One object; where there is none, perhaps a name that is nearly the same."""
    try:
        return dict(client.get(f"/v1/objects/{kind}/{segment(name)}"))
    except Answer as error:
        raise nearly(client, error, kind, name) from None


def nearly(client: Client, error: Answer, kind: str, name: str) -> Answer:
    """An error about an object that is not there, with the name that was perhaps meant."""
    if error.status != 404 or kind not in KINDS.values():
        return error
    found = [each["metadata"]["name"] for each in client.get(f"/v1/objects/{kind}")["items"]]
    meant = get_close_matches(name, found, n=1)
    if meant:
        return error.saying(f"{error.message}; did you mean {meant[0]!r}?")
    return error.saying(f"{error.message} (see `fairlead get {kind.lower()}s`)")


owner_option = click.option(
    "--owner", help="Only those of an owner.", shell_complete=complete_column("owner")
)
