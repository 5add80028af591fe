"""Virtual time and seeded randomness: all that a simulation has instead of a machine's own.

Time is an event queue in integer milliseconds. Randomness comes in independent named streams from
one seed, the same on every platform: a stream is HMAC-SHA-256 in counter mode, keyed by the seed
and the stream's name. A draw from one stream never moves another, so adding a pod or a fault leaves
the draws of all others alone.
"""

from collections.abc import Callable
from enum import IntEnum
from hashlib import sha256
from heapq import heappop, heappush
from struct import Struct

from fairlead.core.invariant import require


class Turn(IntEnum):
    """The order of things that are due in the same millisecond."""

    KERNEL = 0
    """The period that ends now is accounted before it is read."""
    SCENARIO = 1
    """Pods come and go, acts begin."""
    SAMPLE = 2
    CLEAR = 3
    """After the sample of the same instant, as in the agent's own loop."""
    FRAME = 4
    """Last: the picture of a second shows what the second led to."""


class VirtualClock:
    """Runs actions in the order (time, turn, arrival); the order never depends on anything else.

    An action may itself call `run_until`: that is how an agent blocks while time goes on.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self._queue: list[tuple[int, Turn, int, Callable[[], None]]] = []
        self._arrivals = 0

    def at(self, time_ms: int, turn: Turn, action: Callable[[], None]) -> None:
        """Do `action` at `time_ms`, which may be now but not earlier."""
        require(time_ms >= self.now_ms, "virtual time never runs backwards")
        heappush(self._queue, (time_ms, turn, self._arrivals, action))
        self._arrivals += 1

    def every(self, step_ms: int, turn: Turn, action: Callable[[], None]) -> None:
        """Do `action` at each multiple of `step_ms` from the next one on (now included)."""
        first = -(-self.now_ms // step_ms) * step_ms

        def again() -> None:
            action()
            self.at(self.now_ms + step_ms, turn, again)

        self.at(first, turn, again)

    def run_until(self, end_ms: int) -> None:
        """Do all that is due up to and including `end_ms`."""
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, _, action = heappop(self._queue)
            action()
        self.now_ms = max(self.now_ms, end_ms)


SEED_MAX = 2**63 - 1
PARTS = 1_000_000
"""Probabilities are compared in millionths: integers, so that no rounding decides a draw."""


_WORDS = Struct(">4Q").unpack
_HASHED_AT_ONCE = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class Stream:
    """An endless sequence of draws. Integers only."""

    def __init__(self, key: bytes) -> None:
        # HMAC by its definition, from the two states that follow from the key: a call of `hmac`
        # per block takes three times as long.
        padded = key.ljust(_HASHED_AT_ONCE, b"\0")
        self._inner, self._outer = (sha256(padded.translate(pad)) for pad in (_INNER, _OUTER))
        self._blocks = 0
        self._words: list[int] = []

    def word(self) -> int:
        if not self._words:
            inner, outer = self._inner.copy(), self._outer.copy()
            inner.update(self._blocks.to_bytes(8, "big"))
            outer.update(inner.digest())
            self._blocks += 1
            self._words = [*_WORDS(outer.digest())]
            self._words.reverse()
        return self._words.pop()

    def below(self, bound: int) -> int:
        """A whole number in [0, bound), each as likely as the others."""
        # Draws past the last full multiple of the bound would favour small numbers.
        limit = 2**64 - 2**64 % bound
        while (drawn := self.word()) >= limit:
            pass
        return drawn % bound

    def chance(self, probability: float) -> bool:
        """True with the given probability, in millionths."""
        return self.below(PARTS) < round(probability * PARTS)


class Entropy:
    """The seed of a run, and the streams derived from it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, *name: str) -> Stream:
        """The stream of this name; asking twice gives two copies that start at the beginning."""
        key = sha256(b"fairlead/sim/v1\0" + self.seed.to_bytes(8, "big"))
        for part in name:
            encoded = part.encode()
            key.update(len(encoded).to_bytes(8, "big") + encoded)
        return Stream(key.digest())
