"""Where the traffic agent meets a Kubernetes cluster: RouteGroups in, status out."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fairlead.compose.traffic import traffic_agent, traffic_directory
from fairlead.core.invariant import known
from fairlead.engine.traffic import TickRound
from fairlead.kube.client import KubeClient, RateLimit, connection
from fairlead.kube.election import Election, Terms
from fairlead.kube.traffic.follow import GroupFollower
from fairlead.kube.traffic.status import StatusWriter
from fairlead.node.traffic.agent import TrafficAgent
from fairlead.schema.traffic_agent import TrafficDocument

KEPT = "route-groups.json"
QPS, BURST = 20.0, 40
"""Requests of one agent to the API server; there is an agent on every node."""
WRITER_TERMS = Terms(duration_s=60, renew_s=20.0)
"""Of the writer of conditions: every agent asks for the Lease this often, so seldom."""


@contextmanager
def kube_traffic_agent(
    document: TrafficDocument,
    *,
    report: Callable[[TickRound, TrafficAgent], None],
    warn: Callable[[str], None],
) -> Iterator[TrafficAgent]:
    """An agent for the RouteGroups of its dataplane, ready to `start`."""
    kube = known(document.kube, "the agent follows a cluster")
    node = kube.node or document.node.name or os.uname().nodename
    own = msgspec.structs.replace(document.node, name=node)
    document = msgspec.structs.replace(document, node=own)
    config = None if kube.kubeconfig is None else Path(kube.kubeconfig)
    client = KubeClient(connection(config, context=kube.context), RateLimit(QPS, BURST))
    follower = GroupFollower(client, document, node, traffic_directory(document) / KEPT)
    kind = document.plane.kind.value
    election = Election(
        client,
        node,
        namespace=kube.namespace or client.namespace,
        name=f"fairlead-traffic-{kind}",
        terms=WRITER_TERMS,
    )
    status: StatusWriter | None = None

    def current() -> TrafficDocument:
        return msgspec.structs.replace(document, groups=list(follower.current.groups))

    def seen(round: TickRound, agent: TrafficAgent) -> None:
        follower.check()
        if status is not None:
            status.check()
            status.seen(round)
        report(round, agent)

    try:
        follower.start()
        first = current()
        agent = traffic_agent(
            first, report=seen, warn=warn, reload=current, drains=follower.drains, apart=True
        )
        follower.changed = agent.hang_up
        follower.unsettled = lambda: agent.behind or bool(agent.refused)
        if current() != first:  # it changed before anybody was told
            agent.hang_up()
        status = StatusWriter(
            client,
            follower,
            election,
            dataplane=kind,
            every_s=kube.status_every_ms / 1000,
            refused=lambda: agent.refused,
            unseen=agent.sensors.unseen,
            say=warn,
        )
        status.start()
        yield agent
    finally:
        if status is not None:
            status.stop()
        follower.stop()
        client.close()
