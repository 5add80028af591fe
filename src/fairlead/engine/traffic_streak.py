"""Backends that are broken altogether, noticed within a tick or two.

Pressure needs seconds to make an outlier of them, and meanwhile a quarter of a group of four fails
or waits. An application that answers with nothing but errors shows it in its first answers; one
that stalls shows it by what piles up in it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from operator import lt

from fairlead.core.traffic.health import median
from fairlead.ports.traffic import Look

SPAN_MS = 600
ERRORS_MIN, ERRORS_MIN_AMONG_ERRORS = 3, 6
HELD_MIN, TIMES_STAY = 4, 6
TICKS_HELD, TICKS_HARMLESS, HARMLESS = 3, 10, 0.05
"""Who stalls is isolated after so many ticks; who gets next to nothing anyway, because its plane
passes it over, after as long as any other outlier."""


class Streak:
    """The last moments of one backend."""

    def __init__(self) -> None:
        self._seen: deque[Look] = deque()
        self.failed = self.served = 0
        """In these moments."""
        self._full = 0
        """Ticks in which too much was in it, less those since then in which it was not."""
        self._sent: deque[tuple[int, int]] = deque()
        self.came = 0
        """Requests that were sent to it in these moments."""

    def advance(
        self, clock_ms: int, successes: int | None, errors: int | None, inside: int | None = None
    ) -> None:
        """Counters so far, and what is in it now. What nobody counts is no failure."""
        self.failed = self.served = 0
        if successes is None or errors is None:
            self._seen.clear()
            return
        look = Look(clock_ms, successes, errors, max(0, inside or 0))
        if self._seen and any(map(lt, look[:3], self._seen[-1][:3])):
            self._seen.clear()  # another process counts, or the clock went back
        self._seen.append(look)
        while self._seen[0].at_ms < clock_ms - SPAN_MS:
            self._seen.popleft()
        self._count()

    def send(self, clock_ms: int, admitted: int | None) -> None:
        """What the plane has sent it so far."""
        if admitted is None or (self._sent and admitted < self._sent[-1][1]):
            self._sent.clear()
        if admitted is not None:
            self._sent.append((clock_ms, admitted))
        while self._sent and self._sent[0][0] < clock_ms - SPAN_MS:
            self._sent.popleft()
        self.came = self._sent[-1][1] - self._sent[0][1] if self._sent else 0

    def adopt(self, looks: Sequence[Look]) -> None:
        """Instead of our own looks those of somebody who looks more often."""
        self._seen = deque(looks)
        self._count()

    @property
    def looks(self) -> tuple[Look, ...]:
        """What `fails` goes by."""
        return tuple(self._seen)

    def _count(self) -> None:
        first, last = self._seen[0], self._seen[-1]
        self.failed = last.errors - first.errors
        self.served = last.successes - first.successes

    def fails(self, least: int) -> bool:
        """Whether it gave so many errors, and more of them than answers, since any of the looks.

        Since any: what it answered well before it broke does not excuse it. What was in it by then
        may still end well and is no answer to what came since, up to half of the answers.
        """
        if not self._seen:
            return False
        last = self._seen[-1]
        for look in self._seen:
            failed, served = last.errors - look.errors, last.successes - look.successes
            if failed >= least and failed > served - min(look.inside, (served + 1) // 2):
                return True
        return False

    def stay(self, held: int | None) -> float | None:
        """How long a request stays with it, by Little's law, in moments; None where too little of
        them was seen.
        """
        seen = bool(self._seen) and 2 * (self._seen[-1].at_ms - self._seen[0].at_ms) >= SPAN_MS
        return held / max(1, self.served) if seen and held is not None else None

    def stalls(
        self, held: int | None, others: Sequence[tuple[float, int]], *, harmless: bool
    ) -> bool:
        """Whether requests have piled up in it for some ticks, and hardly one leaves it, beside how
        long they stay with the others and how many those served.

        Both: who is only busy holds much too, and sending the busy away makes the next ones busy.
        """
        stay = self.stay(held)
        usual, served = median([s for s, _ in others]), median([n for _, n in others])
        if held is None or stay is None or usual is None or served is None:
            self._full = 0
            return False
        full = held >= HELD_MIN and stay > TIMES_STAY * usual and 2 * self.served < served
        self._full = self._full + 1 if full else max(0, self._full - 1)
        return self._full >= (TICKS_HARMLESS if harmless else TICKS_HELD)


def broken(streaks: Mapping[str, Streak], held: Mapping[str, int | None]) -> set[str]:
    """Whose last answers were errors, hardly anything else, and who stalls.

    Where others fail too it takes more: in a group in which one of ten requests fails, three in a
    row are chance. Where more than half of the group is broken it is not they who are, and sending
    some away helps nobody.
    """
    total = sum(each.failed for each in streaks.values())
    came = sum(each.came for each in streaks.values())
    found = set()
    for name, each in streaks.items():
        least = ERRORS_MIN if each.failed == total else ERRORS_MIN_AMONG_ERRORS
        stays = {id: streaks[id].stay(n) for id, n in held.items() if id != name}
        others = [(s, streaks[id].served) for id, s in stays.items() if s is not None]
        harmless = each.came <= HARMLESS * came
        if each.stalls(held.get(name), others, harmless=harmless) or each.fails(least):
            found.add(name)
    return found if 2 * len(found) <= len(streaks) else set()
