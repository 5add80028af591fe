"""What the commands of `fairlead traffic` share: the agent's state, and orders for it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fairlead.node.state import StateDirectory
    from fairlead.node.traffic.commands import BackendCommand

STALE_MS = 3_000  # the status is written every second
F = TypeVar("F", bound=Callable[..., Any])

state_option: Callable[[F], F] = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="FAIRLEAD_TRAFFIC_STATE_DIR",
    help="Where the agent keeps its state (default: /var/lib/fairlead/traffic for root).",
)
_wait: Callable[[F], F] = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Seconds to wait until a running agent has obeyed.",
)


def order_option(command: F) -> F:
    """GROUP, BACKEND, the state directory, and how long to wait."""
    return click.argument("group")(click.argument("backend")(state_option(_wait(command))))


def state_directory(state_dir: Path | None) -> "StateDirectory":
    """The agent's directory."""
    from fairlead.compose.traffic import default_directory
    from fairlead.node.state import StateDirectory

    return StateDirectory(state_dir or default_directory())


def read_status(directory: "StateDirectory") -> dict[str, Any]:
    """What the agent last said of itself, and whether it is still there."""
    from fairlead.node.state import STATUS

    status = directory.read(STATUS)
    if status is None:
        raise click.UsageError(f"no agent has run on {directory.path} (see `fairlead traffic run`)")
    status["running"] = directory.running()
    status["age_ms"] = directory.age_ms(STATUS)
    status["stale"] = status["age_ms"] > max(STALE_MS, 3 * status["tick_ms"])
    return status


def group_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    """One group of a status."""
    for each in document["groups"]:
        if each["group"] == name:
            return dict(each)
    names = ", ".join(each["group"] for each in document["groups"]) or "none"
    raise click.UsageError(f"no group is called {name!r}; governed groups: {names}")


def tell_order(
    state_dir: Path | None, group: str, backend: str, order: "BackendCommand | None", wait_s: float
) -> None:
    """Write an order down, and wait until it is obeyed by whoever runs."""
    from fairlead.node.traffic.commands import change_command

    directory = state_directory(state_dir)
    _check_names(directory, group, backend)
    changed = change_command(directory, group, backend, order)
    word = {"drain": "drained", "isolate": "isolated", None: "restored"}[order]
    if not changed:
        click.echo(f"{group}/{backend} is {word} already")
        return
    if not directory.running():
        click.echo(f"{group}/{backend} will be {word} when an agent runs")
        return
    if _obeyed(directory, group, backend, order, wait_s):
        click.echo(f"{group}/{backend} is {word}")
    else:
        click.echo(f"{group}/{backend} is to be {word}; the agent has not said so yet")


def _check_names(directory: "StateDirectory", group: str, backend: str) -> None:
    """Refuse names that the agent does not know, if there was one to ask."""
    from fairlead.node.state import STATUS

    if directory.read(STATUS) is None:
        return
    found = group_of(read_status(directory), group)
    names = [each["backend"] for each in found["backends"]]
    if backend not in names:
        known = ", ".join(names) or "none"
        raise click.UsageError(f"no backend of {group} is called {backend!r}; it has: {known}")


def _obeyed(
    directory: "StateDirectory",
    group: str,
    backend: str,
    order: "BackendCommand | None",
    wait_s: float,
) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        for each in group_of(read_status(directory), group)["backends"]:
            # Back in service it is only when it has answered its probes; the order is lifted now.
            done = order is None or (each["isolated"] == "operator" and each["slots"] == 0)
            if each["backend"] == backend and each["order"] == order and done:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
