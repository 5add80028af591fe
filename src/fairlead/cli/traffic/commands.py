"""The commands of `fairlead traffic`."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from fairlead.cli.agents import AgentCommands, agent_log, bad_usage, find, settings_of
from fairlead.cli.main import LazyGroup
from fairlead.cli.options import (
    FILE,
    NEW_FILE,
    Decorator,
    Integer,
    Number,
    flag,
    option,
    output_option,
)
from fairlead.cli.table import Output
from fairlead.cli.traffic.status import explain_backend, explain_group, print_status
from fairlead.host.paths import state_directory
from fairlead.node.state import RUNNING, STATUS, StateDirectory, fields
from fairlead.node.supervisor import end_with_supervisor
from fairlead.node.traffic.commands import BackendCommand, change_command

if TYPE_CHECKING:
    from fairlead.engine.traffic import TickRound
    from fairlead.node.traffic.agent import TrafficAgent
    from fairlead.node.traffic.commands import ControlOrders
    from fairlead.schema.traffic_agent import TrafficDocument

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
  fairlead traffic run --kube --plane ebpf

A proxy that you run already is driven by `plane: {haproxy: {socket: PATH, backend: NAME}}` or
`plane: {envoy: {xds: ADDRESS, admin: ADDRESS, cluster: NAME}}`; its groups have no address
(docs/operate/running-proxy.md). It gets back what was found when the agent stops.

With --kube the groups are the RouteGroups of a cluster (docs/kubernetes-traffic.md); FILE then has
the other settings, and may be left out.

SIGHUP reloads FILE. Settings come from flags, then FAIRLEAD_TRAFFIC_* variables, then FILE.
"""


class _Group(LazyGroup):
    """Imports the harness, and with it the simulator, only when it is used."""

    MODULES: ClassVar = {"harness": ("traffic.harness", "")}


@click.group("traffic", cls=_Group, context_settings={"auto_envvar_prefix": "FAIRLEAD_TRAFFIC"})
def command() -> None:
    """Balance and admit a service's connections."""


_file = click.argument("file", type=FILE)
agent_commands = AgentCommands("traffic", state_directory)
_setting, _state_dir = agent_commands.setting, agent_commands.state_dir
_wait = option(
    "--wait wait_s", Number(0), "Wait this many seconds for the agent to act.", default=5.0
)


def _plane(*kinds: str) -> Decorator:
    return _setting("--plane", kinds, "Use this dataplane instead of FILE's.")


