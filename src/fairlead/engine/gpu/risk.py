"""Runs at risk are told beforehand: by an event, which webhooks deliver, and by a file and signal.

For every reservation that comes near, the preview of its start says which runs would lose leases
and with which odds. Each of these runs gets one `run.warned` for that start, `warnBefore` ahead of
it: what it says is a forecast, and decides nothing. It names neither the reservation nor its owner.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from fairlead.core.canonical import digest
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import NewEntry, RunWarned
from fairlead.engine.gpu.projection import reservation_spec, starts_ms
from fairlead.engine.gpu.resolver.preview import Forecast, Previews
from fairlead.engine.gpu.state import Stored
from fairlead.schema.objects import warn_before_ms
from fairlead.schema.times import format_time

EVERY_MS = 30_000
"""A reservation's start is previewed this often at most: that looks at every lease of a flavor."""


class RiskNotices:
    """Once a turn, for every reservation that comes near."""

    def __init__(self, committer: Committer, previews: Previews) -> None:
        self._committer, self._previews = committer, previews
        self._projection = committer.projection
        self._looked_ms: dict[str, int] = {}

    def proceed(self, now_ms: int) -> None:
        if self._committer.config.resolver != "enforce" or not self._previews.possible:
            return
        horizon_ms = max(
            (
                warn_before_ms(self._projection.run_spec(run))
                for run, state in self._projection.running.items()
                if state.leases
            ),
            default=0,
        )
        for stored in list(self._projection.of_kind("Reservation")):
            start_ms = starts_ms(stored)
            if not now_ms < start_ms <= now_ms + horizon_ms:
                self._looked_ms.pop(stored.name, None)
            elif now_ms >= self._looked_ms.get(stored.name, 0) + EVERY_MS:
                self._looked_ms[stored.name] = now_ms
                self._committer.commit(partial(self._warn, stored, now_ms))

    def _warn(self, stored: Stored, now_ms: int) -> Sequence[NewEntry]:
        start_ms, run = starts_ms(stored), reservation_spec(stored).run
        reservation = self._projection.resolver.reservations.get(stored.name)
        if reservation is None or not reservation.waits or run not in self._projection.live:
            return []
        shown = self._previews.at(run, start_ms).shown
        if shown.shortfall_gpus:
            return []
        slot = digest([stored.uid, start_ms])[:16]
        return [
            NewEntry(RunWarned(name, slot, start_ms, chance, error, _told(what, start_ms)), now_ms)
            for name, what, chance, error in _at_risk(shown)
            if self._is_news(name, slot, start_ms - now_ms)
        ]

    def _is_news(self, run: str, slot: str, ahead_ms: int) -> bool:
        state = self._projection.live.get(run)
        if state is None or slot in state.warned:
            return False
        return ahead_ms <= warn_before_ms(self._projection.run_spec(run))


def _at_risk(shown: Forecast) -> Iterator[tuple[str, str, float, float]]:
    """Runs with what they may lose; one that may be selected is told that alone."""
    risks = {row.run: row for row in shown.at_risk}
    for name, row in sorted(risks.items()):
        error = f" ±{row.chance_error * 100:.0f}" if row.chance_error else ""
        odds = f"odds {row.chance * 100:.0f}{error} %"
        yield name, f"may be preempted ({odds})", row.chance, row.chance_error
    for name in sorted({row.run for row in shown.cuts} - risks.keys()):
        yield name, "would lose spares or shrink", 0.0, 0.0


def _told(what: str, start_ms: int) -> str:
    return f"{what} at {format_time(start_ms)}, when a reservation is due"
