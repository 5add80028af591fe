"""What owners' waiting runs claim of their own envelopes, when others ask to be paid by these.

`core.gpu.claims` decides. The runs of the last order of the queue are kept here by owner, and those
that could start now are the claimants. Where preemption is off there are none: an owner that comes
later ends no run, so a guest keeps the start that it was promised.
"""

from collections.abc import Callable, Iterable, Sequence

from fairlead.core import gpu
from fairlead.core.gpu.claims import RUNS_MAX
from fairlead.core.gpu.cover import Line
from fairlead.core.gpu.place import Placement
from fairlead.engine.gpu.projection import Projection
from fairlead.schema import objects

_Delays = Callable[[str, gpu.Request, Placement, int, Sequence[Line]], bool]
"""Whether a start would delay a run that was promised its own."""


class OwnerClaims:
    """Waiting runs by owner and flavor, in the order of the queue."""

    def __init__(self, projection: Projection, delays: _Delays, *, enforced: bool) -> None:
        self._projection, self._delays, self._enforced = projection, delays, enforced
        self._runs: dict[tuple[str, str], dict[str, list[gpu.WaitingRun]]] = {}
        self._found: dict[tuple[str, str], gpu.Claimant | None] = {}
        self._seen = (0, 0)
        """The entry and the time that these were found at."""

    def begin(self, order: Iterable[tuple[gpu.WaitingRun, str]]) -> None:
        """An order begins: runs that wait, each with its request as text."""
        self._runs.clear()
        self._found.clear()
        for run, alike in order if self._enforced else ():
            mine = self._runs.setdefault((run.owner, run.flavor), {})
            mine.setdefault(alike, []).append(run)

    def against(
        self, request: gpu.Request, plan: gpu.Plan, devices: gpu.FreeDevices, now_ms: int
    ) -> tuple[gpu.Claimant, ...]:
        """Who claims what a request would be paid by; none where its own owner pays for it."""
        if not self._runs or all(line.owner == request.owner for line in plan.lines):
            return ()
        if self._seen != (self._projection.seq, now_ms):
            self._seen = (self._projection.seq, now_ms)
            self._found.clear()
        families = self._projection.book(now_ms).families
        owners = sorted(families.kin(request.owner, request.sponsors).keys() - {request.owner})
        rows = (
            self._kept(owner, alike, runs, devices)
            for owner in owners
            for alike, runs in self._runs.get((owner, request.flavor), {}).items()
        )
        return tuple(row for row in rows if row is not None)

    def _kept(
        self, owner: str, alike: str, runs: list[gpu.WaitingRun], devices: gpu.FreeDevices
    ) -> gpu.Claimant | None:
        """Found once for all guests of a state: a family may have a hundred owners."""
        if (owner, alike) not in self._found:
            self._found[owner, alike] = self._claimant(runs, devices, self._seen[1])
        return self._found[owner, alike]

    def _claimant(
        self, runs: list[gpu.WaitingRun], devices: gpu.FreeDevices, now_ms: int
    ) -> gpu.Claimant | None:
        """Runs that are alike: all, where one of them could start now; else those that have taken
        funding back and wait for the devices: guests that follow each other would keep them."""
        left = [run.id for run in runs if self._projection.is_still_pending(run.id, run.submitted)]
        if not left:
            return None
        spec = self._projection.run_spec(left[0])
        request, shape = objects.to_request(spec), objects.to_shape(spec)
        placement = devices.place(shape.gang(request, gpu.Plan(request.enough_gpus, ())))
        plan = gpu.cover(self._projection.book(now_ms), request, now_ms)
        if not plan.funded:
            return None
        if not placement.placed or self._delays(left[0], request, placement, now_ms, plan.lines):
            recalling = self._projection.recalling()
            left = [run for run in left if run in recalling]
        return gpu.Claimant(left[0], request, min(len(left), RUNS_MAX)) if left else None
