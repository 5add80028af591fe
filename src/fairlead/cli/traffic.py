"""`fairlead traffic`: govern which backend gets a service's connections, and who is let in."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.show import output_option, show
from fairlead.cli.traffic_state import (
    group_of,
    order_option,
    read_status,
    state_directory,
    state_option,
    tell_order,
)
from fairlead.schema.border import BadInput

if TYPE_CHECKING:
    from fairlead.schema.traffic_agent import TrafficDocument

RUN_HELP = """Govern the route groups of FILE, five times a second.

A route group is a virtual address with equivalent backends behind it. The agent watches queue,
latency and errors of each backend and stalls of the machine, moves the group's 256 slots to whom
it goes well, isolates who is sick, and closes the door little by little when nobody is well.
Connections go on without it: by the last table for 15 s, then by a hash of the flow.

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

SIGHUP reads FILE again. Settings: flags, then FAIRLEAD_TRAFFIC_* variables, then FILE.
"""


class _Group(click.Group):
    """Imports the harness, and with it the simulator, only for whoever asks for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in a fixed order."""
        return sorted([*super().list_commands(ctx), "harness"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The harness from its own module."""
        if cmd_name != "harness":
            return super().get_command(ctx, cmd_name)
        from fairlead.cli.traffic_harness import command as harness

        return harness


@click.group("traffic", cls=_Group, context_settings={"auto_envvar_prefix": "FAIRLEAD_TRAFFIC"})
def command() -> None:
    """Govern which backend gets a service's connections, and who is let in."""


@command.command("run", help=RUN_HELP)
@click.argument(
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="FAIRLEAD_TRAFFIC_CONFIG",
)
@click.option(
    "--plane",
    type=click.Choice(["memory", "haproxy", "envoy", "ebpf"]),
    envvar="FAIRLEAD_TRAFFIC_PLANE",
    help="What moves the connections, instead of FILE's plane.",
)
@state_option
@click.option(
    "--tick-ms",
    type=int,
    envvar="FAIRLEAD_TRAFFIC_TICK_MS",
    help="Time between ticks [default: 200].",
)
@click.option(
    "--ledger",
    envvar="FAIRLEAD_TRAFFIC_LEDGER",
    help="Keep transitions and anchors here: a file, or postgresql://…",
)
@click.option(
    "--metrics-port",
    type=int,
    envvar="FAIRLEAD_TRAFFIC_METRICS_PORT",
    help="Serve /metrics on loopback (0: any free port).",
)
@click.option("--ticks", type=click.IntRange(1), help="Stop after this many ticks.")
def run(*, file: Path, ticks: int | None, **flags: Any) -> None:
    """Run the agent in the foreground."""
    from fairlead.cli.traffic_log import TrafficLog
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
            from fairlead.node.traffic.reports import serve_metrics

            # Before the plane hears of us: who fails at this again and again must not look alive.
            port = serve_metrics(agent, document.metrics_address, document.metrics_port)
        agent.start()
        agent.handle_signals()
        log.started(agent, port)
        agent.run(ticks_max=ticks)
        log.stopped(agent)
    finally:
        agent.close()


def traffic_document(file: Path, flags: dict[str, Any]) -> "TrafficDocument":
    """The agent's settings; what is wrong with them is bad usage."""
    try:
        return _read(file, flags)
    except BadInput as error:
        raise click.UsageError(f"{file}: {error}") from error


def _read(file: Path, flags: dict[str, Any]) -> "TrafficDocument":
    """A running agent reads its file again by this: what is wrong must not end it."""
    from fairlead.schema.traffic_agent import read_traffic_document

    given = {name: value for name, value in flags.items() if value is not None}
    if "state_dir" in given:
        given["state_dir"] = str(given["state_dir"])
    return read_traffic_document(file.read_bytes(), given)


@command.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_option
def check(*, file: Path, output: str) -> None:
    """Say whether FILE is a good configuration, without touching anything.

    \b
      fairlead traffic check web.yaml
    """
    document = traffic_document(file, {})
    summary = [
        {
            "group": g.name,
            "address": f"{g.vip}:{g.port}/{g.proto.value}",
            "backends": g.service or len(g.backends or ()),
        }
        for g in document.groups
    ]
    if output == "table":
        for each in summary:
            click.echo(f"{each['group']}: {each['address']} to {each['backends']} backends")
    else:
        show({"plane": document.plane.kind.value, "groups": summary}, output)


