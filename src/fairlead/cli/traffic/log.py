"""The traffic agent's log: transitions and problems with their reasons, not every tick."""

from fairlead.cli.agents import agent_log
from fairlead.engine.traffic import TickRound
from fairlead.node.traffic.agent import TrafficAgent

_EVENTS = {"mode": "admission", "isolation": "isolation", "failsafe": "failsafe"}


class TrafficLog:
    """Logs what the agent does on stderr."""

    def __init__(self) -> None:
        self._log = agent_log("traffic")
        self._problems: frozenset[str] = frozenset()

    def started(self, agent: TrafficAgent, port: int | None) -> None:
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

    def round(self, round: TickRound, agent: TrafficAgent) -> None:
        """Log one tick: transitions, and problems that are new."""
        for change in round.transitions:
            log = self._log.info if change.after in (None, "normal") else self._log.warning
            log(
                _EVENTS[change.what],
                group=change.group,
                backend=change.backend,
                before=change.before,
                after=change.after,
                reasons=list(change.reasons),
                sequence=None if change.record is None else change.record.seq,
            )
        problems = {f"{name}: {g.fault}" for name, g in round.groups.items() if g.fault}
        current = frozenset(problems | set(round.faults))
        for problem in sorted(current - self._problems):
            self._log.warning("fault", reason=problem, missed_ticks=agent.missed_ticks)
        if self._problems and not current:
            self._log.info("faults are over")
        self._problems = current

    def warn(self, text: str) -> None:
        self._log.warning("notice", reason=text)

    def stopped(self, agent: TrafficAgent) -> None:
        self._log.info(
            "agent stopped",
            connections="continue by the last table",
            ticks=agent.ticks,
            missed_ticks=agent.missed_ticks,
            faults=agent.faults,
        )
