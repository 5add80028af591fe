"""The commands of `fairlead traffic`."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.agents import read_status, setting, settings_of, state_dir_option
from fairlead.cli.table import Decorator, Output, output_option
from fairlead.schema.border import BadInput

if TYPE_CHECKING:
    from fairlead.node.state import StateDirectory
    from fairlead.node.traffic.commands import BackendCommand
    from fairlead.schema.traffic_agent import TrafficDocument

STALE_MS = 3_000  # the status is written every second

RUN_HELP = """Run the traffic agent for the route groups of FILE.

A route group is a virtual address with equivalent backends. Five times a second the agent reads
queue, latency and errors of each backend and the stalls of the machine, moves the group's 256 slots
to healthy backends, ejects unhealthy ones, and sheds load when no backend is healthy. Connections
continue without the agent: by the last table for 15 s, then by a hash of the flow.

\b
  plane: haproxy                   # or envoy, ebpf, memory
  groups:
    - name: web
      vip: 127.0.0.1
      port: 8080
      backends:
        - {id: a, host: 127.0.0.1, port: 9001}
        - {id: b, host: 127.0.0.1, port: 9002}

\b
  fairlead traffic run web.yaml
  fairlead traffic run web.yaml --plane ebpf --metrics-port 8472

SIGHUP reloads FILE. Settings come from flags, then FAIRLEAD_TRAFFIC_* variables, then FILE.
"""


class _Group(click.Group):
    """Imports the harness, and with it the simulator, only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in a fixed order."""
        return sorted([*super().list_commands(ctx), "harness"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The harness from its own module."""
        if cmd_name != "harness":
            return super().get_command(ctx, cmd_name)
        from fairlead.cli.traffic.harness import command as harness

        return harness


@click.group("traffic", cls=_Group, context_settings={"auto_envvar_prefix": "FAIRLEAD_TRAFFIC"})
def command() -> None:
    """Balance and admit a service's connections."""


_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_state_dir = state_dir_option("traffic")
_setting = partial(setting, "traffic")
_wait: Decorator = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=5.0,
    help="Wait this many seconds for the agent to act.",
)


def _plane(*kinds: str) -> Decorator:
    return _setting("--plane", click.Choice(kinds), "Use this dataplane instead of FILE's.")


@command.command("run", help=RUN_HELP)
@click.argument(
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="FAIRLEAD_TRAFFIC_CONFIG",
)
@_plane("memory", "haproxy", "envoy", "ebpf")
@_state_dir
@_setting("--tick-ms", int, "Time between ticks [default: 200].")
@_setting("--ledger", str, "Record transitions in this file or postgresql:// ledger.")
@_setting("--metrics-port", int, "Serve /metrics on loopback (0: any free port).")
@click.option("--ticks", type=click.IntRange(1), help="Stop after this many ticks.")
def run(*, file: Path, ticks: int | None, **flags: Any) -> None:
    """Run the agent in the foreground."""
    from fairlead.cli.traffic.log import TrafficLog
    from fairlead.compose import traffic as composed
    from fairlead.node.supervisor import end_with_supervisor

    end_with_supervisor()
    document = traffic_document(file, flags)
    log = TrafficLog()
    agent = composed.traffic_agent(
        document, report=log.round, warn=log.warn, reload=lambda: _read(file, flags)
    )
    try:
        port = None
        if document.metrics_port is not None:
            from fairlead.node.metrics import serve_metrics
            from fairlead.node.traffic.reports import TrafficCollector

            # Before the dataplane starts: an agent that fails here repeatedly must not look alive.
            collector = TrafficCollector(agent)
            port = serve_metrics(collector, document.metrics_address, document.metrics_port)
        agent.start()
        agent.handle_signals()
        log.started(agent, port)
        agent.run(ticks_max=ticks)
        log.stopped(agent)
    finally:
        agent.close()


def traffic_document(file: Path, flags: dict[str, Any]) -> "TrafficDocument":
    """The agent's settings; a bad one is bad usage."""
    try:
        return _read(file, flags)
    except BadInput as error:
        raise click.UsageError(f"{file}: {error}") from error


def _read(file: Path, flags: dict[str, Any]) -> "TrafficDocument":
    """Also reloads: a bad file must not end a running agent."""
    from fairlead.schema.traffic_agent import read_traffic_document

    return read_traffic_document(file.read_bytes(), settings_of(flags))


@command.command("check")
@_file
@output_option
def check(*, file: Path, output: str) -> None:
    """Check the configuration FILE; change nothing.

    \b
      fairlead traffic check web.yaml
    """
    document = traffic_document(file, {})
    groups = [
        {
            "group": group.name,
            "address": f"{group.vip}:{group.port}/{group.proto.value}",
            "backends": group.service or len(group.backends or ()),
        }
        for group in document.groups
    ]
    summary = {"plane": document.plane.kind.value, "groups": groups}
    lines = [f"{row['group']}: {row['address']} to {row['backends']} backends" for row in groups]
    Output(output).text(summary, lambda: lines)


# --- the agent's state


def _directory(state_dir: Path | None) -> "StateDirectory":
    from fairlead.compose.traffic import default_directory
    from fairlead.node.state import StateDirectory

    return StateDirectory(state_dir or default_directory())


def _status(directory: "StateDirectory") -> dict[str, Any]:
    status = read_status(directory, "traffic")
    return {**status, "stale": status["age_ms"] > max(STALE_MS, 3 * status["tick_ms"])}


