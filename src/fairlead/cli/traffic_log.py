"""The traffic agent's log: transitions and problems with their reasons, not every tick."""

from fairlead.cli.agent_log import agent_log
from fairlead.engine.traffic import Round
from fairlead.node.traffic.agent import TrafficAgent

_EVENTS = {"mode": "door", "isolation": "isolation", "failsafe": "failsafe"}


class TrafficLog:
    """Says what the agent does, on stderr: JSON in a pipe, readable on a terminal."""

    def __init__(self) -> None:
        self._log = agent_log("traffic")
        self._problems: frozenset[str] = frozenset()

    def started(self, agent: TrafficAgent, port: int | None) -> None:
        """What the agent is going to do, and where its signals come from."""
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

    def round(self, round: Round, agent: TrafficAgent) -> None:
        """One tick: what changed, and what is wrong now and was not a tick ago."""
        for each in round.transitions:
            say = self._log.info if each.after in (None, "normal") else self._log.warning
            say(
                _EVENTS[each.what],
                group=each.group,
                backend=each.backend,
                before=each.before,
                after=each.after,
                reasons=list(each.reasons),
                sequence=None if each.record is None else each.record.seq,
            )
        problems = {f"{name}: {g.fault}" for name, g in round.groups.items() if g.fault}
        found = frozenset(problems | set(round.faults))
        for problem in sorted(found - self._problems):
            self._log.warning("fault", reason=problem, missed_ticks=agent.missed_ticks)
        if self._problems and not found:
            self._log.info("faults are over")
        self._problems = found

    def warn(self, text: str) -> None:
        """Something that a person should know."""
        self._log.warning("notice", reason=text)

    def stopped(self, agent: TrafficAgent) -> None:
        """The last word."""
        self._log.info(
            "agent stopped",
            connections="go on by the last table",
            ticks=agent.ticks,
            missed_ticks=agent.missed_ticks,
            faults=agent.faults,
        )
