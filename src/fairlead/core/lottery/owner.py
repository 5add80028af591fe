"""What an owner signs: the key that it signs with from now on, and the nonces that it adds.

The ledger's id and the owner's name are under the signature, so that one is no signature elsewhere;
and the number of entries that the owner knew of, so that an old nonce is no new one.
"""

from fairlead.core.lottery.seed import lp


def key_message(ledger: str, owner: str, public_key: bytes) -> bytes:
    parts = (b"fairlead/owner-key/v1", ledger.encode(), owner.encode(), public_key)
    return b"".join(map(lp, parts))


def nonce_message(ledger: str, owner: str, nonce: bytes, size: int) -> bytes:
    parts = (b"fairlead/nonce/v1", ledger.encode(), owner.encode(), nonce, size.to_bytes(8, "big"))
    return b"".join(map(lp, parts))