@command.command("status")
@click.argument("group", required=False)
@state_option
@output_option
def status(*, group: str | None, state_dir: Path | None, output: str) -> None:
    """Show slots, pressure and health of every backend, the doors, and why.

    \b
      fairlead traffic status
      fairlead traffic status web -o json | jq '.groups[].reasons'
    """
    from fairlead.cli.traffic_table import print_status

    document = read_status(state_directory(state_dir))
    if group is not None:
        document["groups"] = [group_of(document, group)]
    if output == "table":
        print_status(document)
    else:
        show(document, output)


@command.command("explain")
@click.argument("group")
@click.argument("backend", required=False)
@state_option
@output_option
def explain(*, group: str, backend: str | None, state_dir: Path | None, output: str) -> None:
    """Say in words why GROUP's door and slots, or those of one BACKEND, are as they are.

    \b
      fairlead traffic explain web
      fairlead traffic explain web b1
    """
    from fairlead.cli.traffic_explain import explain_backend, explain_group

    document = read_status(state_directory(state_dir))
    found = group_of(document, group)
    if backend is None:
        lines, value = explain_group(found, document), found
    else:
        value = next((each for each in found["backends"] if each["backend"] == backend), {})
        if not value:
            names = ", ".join(each["backend"] for each in found["backends"]) or "none"
            raise click.UsageError(f"no backend of {group} is called {backend!r}; it has: {names}")
        lines = explain_backend(value, found)
    if output == "table":
        click.echo("\n".join(lines))
    else:
        show(value, output)


@command.command("drain")
@order_option
def drain(*, group: str, backend: str, state_dir: Path | None, wait_s: float) -> None:
    """Send BACKEND nothing new, and ask its kept connections to end, until it is restored.

    \b
      fairlead traffic drain web b1        # before an upgrade of b1
      fairlead traffic restore web b1      # afterwards
    """
    tell_order(state_dir, group, backend, "drain", wait_s)


@command.command("isolate")
@order_option
def isolate(*, group: str, backend: str, state_dir: Path | None, wait_s: float) -> None:
    """Send BACKEND nothing new until it is restored; connections that it has stay.

    \b
      fairlead traffic isolate web b1
    """
    tell_order(state_dir, group, backend, "isolate", wait_s)


@command.command("restore")
@order_option
def restore(*, group: str, backend: str, state_dir: Path | None, wait_s: float) -> None:
    """Take back `drain` or `isolate`: BACKEND is probed, and returns when it answers well.

    \b
      fairlead traffic restore web b1
    """
    tell_order(state_dir, group, backend, None, wait_s)


@command.command("replay")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For eyes, or for scripts.",
)
def replay(*, path: Path, output: str) -> None:
    """Decide every recorded tick again and compare the bytes. PATH: a segment, or a directory.

    \b
      fairlead traffic replay /var/lib/fairlead/traffic/record
      fairlead traffic replay /var/lib/fairlead/traffic/record/web
    """
    from fairlead.cli.traffic_replay import print_replay

    raise SystemExit(print_replay(path, output))


@command.command("build-ebpf")
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the object goes [default: the cache of this release].",
)
def build_ebpf(*, target: Path | None) -> None:
    """Compile the eBPF programs for this machine; says precisely what is missing where it cannot.

    \b
      fairlead traffic build-ebpf
    """
    from fairlead.dataplane.ebpf import build

    click.echo(build(target))


@command.command("remove")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--plane",
    type=click.Choice(["haproxy", "envoy", "ebpf"]),
    envvar="FAIRLEAD_TRAFFIC_PLANE",
    help="Instead of FILE's plane.",
)
@state_option
def remove(*, file: Path, **flags: Any) -> None:
    """Take FILE's plane off this machine. Stop the agent first.

    \b
      fairlead traffic remove web.yaml
    """
    from fairlead.compose import traffic as composed

    document = traffic_document(file, flags)
    directory = state_directory(composed.traffic_directory(document))
    directory.create()
    directory.lock()
    try:
        composed.remove_dataplane(document.plane, directory.path)
    finally:
        directory.unlock()
    click.echo(f"the {document.plane.kind.value} plane is removed")
