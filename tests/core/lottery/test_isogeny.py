"""The constants of the 11-isogeny, as they are written down."""

from fairlead.core.lottery.isogeny import A, B, _numbers


def test_constants_are_numbers_of_48_bytes() -> None:
    """In hexadecimal, one after the other."""
    assert _numbers("") == ()
    assert _numbers("00" * 47 + "0a" + "10" + "00" * 47) == (10, 16 * 256**47)
    assert _numbers(f"{A:096x}{B:096x}") == (A, B)
