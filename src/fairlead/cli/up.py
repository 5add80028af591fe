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
DEMO = """fairlead: a lab to look at in a browser, or from here (Ctrl-C ends it):
  export FAIRLEAD_SERVER={socket}
  fairlead budgets; fairlead leases; fairlead watch"""
HELP = """Run the embedded control plane: one process, one ledger, a Unix socket, loopback HTTP.

Commands on this machine talk to it over the socket in DIR; who they are is what the kernel says.
Over HTTP everybody on this machine reads, and only tokens write; a browser shows budgets, runs,
leases and events at http://127.0.0.1:8470. Ctrl-C or SIGTERM ends it; runs go on, and the next
`fairlead up` on the same DIR takes them over.

The socket is open to every user of the machine (each may look, and act for the owners it is bound
to). With --socket-group only that group can reach it.

Nobody is made to give way unless you say so: with --resolver dry-run a reservation that lacks
devices is Blocked, and `fairlead describe reservation/NAME` says who would have given way.

With --node and --traffic it also runs the agents that govern this machine's CPU and a service's
traffic, as processes of their own: started again when they end, ended with it.

\b
  fairlead up                                  # in the state directory of this user
  fairlead up --demo                           # a lab to look at, gone when it ends
  fairlead up --data /srv/fairlead --socket-group gpu-users
  fairlead up --resolver enforce --beacon drand-quicknet,2023-08-23T15:09:27Z,3s
  fairlead up --node node.yaml --traffic web.yaml
  FAIRLEAD_SERVER=/srv/fairlead/fairlead.sock fairlead get runs
"""


class Mode(click.ParamType[int]):
    """A file's mode as `chmod` takes it."""

    name = "MODE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Octal digits; the owner must be able to connect."""
        text = str(value).removeprefix("0o")
        mode = int(text, 8) if text.isascii() and text.isdigit() and set(text) <= _OCTAL else -1
        if not 0 <= mode <= 0o777 or mode & 0o600 != 0o600:
            self.fail(
                f"must be a mode such as 0660, and let the owner in, got {value!r}", param, ctx
            )
        return mode


_OCTAL = set("01234567")


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
            self.fail(f"there is no group {text!r} on this machine", param, ctx)


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
    """How long something is kept: `30d`, or for ever."""

    name = "DURATION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Milliseconds; None for ever."""
        from fairlead.schema.border import BadInput
        from fairlead.schema.objects import parse_duration

        if value == "forever":
            return None
        try:
            return parse_duration(str(value), "DURATION")
        except BadInput as error:
            self.fail(f"{error.message}; or forever", param, ctx)


class Postgres(click.ParamType[str]):
    """The address of a PostgreSQL database. It may hold a password, so it is never repeated."""

    name = "ADDRESS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As it is."""
        from fairlead.ledger.place import is_postgres

        if not is_postgres(value):
            self.fail(
                "must be postgresql://[USER@]HOST[:PORT]/DATABASE; without --ledger it is a "
                "file in DIR",
                param,
                ctx,
            )
        from fairlead.ledger.postgres_db import is_address

        if not is_address(value):
            self.fail(
                "cannot be read as the address of a database; in a password / is written "
                "%2F, @ %40 and % %25",
                param,
                ctx,
            )
        return str(value)


