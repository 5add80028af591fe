"""`fairlead up`: the embedded control plane, in the foreground."""

import grp
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from fairlead.cli.agents import bad_usage, lasting, structured_logs
from fairlead.cli.audit.checkpoints import FILE as HEADS
from fairlead.cli.node.commands import node_document
from fairlead.cli.options import (
    NEW_FOLDER,
    PORT,
    Integer,
    flag,
    option,
    policy_options,
    preemption_policy,
)
from fairlead.cli.traffic.commands import traffic_document
from fairlead.core.lottery import NETWORKS, BeaconNetwork
from fairlead.host.paths import state_directory
from fairlead.ledger.place import FILE, is_postgres
from fairlead.node.supervisor import Agents, AgentsProcess
from fairlead.schema.border import BadInput

if TYPE_CHECKING:
    from fairlead.api.server import ControlServer
    from fairlead.compose.split import ControlUser
    from fairlead.compose.up import UpConfig

DEMO_GRACE_S = 1
LOG = "fairlead.log"
DEMO = """
  Fairlead demo      {address}

  Look at            the story at the top of the page: teams share and lend, a reservation
                     is announced with odds, a lottery, a preempted run resumes, a node is
                     congested, a backend turns slow. It takes a minute, then it repeats.
  In another shell   export FAIRLEAD_SERVER={socket} FAIRLEAD_LEDGER={ledger} \\
                            FAIRLEAD_HEADS={heads} PATH={programs}:$PATH
                     fairlead status; fairlead budgets; fairlead leases; fairlead watch
  To act             fairlead login prints a link: it signs your browser in to the page
  Log                {log}
  Stop               Ctrl-C; it leaves nothing behind
"""
HELP = """Run the embedded control plane.

One process with a ledger, a Unix socket and loopback HTTP. Commands on this machine use the socket
in DIR, and the kernel tells the server which user calls. Over HTTP any user of this machine may
read; writing needs a token. http://127.0.0.1:8470 shows budgets, runs, leases and events. Ctrl-C or
SIGTERM ends the process; runs continue, and the next `fairlead up` on the same DIR adopts them.

Every user of the machine may use the socket, and acts for the owners it is bound to. With
--socket-group only that group can connect.

Preemption is off by default; --resolver enforce turns it on. Reservations need notice, and a run
that has just started or was just preempted is no candidate: --min-notice, --max-reservations,
--min-runtime and --cooldown, which `fairlead describe policy` shows. With --resolver dry-run a
reservation that lacks devices is Blocked, and `fairlead describe reservation/NAME` previews the
candidates.

A tenant is bounded, too: --max-open-runs, --max-manifests and --max-requests. Admins are exempt.

Started as root, it is two processes: the control plane runs as --user, and a small launcher stays
root, which starts only what the ledger records (--user root: one process, as root). Started by
another user, its runs are that user's too: they can read its keys, so it takes one owner only,
unless --trusting.

--node and --traffic also run the agents for this machine's CPU and a service's traffic, as separate
processes that are restarted when they end. They report here: `fairlead get nodes` and `fairlead get
groups` show what they do. Agents of other machines report with a token of their own (`fairlead
tokens create --agent`). Agents keep root. --demo is one process.

\b
  fairlead up                                  # in the state directory of this user
  fairlead up --demo                           # a demo lab, removed at the end
  fairlead up --data /srv/fairlead --socket-group gpu-users
  fairlead up --resolver enforce --beacon drand-quicknet
  fairlead up --node node.yaml --traffic web.yaml
  FAIRLEAD_SERVER=/srv/fairlead/fairlead.sock fairlead get runs
"""
_OCTAL = set("01234567")


def file_mode(text: str) -> int:
    digits = text.removeprefix("0o")
    mode = int(digits, 8) if digits.isascii() and digits and set(digits) <= _OCTAL else -1
    if not 0 <= mode <= 0o777 or mode & 0o600 != 0o600:
        rule = "such as 0660 that lets the owner read and write"
        raise click.BadParameter(f"must be a mode {rule}, got {text!r}")
    return mode


