"""`fairlead node`: govern the CPU of this machine's cgroups, and look at what the governor does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.show import output_option, show
from fairlead.schema.border import BadInput
from fairlead.schema.node import NodeAgentDocument, read_node_document

if TYPE_CHECKING:
    from fairlead.node.state import StateDirectory

STALE_CLEARS = 3  # an agent that missed this many clears is not well

RUN_HELP = """Watch the cgroups below ROOT, clear the CPU market every few seconds, write limits.

A pod is a cgroup that matches PATTERN below ROOT; its child cgroups are its containers. The limits
found at first sight are the ceiling for good; `fairlead node restore` puts them back. Ctrl-C,
SIGTERM and kill -9 leave the last safe limits.

Settings: flags, then FAIRLEAD_NODE_* variables, then the file, then the defaults.

\b
  fairlead node run --root machine.slice --dry-run      # only explain, touch nothing
  fairlead node run --root machine.slice --policy nash --metrics-port 8471
"""


@click.group("node", context_settings={"auto_envvar_prefix": "FAIRLEAD_NODE"})
def command() -> None:
    """Govern the CPU of this machine's cgroups."""


_state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="FAIRLEAD_NODE_STATE_DIR",
    help="Where the agent keeps its state (default: /var/lib/fairlead/node for root).",
)
_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For eyes, or for scripts.",
)


@command.command("run", help=RUN_HELP)
@click.option("--root", envvar="FAIRLEAD_NODE_ROOT", help="The cgroup to govern below.")
@click.option(
    "--pattern",
    envvar="FAIRLEAD_NODE_PATTERN",
    help="Glob of pod cgroups below the root [default: *].",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="FAIRLEAD_NODE_CONFIG",
    help="A YAML file with these and finer settings.",
)
@_state_dir
@click.option(
    "--policy",
    type=click.Choice(["demand-capped", "nash", "market"]),
    envvar="FAIRLEAD_NODE_POLICY",
    help="How a congested node is shared [default: nash].",
)
@click.option(
    "--capacity",
    "capacity_millicores",
    type=int,
    envvar="FAIRLEAD_NODE_CAPACITY",
    help="Millicores of the node [default: all its CPUs].",
)
@click.option(
    "--reserve",
    type=float,
    envvar="FAIRLEAD_NODE_RESERVE",
    help="Share of the node that is never handed out [default: 0.1].",
)
@click.option(
    "--sample-ms",
    type=int,
    envvar="FAIRLEAD_NODE_SAMPLE_MS",
    help="Time between readings [default: 1000].",
)
@click.option(
    "--clear-ms",
    type=int,
    envvar="FAIRLEAD_NODE_CLEAR_MS",
    help="Time between clearings [default: 5000].",
)
@click.option(
    "--metrics-port",
    type=int,
    envvar="FAIRLEAD_NODE_METRICS_PORT",
    help="Serve /metrics on loopback (0: any free port).",
)
@click.option(
    "--observe-only",
    is_flag=True,
    default=None,
    envvar="FAIRLEAD_NODE_OBSERVE_ONLY",
    help="Decide and record, but write no limit.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only explain: no limit, no state, no record is written."
)
@click.option("--clears", type=click.IntRange(1), help="Stop after this many clearings.")
def run(*, config_file: Path | None, dry_run: bool, clears: int | None, **flags: Any) -> None:
    """Run the agent in the foreground."""
    from fairlead.cli.node_log import NodeLog
    from fairlead.compose.node import node_agent
    from fairlead.node.supervisor import end_with_supervisor

    end_with_supervisor()
    document = node_document(config_file, flags)
    log = NodeLog(dry_run=dry_run)
    with bad_usage(config_file):
        agent = node_agent(document, dry_run=dry_run, report=log.turn, fault=log.fault)
    try:
        agent.start()
        agent.handle_signals()
        port = None
        if document.metrics_port is not None and not dry_run:
            from fairlead.node.metrics import serve_metrics

            port = serve_metrics(agent, document.metrics_address, document.metrics_port)
        log.started(agent, document, port)
        agent.run(clears_max=clears)
        log.stopped(agent)
    finally:
        agent.close()


def node_document(config_file: Path | None, flags: dict[str, Any]) -> NodeAgentDocument:
    """The agent's settings; what is wrong with them is bad usage."""
    given = {name: value for name, value in flags.items() if value is not None}
    if "state_dir" in given:
        given["state_dir"] = str(given["state_dir"])
    data = config_file.read_bytes() if config_file else b""
    with bad_usage(config_file):
        return read_node_document(data, given)


