"""How an allocation comes into force where weights are governed: guarantees, and who is contained.

Under `limits` the allocations are limits, and nothing here applies. Under `weights` and `both` they
are guarantees: each container's scheduling weight follows its part of the allocation, and the
kernel lends out, millisecond by millisecond, what a pod does not use. Then Σ guarantees <= capacity
is the invariant, not Σ limits. Under `both` a limit remains where a weight is not enough: where the
user declared one, and on a pod that wants more than the whole node while others go short.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.core.cpu.allocate import NodePlan, NodeSnapshot, split_grant
from fairlead.core.cpu.market import clear
from fairlead.core.cpu.model import Actuation, CpuMode, Millicores
from fairlead.core.cpu.observe import CpuConfig, CpuMemory, PodMemory, WrittenLimit
from fairlead.core.invariant import require


@dataclass(frozen=True, slots=True)
class Containment:
    """A limit to contain one container with; None: its user's own again."""

    uid: str
    container: str
    limit_millicores: Millicores | None

    @property
    def after(self) -> int | None:
        """As `LimitWrite` has it."""
        return self.limit_millicores


def contain(
    memory: CpuMemory, snapshot: NodeSnapshot, plan: NodePlan, config: CpuConfig
) -> tuple[Containment, ...]:
    """The limits that a snapshot's plan needs beside its guarantees; not those in force."""
    if config.actuate is Actuation.LIMITS:
        return ()
    promised = sum(sum(parts.values()) for parts in plan.split.values())
    require(promised <= plan.capacity_millicores, "the guarantees fit the capacity")
    if config.actuate is Actuation.WEIGHTS:
        return ()
    greedy = {uid for uid in plan.split if is_greedy(memory.pods[uid], plan.mode, config)}
    shares = clear(snapshot.claims(plan.memory)).allocations if greedy else {}
    writes = []
    for uid in sorted(plan.split):
        parts = _held(memory.pods[uid], plan.split[uid], shares[uid]) if uid in greedy else {}
        for name, container in sorted(memory.pods[uid].containers.items()):
            limit = parts.get(name, container.original_limit_millicores)
            if limit != container.contained_millicores:
                writes.append(Containment(uid, name, limit))
    return tuple(writes)


def _held(pod: PodMemory, guaranteed: Mapping[str, int], share: int) -> dict[str, int]:
    """A greedy pod's limits: its share of the node by the policy, or its guarantee where guardrails
    still hold that above. No split exceeds the limits that its user declared."""
    wants = {name: int(container.want.value) for name, container in pod.containers.items()}
    caps = {name: container.original_limit_millicores for name, container in pod.containers.items()}
    parts = split_grant(share, wants, caps)
    return {name: max(part, guaranteed[name]) for name, part in parts.items()}


def is_greedy(pod: PodMemory, mode: CpuMode, config: CpuConfig) -> bool:
    """Whether a pod wants more CPUs than the node has while needs do not fit.

    A guarantee protects the others' shares, not the time until a waking thread runs: that grows
    with the threads in its way. One busy thread never wants more than one CPU and is never
    contained; the wants are the peaks of the last minute, so a pod is not let loose in between.
    """
    if mode is CpuMode.UNCONGESTED:
        return False
    wanted = sum(container.want.value for container in pod.containers.values())
    return wanted > config.node_millicores


def contained(memory: CpuMemory, written: WrittenLimit) -> CpuMemory:
    """A container is contained with a limit now, or has its user's own again."""
    pod = memory.pods.get(written.uid)
    known = pod.containers.get(written.container) if pod else None
    if pod is None or known is None:
        return memory
    changed = known._replace(contained_millicores=written.limit_millicores)
    pod = replace(pod, containers={**pod.containers, written.container: changed})
    return replace(memory, pods={**memory.pods, written.uid: pod})
