"""Options of commands: one short way to declare them, and those that many commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.ledger.place import default_ledger

if TYPE_CHECKING:
    from fairlead.core.gpu import PreemptionPolicy

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
FORMATS = ("table", "wide", "json", "yaml", "name")
FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
NEW_FOLDER = click.Path(path_type=Path, file_okay=False)


class Integer(click.IntRange):
    """An integer inside bounds, which a message calls one: click's own says `integer range`."""

    name = "integer"


class Number(click.FloatRange):
    """Likewise a number."""

    name = "number"


PORT = Integer(0, 65535)


def option(names: str, type: Any, text: str, **more: Any) -> Decorator:
    """`click.option`: its names (`--data=DIR`), the type of its value or its choices, its help."""
    words = [word.partition("=") for word in names.split()]
    metavar = "".join(value for _, _, value in words) or None
    kind = click.Choice(type) if isinstance(type, tuple) else type
    return click.option(
        *(word for word, *_ in words), type=kind, help=text, metavar=metavar, **more
    )


def flag(names: str, text: str, **more: Any) -> Decorator:
    return click.option(*names.split(), is_flag=True, help=text, **more)


GRACE_MS_MAX = 86_400_000


def stretch_ms(text: str) -> int:
    """`10m` in milliseconds; 0s is none at all."""
    from fairlead.schema.border import BadInput
    from fairlead.schema.times import parse_duration

    try:
        return 0 if text in ("0", "0s") else parse_duration(text, "DURATION")
    except BadInput as error:
        raise click.BadParameter(f"{error.message}; or 0s") from error


def grace_at_most(text: str) -> int:
    found = stretch_ms(text)
    if found > GRACE_MS_MAX:
        raise click.BadParameter(f"must be at most 1d, got {text!r}")
    return found


def clock_jump_ms(text: str) -> int:
    found = stretch_ms(text)
    if found < 1_000:
        raise click.BadParameter(f"must be at least 1s, got {text!r}")
    return found


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What keeps preemption fair; the values are fields of `core.gpu.PreemptionPolicy`."""
    for add in reversed(
        (
            option(
                "--min-notice=DURATION min_notice_ms",
                stretch_ms,
                "Notice that a reservation needs.",
                default="1h",
                show_default=True,
            ),
            option(
                "--max-reservations=N",
                Integer(0),
                "Open reservations of one owner.",
                default=4,
                show_default=True,
            ),
            option(
                "--min-runtime=DURATION min_runtime_ms",
                stretch_ms,
                "A funded run is not preempted before it has run this long.",
                default="10m",
                show_default=True,
            ),
            option(
                "--cooldown=DURATION cooldown_ms",
                stretch_ms,
                "A preempted run is not preempted again for this long.",
                default="1h",
                show_default=True,
            ),
            option(
                "--max-grace=DURATION max_grace_ms",
                grace_at_most,
                "Cut longer checkpointGrace of runs, at most a day.",
                default="10m",
                show_default=True,
            ),
            option(
                "--max-clock-jump=DURATION max_clock_jump_ms",
                clock_jump_ms,
                "Start no run after a larger jump of the clock.",
                default="5m",
                show_default=True,
            ),
        )
    ):
        command = add(command)
    return command


def preemption_policy(settings: dict[str, Any]) -> "PreemptionPolicy":
    """The policy of these options, which are taken out of the settings."""
    from fairlead.core.gpu import PreemptionPolicy

    names = ("min_notice_ms", "max_reservations", "min_runtime_ms", "cooldown_ms")
    return PreemptionPolicy(**{name: settings.pop(name) for name in names})


def output_format(*choices: str, default: str | None = None, text: str = "") -> Decorator:
    """The `-o` option of a command that has formats of its own."""
    return option("-o --output", choices, text or "Output format.", default=default)


output_option = output_format(*FORMATS, default="table")
dry_run_option = flag("--dry-run", "Preview; change nothing.")
server_option = option(
    "--server=WHERE", str, "Socket path or http://127.0.0.1:PORT.", envvar="FAIRLEAD_SERVER"
)
file_option = option(
    "-f --file=FILE files",
    click.Path(allow_dash=True),
    "Read manifests from a file, folder or - (repeatable).",
    multiple=True,
    required=True,
)
ledger_option = option(
    "--ledger",
    str,
    "Ledger file or postgresql:// address.",
    envvar="FAIRLEAD_LEDGER",
    default=lambda: str(default_ledger()),
    show_default="ledger.db in the state directory",
)