def group_id(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise click.BadParameter(f"unknown group {text!r} on this machine") from None


def beacon_network(text: str) -> BeaconNetwork:
    """`drand-quicknet`; or another by name, first round, period and public key."""
    from fairlead.core.lottery.bls import KEY_BYTES
    from fairlead.schema.objects import parse_duration
    from fairlead.schema.times import parse_kept_time

    source, *parts = text.split(",")
    if source in NETWORKS and not parts:
        return NETWORKS[source]
    known = ", ".join(sorted(NETWORKS))
    if source in NETWORKS or len(parts) != 3 or not source:
        expected = f"{known}, or SOURCE,START,PERIOD,KEY of another drand network"
        raise click.BadParameter(f"must be {expected}; got {text!r}")
    try:
        times = parse_kept_time(parts[0], "START"), parse_duration(parts[1], "PERIOD")
    except BadInput as error:
        raise click.BadParameter(str(error)) from error
    if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", parts[2]):
        raise click.BadParameter(f"KEY: must be {KEY_BYTES} bytes in hex, lower case")
    return BeaconNetwork(source, *times, parts[2])


def kept_ms(text: str) -> int | None:
    """`30d` in milliseconds; None for `forever`."""
    from fairlead.schema.objects import parse_duration

    try:
        return None if text == "forever" else parse_duration(text, "DURATION")
    except BadInput as error:
        raise click.BadParameter(f"{error.message}; or forever") from error


def postgres_address(text: str) -> str:
    """The address of a PostgreSQL database. It may hold a password, so errors do not repeat it."""
    if not is_postgres(text):
        form = "postgresql://[USER@]HOST[:PORT]/DATABASE"
        raise click.BadParameter(f"must be {form}; without --ledger it is a file in DIR")
    from fairlead.ledger.postgres import is_address  # an extra

    if not is_address(text):
        escapes = "%2F for /, %40 for @ and %25 for %"
        raise click.BadParameter(f"is not a database address; in a password write {escapes}")
    return text


_FILE = click.Path(path_type=Path, dir_okay=False, exists=True, resolve_path=True)


@click.command("up", help=HELP)
@option("--data=DIR", NEW_FOLDER, "Data directory [default: the state directory].")
@option(
    "--ledger=postgresql://…",
    postgres_address,
    "Keep the ledger in PostgreSQL [default: DIR/ledger.db].",
    envvar="FAIRLEAD_UP_LEDGER",
)
@option(
    "--keep-output=DURATION|forever keep_output_ms",
    kept_ms,
    "Keep the output of ended runs this long.",
    default="30d",
)
@option(
    "--port",
    PORT,
    "HTTP port on 127.0.0.1 (0: any free port).",
    default=8470,
    envvar="FAIRLEAD_PORT",
)
@flag("--no-http", "Serve only the Unix socket.")
@option(
    "--socket",
    click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    "Unix socket [default: DIR/fairlead.sock].",
)
@option("--socket-group=GROUP", group_id, "Give the socket to this group.")
@option("--socket-mode=MODE", file_mode, "Socket mode [default: 0660 with a group, else 0666].")
@flag("--allow-root", "Run root's runs as root.")
@option("--user=USER", str, "User of the control plane [default: fairlead-up].")
@option("--run-users=GROUP", group_id, "Start commands only as members of this group.")
@flag("--trusting", "Let owners share a control plane that is not root.")
@option(
    "--grace grace_s",
    Integer(0, 3600),
    "Seconds from SIGTERM to SIGKILL for cancelled runs.",
    default=30,
)
@option(
    "--idle-after=DURATION idle_after_ms", kept_ms, "Warn runs whose GPUs did nothing for so long."
)
@flag("--idle-release", "End them instead, with their grace.")
@option(
    "--resolver",
    ("off", "dry-run", "enforce"),
    "Preempt runs: never, as a preview, or for real.",
    default="dry-run",
    envvar="FAIRLEAD_RESOLVER",
)
@option(
    "--may-resolve=OWNER", str, "Let this owner use `resolve --run` (repeatable).", multiple=True
)
@policy_options
@option(
    "--max-open-runs=N",
    Integer(1),
    "Runs of one owner that wait or run.",
    default=1_000,
    show_default=True,
)
@option(
    "--max-manifests=MIB",
    Integer(1),
    "MiB of run manifests that one owner keeps.",
    default=64,
    show_default=True,
)
@option(
    "--max-requests=N requests_per_s",
    Integer(1),
    "Requests per second of one user.",
    default=50,
    show_default=True,
)
@option(
    "--owner-weighting",
    ("owners", "tokens", "stake"),
    "Give equal odds to every owner, run, or held GPU.",
    default="owners",
)
@option("--beacon=NETWORK", beacon_network, "Wait for a round of this public randomness network.")
@option("--traces=URL", str, "Send OpenTelemetry traces to this OTLP/HTTP collector.")
@option("--webhooks=FILE", _FILE, "Send events to the receivers in this YAML file.")
@option(
    "--node=FILE", _FILE, "Run `fairlead node run --config FILE`, too.", envvar="FAIRLEAD_UP_NODE"
)
@option(
    "--traffic=FILE", _FILE, "Run `fairlead traffic run FILE`, too.", envvar="FAIRLEAD_UP_TRAFFIC"
)
@flag("--no-discover", "Do not add this machine's NVIDIA devices as a Node.")
@flag("--demo", "Run a demo lab; without --data it is removed at the end.")
@flag("--verbose", "With --demo: log to the terminal, not to a file.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    data: Path | None,
    port: int,
    no_http: bool,
    grace_s: int,
    may_resolve: tuple[str, ...],
    max_open_runs: int,
    max_manifests: int,
    user: str | None,
    trusting: bool,
    node: Path | None,
    traffic: Path | None,
    no_discover: bool,
    demo: bool,
    verbose: bool,
    **settings: Any,  # fields of `UpConfig`
) -> None:
    from fairlead.compose.split import reserve
    from fairlead.compose.up import SOCKET, UpConfig, control_server
    from fairlead.core.gpu import QuotaPolicy

    if demo and settings["ledger"] is not None:
        raise click.UsageError("--demo has its own ledger: remove --ledger (FAIRLEAD_UP_LEDGER)")
    if verbose and not demo:
        raise click.UsageError("--verbose is for --demo: without it the log is on the terminal")
    if demo:
        settings |= demo_defaults(ctx)
    with ExitStack() as stack:
        directory = stack.enter_context(_directory(data, demo=demo))
        quiet = demo and not verbose
        log = stack.enter_context(_log_file(directory)) if quiet else lasting(sys.stderr)
        structured_logs(log)
        say = partial(click.echo, file=log)
        home, socket = directory if data is not None or demo else None, settings["socket"]
        commands = _agents(node, traffic, home, socket or directory / SOCKET)
        control = _control_user(user, directory, say, demo=demo)
        if control is None and settings["run_users"] is not None:
            raise click.UsageError("--run-users needs root and --user: a launcher sees to it")
        if control is not None:
            for name in commands:
                reserve(directory / name)
        agents = _supervisor(commands, say, split=control is not None)
        config = UpConfig(
            data=directory,
            port=None if no_http else port,
            grace_ms=(DEMO_GRACE_S if demo else grace_s) * 1000,
            discover=not (demo or no_discover),
            may_resolve=frozenset(may_resolve),
            preemption=preemption_policy(settings),
            user=control,
            single_owner=os.geteuid() != 0 and not (trusting or demo),
            quota=QuotaPolicy(max_open_runs, max_manifests * 2**20),
            **settings,
        )
        server = stack.enter_context(control_server(config))
        say(f"fairlead: socket {config.socket_path}")
        address = None if server.port is None else f"http://127.0.0.1:{server.port}"
        if address is not None:
            say(f"fairlead: {address}")
        stack.enter_context(agents)
        if demo:
            _welcome(address, config, directory / LOG if quiet else None)
            stack.enter_context(_demo_stage(server, directory))
        server.run()
    click.echo(f"fairlead: stopped{'' if demo else '; runs continue'}", file=lasting(sys.stderr))


def demo_defaults(ctx: click.Context) -> dict[str, Any]:
    """The demo preempts, after seconds instead of hours; an option that is given stays."""
    from fairlead.api.lab import NOBODY_UID, POLICY

    wanted = {"resolver": "enforce", **asdict(POLICY)}
    unset = ParameterSource.DEFAULT
    chosen = {
        name: value for name, value in wanted.items() if ctx.get_parameter_source(name) is unset
    }
    return {**chosen, "root_as": NOBODY_UID}  # a newcomer who is root can submit, too


def _welcome(address: str | None, config: "UpConfig", log: Path | None) -> None:
    programs = Path(sys.executable).parent  # `make up` puts it on no path
    where = "the terminal (--verbose)" if log is None else str(log)
    socket = config.socket_path
    text = DEMO.format(
        address=address or socket,
        socket=socket,
        ledger=config.data / FILE,
        heads=config.data / HEADS,  # the checkpoints that are seen of it go with it
        programs=programs,
        log=where,
    )
    click.echo(text, file=lasting(sys.stderr))


@contextmanager
def _demo_stage(server: "ControlServer", directory: Path) -> Iterator[None]:
    """The story. Its end takes a second or two, and another Ctrl-C must not leave runs behind."""
    from fairlead.compose.demo import demo

    with demo(server.service, directory / "demo"):
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)


