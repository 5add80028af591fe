"""Kinds and names on the command line, completed from the server; `fairlead completion`.

A completion never gets in the way: it waits a short time, and an error means that there is nothing
to offer.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from fairlead.cli.client import Client, ServerError, segment

TIMEOUT_S = 2.0
OBJECT_KINDS = ("Budget", "Run", "Node", "Reservation", "Lease")
_WORDS = {word: kind for kind in OBJECT_KINDS for word in (kind.lower(), f"{kind.lower()}s")}
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def offer(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin with what was typed."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


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
        """`run/train-7` for every object; the many leases only once `l` is typed."""
        word = incomplete.partition("/")[0]
        names = [
            f"{kind.lower()}/{name}"
            for kind in OBJECT_KINDS
            if kind.lower().startswith(word) and (kind != "Lease" or word.startswith("l"))
            for name in _names(ctx, kind)
        ]
        return offer(names, incomplete)


def kind_of(word: str) -> str:
    """The kind that a word means."""
    kind = _WORDS.get(word.lower())
    if kind is None:
        known = "budgets, runs, nodes, reservations or leases"
        raise click.BadParameter(f"unknown kind {word!r}: expected {known}", param_hint="KIND")
    return kind


def complete_kind(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """budgets, runs, nodes, reservations, leases."""
    return offer((f"{kind.lower()}s" for kind in OBJECT_KINDS), incomplete)


def complete_names(kind: str | None = None) -> Complete:
    """Names of a kind; without one, of the kind earlier on the command line."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        wanted = kind or _WORDS.get(str(ctx.params.get("kind", "")).lower())
        return offer([] if wanted is None else _names(ctx, wanted), incomplete)

    return complete


def complete_column(column: str) -> Complete:
    """The values in a column of `fairlead budgets`: owners, flavors."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return offer(sorted({str(row[column]) for row in query(ctx, "/v1/budgets")}), incomplete)

    return complete


def _names(ctx: click.Context, kind: str) -> list[str]:
    return [item["metadata"]["name"] for item in query(ctx, f"/v1/objects/{kind}")]


def query(ctx: click.Context, path: str) -> list[dict[str, Any]]:
    """Rows for a completion; none where anything fails."""
    try:
        reply = Client(ctx.params.get("server"), verify=False, timeout_s=TIMEOUT_S).get(path)
        return list(reply["items"] if isinstance(reply, dict) else reply)
    except Exception:  # noqa: BLE001 - a shell that completes shows no errors
        return []


def get_object(client: Client, kind: str, name: str) -> dict[str, Any]:
    """One object; an unknown name is answered with a similar one."""
    return dict(call_about(client, "GET", f"/v1/objects/{kind}/{segment(name)}", kind, name))


def call_about(
    client: Client, method: str, path: str, kind: str, name: str, **parameters: Any
) -> Any:
    """A request about one object; an unknown name is answered with a similar one."""
    try:
        return client.call(method, path, query=parameters)
    except ServerError as error:
        raise suggest(client, error, kind, name) from None


def suggest(client: Client, error: ServerError, kind: str, name: str) -> ServerError:
    """A "not found" error with a similar name, where there is one."""
    if error.status != 404:
        return error
    names = [item["metadata"]["name"] for item in client.get(f"/v1/objects/{kind}")["items"]]
    similar = get_close_matches(name, names, n=1)
    if similar:
        return error.saying(f"{error.message}; did you mean {similar[0]!r}?")
    return error.saying(f"{error.message} (see `fairlead get {kind.lower()}s`)")


owner_option = click.option(
    "--owner", help="Show only this owner's.", shell_complete=complete_column("owner")
)


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
