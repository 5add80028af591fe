"""Simple changes of inputs, for a sample without a guide."""

import random
from collections.abc import Sequence

_WORDS = [
    *(b"null", b"true", b"-1", b"0", b"1e308", b"NaN", b"99999999999999999999", b"[]", b"{}"),
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\x1b]0;x\x07", b"\r\n", b",", b":", b'"'),
]


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """One to four changes."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(made))
        end = min(len(made), at + rng.choice((1, 2, 8, 40)))
        match rng.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:end]
            case 2:
                made[at:at] = made[at:end]
            case 3:
                made[at:end] = rng.choice(_WORDS)
            case 4:
                made[at:at] = rng.choice(_WORDS)
            case _:
                other = rng.choice(others)
                made[at:] = other[rng.randint(0, len(other)) :]
    return bytes(made)
