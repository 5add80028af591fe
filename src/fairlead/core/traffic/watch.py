"""The nodes under a group: do they stall, and when does something of theirs run out?"""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Node
from fairlead.core.traffic.stall import recent_stalls, stalls, sustained
from fairlead.core.traffic.state import NodeMemory, State, Trail
from fairlead.core.traffic.ttf import ENDLESS, follow, soonest, time_to_failure
from fairlead.core.units import INTEGER_MAX


class Watch(NamedTuple):
    """The verdict over all nodes, and what to remember of each."""

    stall: bool
    ttf_s: float | None
    samples: int
    nodes: tuple[NodeMemory, ...]


def watch_nodes(
    nodes: Sequence[Node], before: State | None, *, clock_ms: int, advanced: bool, config: Config
) -> Watch:
    """Judge every node; one that stalls is enough, and the soonest failure counts.

    A node that is no longer reported is remembered while a stalled sample of it is among the last
    ones: its absence counts as samples that did not stall.
    """
    samples = 1 if before is None else min(before.samples + advanced, INTEGER_MAX)
    sample = samples if before is None or advanced else None
    known = {} if before is None else {memory.id: memory for memory in before.nodes}
    seen = {node.id: node for node in nodes}
    memories, times = [], []
    for name in sorted(known.keys() | seen.keys()):
        memory = known.get(name) or NodeMemory(name)
        node = seen.get(name)
        stalled_now = node is not None and stalls(node.psi, config.theta)
        stalled = recent_stalls(
            memory, stalled_now=stalled_now, sample=sample, samples=samples, config=config
        )
        trails, ttf_s = _follow_all(memory, node, clock_ms, advanced=advanced, config=config)
        times.append(ttf_s)
        if stalled or trails:
            memories.append(NodeMemory(name, stalled, trails))
    stall = any(sustained(memory.stalled, config) for memory in memories)
    return Watch(stall, soonest(times), samples, tuple(memories))


def _follow_all(
    memory: NodeMemory, node: Node | None, clock_ms: int, *, advanced: bool, config: Config
) -> tuple[tuple[Trail, ...], float | None]:
    """The trails of a node's resources, and the soonest time to failure among them."""
    known = {trail.name: trail for trail in memory.trails}
    resources = () if node is None else node.resources
    trails, times = [], []
    for resource in sorted(resources, key=attrgetter("name")):
        if resource.name == ENDLESS:
            continue
        trail = follow(
            known.get(resource.name), resource, clock_ms=clock_ms, advanced=advanced, config=config
        )
        times.append(time_to_failure(resource, trail, clock_ms, config))
        if trail is not None:
            trails.append(trail)
    return tuple(trails), soonest(times)
