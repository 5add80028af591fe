"""Whether a drand network signed a round: BLS signatures on the curve BLS12-381.

Only what a check needs, from the definitions, for the scheme of drand's `quicknet`
(`bls-unchained-g1-rfc9380`): a signature is a point of G1 (48 bytes), a key is one of G2 (96
bytes), the message is SHA-256 of the round's number. Everything is public, so nothing has to take
constant time. docs/decisions/0076-beacon-signatures.md says why this is not a library.

A signature holds where e(signature, g2) = e(the message hashed to G1, key). Fp2 is a pair (a, b)
for a + b·u with u² = -1; Fp12 is the twelve coefficients of powers of w, with w⁶ = 1 + u. Points of
G1 are written over Fp2 too, so that there is one addition.
"""

from collections.abc import Sequence
from hashlib import sha256

from fairlead.core.invariant import known
from fairlead.core.lottery.isogeny import X_OVER, X_UNDER, Y_OVER, Y_UNDER, A, B

P = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf"
    "6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
SIGNATURE_BYTES, KEY_BYTES = 48, 96
_LOOP = 0xD201000000010000  # the parameter of the curve, without its sign
_COFACTOR = _LOOP + 1
_TAG = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"

Fp2 = tuple[int, int]
Fp12 = list[int]
Point = tuple[Fp2, Fp2] | None
"""None: the point at infinity."""

_ONE: Fp12 = [1, *[0] * 11]
_GENERATOR = tuple(
    (int(text[96:], 16), int(text[:96], 16))
    for text in (
        "13e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049"
        "334cf11213945d57e5ac7d055d042b7e024aa2b2f08f0a91260805272dc51051"
        "c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8",
        "0606c4a02ea734cc32acd2b02bc28b99cb3e287e85a763af267492ab572e99ab"
        "3f370d275cec1da1aaa9075ff05f79be0ce5d527727d6e118cc9cdc6da2e351a"
        "adfd9baa8cbdd3a76d429a695160d12c923ac9cc3baca289e193548608b82801",
    )
)


def signature_holds(public_key: bytes, number: int, signature: bytes) -> bool:
    """Whether this network signed round `number`; False too for bytes that are no such points."""
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    key, signed = _read(public_key, (4, 4)), _read(signature, (4, 0))
    if key is None or signed is None:
        return False
    hashed = hash_to_g1(sha256(number.to_bytes(8, "big")).digest())
    generator = (_GENERATOR[0], _GENERATOR[1])
    product = _times(_miller(signed, _negated(generator)), _miller(hashed, key))
    return _is_one(product)


# -- Fp2 ----------------------------------------------------------------------------------------


def _add2(a: Fp2, b: Fp2) -> Fp2:
    return ((a[0] + b[0]) % P, (a[1] + b[1]) % P)


def _sub2(a: Fp2, b: Fp2) -> Fp2:
    return ((a[0] - b[0]) % P, (a[1] - b[1]) % P)


def _mul2(a: Fp2, b: Fp2) -> Fp2:
    return ((a[0] * b[0] - a[1] * b[1]) % P, (a[0] * b[1] + a[1] * b[0]) % P)


def _div2(a: Fp2, b: Fp2) -> Fp2:
    inverse = pow(b[0] * b[0] + b[1] * b[1], -1, P)
    return _mul2(a, (b[0] * inverse % P, -b[1] * inverse % P))


def _power2(a: Fp2, exponent: int) -> Fp2:
    found: Fp2 = (1, 0)
    for bit in bin(exponent)[2:]:
        found = _mul2(found, found)
        found = _mul2(found, a) if bit == "1" else found
    return found


