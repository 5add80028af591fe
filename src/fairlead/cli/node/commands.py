"""The commands of `fairlead node`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.agents import read_status, setting, settings_of, state_dir_option
from fairlead.cli.main import EXIT_FAULT
from fairlead.cli.table import Output, output_option
from fairlead.schema.border import BadInput

if TYPE_CHECKING:
    from fairlead.node.state import StateDirectory
    from fairlead.schema.node import NodeAgentDocument

STALE_CLEARS = 3  # an agent that missed this many clearings is late

RUN_HELP = """Run the node agent: set CPU limits below a cgroup.

A pod is a cgroup that matches PATTERN below ROOT; its child cgroups are its containers. Every few
seconds the agent clears the CPU market (computes every pod's allocation) and writes limits. The
limits that it first finds stay the ceiling; `fairlead node restore` writes them back. Ctrl-C,
SIGTERM and kill -9 leave the last safe limits in place.

Settings come from flags, then FAIRLEAD_NODE_* variables, then the file, then the defaults.

\b
  fairlead node run --root machine.slice --dry-run      # only explain, write nothing
  fairlead node run --root machine.slice --policy nash --metrics-port 8471
"""


@click.group("node", context_settings={"auto_envvar_prefix": "FAIRLEAD_NODE"})
def command() -> None:
    """Govern CPU limits of this machine's cgroups."""


_state_dir = state_dir_option("node")
_setting = partial(setting, "node")
_config = click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="FAIRLEAD_NODE_CONFIG",
    help="Configuration file (YAML).",
)


@command.command("run", help=RUN_HELP)
@_setting("--root", str, "Govern the cgroups below this one.")
@_setting("--pattern", str, "Match pod cgroups below the root [default: *].")
@_config
@_state_dir
@_setting(
    "--policy",
    click.Choice(["demand-capped", "nash", "market"]),
    "Share a congested node by this policy [default: nash].",
)
@click.option(
    "--capacity",
    "capacity_millicores",
    type=int,
    envvar="FAIRLEAD_NODE_CAPACITY",
    help="Capacity in millicores [default: all CPUs].",
)
@_setting("--reserve", float, "Keep this share of the node free [default: 0.1].")
@_setting("--sample-ms", int, "Time between samples [default: 1000].")
@_setting("--clear-ms", int, "Time between clearings [default: 5000].")
@_setting("--metrics-port", int, "Serve /metrics on loopback (0: any free port).")
@click.option(
    "--observe-only",
    is_flag=True,
    default=None,
    envvar="FAIRLEAD_NODE_OBSERVE_ONLY",
    help="Decide and record, but write no limit.",
)
@click.option("--dry-run", is_flag=True, help="Explain only; write no limit, state or record.")
@click.option("--clears", type=click.IntRange(1), help="Stop after this many clearings.")
def run(*, config_file: Path | None, dry_run: bool, clears: int | None, **flags: Any) -> None:
    """Run the agent in the foreground."""
    from fairlead.cli.node.log import NodeLog
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
            from fairlead.node.metrics import NodeCollector, serve_metrics

            collector = NodeCollector(agent)
            port = serve_metrics(collector, document.metrics_address, document.metrics_port)
        log.started(agent, document, port)
        agent.run(clears_max=clears)
        log.stopped(agent)
    finally:
        agent.close()


def node_document(config_file: Path | None, flags: dict[str, Any]) -> "NodeAgentDocument":
    """The agent's settings; a bad one is bad usage."""
    from fairlead.schema.node import read_node_document

    data = config_file.read_bytes() if config_file else b""
    with bad_usage(config_file):
        return read_node_document(data, settings_of(flags))


@contextmanager
def bad_usage(config_file: Path | None) -> Iterator[None]:
    """Turn bad settings into a usage error that names the file."""
    try:
        yield
    except BadInput as error:
        where = f"{config_file}: " if config_file else ""
        raise click.UsageError(f"{where}{error}") from error


def _directory(state_dir: Path | None) -> "StateDirectory":
    from fairlead.node.state import StateDirectory, default_directory

    return StateDirectory(state_dir or default_directory())


def _status(directory: "StateDirectory") -> dict[str, Any]:
    status = read_status(directory, "node")
    return {**status, "stale": status["age_ms"] > STALE_CLEARS * status["clear_ms"]}


@command.command("status")
@_state_dir
@output_option
def status(*, state_dir: Path | None, output: str) -> None:
    """Show need, grant, limit and reasons of every pod.

    \b
      fairlead node status
      fairlead node status -o json | jq '.pods[].reasons'
    """
    from fairlead.cli.node.status import print_status

    document, out = _status(_directory(state_dir)), Output(output)
    out.text(document, lambda: print_status(document, wide=output == "wide"))


@command.command("explain")
@click.argument("pod")
@_state_dir
@output_option
def explain(*, pod: str, state_dir: Path | None, output: str) -> None:
    """Explain the limit of POD.

    \b
      fairlead node explain web
    """
    from fairlead.cli.node.status import explain_pod

    document = _status(_directory(state_dir))
    entry = next((entry for entry in document["pods"] if entry["pod"] == pod), None)
    if entry is None:
        names = ", ".join(entry["pod"] for entry in document["pods"][:8]) or "none"
        raise click.UsageError(f"unknown pod {pod!r}; governed pods: {names}")
    Output(output).text(entry, lambda: explain_pod(entry, document))


@command.command("restore")
@_setting("--root", str, "Restore the cgroups below this one.")
@_config
@_state_dir
def restore(*, root: str | None, config_file: Path | None, state_dir: Path | None) -> None:
    """Restore the limits that the agent first found.

    Stop the agent first.

    \b
      fairlead node restore --root machine.slice
    """
    from fairlead.compose.node import node_directory, node_files
    from fairlead.node.limits import Originals
    from fairlead.node.state import STATE, StateDirectory

    document = node_document(config_file, {"root": root, "state_dir": state_dir})
    directory = StateDirectory(node_directory(document))
    if not directory.path.is_dir():
        raise click.UsageError(f"no agent has run in {directory.path}")
    with bad_usage(config_file):
        files = node_files(document)
    directory.lock()
    try:
        restored, failed = Originals(directory).restore(files)
        # The user sets limits from here on: the old ceilings must not outlive this.
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
        raise SystemExit(EXIT_FAULT)


@command.command("observe-only")
@click.argument("switch", type=click.Choice(["on", "off"]))
@_state_dir
def observe_only(*, switch: str, state_dir: Path | None) -> None:
    """Switch a running agent between observing and governing.

    On: it decides and records, but writes no limit. Off: it governs.

    \b
      fairlead node observe-only on
    """
    directory = _directory(state_dir)
    directory.create()
    directory.switch_observe_only(on=switch == "on")
    click.echo(f"observe-only is {switch}; an agent follows it from its next clearing")
