"""Settlement: runs end, hours run out, leases lose and regain their funding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from fairlead.core import gpu
from fairlead.core.gpu.clock import seen_in_boot, time_elsewhere, time_in_boot
from fairlead.core.reasons import EndCause
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import (
    Document,
    LeaseFunded,
    LeaseUnfunded,
    NewEntry,
    RefundDecision,
    RunPhase,
)
from fairlead.engine.gpu.leases import decide_restart, end_preempted, end_run
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, RunState
from fairlead.ports.executor import Exit
from fairlead.schema.gpu import STYLE, refund_document
from fairlead.schema.objects import to_request, to_restarts
from fairlead.schema.times import format_time

EXIT = {"code": "code", "signal": "signal", "exit_reason": "reason"}
"""What `RunPhase` records of an exit, also where there was none."""


class Settlement:
    """Records what time and processes bring about."""

    def __init__(self, committer: Committer, effects: Effects) -> None:
        self._committer, self._effects = committer, effects
        self._projection = committer.projection
        self.ends_known_ms: int | None = None
        """Up to when every end is recorded: the last turn that heard of all; None before one."""

    def end_runs(self, now_ms: int) -> None:
        """Exits of commands, and runs without one whose time is over, in order of time."""
        exits = self._effects.poll()
        endings: list[tuple[int, str, Exit | None]] = [
            (self._time_of(exit, now_ms), exit.run, exit) for exit in exits
        ]
        for name, state in self._projection.running.items():
            until_ms = self._duration_end(name, state)
            if until_ms is not None and until_ms <= now_ms:
                endings.append((until_ms, name, None))
        missing = self._effects.missing - {exit.run for exit in exits}
        endings += [(self._left_ms(name, now_ms), name, None) for name in sorted(missing)]
        for time_ms, name, exit in sorted(endings, key=lambda ending: ending[:2]):
            self._end(name, min(time_ms, now_ms), now_ms, exit)
        self._effects.acknowledge(exits)
        if "*poll" not in self._effects.faults:
            self.ends_known_ms = now_ms

    def _time_of(self, exit: Exit, now_ms: int) -> int:
        """By the monotonic clock, where the ledger knows that boot."""
        projection, policy = self._projection, self._committer.config.clock
        found_ms = time_in_boot(projection.boots, exit.boot, exit.since_boot_ms)
        if found_ms is not None:
            return found_ms
        state, clock = projection.runs.get(exit.run), projection.clock
        began_ms = 0 if state is None or state.job != exit.job else state.command_ms
        wall_ms = exit.time_ms + (0 if clock is None else clock.offset_ms)
        return time_elsewhere(wall_ms, policy, began_ms=began_ms, now_ms=now_ms)

    def _left_ms(self, run: str, now_ms: int) -> int:
        """When a run that left no exit was gone: now, or with the boot that it started in."""
        state = self._projection.runs.get(run)
        began_ms = now_ms if state is None else state.command_ms
        return seen_in_boot(self._projection.boots, began_ms, now_ms)

    def end_failed_starts(self, now_ms: int) -> None:
        """Runs whose command the executor will never start."""
        failed = self._effects.failed_starts
        for name, (job, why) in sorted(failed.items()):
            self._committer.commit(partial(self._start_failed, name, job, why, now_ms))
            del failed[name]

    def _start_failed(self, name: str, job: str, why: str, now_ms: int) -> Sequence[NewEntry]:
        state = self._projection.runs.get(name)
        if state is None or state.job != job:
            return []
        body = RunPhase(name, Phase.FAILED.value, "StartFailed", why)
        return end_run(Context(self._projection, now_ms), body, "Cancelled", end_ms=now_ms)

    def settle(self, at_ms: int, now_ms: int, budgets: Iterable[str] | None = None) -> None:
        """Every lease, or those of some budgets, that lost its funding by `at_ms`, or has it
        again."""
        wanted = None if budgets is None else set(budgets)

        def decide() -> Sequence[NewEntry]:
            known = self._projection.budgets.keys()  # another replica may delete one
            chosen = known if wanted is None else known & wanted
            return refunding(self._projection, chosen, at_ms, now_ms)

        self._committer.commit(decide)

    def refund(self, budgets: Iterable[str]) -> None:
        now_ms = self._committer.now()
        self.settle(now_ms, now_ms, budgets)

    def roll_over(self, until_ms: int, now_ms: int) -> None:
        """After a long absence: what ran out in a period ran out in that one, not in the next."""
        accounts = self._projection.accounts
        while (end_ms := accounts.rolls_over(until_ms)) is not None:
            self.settle(end_ms - 1, now_ms)
            accounts.advance(end_ms)
            self.settle(end_ms, now_ms)

    def _duration_end(self, name: str, state: RunState) -> int | None:
        """When a run without a process is over: at the end of its duration."""
        if state.phase is not Phase.RUNNING or self._effects.has_process(name):
            return None
        leases = state.leases.values()
        ends = [lease.expected_end_ms for lease in leases if lease.expected_end_ms is not None]
        return max(ends) if ends and len(ends) == len(leases) else None

    def _end(self, name: str, end_ms: int, now_ms: int, exit: Exit | None) -> None:
        # Leases that ran out of hours before this end are demoted first, at that moment.
        self.roll_over(end_ms, now_ms)
        at, before = Context(self._projection, now_ms), self._projection.runs.get(name)
        if before is not None and before.leases:
            self.settle(end_ms, now_ms, [lease.budget for lease in before.leases.values()])

        def decide() -> Sequence[NewEntry]:
            state = self._projection.runs.get(name)
            if state is None or state.phase is not Phase.RUNNING:
                return []
            if exit is not None and exit.job != state.job:
                return []  # an earlier start of the same run, settled when it was displaced
            if exit is None and self._effects.has_process(name) and not state.is_ending:
                return []
            facts: Document = {key: getattr(exit, field, None) for key, field in EXIT.items()}
            since_ms = _preempted_since(state, end_ms, exit)
            if since_ms is not None:
                return end_preempted(at, name, end_ms=max(since_ms, end_ms), **facts)
            made: list[NewEntry] = []
            if exit is not None and not state.stopping:
                backoff = self._committer.config.restart_backoff
                decided, made = restarted(at, name, exit, end_ms, backoff)
                if decided:
                    return made
            phase, reason, message = _ending(state, exit)
            body = RunPhase(name, phase.value, reason, message, **facts)
            lease_reason = "Cancelled" if state.stopping else "Completed"
            return [*made, *end_run(at, body, lease_reason, end_ms=end_ms)]

        self._committer.commit(decide)


def restarted(
    at: Context, run: str, exit: Exit, end_ms: int, backoff: gpu.RestartBackoff
) -> tuple[bool, list[NewEntry]]:
    """Whether that is all there is to say of an exit, and the entries: it starts again, after a
    delay, under its leases, which stay as they are, or it was interrupted."""
    if exit.interrupted:
        return True, interrupted(at, run, exit, end_ms)
    state, code = at.projection.runs[run], exit.code if exit.signal is None else 128 + exit.signal
    cause = EndCause.SUCCEEDED if exit.succeeded else EndCause.FAILED
    found, made = decide_restart(
        at,
        run,
        cause,
        min(255, code) if code else None,
        backoff=backoff,
        ran_ms=max(0, end_ms - state.command_ms),
        delays=state.delays,
    )
    if not found.goes_on:
        return False, made
    policy, _ = to_restarts(at.projection.run_spec(run))
    job, (_, reason, message) = at.projection.next_job(run), _ending(state, exit)
    boots = at.projection.boots
    if exit.boot and boots and exit.boot != boots[-1].boot:
        # Its leases end with the boot: what the machine was off for is charged to none.
        message += "; the machine was restarted, and it starts again when there is room"
        waits = RunPhase(run, Phase.PENDING.value, reason, message, restarts=found.restarts)
        return True, [*made, *end_run(at, waits, "Interrupted", end_ms=end_ms)]
    starts_ms = end_ms + found.delay_ms
    when = f"after {found.delay_ms // 1000} s, at {format_time(starts_ms)}"
    body = RunPhase(
        run=run,
        phase=Phase.RUNNING.value,
        reason="Restarted",
        message=f"{message}; restart {found.restarts} of {policy.max_restarts} {when}",
        job=job,
        paused=state.paused,
        restarts=found.restarts,
        starts_ms=starts_ms,
        delays=found.delays,
    )
    return True, [*made, at.entry(body, job, "phase")]


def interrupted(at: Context, run: str, exit: Exit, end_ms: int) -> list[NewEntry]:
    """Its machine restarted, or the ledger was restored: it waits again, or is lost."""
    found, made = decide_restart(at, run, EndCause.INTERRUPTED)
    _, reason, message = _ending(at.projection.runs[run], exit)
    phase = Phase.FAILED
    if found.goes_on:
        phase, reason = Phase.PENDING, "Interrupted"
        message += "; it starts again when there is room"
    body = RunPhase(run, phase.value, reason, message, restarts=found.restarts)
    return [*made, *end_run(at, body, "Interrupted", end_ms=end_ms)]


def refunding(
    projection: Projection, budgets: Iterable[str], at_ms: int, now_ms: int
) -> list[NewEntry]:
    """Leases that lost their funding by `at_ms`, and those that have it again."""
    made: list[NewEntry] = []
    for name in sorted(budgets):
        budget, accounts = projection.budgets[name], projection.accounts
        recalled = projection.recalled()
        if not accounts.has_leases(budget):
            continue
        first = gpu.refund_of(budget, accounts, at_ms, recalled)
        if not first:
            continue
        overdrafts = _overdrafts(projection, name) if first.funded else {}
        claims = tuple(owner_claims(projection, budget, at_ms)) if overdrafts else ()
        asked = gpu.refund_request(
            budget, accounts, at_ms, recalled, overdrafts=overdrafts, claims=claims
        )
        found = gpu.refund(asked)
        if not found:
            continue
        document = refund_document(asked, projection.budget_document(name))
        body = RefundDecision(name, STYLE.from_core(found))
        made.append(NewEntry(body, now_ms, input=document))
        for demotion in found.unfunded:
            cap = f"{demotion.kind} {demotion.budget}/{demotion.name}"
            why = "is out of hours" if demotion.hours else "allows fewer GPUs"
            run = projection.leases[demotion.lease].run
            unfunded = LeaseUnfunded(run=run, message=f"{cap} {why}", **asdict(demotion))
            made.append(NewEntry(unfunded, now_ms))
        for lease in found.funded:
            funded = LeaseFunded(lease, projection.leases[lease].run, at_ms)
            made.append(NewEntry(funded, now_ms))
    return made


def _overdrafts(projection: Projection, budget: str) -> dict[str, gpu.OwnerPlace]:
    """Leases of a budget that began without funding, and where their runs stand."""
    return {
        lease: _place(projection, run)
        for run, state in sorted(projection.live.items())
        for lease in state.overdrawn
        if state.leases[lease].budget == budget
    }


def _place(projection: Projection, run: str) -> gpu.OwnerPlace:
    priority = projection.run_spec(run).priority or 0
    return gpu.OwnerPlace(projection.runs[run].submitted_seq, priority)


def owner_claims(
    projection: Projection, budget: gpu.Budget, now_ms: int
) -> Iterator[gpu.OwnerClaim]:
    """The first run of each flavor that waits for the envelopes of its owner."""
    flavors = {envelope.flavor for envelope in budget.envelopes}
    waiting = [
        (_place(projection, run), run)
        for run in projection.live
        if projection.is_pending(run) and projection.run_spec(run).owner == budget.owner
    ]
    for place, run in sorted(waiting, key=lambda row: row[0].key):
        request = to_request(projection.run_spec(run))
        if request.flavor not in flavors or projection.waits_for_runs(run):
            continue
        if gpu.could_cover(projection.book(now_ms), request, now_ms):
            flavors.discard(request.flavor)
            yield gpu.OwnerClaim(run, request.flavor, place)


def _preempted_since(state: RunState, end_ms: int, exit: Exit | None) -> int | None:
    """Since when a run was preempted whose process ended because of that; None: by itself."""
    reclaim = state.reclaim
    if reclaim is None or not reclaim.preempts or state.stopping:
        return None
    stopped = end_ms >= reclaim.since_ms or (exit is not None and exit.stopped)
    return reclaim.since_ms if stopped else None


def _ending(state: RunState, exit: Exit | None) -> tuple[Phase, str, str]:
    """The phase of a run that has ended, the reason and a sentence."""
    phase, reason = Phase.FAILED, "Exited"
    if state.stopping:
        reason, message = "Cancelled", "cancelled"
    elif exit is None:
        phase, reason, message = Phase.COMPLETED, "DurationOver", "its time is over"
    elif exit.succeeded:
        phase, message = Phase.COMPLETED, "the command ended with 0"
    elif exit.lost:
        reason, message = "Lost", "its process is gone and left no exit status"
    else:
        how = f"with {exit.code}" if exit.code is not None else f"by signal {exit.signal}"
        message = f"the command ended {how}"
    if exit is not None and exit.reason is not None:
        message = f"{message}: {exit.reason}"
    return phase, reason, message
