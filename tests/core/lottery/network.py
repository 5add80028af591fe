"""A network of one, for tests: its secret is known here, so it can sign any round."""

from hashlib import sha256

from fairlead.core.lottery import BeaconNetwork, BeaconRound, bls
from fairlead.core.lottery.bls import P

SECRET = int.from_bytes(sha256(b"the network of the tests").digest(), "big") % bls.ORDER


def compressed(point: bls.Point) -> bytes:
    assert point is not None
    (x, high), (y, also) = point
    larger = (also or y) > P // 2
    numbers = [high, x] if also or high else [x]
    data = b"".join(number.to_bytes(48, "big") for number in numbers)
    return bytes([data[0] | 0x80 | (0x20 if larger else 0)]) + data[1:]


def sign(number: int, secret: int = SECRET) -> str:
    """The value of a round, in hex."""
    hashed = bls.hash_to_g1(sha256(number.to_bytes(8, "big")).digest())
    return compressed(bls._multiple(secret, hashed)).hex()


def public_key(secret: int = SECRET) -> str:
    first, second = bls._GENERATOR
    return compressed(bls._multiple(secret, (first, second))).hex()


KEY = (
    "95bb080cf5b8d86f44a3f2d7847ae9f33d06a776c20807734c58a4957407ce17"
    "9d680315a6e4e2d6a7b4b35f3381e4510ed20b5893b51cdc225312a2820c2973"
    "9b9a24b177d53c8a37ccb98cb3e59cc8209ab16a56173f76bf65396cf2d97b91"
)


def network(genesis_ms: int, period_ms: int = 30_000, source: str = "drand") -> BeaconNetwork:
    return BeaconNetwork(source, genesis_ms, period_ms, KEY)


def signed(promised: BeaconRound) -> tuple[str, int, str]:
    """What is to be supplied for a round: its network, its number and its value."""
    return promised.source, promised.round, sign(promised.round)
