"""What an owner signs, byte for byte as the page describes it."""

from fairlead.core.lottery.owner import key_message, nonce_message


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def test_a_key_is_signed_with_its_ledger_and_owner() -> None:
    said = framed(b"fairlead/owner-key/v1", b"5e11", "wést".encode(), b"\x01" * 32)
    assert key_message("5e11", "wést", b"\x01" * 32) == said


def test_a_nonce_is_signed_with_the_entries_that_were_known() -> None:
    said = framed(b"fairlead/nonce/v1", b"5e11", "wést".encode(), b"salt", b"\0" * 6 + b"\x01\x02")
    assert nonce_message("5e11", "wést", b"salt", 258) == said
