"""The bytes of a head: fixed for good, and different whenever anything differs."""

from dataclasses import replace

from fairlead.core.audit import Head, SignedHead, key_id, statement_to_sign

HEAD = Head(ledger="l", epoch=0, size=3, root="ab", time_ms=7, key_id="k")


def test_the_signed_bytes_are_fixed() -> None:
    """A purpose, then canonical JSON: signatures made today must hold for ever."""
    assert HEAD.to_sign() == (
        b'fairlead/head/v1\n{"epoch":0,"key_id":"k","ledger":"l","root":"ab","size":3,"time_ms":7}'
    )
    assert statement_to_sign("l", {"b": 1, "a": 2}) == (
        b'fairlead/statement/v1\n{"ledger":"l","statement":{"a":2,"b":1}}'
    )


def test_every_field_is_under_the_signature() -> None:
    """Change one, and the bytes change."""
    others = {"ledger": "m", "epoch": 1, "size": 4, "root": "cd", "time_ms": 8, "key_id": "j"}
    changed = {replace(HEAD, **{name: value}).to_sign() for name, value in others.items()}
    assert len(changed | {HEAD.to_sign()}) == len(others) + 1


def test_a_signed_head_as_a_document() -> None:
    """Flat, so that it can be read at a glance."""
    document = SignedHead(HEAD, "5e").as_document()
    assert document == {
        "ledger": "l",
        "epoch": 0,
        "size": 3,
        "root": "ab",
        "time_ms": 7,
        "key_id": "k",
        "signature": "5e",
    }


def test_a_key_id_is_short_and_fixed() -> None:
    """The first 16 hex digits of the key's SHA-256."""
    assert key_id(bytes(32)) == "66687aadf862bd77"
