"""Signatures of beacons: a real round of drand's quicknet, and bytes that are none."""

import pytest

from fairlead.core.lottery import bls
from fairlead.core.lottery.beacon import NETWORKS, QUICKNET, BeaconRound
from tests.core.lottery import network

ROUND = QUICKNET.at(1_000)
SIGNED = bytes.fromhex(
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b1957"
    "6350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
)


def test_a_round_of_quicknet_holds_and_no_other() -> None:
    """As the network published it on 23 August 2023."""
    assert ROUND.holds(SIGNED)
    assert not QUICKNET.at(1_001).holds(SIGNED)
    assert not ROUND.holds(SIGNED[:-1] + bytes([SIGNED[-1] ^ 1]))
    assert not ROUND.holds(bytes([SIGNED[0] ^ 0x20]) + SIGNED[1:])  # the other root
    assert ROUND.due_ms == 1_692_806_364_000
    assert NETWORKS == {"drand-quicknet": QUICKNET}


def test_a_network_of_our_own() -> None:
    """Any round; with another key it is none."""
    key = bytes.fromhex(network.KEY)
    assert network.public_key() == network.KEY
    assert bls.signature_holds(key, 7, bytes.fromhex(network.sign(7)))
    assert not bls.signature_holds(key, 7, bytes.fromhex(network.sign(7, network.SECRET + 1)))


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        SIGNED + b"\0",
        b"\0" * 48,  # not compressed
        b"\xc0" + b"\0" * 47,  # infinity
        b"\x9f" + b"\xff" * 47,  # beyond the field
        b"\x80" + b"\0" * 46 + b"\x01",  # no point of the curve
        b"\x80" + b"\0" * 47,  # a point of the curve, and of another order
    ],
    ids=range(7),
)
def test_bytes_that_are_no_signature(signature: bytes) -> None:
    """Are refused, and do not raise."""
    assert not bls.signature_holds(bytes.fromhex(QUICKNET.public_key), 1_000, signature)


def test_bytes_that_are_no_key() -> None:
    """Nor is a key that is no point of its group."""
    assert not bls.signature_holds(b"", 1_000, SIGNED)
    for key in (b"\xc0" + b"\0" * 95, *(b"\x80" + b"\0" * 94 + bytes([x]) for x in range(4))):
        assert not bls.signature_holds(key, 1_000, SIGNED)


def test_the_map_of_rfc_9380_knows_its_exception() -> None:
    """At 0 the general formula would divide by 0."""
    point = bls._mapped(0)
    assert point is not None
    (x, _), (y, _) = point
    assert (y * y - x**3 - 4) % bls.P == 0


def test_opposite_points_add_up_to_infinity() -> None:
    """And to it everything adds up to itself; a point of order two is its own opposite."""
    hashed = bls.hash_to_g1(b"")
    assert bls._add(hashed, bls._negated(hashed)) is None
    assert bls._add(None, hashed) == bls._add(hashed, None) == hashed
    flat = ((5, 0), (0, 0))
    assert bls._slope(flat, flat) is None


def test_rounds_are_written_with_their_network_or_without() -> None:
    """Those of the first protocol have none."""
    assert BeaconRound.of(ROUND.document()) == ROUND
    plain = BeaconRound("drand", 7)
    assert plain.document() == {"source": "drand", "round": 7}
    assert QUICKNET.round_after(ROUND.due_ms).round == 1_002
    assert QUICKNET.round_after(0).round == 3