@contextmanager
def _log_file(directory: Path) -> Iterator[TextIO]:
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (directory / LOG).open("a", encoding="utf-8") as stream:
        yield lasting(stream)


def _control_user(
    name: str | None, directory: Path, say: Callable[[str], None], *, demo: bool
) -> "ControlUser | None":
    """Whom the control plane becomes; says what is not protected where it stays who it is."""
    from fairlead.compose.split import NUMBER, USER, control_user, obstacle

    if os.geteuid() != 0:
        if name is not None:
            raise click.UsageError("--user needs root: only root can become another user")
        if not demo:
            say(
                "fairlead: not root: runs execute as this user, and can read the ledger's keys and "
                "change its files"
            )
        return None
    found = None if demo and name is None else control_user(name)
    if demo and found is not None:
        raise click.UsageError("--user: --demo is one process; its directory is removed at the end")
    if found is None:
        cause = "--demo" if demo else f"--user {name}"
        say(f"fairlead: the control plane runs as root: {cause}")
    elif found.uid == NUMBER and (why := obstacle(found, directory)) is not None:
        say(
            f"fairlead: the control plane runs as root and reads what users send: {why}. "
            f"To separate them: `useradd --system {USER}`, see docs/operate/security.md"
        )
        return None
    return found


def _supervisor(
    commands: dict[str, list[str]], say: Callable[[str], None], *, split: bool
) -> Agents | AgentsProcess:
    """What runs the agents: they need root, and a control plane that gives it up does not."""
    if split and commands:
        return AgentsProcess(commands)
    return Agents(commands, lambda line: say(f"fairlead: {line}"))


