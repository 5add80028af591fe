"""The word of a group: all that a flip changes, in one value of one HAProxy map.

    7:a:60|a:hard:1000:1000000:1|f:soft:100000:100000000:1

The epoch, the side its table is laid out on, and how many may be inside (0: no bound); the door
while the agent lives; the door without it. A door is the side that serves (`a` or `b`, `f` for the
hashed one, `hard` when there is nobody to send to), the mode, and for modes with a bucket the
refill in thousandths of a token per second, the size in millionths of a token, and the seconds of
Retry-After. A request reads the word once, so it sees one table or the other, whole.
"""

from dataclasses import dataclass
from math import ceil

from fairlead.dataplane.tables import Current, fallback_admission
from fairlead.ports.dataplane import Admission, Mode

SIDES = ("a", "b")
HASHED = "f"
NOBODY = "hard"
"""A side that is no side: the backend that refuses."""
TOKEN = 1_000_000
"""A token in the bucket's own unit; fractions of one are kept to the millionth."""
_REFILL_MAX = 10**9  # a million tokens per second; times an hour in µs it stays below 2^63
_SIZE_MAX = 10**15
_RETRY_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Word:
    """A word as its owner reads it back."""

    epoch: int
    side: str
    admission: Admission
    inside_max: int | None = None


def write(side: str, table: Current) -> str:
    """The word for a table that was laid out on `side`."""
    here = side if any(table.slots.values()) else NOBODY
    alone = HASHED if table.slots else NOBODY
    doors = (_door(here, table.admission), _door(alone, fallback_admission(table.admission)))
    # The side stands at the front too: the next table must go to the other one even when nobody
    # is served from this one.
    return "|".join((f"{table.epoch}:{side}:{table.inside_max or 0}", *doors))


def read(word: str) -> Word:
    """What was written, to a thousandth of a token per second."""
    head, here, alone = word.split("|")
    mode, rate, burst = _numbers(here)
    _, stored_rate, stored_burst = _numbers(alone) if mode == Mode.HARD else (mode, None, None)
    epoch, side, most = head.split(":")
    admission = Admission(mode, rate, burst, stored_rate, stored_burst)
    return Word(int(epoch), side, admission, int(most) or None)


def _door(side: str, admission: Admission) -> str:
    if admission.mode == Mode.NORMAL:
        return f"{side}:{admission.mode}"
    rate, burst = admission.rate_per_s or 0.0, admission.burst or 0.0
    retry_s = min(_RETRY_S_MAX, max(1, ceil(1 / rate))) if rate > 0 else _RETRY_S_MAX
    refill, size = min(round(rate * 1000), _REFILL_MAX), min(round(burst * TOKEN), _SIZE_MAX)
    return f"{side}:{admission.mode}:{refill}:{size}:{retry_s}"


def _numbers(door: str) -> tuple[Mode, float | None, float | None]:
    _, mode, *rest = door.split(":")
    if not rest:
        return Mode(mode), None, None
    return Mode(mode), int(rest[0]) / 1000, int(rest[1]) / TOKEN
