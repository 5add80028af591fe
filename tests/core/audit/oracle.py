"""The recursive definitions of RFC 9162, word for word: slow, short, and none of our code."""

from hashlib import sha256


def mth(data: list[bytes]) -> bytes:
    """2.1.1: the Merkle Tree Hash of a list."""
    if not data:
        return sha256(b"").digest()
    if len(data) == 1:
        return sha256(b"\x00" + data[0]).digest()
    k = _split(len(data))
    return sha256(b"\x01" + mth(data[:k]) + mth(data[k:])).digest()


def path(m: int, data: list[bytes]) -> list[bytes]:
    """2.1.3.1: PATH(m, D_n)."""
    if len(data) == 1:
        return []
    k = _split(len(data))
    if m < k:
        return [*path(m, data[:k]), mth(data[k:])]
    return [*path(m - k, data[k:]), mth(data[:k])]


def proof(m: int, data: list[bytes]) -> list[bytes]:
    """2.1.4.1: PROOF(m, D_n)."""
    return _subproof(m, data, known=True)


def _subproof(m: int, data: list[bytes], *, known: bool) -> list[bytes]:
    if m == len(data):
        return [] if known else [mth(data)]
    k = _split(len(data))
    if m <= k:
        return [*_subproof(m, data[:k], known=known), mth(data[k:])]
    return [*_subproof(m - k, data[k:], known=False), mth(data[:k])]


def _split(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k
