"""What becomes of a run that has ended, by its restart policy: decided in core, and recorded."""

from typing import Any

from msgspec import UNSET

from fairlead.core import gpu
from fairlead.core.reasons import EndCause, RestartReason
from fairlead.engine.gpu.committer import Context
from fairlead.engine.gpu.entries import NewEntry, RestartDecision
from fairlead.schema.gpu import STYLE, from_restart
from fairlead.schema.objects import RunSpec, to_restarts

_USUAL = {EndCause.PREEMPTED: RestartReason.REQUEUES, EndCause.SUCCEEDED: RestartReason.POLICY}
"""What follows where no policy says otherwise; it is not recorded."""


def decide_restart(
    at: Context, run: str, cause: EndCause, exit_code: int | None = None, **backoff: Any
) -> tuple[gpu.Restart, list[NewEntry]]:
    """Whether a run starts again, and the entry that says so where a policy decided it. `backoff`:
    fields of a `RunFailure`, where it may restart on its devices."""
    spec, state = at.projection.run_spec(run), at.projection.runs[run]
    policy, restart_policy = to_restarts(spec)
    asked = gpu.RunFailure(policy, state.restarts, exit_code, cause, restart_policy, **backoff)
    found = gpu.restart(asked)
    if found.reason is _USUAL.get(cause) or (cause is EndCause.FAILED and not has_policy(spec)):
        return found, []
    made = at.entry(
        RestartDecision(run, from_restart(asked, found)),
        input=STYLE.from_core(asked),
        reasons=(found.reason.value,),
    )
    return found, [made]


def has_policy(spec: RunSpec) -> bool:
    return bool(spec.failure_policy or spec.restart_policy or spec.backoff_limit is not UNSET)
