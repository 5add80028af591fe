"""Where the node agent meets Kubernetes: its node's pods, their cgroups, PodAllocations."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.compose.node import node_directory, open_recorder, root_below
from fairlead.core.cpu import Actuation, PodSighting
from fairlead.engine.cpu import CpuTurn
from fairlead.kube.client import KubeClient, RateLimit, connection
from fairlead.kube.cpu.pods import LIMITS, REQUESTS
from fairlead.kube.cpu.publish import PodAllocations
from fairlead.kube.cpu.roster import NodePods
from fairlead.node.agent import Actuators, Agent
from fairlead.node.cgroup_mounts import host_at, read_cgroup_host
from fairlead.node.cgroups import CgroupFiles, open_files
from fairlead.node.pods import PodSensor
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.schema.border import BadInput
from fairlead.schema.cpu import cpu_config
from fairlead.schema.node import NodeAgentDocument

QPS, BURST = 5.0, 20
"""Requests of one node's agent to the API server: a cluster has many nodes."""


class _KubeNode:
    """The agent's side of the cluster, open as long as the agent runs."""

    def __init__(self, document: NodeAgentDocument, say: Callable[[TemporaryFault], None]) -> None:
        self.name = document.node_name or os.environ.get("NODE_NAME") or ""
        if not self.name:
            raise BadInput("node_name", "is missing: say --node-name, or set NODE_NAME")
        kubeconfig = Path(document.kubeconfig) if document.kubeconfig else None
        to = connection(kubeconfig, context=document.context)
        self.client = KubeClient(to, RateLimit(QPS, BURST))
        # The kubelet makes weights of requests.
        resource = LIMITS if document.actuate is Actuation.LIMITS else REQUESTS
        self.roster = NodePods(self.client, self.name, resource)
        self.allocations = PodAllocations(
            self.client,
            self.name,
            self.roster,
            lambda fault: say(_temporary(fault)),
            resource=resource,
        )

    def capacity(self) -> int:
        """All that the node may give to pods."""
        found = self.roster.allocatable_millicores()
        if found is None:
            raise PermanentFault(f"node {self.name!r} has no allocatable CPU")
        return found

    def stop(self) -> None:
        self.allocations.stop()
        self.roster.stop()
        self.client.close()


class _Sensor:
    """The agent gives the cluster back with its sensor."""

    def __init__(self, files: CgroupFiles, node: _KubeNode) -> None:
        self._sensor, self._node = PodSensor(files, node.roster), node

    def sample(self, now_ms: int) -> Sequence[PodSighting]:
        return self._sensor.sample(now_ms)

    def close(self) -> None:
        self._sensor.close()
        self._node.stop()


def kube_files(document: NodeAgentDocument) -> CgroupFiles:
    """The cgroups below which the kubelet makes those of its pods; default: all of them."""
    host = host_at(Path(document.cgroups)) if document.cgroups else read_cgroup_host()
    root = root_below(host, document.root) if document.root else ""
    cpuacct = host.cpuacct_mount / root if host.cpuacct_mount is not None else None
    waits = document.actuate is not Actuation.LIMITS
    return open_files(host.version, host.cpu_mount / root, cpuacct, with_waits=waits)


def _temporary(fault: Fault) -> TemporaryFault:
    return fault if isinstance(fault, TemporaryFault) else TemporaryFault(str(fault))


def kube_node_agent(
    document: NodeAgentDocument,
    *,
    dry_run: bool,
    report: Callable[[CpuTurn, Agent], None],
    fault: Callable[[TemporaryFault], None],
) -> Agent:
    """An agent whose limits are PodAllocations. Reads the cluster before it returns."""
    node = _KubeNode(document, fault)
    files = kube_files(document)
    node.roster.start()
    capacity = document.capacity_millicores or node.capacity()
    cpu = cpu_config(document, capacity, document.policy)
    if cpu.actuate is Actuation.LIMITS:
        # The kubelet keeps the system's part out of `allocatable`. Of requests a reserve is kept:
        # it is the room in which the scheduler places further pods.
        cpu = replace(cpu, reserve=0.0)

    def actuators(_directory: object) -> Actuators:
        node.allocations.start()
        return Actuators(node.allocations)

    def turned(turn: CpuTurn, agent: Agent) -> None:
        if turn.sequence is not None and not turn.observed_only:
            node.allocations.publish(turn.sequence, turn.plan.capacity_millicores)
        now = node.roster.allocatable_millicores()
        governor = agent.loop.governor
        if now and not document.capacity_millicores and now != governor.config.node_millicores:
            governor.config = replace(governor.config, node_millicores=now)
        report(turn, agent)

    return Agent(
        document,
        cpu=cpu,
        sensor=_Sensor(files, node),
        make_actuators=actuators,
        directory=node_directory(document),
        dry_run=dry_run,
        open_recorder=open_recorder,
        report=turned,
        fault=fault,
    )
