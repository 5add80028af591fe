"""Dependencies: runs that start after others (`spec.after`), released or ended as core decides."""

from collections.abc import Iterable, Iterator, Mapping

from fairlead.core import gpu
from fairlead.core.gpu.after import RunProgress
from fairlead.core.reasons import AfterReason
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import AfterDecision, NewEntry, RunPhase
from fairlead.engine.gpu.leases import end_run
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.values import Refused
from fairlead.engine.gpu.warnings import similar
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE
from fairlead.schema.objects import Manifest, ReservationManifest, RunManifest, RunSpec, after_of

_SHOWN_MAX = 3


class RunDependencies:
    """Looks at runs that wait for others. What it says is recorded when it is news."""

    def __init__(self, committer: Committer) -> None:
        self._committer, self._projection = committer, committer.projection

    def proceed(self, now_ms: int) -> None:
        # A run that ends here may end one that starts after it.
        while held := [run for run in sorted(self._projection.following) if self._is_news(run)]:
            at = Context(self._projection, now_ms)
            self._committer.commit(lambda held=held, at=at: list(_entries(at, held)))  # type: ignore[misc]  # bound now

    def _is_news(self, run: str) -> bool:
        return self._projection.waits_for_runs(run) and bool(decide(self._projection, run)[1])


def _entries(at: Context, runs: Iterable[str]) -> Iterator[NewEntry]:
    for run in runs:
        if not at.projection.waits_for_runs(run):
            continue  # another replica was faster
        found, message = decide(at.projection, run)
        if not message:
            continue
        yield at.entry(
            AfterDecision(run, STYLE.from_core(found)),
            input=STYLE.from_core(asked(at.projection, run)),
            reasons=(found.reason.value,),
        )
        reason = found.reason.value
        if found.reason is AfterReason.FAILED:
            body = RunPhase(run, Phase.FAILED.value, reason, message, ended_ms=at.now_ms)
            yield from end_run(at, body, "Cancelled", end_ms=at.now_ms)
        else:
            yield at.entry(RunPhase(run, Phase.PENDING.value, reason, message))


def asked(projection: Projection, run: str) -> gpu.Dependencies:
    wanted = after_of(projection.run_spec(run))
    return gpu.Dependencies(
        tuple(gpu.Dependency(name, how, _progress(projection, name)) for name, how in wanted)
    )


def decide(projection: Projection, run: str) -> tuple[gpu.AfterResult, str]:
    """What core says of a run, and the sentence for it; empty where that is recorded already."""
    found, state = gpu.after(asked(projection, run)), projection.runs[run]
    shown = ", ".join(f"run/{name}" for name in found.runs[:_SHOWN_MAX])
    more = len(found.runs) - _SHOWN_MAX
    shown += f" and {more} more" if more > 0 else ""
    message = {
        AfterReason.READY: f"{shown} ended as asked",
        AfterReason.WAITS: f"starts after {shown}",
        AfterReason.FAILED: f"never starts: {shown} did not succeed",
    }[found.reason]
    known = (state.reason, state.message) == (found.reason.value, message)
    return found, "" if known else message


def _progress(projection: Projection, run: str) -> RunProgress:
    state = projection.runs.get(run)
    if state is None:
        return RunProgress.GONE
    if not state.phase.ended:
        return RunProgress.OPEN
    return RunProgress.SUCCEEDED if state.phase is Phase.COMPLETED else RunProgress.FAILED


def later_run(projection: Projection, run: str) -> str | None:
    """A waiting run that starts after this one."""
    waiting = (name for name in sorted(projection.following) if projection.waits_for_runs(name))
    after = ((name, after_of(projection.run_spec(name))) for name in waiting)
    return next((name for name, wanted in after if run in dict(wanted)), None)


def check_dependencies(
    projection: Projection,
    manifest: Manifest,
    before: Stored | None,
    runs: Mapping[str, RunManifest],
) -> None:
    """What a run starts after; a reservation would start it without them."""
    if isinstance(manifest, RunManifest) and before is None:
        _check_after(projection, manifest, runs)
    elif isinstance(manifest, ReservationManifest):
        run = manifest.spec.run
        held = after_of(runs[run].spec) if run in runs else projection.waits_for_runs(run)
        if held:
            raise Refused("DependencyPending", f"run {run!r} starts after others")


def _check_after(
    projection: Projection, manifest: RunManifest, batch: Mapping[str, RunManifest]
) -> None:
    """A run starts after runs that exist, or come with it; none of which starts after it."""
    name = manifest.metadata.name
    for i, (run, _) in enumerate(after_of(manifest.spec)):
        path = f"spec.after[{i}].run"
        if run not in projection.runs and run not in batch:
            known = {*projection.runs, *batch} - {name}
            raise BadInput(path, f"names no run, {run!r}{similar(run, known)}")
        if name in _before(run, batch):
            raise BadInput(path, f"forms a circle: {run!r} starts after {name!r}")


def _before(run: str, batch: Mapping[str, RunManifest]) -> set[str]:
    """A run of a batch, and all of the batch that it starts after. Only these can form a circle:
    runs that exist name runs that are older."""
    found, left = set[str](), [run]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += [name for name, _ in after_of(_spec(batch, one))]
    return found


def _spec(batch: Mapping[str, RunManifest], run: str) -> RunSpec | None:
    return batch[run].spec if run in batch else None