def _group(document: dict[str, Any], name: str) -> dict[str, Any]:
    for group in document["groups"]:
        if group["group"] == name:
            return dict(group)
    names = ", ".join(group["group"] for group in document["groups"]) or "none"
    raise click.UsageError(f"unknown group {name!r}; governed groups: {names}")


def _backend(group: dict[str, Any], name: str) -> dict[str, Any]:
    for backend in group["backends"]:
        if backend["backend"] == name:
            return dict(backend)
    names = ", ".join(backend["backend"] for backend in group["backends"]) or "none"
    raise click.UsageError(f"unknown backend {name!r} of {group['group']}; it has: {names}")


@command.command("status")
@click.argument("group", required=False)
@_state_dir
@output_option
def status(*, group: str | None, state_dir: Path | None, output: str) -> None:
    """Show slots, pressure, health and admission.

    \b
      fairlead traffic status
      fairlead traffic status web -o json | jq '.groups[].reasons'
    """
    from fairlead.cli.traffic.status import print_status

    document = _status(_directory(state_dir))
    if group is not None:
        document["groups"] = [_group(document, group)]
    Output(output).text(document, lambda: print_status(document, wide=output == "wide"))


@command.command("explain")
@click.argument("group")
@click.argument("backend", required=False)
@_state_dir
@output_option
def explain(*, group: str, backend: str | None, state_dir: Path | None, output: str) -> None:
    """Explain the admission of GROUP or slots of a BACKEND.

    \b
      fairlead traffic explain web
      fairlead traffic explain web b1
    """
    from fairlead.cli.traffic.status import explain_backend, explain_group

    document = _status(_directory(state_dir))
    status = _group(document, group)
    if backend is None:
        Output(output).text(status, lambda: explain_group(status, document))
    else:
        one = _backend(status, backend)
        Output(output).text(one, lambda: explain_backend(one, status))


# --- operator orders


def _order(order: "BackendCommand | None", name: str, text: str) -> None:
    """A command that gives an order for one backend, and waits until the agent follows it."""

    @command.command(name, help=text)
    @click.argument("group")
    @click.argument("backend")
    @_state_dir
    @_wait
    def give(*, group: str, backend: str, state_dir: Path | None, wait_s: float) -> None:
        _give_order(_directory(state_dir), group, backend, order, wait_s)


_order(
    "drain",
    "drain",
    """Drain BACKEND: no new requests, close kept connections.

    It stays drained until `restore`.

    \b
      fairlead traffic drain web b1        # before an upgrade of b1
      fairlead traffic restore web b1      # afterwards
    """,
)
_order(
    "isolate",
    "isolate",
    """Isolate BACKEND: no new requests, keep connections.

    It stays isolated until `restore`.

    \b
      fairlead traffic isolate web b1
    """,
)
_order(
    None,
    "restore",
    """Restore BACKEND after `drain` or `isolate`.

    The agent probes it; it returns to service once it answers.

    \b
      fairlead traffic restore web b1
    """,
)


def _give_order(
    directory: "StateDirectory",
    group: str,
    backend: str,
    order: "BackendCommand | None",
    wait_s: float,
) -> None:
    from fairlead.node.state import STATUS
    from fairlead.node.traffic.commands import change_command

    if directory.read(STATUS) is not None:  # only an agent that ran knows the names
        _backend(_group(_status(directory), group), backend)
    changed = change_command(directory, group, backend, order)
    word = {"drain": "drained", "isolate": "isolated", None: "restored"}[order]
    if not changed:
        click.echo(f"{group}/{backend} is {word} already")
    elif not directory.running():
        click.echo(f"{group}/{backend} will be {word} when an agent runs")
    elif _followed(directory, group, backend, order, wait_s):
        click.echo(f"{group}/{backend} is {word}")
    else:
        click.echo(f"{group}/{backend} is to be {word}; the agent has not confirmed it yet")


def _followed(
    directory: "StateDirectory",
    group: str,
    backend: str,
    order: "BackendCommand | None",
    wait_s: float,
) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        for row in _group(_status(directory), group)["backends"]:
            # A restored backend returns to service after its probes; the order is lifted now.
            done = order is None or (row["isolated"] == "operator" and row["slots"] == 0)
            if row["backend"] == backend and row["order"] == order and done:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


# --- dataplanes


@command.command("build-ebpf")
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the object here [default: this release's cache].",
)
def build_ebpf(*, target: Path | None) -> None:
    """Compile the eBPF programs, or list what is missing.

    \b
      fairlead traffic build-ebpf
    """
    from fairlead.dataplane.ebpf import build

    click.echo(build(target))


@command.command("remove")
@_file
@_plane("haproxy", "envoy", "ebpf")
@_state_dir
def remove(*, file: Path, **flags: Any) -> None:
    """Remove FILE's dataplane from this machine.

    Stop the agent first.

    \b
      fairlead traffic remove web.yaml
    """
    from fairlead.compose import traffic as composed

    document = traffic_document(file, flags)
    directory = _directory(composed.traffic_directory(document))
    directory.create()
    directory.lock()
    try:
        composed.remove_dataplane(document.plane, directory.path)
    finally:
        directory.unlock()
    click.echo(f"the {document.plane.kind.value} dataplane is removed")
