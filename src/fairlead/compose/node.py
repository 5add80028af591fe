"""Where the node agent meets this machine's cgroups, its record and its state."""

import os
from collections.abc import Callable
from pathlib import Path

from fairlead.core.cpu import Actuation
from fairlead.engine.cpu import CpuTurn
from fairlead.host.paths import state_directory
from fairlead.node.agent import Actuators, Agent
from fairlead.node.cgroup_mounts import CgroupHost, read_cgroup_host
from fairlead.node.cgroups import CgroupFiles, open_files
from fairlead.node.limits import CgroupActuator, Guarantees, Originals
from fairlead.node.sensor import CgroupSensor
from fairlead.node.state import StateDirectory
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.recorder import Recorder
from fairlead.schema.border import BadInput
from fairlead.schema.cpu import cpu_config
from fairlead.schema.node import NodeAgentDocument


def node_agent(
    document: NodeAgentDocument,
    *,
    dry_run: bool,
    report: Callable[[CpuTurn, Agent], None],
    fault: Callable[[TemporaryFault], None],
) -> Agent:
    online_millicores = (os.cpu_count() or 1) * 1000
    capacity = document.capacity_millicores or online_millicores
    cpu, files = cpu_config(document, capacity, document.policy), node_files(document)
    sensor = CgroupSensor(files, document.pattern, document.pods, discover_ms=cpu.clear_ms // 2)

    def actuators(directory: StateDirectory) -> Actuators:
        files.cpu.claim()
        originals = Originals(directory, cpu.actuate)
        originals.begin(files)
        sensor.first = lambda pods: originals.freeze(pods, files)
        limits = CgroupActuator(files, burst=document.burst)
        if not files.with_weights:
            return Actuators(limits)
        guarantees = Guarantees(files, limits, originals)
        sensor.guarantee = guarantees.millicores
        return Actuators(guarantees, guarantees)

    return Agent(
        document,
        cpu=cpu,
        sensor=sensor,
        make_actuators=actuators,
        directory=node_directory(document),
        dry_run=dry_run,
        open_recorder=open_recorder,
        report=report,
        fault=fault,
    )


def node_files(document: NodeAgentDocument) -> CgroupFiles:
    host = read_cgroup_host()
    root = root_below(host, document.root)
    cpuacct = host.cpuacct_mount / root if host.cpuacct_mount is not None else None
    weights = document.actuate is not Actuation.LIMITS
    waits = weights or any(rule.latency_target_ms is not None for rule in document.pods)
    return open_files(
        host.version, host.cpu_mount / root, cpuacct, with_weights=weights, with_waits=waits
    )


def root_below(host: CgroupHost, root: str | None) -> str:
    """A root as the user says it (a path in the cgroup file system, or below it), relative."""
    if root is None:
        raise BadInput("root", "is missing: say which cgroup to govern with --root")
    inside = os.path.normpath(root)
    mount = str(host.cpu_mount)
    if inside == mount or inside.startswith(mount + "/"):
        inside = inside[len(mount) :]
    relative = inside.strip("/")
    if relative in ("", ".") or relative.split("/")[0] == "..":
        raise BadInput("root", f"must be a cgroup below {mount}, not all of it, got {root!r}")
    return relative


def node_directory(document: NodeAgentDocument) -> Path:
    return Path(document.state_dir) if document.state_dir else state_directory() / "node"


def open_recorder(path: Path) -> Recorder:
    from fairlead.recorder import FileRecorder  # noqa: PLC0415 - a dry run needs none

    return FileRecorder(path)
