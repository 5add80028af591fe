"""Signatures of beacons: a real round of drand's quicknet, and bytes that are none."""

import pytest

from fairlead.core.lottery import bls
from fairlead.core.lottery.beacon import NETWORKS, QUICKNET, BeaconRound
from fairlead.core.lottery.isogeny import X_OVER, X_UNDER, A, B
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
    """At 0 and where 11u² is -1 the general formula would divide by 0: there x is B / 11A."""
    other = bls._root(-pow(11, -1, bls.P) % bls.P)
    assert other is not None
    before = B * pow(11 * A, -1, bls.P) % bls.P
    under = pow(bls._value(X_UNDER, before), -1, bls.P)
    for u in (0, other, bls.P - other):
        point = bls._mapped(u)
        assert point is not None
        (x, _), (y, _) = point
        assert (y * y - x**3 - 4) % bls.P == 0
        assert x == bls._value(X_OVER, before) * under % bls.P


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("message", "x", "y"),
    [
        (
            b"",
            "052926add2207b76ca4fa57a8734416c8dc95e24501772c8"
            "14278700eed6d1e4e8cf62d9c09db0fac349612b759e79a1",
            "08ba738453bfed09cb546dbb0783dbb3a5f1f566ed67bb6b"
            "e0e8c67e2e81a4cc68ee29813bb7994998f3eae0c9c6a265",
        ),
        (
            b"abc",
            "03567bc5ef9c690c2ab2ecdf6a96ef1c139cc0b2f284dca0"
            "a9a7943388a49a3aee664ba5379a7655d3c68900be2f6903",
            "0b9c15f3fe6e5cf4211f346271d7b01c8f3b28be689c8429"
            "c85b67af215533311f0b8dfaaa154fa6b88176c229f2885d",
        ),
    ],
    ids=["nothing", "abc"],
)
def test_messages_are_hashed_as_rfc_9380_hashes_them(
    message: bytes, x: str, y: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J.9.1, with its tag in the place of drand's."""
    monkeypatch.setattr(bls, "_TAG", b"QUUX-V01-CS02-with-BLS12381G1_XMD:SHA-256_SSWU_RO_")
    assert bls.hash_to_g1(message) == ((int(x, 16), 0), (int(y, 16), 0))


@pytest.mark.interpreted
def test_messages_are_expanded_as_rfc_9380_expands_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """K.1: to as many bytes as are asked for."""
    monkeypatch.setattr(bls, "_TAG", b"QUUX-V01-CS02-with-expander-SHA256-128")
    assert bls._expanded(b"", 32).hex() == (
        "68a985b87eb6b46952128911f2a4412bbc302a9d759667f87f7a21d803f07235"
    )
    assert bls._expanded(b"abc", 32).hex() == (
        "d8ccab23b5985ccea865c6c97b6e5b8350e794e603b4b97902f53a8a0d605615"
    )


def test_a_square_has_a_root_and_nothing_else_has() -> None:
    """In Fp each number has one, maybe a multiple of u. 1 + u is no square."""
    for number in ((0, 0), (4, 0), (bls.P - 4, 0), bls._mul2((3, 5), (3, 5))):
        root = bls._root2(number)
        assert root is not None
        assert bls._mul2(root, root) == number
    assert bls._root2((1, 1)) is None


def test_a_point_is_read_as_it_was_written() -> None:
    """Of the two at an x the one that the third bit says."""
    generator = (bls._GENERATOR[0], bls._GENERATOR[1])
    for point in (generator, bls._negated(generator)):
        assert bls._read(network.compressed(point), (4, 4)) == point


@pytest.mark.interpreted
def test_points_next_to_the_middle_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle is half of P. Points at 0 have the order 3, on any curve."""
    monkeypatch.setattr(bls, "ORDER", 3)
    for real in range(1, 9):
        y = (real, bls.P // 2)
        for point in (((0, 0), y), bls._negated(((0, 0), y))):
            assert bls._read(network.compressed(point), bls._mul2(y, y)) == point


@pytest.mark.interpreted
def test_only_points_of_the_order_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """(0, 2) is none. P is no other way to write 0."""
    zero, same = bytes(48), bls.P.to_bytes(48, "big")
    zero, same = (bytes([data[0] | 0x80]) + data[1:] for data in (zero, same))
    assert bls._read(zero, (4, 0)) is None
    monkeypatch.setattr(bls, "ORDER", 3)
    assert bls._read(zero, (4, 0)) == ((0, 0), (2, 0))
    assert bls._read(same, (4, 0)) is None


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
