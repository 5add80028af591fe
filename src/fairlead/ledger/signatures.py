"""Whether a signature holds; apart from the keys, because every command checks one checkpoint."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def signature_holds(public_key: bytes, data: bytes, signature: str) -> bool:
    """Whether the holder of the key signed these bytes; False for anything malformed."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError, TypeError):  # who edits a database chooses types, too
        return False
    return True
