"""The agent's whole decision about one group at one tick: sighting in, plan and limits out.

memory, decision = govern(memory, sighting, rules, group="web")
decision.plan.slots, decision.limits.concurrency
memory = settle(memory, decision.plan, applied=True)
"""

from dataclasses import dataclass, replace

from fairlead.core.traffic.counters import is_urgent, last_step
from fairlead.core.traffic.learn import stay_of
from fairlead.core.traffic.limits import Limits, plan_limits
from fairlead.core.traffic.memory import GroupMemory, GroupRules
from fairlead.core.traffic.model import Admission, Snapshot, TickPlan
from fairlead.core.traffic.observe import Observed, observe
from fairlead.core.traffic.retries import (
    INSIDE_PERCENT,
    RETRY_PERCENT,
    RetryLimit,
    plan_retries,
    watch_retries,
)
from fairlead.core.traffic.sighting import OperatorCommand, Sighting
from fairlead.core.traffic.state import AdmissionMode
from fairlead.core.traffic.tick import tick


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """What was made of a sighting, and what is to be done."""

    observed: Observed
    plan: TickPlan
    limits: Limits
    """Every number that a dataplane needs beside the slots."""
    drains: tuple[str, ...] = ()
    """Backends whose kept connections are to end, now that the plan sends nothing new to them."""
    urgent: tuple[str, ...] = ()
    """Backends whose reports brought this tick forward; none in a tick that was due."""

    @property
    def snapshot(self) -> Snapshot:
        return self.observed.snapshot


def govern(
    memory: GroupMemory, sighting: Sighting, rules: GroupRules, *, group: str
) -> tuple[GroupMemory, GroupDecision]:
    """One decision. The memory is to be settled once the plan was applied, or was not."""
    memory, observed = observe(memory, sighting, rules, group=group)
    plan, config = tick(observed.snapshot), observed.snapshot.config
    memory, retries = _retries(memory, sighting, rules, plan, observed)
    backends = {} if sighting.seen is None else sighting.seen.backends
    stay_s = stay_of(memory.bound.inside, memory.bound.per_s, config.l_ref_ms, rules.part)
    counters = {history.id: history.counters for history in memory.backends}
    served = {name: last_step(counter.successes) for name, counter in counters.items()}
    limits = plan_limits(
        plan.slots,
        plan.admission,
        stored=Admission(AdmissionMode.SOFT, config.bucket_rate, config.bucket_burst),
        inside_max=config.inside_max,
        open={name: backend.open for name, backend in backends.items()},
        inside={name: backend.inside for name, backend in backends.items()},
        stay_ms=round(1000 * stay_s),
        retries=retries,
        served=served if rules.firm else None,
        stuck=_stuck(plan, observed, sighting, rules),
        firm=rules.firm,
    )
    drains = tuple(
        name
        for name, command in sorted(sighting.commands.items())
        if command is OperatorCommand.DRAIN and plan.slots.get(name) == 0
    )
    urgent = tuple(
        name
        for name, reading in sorted(sighting.readings.items())
        if sighting.early and is_urgent(reading.looks)
    )
    return memory, GroupDecision(observed, plan, limits, drains, urgent)


def _stuck(plan: TickPlan, observed: Observed, sighting: Sighting, rules: GroupRules) -> int:
    """What is in isolated backends that get nothing new. With it inside a learned bound, one slow
    backend of four that held twenty requests had the others reject what they could serve."""
    if not (rules.firm and rules.own_bound) or sighting.seen is None:
        return 0
    seen = sighting.seen.backends
    left = [name for name in observed.isolated if name in seen and not plan.slots.get(name)]
    return sum(seen[name].open or 0 for name in left)


def _retries(
    memory: GroupMemory, sighting: Sighting, rules: GroupRules, plan: TickPlan, observed: Observed
) -> tuple[GroupMemory, RetryLimit | None]:
    """What may be repeated, where the group asks for it."""
    if not rules.retry:
        return memory, None
    seen, clock_ms = sighting.seen, memory.clock_ms
    watched = watch_retries(
        memory.retry,
        clock_ms,
        requests=None if seen is None else seen.admitted,
        retries=None if seen is None else seen.retries,
        restricted=observed.full or plan.admission.mode is not AdmissionMode.NORMAL,
    )
    inside_max = observed.snapshot.config.inside_max
    percent = INSIDE_PERCENT if rules.firm else RETRY_PERCENT
    limit = plan_retries(watched, clock_ms, inside_max=inside_max, percent=percent)
    return replace(memory, retry=watched), limit
