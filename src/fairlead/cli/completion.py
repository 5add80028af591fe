"""Kinds and names on the command line, completed from the server; `fairlead completion`.

A completion never gets in the way: it waits a short time, and an error means that there is nothing
to offer.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from fairlead.cli.client import Client
from fairlead.cli.options import option

OBJECT_KINDS = ("Budget", "Run", "Node", "Reservation", "Lease")
_WORDS = {word: kind for kind in OBJECT_KINDS for word in (kind.lower(), f"{kind.lower()}s")}
GROUP = "Group"
"""A route group: its traffic agent reports it, and it is no object."""


def query(ctx: click.Context, path: str) -> list[dict[str, Any]]:
    """Rows for a completion; none where anything fails."""
    try:
        reply = Client(ctx.params.get("server"), hasty=True, ctx=ctx).get(path)
        return list(reply["items"] if isinstance(reply, dict) else reply)
    except Exception:  # noqa: BLE001 - a shell that completes shows no errors
        return []


def _names(ctx: click.Context, kind: str) -> list[str]:
    return [item["metadata"]["name"] for item in query(ctx, f"/v1/objects/{kind}")]


class Completed(click.ParamType[Any]):
    """A value that the shell completes; `convert` reads it, or cuts off a prefix such as `run/`."""

    name = "text"

    def __init__(
        self,
        offer: Callable[[click.Context, str], Iterable[str]],
        convert: Callable[[str], Any] = str,
    ) -> None:
        self._offer, self._convert = offer, convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._convert(value) if isinstance(value, str) else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = self._offer(ctx, incomplete)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def name_of(kind: str) -> Completed:
    """The name of an object, `train-7` or `run/train-7`."""
    return Completed(
        lambda ctx, _: _names(ctx, kind), lambda text: text.removeprefix(f"{kind.lower()}/")
    )


def _column(column: str) -> Completed:
    """The values in a column of `fairlead budgets`."""
    return Completed(lambda ctx, _: sorted({str(row[column]) for row in query(ctx, "/v1/budgets")}))


def _object_name(text: str) -> tuple[str, str]:
    word, _, name = text.partition("/")
    if not name:
        raise click.BadParameter(f"must be KIND/NAME such as run/train-7, got {text!r}")
    return kind_of(word), name


def _name_or_object(text: str) -> tuple[str, str]:
    """The same, or a name alone: its kind is then looked up (`find_object`)."""
    return _object_name(text) if "/" in text else ("", text)


def find_object(client: Client, which: tuple[str, str]) -> tuple[str, str]:
    """The kind and name of an object that was named without its kind: the only one of that name."""
    kind, name = which
    if kind:
        return which
    kinds = ["Budget", "Run", "Node", "Reservation"]
    names = {kind: [item["metadata"]["name"] for item in client.objects(kind)] for kind in kinds}
    found = [kind for kind in kinds if name in names[kind]]
    if len(found) == 1 or found == ["Run", "Reservation"]:  # a reservation is called like its run
        return found[0], name
    if found:
        several = " or ".join(f"{kind.lower()}/{name}" for kind in found)
        raise click.BadParameter(f"{name!r} is the name of several: say {several}")
    hint = "; give KIND/NAME such as run/train-7"
    for kind in kinds:
        for similar in get_close_matches(name, names[kind], n=1):
            hint = f"; did you mean {kind.lower()}/{similar}?"
    raise click.BadParameter(f"no budget, run, node or reservation is called {name!r}{hint}")


def _object_names(ctx: click.Context, incomplete: str) -> list[str]:
    """`run/train-7` for every object; the many leases only once `l` is typed."""
    word = incomplete.partition("/")[0]
    return [
        f"{kind.lower()}/{name}"
        for kind in OBJECT_KINDS
        if kind.lower().startswith(word) and (kind != "Lease" or word.startswith("l"))
        for name in _names(ctx, kind)
    ]


def listed_kind(word: str) -> str:
    """The kind that a word means, of what can be listed: objects, and route groups."""
    return GROUP if word.lower() in ("group", "groups") else kind_of(word)


def _listed_name(text: str) -> tuple[str, str]:
    word, _, name = text.partition("/")
    if name and word.lower() in ("group", "groups"):
        return GROUP, name
    return _name_or_object(text)


def kind_of(word: str) -> str:
    """The kind that a word means."""
    kind = _WORDS.get(word.lower())
    if kind is None:
        close = get_close_matches(word.lower(), _WORDS, 1)
        known = "expected budgets, runs, nodes, reservations, leases or groups"
        known = f"did you mean {close[0]!r}?" if close else known
        raise click.BadParameter(f"unknown kind {word!r}: {known}", param_hint="KIND")
    return kind


def _group_names(ctx: click.Context) -> list[str]:
    return [f"group/{row['name']}" for row in query(ctx, "/v1/groups")]


def _names_of_kind(ctx: click.Context, _: str) -> list[str]:
    """Names of the kind earlier on the command line."""
    kind = _WORDS.get(str(ctx.params.get("kind", "")).lower())
    return [] if kind is None else _names(ctx, kind)


RUN, BUDGET, OWNER, FLAVOR = name_of("Run"), name_of("Budget"), _column("owner"), _column("flavor")
KIND = Completed(lambda ctx, _: (f"{kind.lower()}s" for kind in (*OBJECT_KINDS, GROUP)))
NAME, OBJECT = Completed(_names_of_kind), Completed(_object_names, _object_name)
POLICY = ("Policy", "")
EXPLAINED = Completed(_object_names, _name_or_object)
DESCRIBED = Completed(
    lambda ctx, text: ["policy", *_object_names(ctx, text), *_group_names(ctx)],
    lambda text: POLICY if text == "policy" else _listed_name(text),
)
owner_option = option("--owner", OWNER, "Show only this owner's.")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, *, shell: str) -> None:
    """Print the completion script of a shell.

    \b
      eval "$(fairlead completion bash)"          # in ~/.bashrc
      eval "$(fairlead completion zsh)"           # in ~/.zshrc
      fairlead completion fish | source           # in config.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "fairlead", "_FAIRLEAD_COMPLETE").source())
