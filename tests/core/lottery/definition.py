"""Seed and draws by their written definition, with nothing of Fairlead's in it."""

import hashlib
import hmac
import json
from typing import Any


def lp(part: bytes) -> bytes:
    """The length in 8 bytes, big endian, then the part."""
    return len(part).to_bytes(8, "big") + part


def preimage(vector: dict[str, Any]) -> bytes:
    """What the seed is the SHA-256 of."""
    data = lp(b"fairlead/seed/v1")
    data += lp(bytes.fromhex(vector["conflict_digest"]))
    data += lp(vector["sequence"].to_bytes(8, "big"))
    data += lp(bytes.fromhex(vector["entropy"]))
    data += lp(bytes.fromhex(vector["beacon"] or ""))
    for each in sorted(vector["nonces"], key=lambda each: each["owner"]):
        data += lp(each["owner"].encode()) + lp(bytes.fromhex(each["nonce"]))
    return data


def seed(vector: dict[str, Any]) -> str:
    """Hex."""
    return hashlib.sha256(preimage(vector)).hexdigest()


def tries(seed_hex: str, stage: str, k: int, n: int) -> list[dict[str, Any]]:
    """Every hash of one draw until one is not thrown away."""
    made: list[dict[str, Any]] = []
    counter = 0
    while True:
        msg = b"fairlead/lottery/v1\0" + stage.encode() + b"\0"
        msg += k.to_bytes(8, "big") + counter.to_bytes(8, "big")
        code = hmac.new(bytes.fromhex(seed_hex), msg, hashlib.sha256).digest()
        made.append({"counter": counter, "message": msg.hex(), "hmac": code.hex()})
        if int.from_bytes(code[:8], "big") < 2**64 - (2**64 % n):
            return made
        counter += 1


def pick(seed_hex: str, stage: str, k: int, n: int) -> int:
    """The number that is drawn."""
    return int(tries(seed_hex, stage, k, n)[-1]["hmac"][:16], 16) % n


def play(seed_hex: str, tokens: dict[str, list[str]], count: int) -> list[dict[str, Any]]:
    """The first `count` draws from these tokens."""
    left = {owner: sorted(names) for owner, names in tokens.items()}
    made = []
    for k in range(count):
        owners = sorted(owner for owner, names in left.items() if names)
        owner = owners[pick(seed_hex, "owner", k, len(owners))]
        names = list(left[owner])
        token = names[pick(seed_hex, "token", k, len(names))]
        left[owner].remove(token)
        made.append({"index": k, "owners": owners, "owner": owner, "tokens": names, "token": token})
    return made


def canonical(document: dict[str, Any]) -> str:
    """Canonical JSON of a document whose keys are ASCII and whose numbers are integers."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
