"""`fairlead up`: the embedded control plane, in the foreground."""

import grp
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from fairlead.cli.agents import bad_usage, lasting, structured_logs
from fairlead.cli.node.commands import node_document
from fairlead.cli.options import NEW_FOLDER, PORT, flag, option, policy_options, preemption_policy
from fairlead.cli.traffic.commands import traffic_document
from fairlead.core.lottery import NETWORKS, BeaconNetwork
from fairlead.host.paths import state_directory
from fairlead.ledger.place import is_postgres
from fairlead.node.supervisor import Agents
from fairlead.schema.border import BadInput

DEMO_GRACE_S = 1
DEMO = """fairlead: a demo lab, for a browser or this shell (Ctrl-C ends it):
  export FAIRLEAD_SERVER={socket} PATH={programs}:$PATH
  fairlead budgets; fairlead leases; fairlead watch"""
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

--node and --traffic also run the agents for this machine's CPU and a service's traffic, as separate
processes that are restarted when they end.

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
    from fairlead.schema.times import parse_time

    source, *parts = text.split(",")
    if source in NETWORKS and not parts:
        return NETWORKS[source]
    known = ", ".join(sorted(NETWORKS))
    if source in NETWORKS or len(parts) != 3 or not source:
        expected = f"{known}, or SOURCE,START,PERIOD,KEY of another drand network"
        raise click.BadParameter(f"must be {expected}; got {text!r}")
    try:
        times = parse_time(parts[0], "START"), parse_duration(parts[1], "PERIOD")
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
@option(
    "--grace grace_s",
    click.IntRange(0, 3600),
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
    click.IntRange(1),
    "Runs of one owner that wait or run.",
    default=1_000,
    show_default=True,
)
@option(
    "--max-manifests=MIB",
    click.IntRange(1),
    "MiB of run manifests that one owner keeps.",
    default=64,
    show_default=True,
)
@option(
    "--max-requests=N requests_per_s",
    click.IntRange(1),
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
@option("--webhooks=FILE", _FILE, "Send events to the receivers in this YAML file.")
@option(
    "--node=FILE", _FILE, "Run `fairlead node run --config FILE`, too.", envvar="FAIRLEAD_UP_NODE"
)
@option(
    "--traffic=FILE", _FILE, "Run `fairlead traffic run FILE`, too.", envvar="FAIRLEAD_UP_TRAFFIC"
)
@flag("--no-discover", "Do not add this machine's NVIDIA devices as a Node.")
@flag("--demo", "Run a demo lab; without --data it is removed at the end.")
def command(
    *,
    data: Path | None,
    port: int,
    no_http: bool,
    grace_s: int,
    may_resolve: tuple[str, ...],
    max_open_runs: int,
    max_manifests: int,
    node: Path | None,
    traffic: Path | None,
    no_discover: bool,
    demo: bool,
    **settings: Any,  # fields of `UpConfig`
) -> None:
    from fairlead.api.lab import Lab
    from fairlead.compose.up import UpConfig, control_server
    from fairlead.core.gpu import QuotaPolicy

    if demo and settings["ledger"] is not None:
        raise click.UsageError("--demo has its own ledger: remove --ledger (FAIRLEAD_UP_LEDGER)")
    structured_logs()
    say = partial(click.echo, file=lasting(sys.stderr))
    with _directory(data, demo=demo) as directory:
        commands = _agents(node, traffic, directory if data is not None or demo else None)
        agents = Agents(commands, lambda line: say(f"fairlead: {line}"))
        config = UpConfig(
            data=directory,
            port=None if no_http else port,
            grace_ms=(DEMO_GRACE_S if demo else grace_s) * 1000,
            discover=not (demo or no_discover),
            may_resolve=frozenset(may_resolve),
            preemption=preemption_policy(settings),
            quota=QuotaPolicy(max_open_runs, max_manifests * 2**20),
            **settings,
        )
        with control_server(config) as server:
            say(f"fairlead: socket {config.socket_path}")
            if server.port is not None:
                say(f"fairlead: http://127.0.0.1:{server.port}")
            if demo:
                programs = Path(sys.executable).parent  # `make up` puts it on no path
                say(DEMO.format(socket=config.socket_path, programs=programs))
            with agents, Lab(server.service) if demo else nullcontext():
                server.run()
    say(f"fairlead: stopped{'' if demo else '; runs continue'}")


def _agents(node: Path | None, traffic: Path | None, home: Path | None) -> dict[str, list[str]]:
    """The agents' commands by name. A bad file is an error before anything starts.

    With a `home` their state is kept there, unless their settings name another directory.
    """
    from fairlead.compose.node import root_below
    from fairlead.node.cgroup_mounts import read_cgroup_host

    commands: dict[str, list[str]] = {}

    def add(name: str, configured: str | None, *arguments: str) -> None:
        commands[name] = [sys.executable, "-m", "fairlead", name, "run", *arguments]
        configured = configured or os.environ.get(f"FAIRLEAD_{name.upper()}_STATE_DIR")
        if home is not None and not configured:
            commands[name] += ["--state-dir", str(home / name)]

    if node is not None:
        document = node_document(node, {"root": os.environ.get("FAIRLEAD_NODE_ROOT")})
        with bad_usage(node):
            root_below(read_cgroup_host(), document.root)
        add("node", document.state_dir, "--config", str(node))
    if traffic is not None:
        add("traffic", traffic_document(traffic, {}).state_dir, str(traffic))
    return commands


@contextmanager
def _directory(data: Path | None, *, demo: bool) -> Iterator[Path]:
    if data is not None or not demo:
        yield (data or state_directory()).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)  # others have to reach the socket
        yield Path(made)
