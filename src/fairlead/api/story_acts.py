"""The story of the demo: which acts happened, and the one that is awaited.

An act is told by what was recorded: `captions` reads the ledger, the simulated governors say what
they decided. Nothing here has a timer.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fairlead.schema.times import format_time

ACTS_KEPT = 60


class Act(StrEnum):
    """The acts of a round, in order."""

    SHARE = "share"
    LEND = "lend"
    ANNOUNCE = "announce"
    LOTTERY = "lottery"
    RESUME = "resume"
    CONGESTED = "congested"
    SLOW = "slow"


TITLES = {
    Act.SHARE: "Teams share",
    Act.LEND: "A team lends",
    Act.ANNOUNCE: "A reservation, with odds",
    Act.LOTTERY: "The lottery",
    Act.RESUME: "The preempted run resumes",
    Act.CONGESTED: "A node is congested",
    Act.SLOW: "A backend turns slow",
}


@dataclass(frozen=True, slots=True)
class Caption:
    """What just happened, and where it can be looked at: (address, words)."""

    act: Act
    text: str
    links: tuple[tuple[str, str], ...]
    time_ms: int
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """A caption in the story. `waited_ms`: what the story itself waited on purpose until then."""

    number: int
    round: int
    caption: Caption
    waited_ms: int


class Story:
    """Captions in order, from any thread."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.began_ms = now_ms()
        self.round = 1
        self._changed = threading.Condition()
        self._told: list[Told] = []
        self._count = 0
        self._waited_ms = 0
        self._next: tuple[Act, str] | None = None

    def tell(self, caption: Caption) -> None:
        """An act happened. A second caption of the same act in a round is not told."""
        with self._changed:
            if any((row.round, row.caption.act) == (self.round, caption.act) for row in self._told):
                return
            self._count += 1
            self._told.append(Told(self._count, self.round, caption, self._waited_ms))
            del self._told[:-ACTS_KEPT]
            if self._next is not None and self._next[0] is caption.act:
                self._next = None
            self._changed.notify_all()

    def expect(self, act: Act | None, text: str = "") -> None:
        """What is awaited now, in words."""
        with self._changed:
            told = any((row.round, row.caption.act) == (self.round, act) for row in self._told)
            self._next = None if act is None or told else (act, text)

    def wait(self, act: Act, timeout_s: float) -> bool:
        """Wait until an act of this round was told; False: it was not."""
        with self._changed:
            return self._changed.wait_for(
                lambda: any(
                    (row.round, row.caption.act) == (self.round, act) for row in self._told
                ),
                timeout_s,
            )

    def waits(self, milliseconds: int) -> None:
        """The story is about to wait so long on purpose: for a reader, a notice, a run."""
        with self._changed:
            self._waited_ms += milliseconds

    def next_round(self) -> None:
        with self._changed:
            self.round += 1
            self._next = None

    def document(self) -> dict[str, object]:
        with self._changed:
            return {
                "began": format_time(self.began_ms),
                "round": self.round,
                "programme": [{"act": act.value, "title": TITLES[act]} for act in Act],
                "acts": [self._row(row) for row in self._told],
                "next": None
                if self._next is None
                else {
                    "act": self._next[0].value,
                    "title": TITLES[self._next[0]],
                    "text": self._next[1],
                },
            }

    def _row(self, row: Told) -> dict[str, object]:
        caption = row.caption
        return {
            "number": row.number,
            "round": row.round,
            "act": caption.act.value,
            "title": TITLES[caption.act],
            "text": caption.text,
            "time": format_time(caption.time_ms),
            "after_s": max(0, caption.time_ms - self.began_ms) / 1000,
            "waited_s": row.waited_ms / 1000,
            "simulated": caption.simulated,
            "links": [{"path": path, "text": text} for path, text in caption.links],
        }