@contextmanager
def bad_usage(config_file: Path | None) -> Iterator[None]:
    """What is wrong with the settings is said with the file that may hold them."""
    try:
        yield
    except BadInput as error:
        where = f"{config_file}: " if config_file else ""
        raise click.UsageError(f"{where}{error}") from error


def _directory(state_dir: Path | None) -> "StateDirectory":
    from fairlead.node.state import StateDirectory, default_directory

    return StateDirectory(state_dir or default_directory())


def _status(directory: "StateDirectory") -> dict[str, Any]:
    from fairlead.node.state import STATUS

    status = directory.read(STATUS)
    if status is None:
        raise click.UsageError(f"no agent has run on {directory.path} (see `fairlead node run`)")
    age_ms = int(time.time() * 1000) - int(status["time_ms"])
    status["running"] = directory.running()
    status["age_ms"] = age_ms
    status["stale"] = age_ms > STALE_CLEARS * status["clear_ms"]
    return status


@command.command("status")
@_state_dir
@output_option
def status(*, state_dir: Path | None, output: str) -> None:
    """Show need, grant and throttling of every pod, and why.

    \b
      fairlead node status
      fairlead node status -o json | jq '.pods[].reasons'
    """
    from fairlead.cli.node_table import print_status

    document = _status(_directory(state_dir))
    if output == "table":
        print_status(document)
    else:
        show(document, output)


@command.command("explain")
@click.argument("pod")
@_state_dir
@output_option
def explain(*, pod: str, state_dir: Path | None, output: str) -> None:
    """Say in words why POD has the limit it has.

    \b
      fairlead node explain web
    """
    from fairlead.cli.node_table import explain_pod

    document = _status(_directory(state_dir))
    found = next((entry for entry in document["pods"] if entry["pod"] == pod), None)
    if found is None:
        names = ", ".join(entry["pod"] for entry in document["pods"][:8]) or "none"
        raise click.UsageError(f"no pod is called {pod!r}; governed pods: {names}")
    if output == "table":
        click.echo("\n".join(explain_pod(found, document)))
    else:
        show(found, output)


@command.command("restore")
@click.option("--root", envvar="FAIRLEAD_NODE_ROOT", help="The cgroup that was governed.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="FAIRLEAD_NODE_CONFIG",
    help="The agent's configuration file.",
)
@_state_dir
def restore(*, root: str | None, config_file: Path | None, state_dir: Path | None) -> None:
    """Put the limits back that the agent found. Stop the agent first.

    \b
      fairlead node restore --root machine.slice
    """
    from fairlead.compose.node import node_directory, node_files
    from fairlead.node.limits import Originals
    from fairlead.node.state import STATE, StateDirectory

    document = node_document(config_file, {"root": root, "state_dir": state_dir})
    directory = StateDirectory(node_directory(document))
    if not directory.path.is_dir():
        raise click.UsageError(f"no agent has run on {directory.path}")
    with bad_usage(config_file):
        files = node_files(document)
    directory.lock()
    try:
        restored, failed = Originals(directory).restore(files)
        # What the user sets from here on is the user's own: the old ceilings must not outlive this.
        directory.forget(STATE)
    finally:
        directory.unlock()
    for path in restored:
        click.echo(f"restored {path}")
    for reason in failed:
        click.echo(f"failed: {reason}", err=True)
    if not restored and not failed:
        click.echo("nothing to restore", err=True)
    if failed:
        raise SystemExit(3)


@command.command("observe-only")
@click.argument("switch", type=click.Choice(["on", "off"]))
@_state_dir
def observe_only(*, switch: str, state_dir: Path | None) -> None:
    """Switch a running agent between governing (off) and only watching (on).

    \b
      fairlead node observe-only on
    """
    directory = _directory(state_dir)
    directory.create()
    directory.switch_observe_only(on=switch == "on")
    click.echo(f"observe-only is {switch}; an agent obeys from its next clearing on")


@command.command("replay")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@_output
def replay(*, path: Path, output: str) -> None:
    """Decide everything in a record again and compare the bytes. PATH: a segment or a directory.

    \b
      fairlead node replay /var/lib/fairlead/node/record
    """
    from fairlead.cli.node_table import print_replay

    raise SystemExit(print_replay(path, output))
