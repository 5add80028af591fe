"""What the commands of the node and traffic agents share: options, status, logs.

Logs go to stderr, as JSON in a pipe and readable on a terminal. A closed pipe or a full disk does
not stop an agent: it keeps governing without its log.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import click

from fairlead.cli.main import silence
from fairlead.cli.options import NEW_FOLDER, Decorator, option, output_option
from fairlead.cli.table import Output
from fairlead.cli.terminal import printable, raw
from fairlead.node.state import STATUS, StateDirectory
from fairlead.schema.border import BadInput


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
    return cast("TextIO", _Lasting(raw(stream)))


def _processors(stream: TextIO, *, utc: bool) -> list[Any]:
    from structlog import dev, processors  # 70 ms that `status` and `explain` do not pay

    last: list[Any] = [processors.JSONRenderer()]
    if stream.isatty():
        last = [_clean, dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))]
    stamp = processors.TimeStamper(fmt="iso", utc=utc)
    return [processors.add_log_level, stamp, processors.format_exc_info, *last]


def _clean(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """The renderer colours what it writes, so what it is given has no colour of its own."""
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


def structured_logs(stream: TextIO) -> None:
    """For the control plane: the log of every module on a stream that never raises."""
    import structlog

    structlog.configure(
        processors=_processors(stream, utc=not stream.isatty()),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )


def agent_log(agent: str, stream: TextIO | None = None) -> Any:
    """A logger on stderr; on another stream a closed pipe ends the agent."""
    import structlog

    logger = structlog.WriteLogger(stream or lasting(sys.stderr))
    processors = _processors(stream or sys.stderr, utc=True)
    return structlog.wrap_logger(logger, processors=processors).bind(agent=agent)


@dataclass(frozen=True, slots=True)
class AgentCommands:
    """What the commands of one agent share."""

    agent: str
    home: Callable[[], Path]

    def setting(self, names: str, type: Any, text: str, **more: Any) -> Decorator:
        """An option whose default is in the agent's configuration, with an environment variable."""
        name = names.split(maxsplit=1)[0].partition("=")[0].removeprefix("--").replace("-", "_")
        return option(names, type, text, envvar=f"FAIRLEAD_{self.agent}_{name}".upper(), **more)

    def state_dir(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The option `--state-dir`."""
        text = f"State directory [root: /var/lib/fairlead/{self.agent}]."
        return self.setting("--state-dir", NEW_FOLDER, text)(function)

    def reports(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The options of an agent that reports; `settings_of` makes `report` of them."""
        token = self.setting("--report-token-file", str, "Token of --report-to, in a file.")
        to = self.setting("--report-to=SOCKET|URL", str, "Report to this control plane.")
        trusted = self.setting("--report-ca-file", str, "Certificates to trust at --report-to.")
        return to(token(trusted(function)))

    def directory(self, state_dir: Path | None) -> StateDirectory:
        return StateDirectory(state_dir or self.home() / self.agent)

    def never_ran(self, directory: StateDirectory) -> click.UsageError:
        hint = f"(see `fairlead {self.agent} run`; --state-dir names another directory)"
        return click.UsageError(f"no agent has run in {directory.path} {hint}")

    def read_status(self, directory: StateDirectory) -> dict[str, Any]:
        """The agent's last status, with its age; stale after three of its periods."""
        status = directory.read(STATUS)
        if status is None:
            raise self.never_ran(directory)
        age_ms, running = directory.age_ms(STATUS), directory.running()
        # The traffic agent writes its status every second, not every tick.
        late_ms = 3 * (
            status["clear_ms"] if self.agent == "node" else max(1_000, status["tick_ms"])
        )
        return {**status, "running": running, "age_ms": age_ms, "stale": age_ms > late_ms}

    def reads_status(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A command about the agent's last status: it is called with that and its output."""

        @functools.wraps(function)
        def command(*, state_dir: Path | None, output: str, **values: Any) -> Any:
            return function(self.read_status(self.directory(state_dir)), Output(output), **values)

        return self.state_dir(output_option(command))


def settings_of(flags: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in flags.items() if value is not None}
    to, more = values.pop("report_to", None), ("token_file", "ca_file")
    given = {name: values.pop(f"report_{name}", None) for name in more}
    if to is not None:
        values["report"] = {"to": to, **given}
    elif wrong := [name for name, value in given.items() if value is not None]:
        raise click.UsageError(f"--report-{wrong[0].replace('_', '-')} needs --report-to")
    if "state_dir" in values:
        values["state_dir"] = str(values["state_dir"])
    return values


@contextmanager
def bad_usage(config_file: Path | None) -> Iterator[None]:
    """Turn bad settings into a usage error that names the file."""
    try:
        yield
    except BadInput as error:
        where = f"{config_file}: " if config_file else ""
        raise click.UsageError(f"{where}{error}") from error


def find(rows: Sequence[Any], key: str, name: str, known: str, most: int | None = None) -> Any:
    """The row of that name; an error lists the others, where `known` introduces them."""
    row = next((row for row in rows if row[key] == name), None)
    if row is None:
        names = ", ".join(row[key] for row in rows[:most]) or "none"
        raise click.UsageError(f"unknown {key} {name!r}{known}: {names}")
    return row
