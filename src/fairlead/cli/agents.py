"""What the commands of the node and traffic agents share: options, status, logs.

Logs go to stderr, as JSON in a pipe and readable on a terminal. A closed pipe or a full disk does
not stop an agent: it keeps governing without its log.
"""

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from fairlead.cli.main import silence
from fairlead.cli.options import NEW_FOLDER, Decorator, option

if TYPE_CHECKING:
    from fairlead.node.state import StateDirectory


class _Lasting:
    """Writes each line whole and at once, so that processes can share one log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            silence(self._stream)
        except (OSError, ValueError):  # a full disk may have room later; closed stays closed
            return

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return self._stream.isatty()


def lasting(stream: TextIO) -> TextIO:
    """The same stream; writing to it never raises."""
    return cast("TextIO", _Lasting(stream))


def agent_log(agent: str, stream: TextIO | None = None) -> Any:
    """A logger on stderr; on another stream a closed pipe ends the agent."""
    import structlog  # 70 ms that `status` and `explain` do not pay

    last: Any = structlog.processors.JSONRenderer()
    if (stream or sys.stderr).isatty():
        last = structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))
    return structlog.wrap_logger(
        structlog.WriteLogger(stream or lasting(sys.stderr)),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            last,
        ],
    ).bind(agent=agent)


def state_dir_option(agent: str) -> Decorator:
    return option(
        "--state-dir",
        NEW_FOLDER,
        f"State directory [root: /var/lib/fairlead/{agent}].",
        envvar=f"FAIRLEAD_{agent.upper()}_STATE_DIR",
    )


def setting(agent: str, name: str, type: Any, text: str) -> Decorator:
    """A flag whose default is in the agent's configuration."""
    variable = f"FAIRLEAD_{agent.upper()}_{name.strip('-').upper().replace('-', '_')}"
    return click.option(name, type=type, envvar=variable, help=text)


def settings_of(flags: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in flags.items() if value is not None}
    if "state_dir" in values:
        values["state_dir"] = str(values["state_dir"])
    return values


def read_status(directory: "StateDirectory", agent: str) -> dict[str, Any]:
    """The agent's last status, with its age."""
    from fairlead.node.state import STATUS

    status = directory.read(STATUS)
    if status is None:
        raise click.UsageError(f"no agent has run in {directory.path} (see `fairlead {agent} run`)")
    status["running"] = directory.running()
    status["age_ms"] = directory.age_ms(STATUS)
    return status
