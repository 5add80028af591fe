"""Unfunded yields to funded: a run that is paid for and lacks devices preempts unfunded runs.

Through the resolver, as for a reservation, but only runs with an unfunded lease are candidates: an
ordinary submit never ends a run that keeps to its budget. Where these hold too little, it waits; so
it does for a run that began with funding, lost it by a recall, and has its minimum runtime.
So does a run that would be paid for by an envelope which its owner recalled for another one.
"""

from fairlead.core.gpu import GangDemand
from fairlead.core.reasons import DeficitReason, RankCause
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.orders import TurnOrder, rank_order
from fairlead.engine.gpu.resolver.deficit import guest_of, need_of, shortage_of
from fairlead.engine.gpu.resolver.outcome import Case, Outcomes
from fairlead.engine.gpu.values import Refused

CAUSE = "admission"


class Reclaims:
    """Once a turn, after admission, for every funded run that waits for devices."""

    def __init__(self, committer: Committer, outcomes: Outcomes) -> None:
        self._committer, self._outcomes = committer, outcomes
        self._projection = committer.projection
        self._asked: dict[str, tuple[int, int | None]] = {}
        """Runs that nothing could be reclaimed for, in which state, and when time alone may change
        that: idle turns skip them."""

    def proceed(self, now_ms: int) -> None:
        if not self._outcomes.enforced:
            return
        projection = self._projection
        self._asked = {run: row for run, row in self._asked.items() if run in projection.live}
        runs = [run for run in projection.live if self._is_overdrawn(run)]
        if not runs:
            return
        hold_ms = self._committer.config.hold_ms
        order = rank_order(projection, RankCause.RECLAIM, runs, now_ms, hold_ms)
        for run in order.names:
            seq, retry_ms = self._asked.get(run, (None, None))
            same = seq == projection.seq and (retry_ms is None or now_ms < retry_ms)
            if not same and self._is_overdrawn(run):
                self._reclaim(run, now_ms, order)

    def _is_overdrawn(self, run: str) -> bool:
        """Whether a run waits for devices, and there are unfunded leases of its flavor and no
        outcome that is not over."""
        projection, state = self._projection, self._projection.live.get(run)
        if state is None or not state.shortfall_gpus or not projection.is_pending(run):
            return False
        flavor = projection.run_spec(run).flavor
        if projection.resolver.open_outcome(flavor) is not None:
            return False
        return flavor in projection.kept(
            "overdrawn",
            lambda: {
                projection.run_spec(lease.run).flavor
                for lease in projection.leases.values()
                if not projection.is_funded(lease.id)
            },
        )

    def _reclaim(self, run: str, now_ms: int, order: TurnOrder) -> None:
        """Begin an outcome for a run, or remember when to ask again."""
        found, seq = need_of(self._projection, run, now_ms).found, self._projection.seq
        self._asked[run] = (seq, None)
        if found.gang is None or found.starts:
            return
        guest = guest_of(self._projection, run, found.plan)
        demand = GangDemand(run, found.gang, unfunded_only=True, guest_of=guest)
        shortage = shortage_of(self._projection, demand, self._committer.protection())
        if shortage.deficit.reason is not DeficitReason.RESOLVABLE:
            self._asked[run] = (seq, shortage.next_candidate_ms)
            return
        self._committer.commit(lambda: order.entries(run))
        try:
            self._outcomes.begin(Case(CAUSE, demand, run=run))
        except Refused:  # another replica was quicker, or the state changed: the next turn asks
            return
