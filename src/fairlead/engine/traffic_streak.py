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

SPAN_MS, LOOKS = 600, 2
"""How long a moment is, and of how many intervals it consists at least: with the whole of one in
between, a late answer leaves it with two looks."""
ERRORS_MIN, ERRORS_MIN_AMONG_ERRORS = 3, 6
HELD_MIN, TIMES_STAY = 4, 6
TICKS_HELD, TICKS_HARMLESS, HARMLESS = 3, 10, 0.05
"""Who stalls is isolated after so many looks, one a tick where the plane counts; who gets next to
nothing anyway, because its plane passes it over, after as long as any other outlier."""


class Streak:
    """The last moments of one backend; where it is looked at less often, the last few looks."""

    def __init__(self, every_ms: int = 0) -> None:
        self._span_ms = max(SPAN_MS, LOOKS * every_ms)
        self._seen: deque[Look] = deque()
        self.failed = self.served = 0
        """In these moments."""
        self._full = 0
        """Looks with too much in it, less those since then without."""
        self._judged_ms: int | None = None
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
        while self._seen[0].at_ms < clock_ms - self._span_ms:
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

    @property
    def per_s(self) -> float | None:
        """How many it served in a second of these moments; None where too little was seen."""
        span_ms = self._seen[-1].at_ms - self._seen[0].at_ms if self._seen else 0
        return self.served * 1000 / span_ms if 2 * span_ms >= SPAN_MS else None

    def stay_s(self, held: int | None) -> float | None:
        """How long a request stays with it, by Little's law; None where that is not known."""
        if held is None or self.per_s is None:
            return None
        return held / max(self.per_s, 1000 / self._span_ms)

    def stalls(
        self, held: int | None, others: Sequence[tuple[float, float]], *, harmless: bool
    ) -> bool:
        """Whether requests have piled up in it for some ticks, and hardly one leaves it, beside how
        long they stay with the others and how many those serve.

        Both: who is only busy holds much too, and sending the busy away makes the next ones busy.
        """
        stay_s = self.stay_s(held)
        usual_s, served = median([s for s, _ in others]), median([n for _, n in others])
        if held is None or stay_s is None or usual_s is None or served is None:
            self._full = 0
            return False
        if self._seen[-1].at_ms != self._judged_ms:  # the same look twice proves nothing more
            self._judged_ms = self._seen[-1].at_ms
            slow = stay_s > TIMES_STAY * usual_s and 2 * (self.per_s or 0.0) < served
            self._full = self._full + 1 if held >= HELD_MIN and slow else max(0, self._full - 1)
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
        stays = {id: streaks[id].stay_s(n) for id, n in held.items() if id != name}
        others = [(s, streaks[id].per_s or 0.0) for id, s in stays.items() if s is not None]
        harmless = each.came <= HARMLESS * came
        if each.stalls(held.get(name), others, harmless=harmless) or each.fails(least):
            found.add(name)
    return found if 2 * len(found) <= len(streaks) else set()
