"""What the ledger has to know of its clock: anchors, jumps, and who accepted or rejected one.

While a jump is not judged, time goes on by the monotonic clock: runs end and are charged for the
time that passed, and none is started or preempted.
"""

from typing import Literal

from fairlead.core.gpu.clock import LedgerTime
from fairlead.core.gpu.clock_hold import ClockJudgement
from fairlead.engine.gpu.clock import news
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, NewEntry
from fairlead.engine.gpu.values import Author, Forbidden, Refused
from fairlead.schema.times import format_duration, format_time

Judgement = Literal["accept", "reject"]


class ClockWatch:
    """Looks at the clock once a turn, and takes the operator's judgement."""

    def __init__(self, committer: Committer, faults: dict[str, str]) -> None:
        self._committer, self._faults = committer, faults

    def watch(self) -> bool:
        """Record what is new; whether runs may start."""
        self._committer.commit(lambda: news(self._committer.clock))
        found, _ = self._committer.clock.time()
        if found.admits:
            self._faults.pop("*clock", None)
            return True
        self._faults["*clock"] = _question(found)
        return False

    def judge(self, judgement: Judgement, *, author: Author, dry_run: bool = False) -> Document:
        """The operator says whether the wall clock is right (`accept`) or not (`reject`)."""
        if not author.admin:
            raise Forbidden(f"{author.user} may not judge the clock")

        def made() -> list[NewEntry]:
            entries = news(self._committer.clock, ClockJudgement(judgement), author.user)
            if not entries:
                raise Refused("ClockAgrees", "the clock agrees with the ledger: there is no jump")
            return [] if dry_run else entries

        with self._committer.current():
            self._committer.commit(made)
            self.watch()
            return self.report()

    def report(self) -> Document:
        """The clocks and what they differ by."""
        found, reading = self._committer.clock.time()
        state = "held" if not found.admits else "steady" if not found.offset_ms else "offset"
        difference_ms = reading.wall_ms - found.now_ms
        return {
            "state": state,
            "ledgerTime": format_time(found.now_ms),
            "wallTime": format_time(reading.wall_ms),
            "differenceMs": difference_ms,
            "boundMs": self._committer.config.clock.jump_ms,
            "message": _question(found) if state == "held" else _MESSAGES[state],
        }


def refuse_if_held(committer: Committer) -> None:
    """While the clock has jumped and no operator has judged it, no run is preempted or started."""
    found, _ = committer.clock.time()
    if not found.admits:
        raise Refused("ClockHeld", _question(found))


def _question(found: LedgerTime) -> str:
    side = "ahead of" if found.ahead_ms > 0 else "behind"
    return (
        f"the clock is {format_duration(abs(found.ahead_ms))} {side} ledger time, "
        f"{format_time(found.now_ms)}: no run is started until the clock is set right, or an "
        "operator says which of the two is: fairlead clock accept|reject"
    )


_MESSAGES = {
    "steady": "the clock agrees with ledger time",
    "offset": "the ledger keeps its own time until the clock agrees with it: see fairlead clock -h",
}