@click.command("up", help=HELP)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where everything is kept [default: the state directory; FAIRLEAD_STATE].",
)
@click.option(
    "--ledger",
    type=Postgres(),
    envvar="FAIRLEAD_UP_LEDGER",
    metavar="postgresql://…",
    help="Keep the ledger in PostgreSQL, for one control plane at a time [default: "
    "ledger.db in DIR].",
)
@click.option(
    "--keep-output",
    "keep_output_ms",
    type=Kept(),
    default="30d",
    show_default=True,
    metavar="DURATION|forever",
    help="How long the output of a run is kept after its end.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8470,
    show_default=True,
    envvar="FAIRLEAD_PORT",
    help="HTTP on 127.0.0.1; 0 takes any free port.",
)
@click.option("--no-http", is_flag=True, help="Only the Unix socket.")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The Unix socket [default: fairlead.sock in DIR].",
)
@click.option("--socket-group", type=Group(), help="The group that the socket belongs to.")
@click.option(
    "--socket-mode",
    type=Mode(),
    help="The socket's mode [default: 0660 with --socket-group, else 0666].",
)
@click.option("--allow-root", is_flag=True, help="Let runs that root submits run as root.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL when a run is cancelled.",
)
@click.option(
    "--resolver",
    type=click.Choice(["off", "dry-run", "enforce"]),
    default="dry-run",
    show_default=True,
    envvar="FAIRLEAD_RESOLVER",
    help="Whether runs are made to give way for reservations, drains and `fairlead "
    "resolve`: never; only shown who would; really.",
)
@click.option(
    "--may-resolve",
    multiple=True,
    metavar="OWNER",
    help="An owner that may start a run by others giving way, without a reservation. May "
    "be given several times.",
)
@click.option(
    "--owner-weighting",
    type=click.Choice(["owners", "tokens"]),
    default="owners",
    show_default=True,
    help="Between whom the lottery is fair: every owner is as likely as the next, or "
    "every run. Each commitment says which.",
)
@click.option(
    "--beacon",
    type=BeaconSource(),
    help="A public source of chance that every draw waits for; its values come with "
    "`fairlead audit beacon`.",
)
@click.option(
    "--webhooks",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Whom to tell what happens, in YAML.",
)
@click.option(
    "--node",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    envvar="FAIRLEAD_UP_NODE",
    help="Run the node agent too, as `fairlead node run --config FILE`.",
)
@click.option(
    "--traffic",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    envvar="FAIRLEAD_UP_TRAFFIC",
    help="Run the traffic agent too, as `fairlead traffic run FILE`.",
)
@click.option(
    "--no-discover", is_flag=True, help="Do not make a Node of this machine's NVIDIA devices."
)
@click.option(
    "--demo",
    is_flag=True,
    help="A lab with two virtual nodes and three teams whose runs keep coming. Without "
    "--data everything of it is gone at the end.",
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
    from fairlead.cli.agent_log import lasting
    from fairlead.compose.up import UpConfig, control_server
    from fairlead.node.supervisor import Agents

    if demo and ledger is not None:
        raise click.UsageError("--demo has a ledger of its own, not --ledger (FAIRLEAD_UP_LEDGER)")
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
    say(f"fairlead: stopped{'' if demo else '; runs go on'}")


def _agents(node: Path | None, traffic: Path | None, home: Path | None) -> dict[str, list[str]]:
    """The agents' commands by name. What is wrong in a file is said before anything starts.

    With a `home` their state is kept there too, unless they were told otherwise.
    """
    from fairlead.cli.node import bad_usage, node_document
    from fairlead.cli.traffic import traffic_document
    from fairlead.compose.node import root_below
    from fairlead.node.cgroup_mounts import read_cgroup_host

    fairlead, commands = [sys.executable, "-m", "fairlead"], {}
    told: dict[str, str | None] = {}
    if node is not None:
        document = node_document(node, {"root": os.environ.get("FAIRLEAD_NODE_ROOT")})
        with bad_usage(node):
            root_below(read_cgroup_host(), document.root)
        commands["node"] = [*fairlead, "node", "run", "--config", str(node.absolute())]
        told["node"] = document.state_dir
    if traffic is not None:
        told["traffic"] = traffic_document(traffic, {}).state_dir
        commands["traffic"] = [*fairlead, "traffic", "run", str(traffic.absolute())]
    for name, command in commands.items():
        given = told[name] or os.environ.get(f"FAIRLEAD_{name.upper()}_STATE_DIR")
        if home is not None and not given:
            command += ["--state-dir", str(home / name)]
    return commands


def _lab(server: "ControlServer") -> "Lab":
    from fairlead.api.lab import Lab

    return Lab(server.service)


@contextmanager
def _directory(given: Path | None, *, demo: bool) -> Iterator[Path]:
    """Where everything is kept; a demonstration's own goes away with it."""
    from fairlead.ledger.place import state_directory

    if given is not None or not demo:
        yield (given or state_directory()).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)  # others have to reach the socket
        yield Path(made)


def _structured_logs() -> None:
    """Lines for people on a terminal, JSON in a pipe."""
    import structlog

    from fairlead.cli.agent_log import lasting

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
