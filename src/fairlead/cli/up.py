"""`fairlead up`: the embedded control plane, in the foreground."""

import grp
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from fairlead.api.lab import Lab
    from fairlead.api.server import ControlServer

DEMO_GRACE_S = 1
DEMO = """fairlead: a demo lab, for a browser or this shell (Ctrl-C ends it):
  export FAIRLEAD_SERVER={socket}
  fairlead budgets; fairlead leases; fairlead watch"""
HELP = """Run the embedded control plane.

One process with a ledger, a Unix socket and loopback HTTP. Commands on this machine use the socket
in DIR, and the kernel tells the server which user calls. Over HTTP any user of this machine may
read; writing needs a token. http://127.0.0.1:8470 shows budgets, runs, leases and events. Ctrl-C or
SIGTERM ends the process; runs continue, and the next `fairlead up` on the same DIR adopts them.

Every user of the machine may use the socket, and acts for the owners it is bound to. With
--socket-group only that group can connect.

Preemption is off by default; --resolver enforce turns it on. With --resolver dry-run a reservation
that lacks devices is Blocked, and `fairlead describe reservation/NAME` previews the candidates.

--node and --traffic also run the agents for this machine's CPU and a service's traffic, as separate
processes that are restarted when they end.

\b
  fairlead up                                  # in the state directory of this user
  fairlead up --demo                           # a demo lab, removed at the end
  fairlead up --data /srv/fairlead --socket-group gpu-users
  fairlead up --resolver enforce --beacon drand-quicknet,2023-08-23T15:09:27Z,3s
  fairlead up --node node.yaml --traffic web.yaml
  FAIRLEAD_SERVER=/srv/fairlead/fairlead.sock fairlead get runs
"""
_OCTAL = set("01234567")


class FileMode(click.ParamType[int]):
    """A file's mode as `chmod` takes it."""

    name = "MODE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Octal digits that let the owner read and write."""
        text = str(value).removeprefix("0o")
        mode = int(text, 8) if text.isascii() and text.isdigit() and set(text) <= _OCTAL else -1
        if not 0 <= mode <= 0o777 or mode & 0o600 != 0o600:
            rule = "such as 0660 that lets the owner read and write"
            self.fail(f"must be a mode {rule}, got {value!r}", param, ctx)
        return mode


class Group(click.ParamType[int]):
    """A group of this machine, by name or number."""

    name = "GROUP"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Its number."""
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
        try:
            return grp.getgrnam(text).gr_gid
        except KeyError:
            self.fail(f"unknown group {text!r} on this machine", param, ctx)


class BeaconSource(click.ParamType[tuple[str, int, int]]):
    """`drand,2023-08-23T15:09:27Z,3s`: a public source, its first round, its period."""

    name = "SOURCE,START,PERIOD"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int, int]:
        """Name, milliseconds of the first round, milliseconds between rounds."""
        from fairlead.schema.border import BadInput
        from fairlead.schema.objects import parse_duration
        from fairlead.schema.times import parse_time

        parts = str(value).split(",")
        if len(parts) != 3 or not all(parts):
            self.fail(f"must be SOURCE,START,PERIOD, got {value!r}", param, ctx)
        try:
            return parts[0], parse_time(parts[1], "START"), parse_duration(parts[2], "PERIOD")
        except BadInput as error:
            self.fail(str(error), param, ctx)


class Kept(click.ParamType[int | None]):
    """How long something is kept: `30d`, or `forever`."""

    name = "DURATION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Milliseconds; None for `forever`."""
        from fairlead.schema.border import BadInput
        from fairlead.schema.objects import parse_duration

        if value == "forever":
            return None
        try:
            return parse_duration(str(value), "DURATION")
        except BadInput as error:
            self.fail(f"{error.message}; or forever", param, ctx)


class Postgres(click.ParamType[str]):
    """The address of a PostgreSQL database. It may hold a password, so errors do not repeat it."""

    name = "ADDRESS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As it is."""
        from fairlead.ledger.place import is_postgres

        if not is_postgres(value):
            form = "postgresql://[USER@]HOST[:PORT]/DATABASE"
            self.fail(f"must be {form}; without --ledger it is a file in DIR", param, ctx)
        from fairlead.ledger.postgres_connection import is_address

        if not is_address(value):
            escapes = "%2F for /, %40 for @ and %25 for %"
            self.fail(f"is not a database address; in a password write {escapes}", param, ctx)
        return str(value)


