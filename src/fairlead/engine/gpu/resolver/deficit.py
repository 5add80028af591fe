"""What a waiting run lacks, and the deficit that preemption would have to free.

`core.gpu.find_deficit` decides which scope is short of how much and who is a candidate; this module
makes its input from the projection. Leases end for a run that is funded and lacks devices; never
for one that lacks budget. A malleable run asks for its minimum, no more than it needs to start.
"""

from bisect import bisect_left
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from fairlead.core import gpu
from fairlead.core.gpu.place import Gang
from fairlead.core.reasons import Exclusion, StartReason
from fairlead.engine.gpu.backfill import known_end_ms
from fairlead.engine.gpu.claims import OwnerClaims
from fairlead.engine.gpu.entries import DeficitDecision, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.starting import StartAnswer, ask
from fairlead.engine.gpu.state import LeaseFact, Phase, RunState
from fairlead.schema.gpu import STYLE, deficit_document


@dataclass(frozen=True, slots=True)
class Shortage:
    """A demand, what it was decided on, and the deficit."""

    demand: gpu.Demand
    holdings: gpu.Holdings
    deficit: gpu.Deficit

    @property
    def next_candidate_ms(self) -> int | None:
        """When the next run that its protection leaves out is a candidate; None: it leaves out
        none."""
        rule, standings = self.holdings.protection, self.holdings.standings()
        left_out = {row.run for row in self.deficit.excluded if row.reason in PROTECTED}
        times = [
            rule.until_ms(run.started_ms, run.preempted_ms, standings[run.id])
            for run in self.holdings.runs
            if rule is not None and run.id in left_out
        ]
        return min(times, default=None)


PROTECTED = (Exclusion.MIN_RUNTIME, Exclusion.COOLDOWN)


def shortage_of(
    projection: Projection,
    demand: gpu.Demand,
    protection: gpu.RunProtection | None = None,
    ended: Set[str] = frozenset(),
) -> Shortage:
    """An activation asks three times: whether to resolve, for which scope, and to record it.

    `protection` counts where a gang lacks devices: what an operator frees by hand is freed.
    `ended`: leases that are taken to have ended by then.
    """
    is_gang = isinstance(demand, gpu.GangDemand)
    flavor = demand.gang.flavor if isinstance(demand, gpu.GangDemand) else demand.scope.flavor
    key = f"holdings of {flavor}"
    holdings = projection.kept(key, lambda: holdings_of(projection, flavor)).after(ended)
    rule = protection if is_gang else None
    protected = () if rule is None else protected_runs(holdings, rule)

    def find() -> Shortage:
        known = replace(holdings, protection=rule)
        return Shortage(demand, known, gpu.find_deficit(demand, known))

    # Time alone changes nothing until it makes another run a candidate.
    return projection.kept(repr((demand, protected, sorted(ended))), find)


def protected_runs(
    holdings: gpu.Holdings, rule: gpu.RunProtection
) -> tuple[tuple[str, Exclusion], ...]:
    """Runs that have been started or preempted too recently, and which of both."""
    standings = holdings.standings()
    return tuple(
        (run.id, why)
        for run in holdings.runs
        if (why := rule.exclusion(run.started_ms, run.preempted_ms, standings[run.id])) is not None
    )


def deficit_decision(shortage: Shortage, cause: str, now_ms: int) -> NewEntry:
    return NewEntry(
        DeficitDecision(cause, STYLE.from_core(shortage.deficit)),
        now_ms,
        input=deficit_document(shortage.demand, shortage.holdings),
        reasons=(shortage.deficit.reason.value,),
    )


def holdings_of(projection: Projection, flavor: str) -> gpu.Holdings:
    """Nodes, runs and open leases of a flavor; those of others decide nothing."""
    runs, leases, promised = [], [], projection.recalled()
    for name, state in projection.live.items():
        spec = projection.run_spec(name)
        if spec.flavor != flavor or not state.leases:
            continue
        steps = spec.malleable
        runs.append(
            gpu.HoldingRun(
                name,
                spec.owner,
                flavor,
                None if steps is None else gpu.Malleable(steps.min_gpus, steps.step_gpus),
                state.nominated,
                state.stopping or state.reclaim is not None or state.phase is not Phase.RUNNING,
                state.protected_from_ms,
                state.preempted_ms,
            )
        )
        leases += [
            gpu.HeldLease(
                lease.id,
                name,
                gpu.Role.ACTIVE if lease.is_active else gpu.Role.SPARE,
                lease.group,
                lease.slots,
                projection.is_funded(lease.id),
                lease.budget,
                lease.envelope,
                _is_ending(state, lease),
                lease.id in state.recalled,
                lease.id in promised,
            )
            for lease in state.leases.values()
        ]
    nodes = tuple(node for node in projection.devices.nodes if node.flavor == flavor)
    return gpu.Holdings(nodes, tuple(runs), tuple(leases))


def _is_ending(state: RunState, lease: LeaseFact) -> bool:
    if state.stopping or state.phase is not Phase.RUNNING:
        return True
    reclaim = state.reclaim
    return reclaim is not None and (reclaim.preempts or lease.id in reclaim.leases)


def need_of(
    projection: Projection,
    run: str,
    now_ms: int,
    ending: Iterable[LeaseFact] = (),
    *,
    devices: gpu.FreeDevices | None = None,
    claims: OwnerClaims | None = None,
) -> StartAnswer:
    """Whether a run starts now; if not, what its minimum lacks once these leases have ended.
    `devices`: not on all that are free; `claims`: what owners keep of their envelopes."""
    freed = tuple(slot for lease in ending for slot in lease.slots)
    return ask(projection, projection.run_spec(run), now_ms, devices, claims, freed=freed)


def guest_of(projection: Projection, run: str, plan: gpu.Plan) -> tuple[gpu.GuestEnvelope, ...]:
    """The envelopes of other owners that would pay for a run."""
    owner = projection.run_spec(run).owner
    lines = {(line.budget, line.envelope) for line in plan.lines}
    return tuple(
        gpu.GuestEnvelope(budget, envelope)
        for budget, envelope in sorted(lines)
        if projection.budgets[budget].owner != owner
    )


OBSTACLES = {
    StartReason.STARTS: "the run that it was for fits without preemption",
    StartReason.NOT_FUNDED: "the run that it was for is not funded any more",
    StartReason.NO_DEVICES: "the run that it was for would not fit into what is freed",
}
"""Why a draw is void: no run is preempted for one that needs none, or will not start."""


def free_at(projection: Projection, gang: Gang, now_ms: int) -> int | None:
    """When the gang would fit if every lease ends when it is expected to; None: not foreseeable."""
    known = ((known_end_ms(projection, lease), lease) for lease in projection.leases.values())
    ends = [(end_ms, lease) for end_ms, lease in known if end_ms is not None]
    times = sorted({end_ms for end_ms, _ in ends})

    def fits(until_ms: int) -> bool:
        gone = (slot for end_ms, lease in ends if end_ms <= until_ms for slot in lease.slots)
        return projection.devices.after(gone).place(gang).placed

    if projection.devices.place(gang).placed:
        return now_ms
    if not times or not fits(times[-1]):
        return None
    return max(now_ms, times[bisect_left(times, True, key=fits)])
