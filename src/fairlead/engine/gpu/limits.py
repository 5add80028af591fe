"""Limits that hold: runs that are over their time, their hours or their idle time are asked to end.

gpu.idle     since when devices do nothing, while a limit is to follow from it
gpu.limit    which limit is over, with its whole input
run.cut      all leases are to be given back; the process has its grace, and is then made to end
"""

from collections.abc import Collection, Iterator

from msgspec import UNSET

from fairlead.core import gpu
from fairlead.core.reasons import LimitReason
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import (
    IdleDecision,
    IdleRuns,
    LimitDecision,
    NewEntry,
    RunReclaimed,
)
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import RunState
from fairlead.engine.gpu.utilisation import IDLE, Utilisation
from fairlead.schema.convert import convert
from fairlead.schema.gpu import STYLE
from fairlead.schema.objects import RunSpec, grace_ms, idle_after_ms, max_runtime_ms
from fairlead.schema.times import format_time


class LimitEnforcement:
    """Asks every turn; most turns have nothing to say."""

    def __init__(self, committer: Committer, utilisation: Utilisation) -> None:
        self._committer, self._projection = committer, committer.projection
        self._utilisation = utilisation

    def enforce(self, now_ms: int) -> None:
        self._committer.commit(lambda: self._over(now_ms))

    def _over(self, now_ms: int) -> list[NewEntry]:
        at = Context(self._projection, now_ms)
        use_counts = self._committer.config.idle_after_ms is not None
        read: dict[str, gpu.IdleRun] = {}
        made: list[NewEntry] = []
        for run, state in sorted(self._projection.running.items()):
            # What already gives leases back is asked again when it has.
            if state.stopping or state.reclaim is not None:
                continue
            spec = self._projection.run_spec(run)
            idle = self._idle(spec, state) if use_counts or spec.idle_after is not UNSET else None
            if self._is_news(run, state, idle):
                read[run] = self._utilisation.idle(run, state)
            if spec.max_runtime is UNSET and not state.hours_over and idle is None:
                continue
            asked = limits_of(self._projection, run, state, now_ms, idle)
            found = gpu.limit(asked)
            if found.reason is LimitReason.WITHIN:
                continue
            if found.reason is LimitReason.IDLE:
                read[run] = self._utilisation.idle(run, state)
            body, reasons = LimitDecision(run, STYLE.from_core(found)), (found.reason.value,)
            made.append(at.entry(body, input=STYLE.from_core(asked), reasons=reasons))
            if found.ends:
                grace = self._committer.config.grace.of(grace_ms(spec))
                made.append(at.entry(ended_by(state, run, found, grace)))
        return [*_streaks(at, read.values()), *made]

    def _is_news(self, run: str, state: RunState, idle: gpu.IdleLimit | None) -> bool:
        """Whether a streak is to be recorded: a limit may follow from it, or it has ended."""
        if state.idle_ms is None and (idle is None or idle.warned):
            return False
        streak = self._utilisation.idle(run, state)
        follows = streak.worked or (idle is not None and not idle.warned)
        return follows and streak.is_due(IDLE)

    def _idle(self, spec: RunSpec, state: RunState) -> gpu.IdleLimit | None:
        """What its owner or the operator says of idle devices: the shorter time, and to end a run
        where either says so."""
        config, use = self._committer.config, self._utilisation.of(state)
        times = [after_ms for after_ms in (idle_after_ms(spec), config.idle_after_ms) if after_ms]
        if not times or use is None or use.idle_since_ms is None or state.paused:
            return None
        releases = spec.idle_action == "Release" or config.idle_release
        warned = state.idle_warned == format_time(use.idle_since_ms)
        return gpu.IdleLimit(min(times), releases, use.idle_since_ms, warned)


def _streaks(at: Context, read: Collection[gpu.IdleRun]) -> Iterator[NewEntry]:
    if read:
        asked = gpu.IdleRequest(tuple(read), IDLE)
        output = convert(STYLE.from_core(gpu.idle(asked)), IdleRuns)
        yield at.entry(IdleDecision(output), input=STYLE.from_core(asked))


def limits_of(
    projection: Projection,
    run: str,
    state: RunState,
    now_ms: int,
    idle: gpu.IdleLimit | None = None,
) -> gpu.RunLimits:
    leases = [
        gpu.PaidLease(
            lease.id,
            lease.budget,
            lease.envelope,
            projection.accounts.of_lease(lease.id).envelope.enforcement,
            state.hours_over.get(lease.id),
        )
        for _, lease in sorted(state.leases.items())
    ]
    most_ms = max_runtime_ms(projection.run_spec(run))
    return gpu.RunLimits(now_ms, run, state.since_ms, most_ms, tuple(leases), idle)


def ended_by(state: RunState, run: str, over: gpu.Limit, grace_ms: int) -> RunReclaimed:
    return RunReclaimed(
        run=run,
        outcome=None,
        leases=dict.fromkeys(sorted(state.leases), over.reason.value),
        preempts=True,
        draw=None,
        grace_ms=grace_ms,
        reason=over.reason.value,
    )
