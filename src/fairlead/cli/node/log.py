"""The node agent's log: one line per event with its reasons."""

import sys

from fairlead.cli.agents import agent_log
from fairlead.engine.cpu import CpuTurn
from fairlead.node.agent import Agent
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.node import NodeAgentDocument


class NodeLog:
    """Logs what the agent does on stderr; a dry run logs on stdout, as its result."""

    def __init__(self, *, dry_run: bool) -> None:
        self._log = agent_log("node", sys.stdout if dry_run else None)
        self._mode: str | None = None

    def started(self, agent: Agent, document: NodeAgentDocument, port: int | None) -> None:
        cpu = agent.cpu
        self._log.info(
            "agent started",
            root=document.root,
            pattern=document.pattern,
            policy=cpu.policy.value,
            capacity_millicores=cpu.capacity_millicores,
            dry_run=agent.dry_run,
            metrics_port=port,
            pods_known=len(agent.loop.governor.pods),
        )

    def turn(self, turn: CpuTurn, agent: Agent) -> None:
        """Log one clearing: a change of mode, every write with its reasons, every failure."""
        plan = turn.plan
        if plan.mode.value != self._mode:
            self._mode = plan.mode.value
            self._log.info(
                "mode",
                mode=self._mode,
                total_need=plan.total_need,
                capacity_millicores=plan.capacity_millicores,
                shadow_price=plan.shadow_price,
            )
        writes = plan.writes if turn.observed_only else turn.written
        event = "would limit" if turn.observed_only else "limited"
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
        for failure in turn.failures:
            self._log.warning(
                "not limited",
                pod=failure.write.uid,
                container=failure.write.container or None,
                after_millicores=failure.write.after,
                reason=failure.reason,
            )

    def fault(self, fault: TemporaryFault) -> None:
        """Log an environment error; limits stay and the agent tries again."""
        self._log.warning("fault", reason=str(fault), retry_after_ms=fault.retry_after_ms)

    def stopped(self, agent: Agent) -> None:
        self._log.info(
            "agent stopped",
            limits="stay as last applied",
            missed_samples=agent.missed_samples,
            faults=agent.faults,
        )