def _root2(a: Fp2) -> Fp2 | None:
    """A square root, if there is one (P is 3 modulo 4)."""
    half = _power2(a, (P - 3) // 4)
    root = _mul2(half, a)
    sign = _mul2(half, root)
    if sign == (P - 1, 0):
        root = _mul2((0, 1), root)
    else:
        root = _mul2(_power2(_add2((1, 0), sign), (P - 1) // 2), root)
    return root if _mul2(root, root) == a else None


# -- points --------------------------------------------------------------------------------------


def _slope(a: tuple[Fp2, Fp2], b: tuple[Fp2, Fp2]) -> Fp2 | None:
    """Of the line through both, a tangent where they are one; None: it is vertical."""
    if a == b and a[1] != (0, 0):
        return _div2(_mul2((3, 0), _mul2(a[0], a[0])), _add2(a[1], a[1]))
    return None if a[0] == b[0] else _div2(_sub2(b[1], a[1]), _sub2(b[0], a[0]))


def _add(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return a or b
    slope = _slope(a, b)
    if slope is None:
        return None
    x = _sub2(_sub2(_mul2(slope, slope), a[0]), b[0])
    return x, _sub2(_mul2(slope, _sub2(a[0], x)), a[1])


def _multiple(number: int, point: Point) -> Point:
    found: Point = None
    for bit in bin(number)[2:]:
        found = _add(found, found)
        found = _add(found, point) if bit == "1" else found
    return found


def _negated(point: tuple[Fp2, Fp2]) -> tuple[Fp2, Fp2]:
    return point[0], _sub2((0, 0), point[1])


def _read(data: bytes, b: Fp2) -> tuple[Fp2, Fp2] | None:
    """A compressed point of the subgroup; the one at infinity is none to sign with."""
    if data[0] & 0xC0 != 0x80:
        return None
    last, first = data[-48:], bytes([data[0] & 0x1F]) + data[1:48]
    high = int.from_bytes(first, "big")
    x = (int.from_bytes(last, "big"), high) if b[1] else (high, 0)
    if max(x) >= P:
        return None
    y = _root2(_add2(_mul2(_mul2(x, x), x), b))
    if y is None or (y[1] and not b[1]):  # every number of Fp has a root in Fp2
        return None
    larger = (y[1] or y[0]) > P // 2
    point = (x, y) if larger == bool(data[0] & 0x20) else _negated((x, y))
    return point if _multiple(ORDER, point) is None else None


# -- hashing to G1 (RFC 9380) --------------------------------------------------------------------


def hash_to_g1(message: bytes) -> tuple[Fp2, Fp2]:
    """BLS12381G1_XMD:SHA-256_SSWU_RO_."""
    data = _expanded(message, 128)
    first, second = (_mapped(int.from_bytes(data[at : at + 64], "big") % P) for at in (0, 64))
    return known(_multiple(_COFACTOR, _add(first, second)), "no hash to infinity is known")


def _expanded(message: bytes, size: int) -> bytes:
    tag = _TAG + bytes([len(_TAG)])
    whole = sha256(bytes(64) + message + size.to_bytes(2, "big") + b"\0" + tag).digest()
    blocks = [sha256(whole + b"\1" + tag).digest()]
    for number in range(2, size // 32 + 1):
        mixed = bytes(a ^ b for a, b in zip(whole, blocks[-1], strict=True))
        blocks.append(sha256(mixed + bytes([number]) + tag).digest())
    return b"".join(blocks)


def _mapped(u: int) -> Point:
    """The simplified map of Shallue, van de Woestijne and Ulas, and the isogeny behind it."""
    square = 11 * u * u % P
    below = (square * square + square) % P
    x = (-B * (below + 1) * pow(A * below, -1, P) if below else B * pow(11 * A, -1, P)) % P
    root = _root(_on_isogenous(x))
    if root is None:
        x = square * x % P
        root = _root(_on_isogenous(x)) or 0
    y = root if root % 2 == u % 2 else -root
    over = _value(X_OVER, x) * pow(_value(X_UNDER, x), -1, P)
    return (over % P, 0), (y * _value(Y_OVER, x) * pow(_value(Y_UNDER, x), -1, P) % P, 0)


def _on_isogenous(x: int) -> int:
    return (x**3 + A * x + B) % P


def _root(a: int) -> int | None:
    root = pow(a, (P + 1) // 4, P)
    return root if root * root % P == a else None


def _value(coefficients: Sequence[int], x: int) -> int:
    total = 0
    for each in reversed(coefficients):
        total = (total * x + each) % P
    return total


# -- the pairing ---------------------------------------------------------------------------------


def _times(a: Fp12, b: Fp12) -> Fp12:
    total = [0] * 23
    for i, x in enumerate(a):
        if x:
            for j, y in enumerate(b):
                total[i + j] += x * y
    for power in range(22, 11, -1):  # w¹² = 2w⁶ - 2
        total[power - 6] += 2 * total[power]
        total[power - 12] -= 2 * total[power]
    return [each % P for each in total[:12]]


def _is_one(a: Fp12) -> bool:
    """Whether a^((P¹² - 1) / ORDER) is 1; its exponent is (P⁶ - 1)(P² + 1) times a smaller one.

    To the power of P² each w becomes w times a sixth root of 1; to that of P⁶ it becomes -w.
    """
    small = _power(a, (P**4 - P**2 + 1) // ORDER)
    root, _ = _power2((1, 1), (P**2 - 1) // 6)
    turned = [each * pow(root, power, P) % P for power, each in enumerate(small)]
    return not any(_times(turned, small)[1::2])


def _power(a: Fp12, exponent: int) -> Fp12:
    found = _ONE
    for bit in bin(exponent)[2:]:
        found = _times(found, found)
        found = _times(found, a) if bit == "1" else found
    return found


def _line(at: tuple[Fp2, Fp2], slope: Fp2, point: tuple[Fp2, Fp2]) -> Fp12:
    """A line of the twist at a point of G1, but for a factor that the final power removes."""
    still, (x, _), (y, _) = _sub2(_mul2(slope, at[0]), at[1]), *point
    turning = _mul2(slope, (P - x, 0))
    line = [0] * 12
    for power, (a, b) in ((0, still), (2, turning), (3, (y, 0))):
        line[power] = (a - b) % P
        line[power + 6] = b
    return line


def _miller(point: tuple[Fp2, Fp2], on_twist: tuple[Fp2, Fp2]) -> Fp12:
    """The loop over the curve's parameter; points have a large order, so no line is vertical."""
    found, at = _ONE, on_twist

    def step(other: tuple[Fp2, Fp2]) -> tuple[Fp12, tuple[Fp2, Fp2]]:
        slope = known(_slope(at, other), "the line is not vertical")
        return _times(found, _line(at, slope, point)), known(_add(at, other), "not at infinity")

    for bit in bin(_LOOP)[3:]:
        found = _times(found, found)
        found, at = step(at)
        if bit == "1":
            found, at = step(on_twist)
    return found