def _agents(
    node: Path | None, traffic: Path | None, home: Path | None, socket: Path
) -> dict[str, list[str]]:
    """The agents' commands by name. A bad file is an error before anything starts.

    With a `home` their state is kept there, unless their settings name another directory. They
    report to this control plane, unless their settings name another.
    """
    from fairlead.compose.node import root_below
    from fairlead.node.cgroup_mounts import read_cgroup_host

    commands: dict[str, list[str]] = {}

    def add(name: str, document: Any, *arguments: str) -> None:
        # -P: root imports nothing from the folder in which the operator happens to be.
        commands[name] = [sys.executable, "-P", "-m", "fairlead", name, "run", *arguments]
        variable = f"FAIRLEAD_{name.upper()}_"
        if home is not None and not (document.state_dir or os.environ.get(variable + "STATE_DIR")):
            commands[name] += ["--state-dir", str(home / name)]
        if document.report is None and not os.environ.get(variable + "REPORT_TO"):
            commands[name] += ["--report-to", str(socket)]

    if node is not None:
        document = node_document(node, {"root": os.environ.get("FAIRLEAD_NODE_ROOT")})
        with bad_usage(node):
            root_below(read_cgroup_host(), document.root)
        add("node", document, "--config", str(node))
    if traffic is not None:
        add("traffic", traffic_document(traffic, {}), str(traffic))
    return commands


@contextmanager
def _directory(data: Path | None, *, demo: bool) -> Iterator[Path]:
    if data is not None and not data.resolve().parent.is_dir():  # a typing error, most often
        missing = data.resolve().parent
        raise click.BadParameter(f"there is no directory {missing}", param_hint="--data")
    if data is not None or not demo:
        yield (data or state_directory()).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)  # others have to reach the socket
        yield Path(made)
