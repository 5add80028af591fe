"""What a traffic agent reports of its ticks: one moment a second of each group, and every tick that
changed something. All ticks are in the agent's own record."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairlead.core.traffic import Backend, Cause
from fairlead.engine.traffic import GroupRound, TickRound
from fairlead.node.report import Reporter
from fairlead.schema.reports import (
    BACKENDS_MAX,
    BackendOrder,
    BackendReport,
    GroupMoment,
    GroupReport,
    ReportedDecision,
)
from fairlead.schema.traffic import from_plan, from_pressure, from_whole_snapshot

if TYPE_CHECKING:
    from fairlead.node.traffic.agent import TrafficAgent

EVERY_MS = 1_000


class TickReports:
    """Called after each tick; hands moments to a reporter."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._last: dict[str, tuple[int, tuple[object, ...]]] = {}
        """When a group was reported last, and what would make the next tick worth reporting."""

    def __call__(self, round: TickRound, agent: "TrafficAgent") -> None:
        orders = agent.orders
        for name, made in round.groups.items():
            if self._due(round.time_ms, name, made):
                governor = agent.loop.groups[name].governor
                every_ms = max(EVERY_MS, agent.config.tick_ms)
                moment = group_moment(
                    round.time_ms, made, agent.loop.plane.name, governor.isolated, orders.get(name)
                )
                self._reporter.group(name, every_ms, moment)
        for name in self._last.keys() - round.latest.keys():
            del self._last[name]

    def _due(self, now_ms: int, name: str, made: GroupRound) -> bool:
        seen = (made.plan.admission.mode, made.reasons, bool(made.fault), made.flipped)
        before_ms, before = self._last.get(name, (0, ()))
        if now_ms - before_ms < EVERY_MS and before == seen:
            return False
        self._last[name] = (now_ms, seen)
        return True


def group_moment(
    time_ms: int,
    made: GroupRound,
    plane: str,
    isolated: Mapping[str, Cause],
    orders: Mapping[str, str] | None,
) -> Callable[[], GroupMoment]:
    """How to make the moment of a tick, later and in another thread."""
    ejected, ordered = dict(isolated), dict(orders or {})

    def make() -> GroupMoment:
        plan, snapshot, seen = made.plan, made.snapshot, made.seen
        # Those with the highest pressure come first where a group has more than a report holds.
        shown = sorted(snapshot.backends, key=lambda row: (-plan.pressure[row.id].total, row.id))
        shown = shown[:BACKENDS_MAX]
        state = GroupReport(
            plane=plane,
            mode=plan.admission.mode.value,
            rate_per_s=plan.admission.rate_per_s,
            regime=plan.regime.value,
            stall=plan.stall,
            ttf_s=plan.ttf_s,
            conductance=plan.conductance,
            skew=plan.skew,
            scale_hint=made.scale_hint is not None,
            liveness=None if seen is None else seen.liveness.value,
            admitted=None if seen is None else seen.admitted,
            refused_soft=None if seen is None else seen.refused_soft,
            refused_hard=None if seen is None else seen.refused_hard,
            reasons=list(made.reasons),
            fault=made.fault[:1000],
            backends=[
                _backend(made, row, ejected.get(row.id), ordered.get(row.id))
                for row in sorted(shown, key=lambda row: row.id)
            ],
            backends_left_out=len(snapshot.backends) - len(shown),
        )
        return GroupMoment(time_ms, state, _decision(made))

    return make


def _backend(
    made: GroupRound, backend: Backend, cause: Cause | None, order: str | None
) -> BackendReport:
    plan, name = made.plan, backend.id
    return BackendReport(
        backend=name,
        slots=plan.slots[name],
        target=plan.target[name],
        pressure=from_pressure(plan.pressure[name]),
        queue=backend.queue,
        p95_ms=backend.p95_ms,
        error_rate=backend.error_rate,
        requests=backend.requests,
        isolated=None if cause is None else cause.value,
        order=_ORDERS.get(order or ""),
    )


_ORDERS: dict[str, BackendOrder] = {"isolate": "isolate", "drain": "drain"}


def _decision(made: GroupRound) -> ReportedDecision | None:
    if made.sequence is None:
        return None
    return ReportedDecision(
        number=made.sequence,
        kind="traffic.tick",
        version=3,
        input=from_whole_snapshot(made.snapshot),
        output=from_plan(made.plan),
        applied=not made.fault,
        note=made.fault[:1000],
    )