@click.command("up", help=HELP)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Data directory [default: the state directory].",
)
@click.option(
    "--ledger",
    type=Postgres(),
    envvar="FAIRLEAD_UP_LEDGER",
    metavar="postgresql://…",
    help="Keep the ledger in PostgreSQL [default: DIR/ledger.db].",
)
@click.option(
    "--keep-output",
    "keep_output_ms",
    type=Kept(),
    default="30d",
    show_default=True,
    metavar="DURATION|forever",
    help="Keep the output of ended runs this long.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8470,
    show_default=True,
    envvar="FAIRLEAD_PORT",
    help="HTTP port on 127.0.0.1 (0: any free port).",
)
@click.option("--no-http", is_flag=True, help="Serve only the Unix socket.")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Unix socket [default: DIR/fairlead.sock].",
)
@click.option("--socket-group", type=Group(), help="Give the socket to this group.")
@click.option(
    "--socket-mode", type=FileMode(), help="Socket mode [default: 0660 with a group, else 0666]."
)
@click.option("--allow-root", is_flag=True, help="Run root's runs as root.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL for cancelled runs.",
)
@click.option(
    "--resolver",
    type=click.Choice(["off", "dry-run", "enforce"]),
    default="dry-run",
    show_default=True,
    envvar="FAIRLEAD_RESOLVER",
    help="Preempt runs: never, as a preview, or for real.",
)
@click.option(
    "--may-resolve",
    multiple=True,
    metavar="OWNER",
    help="Let this owner use `resolve --run` (repeatable).",
)
@click.option(
    "--owner-weighting",
    type=click.Choice(["owners", "tokens"]),
    default="owners",
    show_default=True,
    help="Give equal odds to every owner, or to every run.",
)
@click.option("--beacon", type=BeaconSource(), help="Wait for this public randomness beacon.")
@click.option(
    "--webhooks",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Send events to the receivers in this YAML file.",
)
@click.option(
    "--node",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    envvar="FAIRLEAD_UP_NODE",
    help="Run `fairlead node run --config FILE`, too.",
)
@click.option(
    "--traffic",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    envvar="FAIRLEAD_UP_TRAFFIC",
    help="Run `fairlead traffic run FILE`, too.",
)
@click.option(
    "--no-discover", is_flag=True, help="Do not add this machine's NVIDIA devices as a Node."
)
@click.option(
    "--demo", is_flag=True, help="Run a demo lab; without --data it is removed at the end."
)
def command(
    *,
    data: Path | None,
    ledger: str | None,
    keep_output_ms: int | None,
    port: int,
    no_http: bool,
    socket_path: Path | None,
    socket_group: int | None,
    socket_mode: int | None,
    allow_root: bool,
    grace_s: int,
    resolver: Literal["off", "dry-run", "enforce"],
    may_resolve: tuple[str, ...],
    owner_weighting: Literal["owners", "tokens"],
    beacon: tuple[str, int, int] | None,
    webhooks: Path | None,
    node: Path | None,
    traffic: Path | None,
    no_discover: bool,
    demo: bool,
) -> None:
    """Compose the server and run it."""
    from fairlead.cli.log import lasting
    from fairlead.compose.up import UpConfig, control_server
    from fairlead.node.supervisor import Agents

    if demo and ledger is not None:
        raise click.UsageError(
            "--demo has a ledger of its own: remove --ledger (FAIRLEAD_UP_LEDGER)"
        )
    _structured_logs()
    say = partial(click.echo, file=lasting(sys.stderr))
    with _directory(data, demo=demo) as directory:
        commands = _agents(node, traffic, directory if data is not None or demo else None)
        agents = Agents(commands, lambda line: say(f"fairlead: {line}"))
        config = UpConfig(
            data=directory,
            ledger=ledger,
            keep_output_ms=keep_output_ms,
            port=None if no_http else port,
            allow_root=allow_root,
            grace_ms=(DEMO_GRACE_S if demo else grace_s) * 1000,
            socket=socket_path.resolve() if socket_path else None,
            socket_group=socket_group,
            socket_mode=socket_mode,
            discover=not (demo or no_discover),
            resolver=resolver,
            may_resolve=frozenset(may_resolve),
            beacon=beacon,
            owner_weighting=owner_weighting,
            webhooks=webhooks.resolve() if webhooks else None,
        )
        with control_server(config) as server:
            say(f"fairlead: socket {config.socket_path}")
            if server.port is not None:
                say(f"fairlead: http://127.0.0.1:{server.port}")
            if demo:
                say(DEMO.format(socket=config.socket_path))
            with agents, _lab(server) if demo else nullcontext():
                server.run()
    say(f"fairlead: stopped{'' if demo else '; runs continue'}")


def _agents(node: Path | None, traffic: Path | None, home: Path | None) -> dict[str, list[str]]:
    """The agents' commands by name. A bad file is an error before anything starts.

    With a `home` their state is kept there, unless their settings name another directory.
    """
    from fairlead.cli.node.commands import bad_usage, node_document
    from fairlead.cli.traffic.commands import traffic_document
    from fairlead.compose.node import root_below
    from fairlead.node.cgroup_mounts import read_cgroup_host

    fairlead, commands = [sys.executable, "-m", "fairlead"], {}
    state_dirs: dict[str, str | None] = {}
    if node is not None:
        document = node_document(node, {"root": os.environ.get("FAIRLEAD_NODE_ROOT")})
        with bad_usage(node):
            root_below(read_cgroup_host(), document.root)
        commands["node"] = [*fairlead, "node", "run", "--config", str(node.absolute())]
        state_dirs["node"] = document.state_dir
    if traffic is not None:
        state_dirs["traffic"] = traffic_document(traffic, {}).state_dir
        commands["traffic"] = [*fairlead, "traffic", "run", str(traffic.absolute())]
    for name, command in commands.items():
        configured = state_dirs[name] or os.environ.get(f"FAIRLEAD_{name.upper()}_STATE_DIR")
        if home is not None and not configured:
            command += ["--state-dir", str(home / name)]
    return commands


def _lab(server: "ControlServer") -> "Lab":
    from fairlead.api.lab import Lab

    return Lab(server.service)


@contextmanager
def _directory(data: Path | None, *, demo: bool) -> Iterator[Path]:
    """The data directory; a demo without one gets a temporary one."""
    from fairlead.host.paths import state_directory

    if data is not None or not demo:
        yield (data or state_directory()).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)  # others have to reach the socket
        yield Path(made)


def _structured_logs() -> None:
    """Readable lines on a terminal, JSON in a pipe."""
    import structlog

    from fairlead.cli.log import lasting

    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not terminal),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(lasting(sys.stderr)),
    )
