"""The commands of `fairlead node`, and the agent's log: one line per event with its reasons."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.agents import AgentCommands, agent_log, bad_usage, find, settings_of
from fairlead.cli.main import EXIT_FAULT
from fairlead.cli.node.status import UNREAD, explain_pod, print_status
from fairlead.cli.options import FILE, Integer, flag, option
from fairlead.cli.table import Output
from fairlead.host.paths import state_directory
from fairlead.host.process import allow_files
from fairlead.node.state import RUNNING, STATE, fields
from fairlead.node.supervisor import end_with_supervisor

if TYPE_CHECKING:
    from fairlead.engine.cpu import CpuTurn
    from fairlead.node.agent import Agent
    from fairlead.ports.faults import TemporaryFault
    from fairlead.schema.node import NodeAgentDocument

RUN_HELP = """Run the node agent: set CPU limits below a cgroup.

A pod is a cgroup that matches PATTERN below ROOT; its child cgroups are its containers. Every few
seconds the agent clears the CPU market (computes every pod's allocation) and writes limits. The
limits that it first finds stay the ceiling; `fairlead node restore` writes them back. Ctrl-C,
SIGTERM and kill -9 leave the last safe limits in place.

With --kube it governs the pods of a Kubernetes node: limits become PodAllocations, which the
controller applies by resizing pods; ROOT is where the kubelet's cgroups are.

Settings come from flags, then FAIRLEAD_NODE_* variables, then the file, then the defaults.

\b
  fairlead node run --root machine.slice --dry-run      # only explain, write nothing
  fairlead node run --root machine.slice --policy nash --metrics-port 8471
  fairlead node run --kube --node-name "$(hostname)"
"""


@click.group("node", context_settings={"auto_envvar_prefix": "FAIRLEAD_NODE"})
def command() -> None:
    """Govern CPU limits of this machine's cgroups."""


agent_commands = AgentCommands("node", state_directory)
_setting, _state_dir = agent_commands.setting, agent_commands.state_dir
_config = _setting("--config config_file", FILE, "Configuration file (YAML).")


@command.command("run", help=RUN_HELP)
@_setting("--root", str, "Govern the cgroups below this one.")
@_setting("--pattern", str, "Match pod cgroups below the root [default: *].")
@_config
@_state_dir
@_setting(
    "--policy",
    ("demand-capped", "nash", "market"),
    "Share a congested node by this policy [default: nash].",
)
@_setting(
    "--actuate",
    ("limits", "weights", "both"),
    "Put allocations in force by these [default: limits].",
)
@_setting("--capacity capacity_millicores", int, "Capacity in millicores [default: all CPUs].")
@_setting("--reserve", float, "Keep this share of the node free [default: 0.1].")
@_setting("--sample-ms", int, "Time between samples [default: 1000].")
@_setting("--clear-ms", int, "Time between clearings [default: 5000].")
@_setting("--metrics-port", int, "Serve /metrics on loopback (0: any free port).")
@_setting("--metrics-address", str, "Serve /metrics there instead of loopback.")
@_setting(
    "--observe-only", bool, "Decide and record, but write no limit.", is_flag=True, default=None
)
@_setting("--kube", bool, "Govern this node's pods by PodAllocations.", is_flag=True, default=None)
@_setting("--node-name", str, "Name of this node, with --kube [default: NODE_NAME].")
@_setting("--kubeconfig", str, "With --kube, as kubectl's.")
@_setting("--context", str, "Of the kubeconfig; default: its current one.")
@_setting("--cgroups", str, "Where the host's cgroups are mounted [default: found].")
@agent_commands.reports
@flag("--dry-run", "Explain only; write no limit, state or record.")
@option("--clears", Integer(1), "Stop after this many clearings.")
def run(*, config_file: Path | None, dry_run: bool, clears: int | None, **flags: Any) -> None:
    end_with_supervisor()
    allow_files()
    document = node_document(config_file, flags)
    log = NodeLog(dry_run=dry_run)
    if document.kube:
        from fairlead.compose.kube_node import kube_node_agent as node_agent
    else:
        from fairlead.compose.node import node_agent
    with ExitStack() as opened:
        with bad_usage(config_file):
            report = opened.enter_context(_reports(document, log, dry_run=dry_run))
            agent = node_agent(document, dry_run=dry_run, report=report, fault=log.fault)
        opened.callback(agent.close)
        agent.start()
        agent.handle_signals()
        port = None
        if document.metrics_port is not None and not dry_run:
            from fairlead.node.metrics import NodeMeasures, serve_metrics

            measures = NodeMeasures(agent, node=document.node_name, kube=document.kube)
            collector = measures.collector()
            port = serve_metrics(collector, document.metrics_address, document.metrics_port)
        log.started(agent, document, port)
        agent.run(clears_max=clears)
        log.stopped(agent)


@contextmanager
def _reports(
    document: "NodeAgentDocument", log: "NodeLog", *, dry_run: bool
) -> Iterator[Callable[["CpuTurn", "Agent"], None]]:
    """What is called after a clearing: the log, and the report where there is a control plane."""
    if document.report is None or dry_run:
        yield log.turn
        return
    from fairlead.compose.reporting import reporting
    from fairlead.executor.devices import host_name
    from fairlead.node.moments import node_moment

    in_cluster = os.environ.get("NODE_NAME") if document.kube else None
    name = document.node_name or in_cluster or host_name()
    with reporting(document.report, name, warn=log.notice) as reporter:

        def turned(turn: "CpuTurn", agent: "Agent") -> None:
            log.turn(turn, agent)
            reporter.node(name, agent.cpu.clear_ms, node_moment(turn, agent.loop.governor))

        yield turned


def node_document(config_file: Path | None, flags: dict[str, Any]) -> "NodeAgentDocument":
    """The agent's settings; a bad one is bad usage."""
    from fairlead.schema.node import read_node_document

    data = config_file.read_bytes() if config_file else b""
    with bad_usage(config_file):
        return read_node_document(data, settings_of(flags))


@command.command("status")
@agent_commands.reads_status
def status(document: dict[str, Any], out: Output) -> None:
    """Show need, grant, limit and reasons of every pod.

    \b
      fairlead node status
      fairlead node status -o json | jq '.pods[].reasons'
    """
    out.text(document, lambda: print_status(document, wide=out.format == "wide"))


@command.command("explain")
@click.argument("pod")
@agent_commands.reads_status
def explain(document: dict[str, Any], out: Output, *, pod: str) -> None:
    """Explain the limit of POD.

    \b
      fairlead node explain web
    """
    entry = find(document["pods"], "pod", pod, "; governed pods", most=8)
    out.text(entry, lambda: explain_pod(entry, document))


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

    document = node_document(config_file, {"root": root, "state_dir": state_dir})
    directory = agent_commands.directory(node_directory(document))
    if not directory.path.is_dir():
        raise agent_commands.never_ran(directory)
    with bad_usage(config_file):
        files = node_files(document)
    directory.lock(RUNNING)
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
    directory = agent_commands.directory(state_dir)
    directory.create()
    directory.switch_observe_only(on=switch == "on")
    click.echo(f"observe-only is {switch}; an agent follows it from its next clearing")


_DONE = {"limit": "limited", "guarantee": "guaranteed", "contain": "contained"}


def _event(verb: str, turn: "CpuTurn") -> str:
    return f"would {verb}" if turn.observed_only else _DONE[verb]


class NodeLog:
    """Logs what the agent does on stderr; a dry run logs on stdout, as its result."""

    def __init__(self, *, dry_run: bool) -> None:
        self._log = agent_log("node", sys.stdout if dry_run else None)
        self._mode: str | None = None
        self._unread: tuple[set[str], set[str]] = (set(), set())
        """Pods that could not be read in the last clearing; those of them that were told."""

    def started(self, agent: "Agent", document: "NodeAgentDocument", port: int | None) -> None:
        self._log.info(
            "agent started",
            **fields(document, "root", "pattern"),
            policy=agent.cpu.policy.value,
            capacity_millicores=agent.cpu.capacity_millicores,
            dry_run=agent.dry_run,
            metrics_port=port,
            pods_known=len(agent.loop.governor.pods),
        )

    def turn(self, turn: "CpuTurn", agent: "Agent") -> None:
        """Log one clearing: a change of mode, every write with its reasons, every failure."""
        plan = turn.plan
        if plan.mode.value != self._mode:
            self._mode = plan.mode.value
            figures = fields(plan, "total_need", "capacity_millicores", "shadow_price")
            self._log.info("mode", mode=self._mode, **figures)
        writes = plan.writes if turn.observed_only else turn.written
        event = _event("limit" if agent.cpu.actuate == "limits" else "guarantee", turn)
        for write in writes:
            self._log.info(
                event,
                pod=write.uid,
                container=write.container or None,
                before_millicores=write.before,
                after_millicores=write.after,
                need_millicores=plan.needs[write.uid],
                reasons=[str(reason) for reason in plan.reasons[write.uid]],
                sequence=turn.sequence,
            )
        for limit in turn.contain:
            self._log.info(
                _event("contain", turn),
                pod=limit.uid,
                container=limit.container or None,
                limit_millicores=limit.limit_millicores,
                sequence=turn.sequence,
            )
        self.tell_unread(set(turn.unread))
        for failure in turn.failures:
            self._log.warning(
                "not limited",
                pod=failure.write.uid,
                container=failure.write.container or None,
                after_millicores=failure.write.after,
                reason=failure.reason,
            )

    def tell_unread(self, unread: set[str]) -> None:
        """Once of each: a pod that is just made is not readable for a moment."""
        before, told = self._unread
        lasting = unread & before
        for pod in sorted(lasting - told):
            self._log.warning("not governed", pod=pod, reason=UNREAD)
        self._unread = unread, lasting

    def notice(self, text: str) -> None:
        self._log.warning("notice", reason=text)

    def fault(self, fault: "TemporaryFault") -> None:
        """Log an environment error; limits stay and the agent tries again."""
        self._log.warning("fault", reason=str(fault), retry_after_ms=fault.retry_after_ms)

    def stopped(self, agent: "Agent") -> None:
        figures = fields(agent, "missed_samples", "faults")
        limits = "none was written" if agent.dry_run else "stay as last applied"
        self._log.info("agent stopped", limits=limits, **figures)