def _kube(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of an agent that follows a cluster."""
    for decorate in reversed(
        (
            flag("--kube", "Serve the RouteGroups of a Kubernetes cluster."),
            _setting("--node-name node", str, "This machine's name in the cluster."),
            _setting("--listen", str, "Address of a proxy's RouteGroups."),
            _setting("--ports", str, "Ports RouteGroups may use [default: 20000-20999]."),
            _setting("--kubeconfig", str, "Kubeconfig file, as kubectl's."),
            _setting("--context", str, "Context of the kubeconfig."),
        )
    ):
        function = decorate(function)
    return function


_KUBE = ("node", "listen", "ports", "kubeconfig", "context")


@command.command("run", help=RUN_HELP)
@click.argument("file", type=FILE, envvar="FAIRLEAD_TRAFFIC_CONFIG", required=False)
@_plane("memory", "haproxy", "envoy", "ebpf")
@_kube
@_state_dir
@_setting("--tick-ms", int, "Time between ticks [default: 200].")
@_setting("--ledger", str, "Record transitions in this file or postgresql:// ledger.")
@_setting("--metrics-port", int, "Serve /metrics on loopback (0: any free port).")
@agent_commands.reports
@option("--ticks", Integer(1), "Stop after this many ticks.")
def run(*, file: Path | None, ticks: int | None, kube: bool, **flags: Any) -> None:
    end_with_supervisor()
    cluster = {name: value for name in _KUBE if (value := flags.pop(name)) is not None}
    if kube or cluster:
        flags["kube"] = cluster
    elif file is None:
        raise click.UsageError("FILE is required without --kube")
    document = traffic_document(file, flags)
    log = TrafficLog()
    with _agent(document, log, lambda: _read(file, flags)) as agent:
        port = None
        if document.metrics_port is not None:
            from fairlead.node.metrics import serve_metrics
            from fairlead.node.traffic.reports import traffic_collector

            # Before the dataplane starts: an agent that fails here repeatedly must not look alive.
            collector = traffic_collector(agent)
            port = serve_metrics(collector, document.metrics_address, document.metrics_port)
        agent.start()
        agent.handle_signals()
        log.started(agent, port)
        agent.run(ticks_max=ticks)
        log.stopped(agent)


@contextmanager
def _agent(
    document: "TrafficDocument", log: "TrafficLog", reload: Callable[[], "TrafficDocument"]
) -> Iterator["TrafficAgent"]:
    """Of a file's groups, or of a cluster's; it logs and, where it is to, reports."""
    with ExitStack() as opened:
        orders = _control_orders(document)
        report = opened.enter_context(_reports(document, log, orders))
        if document.kube is not None:
            from fairlead.compose.traffic_kube import kube_traffic_agent

            agent = opened.enter_context(kube_traffic_agent(document, report=report, warn=log.warn))
        else:
            from fairlead.compose.traffic import traffic_agent

            agent = traffic_agent(
                document, report=report, warn=log.warn, reload=reload, drains=orders or dict
            )
        opened.callback(agent.close)
        yield agent


def _control_orders(document: "TrafficDocument") -> "ControlOrders | None":
    """What the control plane orders; in a cluster its own objects do."""
    if document.report is None or document.kube is not None:
        return None
    from fairlead.compose.traffic import traffic_directory
    from fairlead.node.traffic.commands import ControlOrders

    return ControlOrders(StateDirectory(traffic_directory(document)))


@contextmanager
def _reports(
    document: "TrafficDocument", log: "TrafficLog", orders: "ControlOrders | None"
) -> Iterator[Callable[["TickRound", "TrafficAgent"], None]]:
    if document.report is None:
        yield log.round
        return
    from fairlead.compose.reporting import reporting
    from fairlead.executor.devices import host_name
    from fairlead.node.traffic.moments import TickReports

    in_cluster = None if document.kube is None else document.kube.node
    name = in_cluster or document.node.name or host_name()
    taken = (lambda _: None) if orders is None else orders.take
    sending = reporting(document.report, name, warn=log.warn, taken=taken)
    with bad_usage(None), sending as reporter:
        reports = TickReports(reporter)

        def ticked(round: "TickRound", agent: "TrafficAgent") -> None:
            log.round(round, agent)
            reports(round, agent)

        yield ticked


def traffic_document(file: Path | None, flags: dict[str, Any]) -> "TrafficDocument":
    """The agent's settings; a bad one is bad usage."""
    with bad_usage(file):
        return _read(file, flags)


def _read(file: Path | None, flags: dict[str, Any]) -> "TrafficDocument":
    """Also reloads: a bad file must not end a running agent."""
    from fairlead.schema.traffic_agent import read_traffic_document

    data = b"" if file is None else file.read_bytes()
    return read_traffic_document(data, settings_of(flags))


@command.command("check")
@_file
@output_option
def check(*, file: Path, output: str) -> None:
    """Check the configuration FILE; change nothing.

    \b
      fairlead traffic check web.yaml
    """
    document = traffic_document(file, {})
    groups, lines = [], []
    for group in document.groups:
        address = f"{group.vip}:{group.port}/{group.proto.value}"
        backends = group.service or len(group.backends or ())
        if document.plane.running is not None:
            address = f"the {document.plane.kind.value} that runs"
            backends = backends or "its own"
        groups.append({"group": group.name, "address": address, "backends": backends})
        lines.append(f"{group.name}: {address} to {backends} backends")
    Output(output).text({"plane": document.plane.kind.value, "groups": groups}, lambda: lines)


def _group(document: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(find(document["groups"], "group", name, "; governed groups"))


def _backend(group: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(find(group["backends"], "backend", name, f" of {group['group']}; it has"))


@command.command("status")
@click.argument("group", required=False)
@agent_commands.reads_status
def status(document: dict[str, Any], out: Output, *, group: str | None) -> None:
    """Show slots, pressure, health and admission.

    \b
      fairlead traffic status
      fairlead traffic status web -o json | jq '.groups[].reasons'
    """
    if group is not None:
        document["groups"] = [_group(document, group)]
    out.text(document, lambda: print_status(document, wide=out.format == "wide"))


@command.command("explain")
@click.argument("group")
@click.argument("backend", required=False)
@agent_commands.reads_status
def explain(document: dict[str, Any], out: Output, *, group: str, backend: str | None) -> None:
    """Explain the admission of GROUP or slots of a BACKEND.

    \b
      fairlead traffic explain web
      fairlead traffic explain web b1
    """
    status = _group(document, group)
    if backend is None:
        out.text(status, lambda: explain_group(status, document))
    else:
        one = _backend(status, backend)
        out.text(one, lambda: explain_backend(one, status))


# --- operator orders


def _order(order: BackendCommand | None, name: str, text: str) -> None:
    """A command that gives an order for one backend, and waits until the agent follows it."""

    @command.command(name, help=text)
    @click.argument("group")
    @click.argument("backend")
    @_state_dir
    @option("--server=SOCKET|URL", str, "Order it there, for the agents that report the group.")
    @_wait
    def give(
        *, group: str, backend: str, state_dir: Path | None, server: str | None, wait_s: float
    ) -> None:
        if server is not None:
            _order_through(server, group, backend, name)
            return
        directory = agent_commands.directory(state_dir)
        if directory.read(STATUS) is not None:  # only an agent that ran knows the names
            _backend(_group(agent_commands.read_status(directory), group), backend)
        changed = change_command(directory, group, backend, order)
        word = {"drain": "drained", "isolate": "isolated", None: "restored"}[order]
        if not changed:
            state = f"is {word} already"
        elif not directory.running():
            state = f"will be {word} when an agent runs"
        elif _followed(directory, (group, backend), order, wait_s):
            state = f"is {word}"
        else:
            state = f"is to be {word}; the agent has not confirmed it yet"
        click.echo(f"{group}/{backend} {state}")


def _order_through(server: str, group: str, backend: str, verb: str) -> None:
    """The control plane records it, and the agent carries it out with its next report."""
    from fairlead.cli.client import Client, segment

    path = f"/v1/groups/{segment(group)}/backends/{segment(backend)}/orders/{verb}"
    made = Client(server).change("POST", path)
    before = ", as before" if made["change"] == "unchanged" else ""
    click.echo(f"{group}/{backend}: {verb} ordered{before}")


def _followed(
    directory: StateDirectory, about: tuple[str, str], order: BackendCommand | None, wait_s: float
) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        for row in _group(agent_commands.read_status(directory), about[0])["backends"]:
            # A restored backend returns to service after its probes; the order is lifted now.
            done = order is None or (row["isolated"] == "operator" and row["slots"] == 0)
            if row["backend"] == about[1] and row["order"] == order and done:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


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


@command.command("build-ebpf")
@option("--to target", NEW_FILE, "Write the object here [default: this release's cache].")
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

    Stop the agent first. A proxy that its operator runs is not removed: it gets back the weights,
    limits and states that the first agent found, also after an agent was killed.

    \b
      fairlead traffic remove web.yaml
    """
    from fairlead.compose import traffic as composed

    document = traffic_document(file, flags)
    directory = agent_commands.directory(composed.traffic_directory(document))
    directory.create()
    directory.lock(RUNNING)
    try:
        composed.remove_dataplane(document.plane, directory.path)
    finally:
        directory.unlock()
    if document.plane.running is not None:
        click.echo(f"the {document.plane.kind.value} that runs is as it was found")
    else:
        click.echo(f"the {document.plane.kind.value} dataplane is removed")


_EVENTS = {"mode": "admission", "isolation": "isolation", "failsafe": "failsafe"}


class TrafficLog:
    """Logs on stderr: transitions and problems with their reasons, not every tick."""

    def __init__(self) -> None:
        self._log = agent_log("traffic")
        self._problems: frozenset[str] = frozenset()

    def started(self, agent: "TrafficAgent", port: int | None) -> None:
        groups = agent.loop.groups
        self._log.info(
            "agent started",
            plane=agent.loop.plane.name,
            sources=dict(agent.loop.plane.sources),
            groups={name: len(group.route.backends) for name, group in groups.items()},
            tick_ms=agent.config.tick_ms,
            state=str(agent.config.state_directory),
            metrics_port=port,
        )

    def round(self, round: "TickRound", agent: "TrafficAgent") -> None:
        """Log one tick: transitions, and problems that are new."""
        for change in round.transitions:
            log = self._log.info if change.after in (None, "normal") else self._log.warning
            about = fields(change, "group", "backend", "before", "after")
            sequence = None if change.record is None else change.record.seq
            event = _EVENTS[change.what]
            log(event, **about, reasons=list(change.reasons), sequence=sequence)
        problems = {f"{name}: {g.fault}" for name, g in round.groups.items() if g.fault}
        current = frozenset(problems | set(round.faults))
        for problem in sorted(current - self._problems):
            self._log.warning("fault", reason=problem, missed_ticks=agent.missed_ticks)
        if self._problems and not current:
            self._log.info("faults are over")
        self._problems = current

    def warn(self, text: str) -> None:
        self._log.warning("notice", reason=text)

    def stopped(self, agent: "TrafficAgent") -> None:
        figures = fields(agent, "ticks", "missed_ticks", "faults")
        self._log.info("agent stopped", connections="continue by the last table", **figures)
