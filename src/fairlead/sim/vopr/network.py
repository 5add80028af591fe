"""A public network of randomness, in virtual time. It signs as drand's do, with the secret 1: its
key is the generator, and a signature is the point that the round's number is hashed to."""

from functools import lru_cache
from hashlib import sha256

from fairlead.core.lottery import BeaconNetwork
from fairlead.core.lottery.bls import SIGNATURE_BYTES, P, hash_to_g1

_KEY = (
    "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049"
    "334cf11213945d57e5ac7d055d042b7e024aa2b2f08f0a91260805272dc51051"
    "c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
)
_COMPRESSED, _LARGER = 0x80, 0x20


def network(genesis_ms: int) -> BeaconNetwork:
    return BeaconNetwork("sim-network", genesis_ms, 30_000, _KEY)


@lru_cache(maxsize=4096)
def value_of(number: int) -> str:
    """What the network publishes for a round, in hex."""
    (x, _), (y, _) = hash_to_g1(sha256(number.to_bytes(8, "big")).digest())
    data = bytearray(x.to_bytes(SIGNATURE_BYTES, "big"))
    data[0] |= _COMPRESSED | (_LARGER if y > P // 2 else 0)
    return data.hex()
