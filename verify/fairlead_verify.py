#!/usr/bin/env python3
"""Check the outcome of a Fairlead lottery without Fairlead, and without trust in who sent it.

    python3 fairlead_verify.py outcome.json [--head SIZE:ROOT]... [--key HEX]... [--network HEX]...
                               [--owner-key HEX]...

`outcome.json` comes from `fairlead audit outcome N --export`. Name with --head every head of the
ledger that you kept, with --key the operator's key (or key id) that you know, with --owner-key the
key that you sign your nonces with, and with --network the key of a beacon other than drand's
quicknet that you trust: only what you kept yourself can show that you are told the same story as
all other owners.
Exit status: 0 everything holds; 1 something does not; 2 this is no export, or was edited.

One file, standard library, Python 3.9 or later; read it from top to bottom in a quarter of an hour:
    1 bytes      how documents become bytes, and bytes become hashes
    2 lottery    the seed, and a fair number from it
    3 decision   which runs are preempted: the rules of `gpu.resolve`, run again
    4 log        Merkle proofs (RFC 9162) and signatures (Ed25519, RFC 8032)
    5 beacon     signatures of drand's quicknet (BLS12-381, RFC 9380)
    6 form       which fields an export has
    7 checks     in the order in which they are reported
docs/reference/outcome-export.md has the exact form, docs/concepts/lottery.md the reasons, and
docs/concepts/lottery-adversaries.md what a label protects from whom.
"""

import argparse
import hashlib
import hmac
import json
import re
import sys
from collections import Counter, deque, namedtuple
from datetime import datetime, timezone


class Malformed(Exception):
    """This is not an export: exit status 2."""


class DoesNotHold(Exception):
    """The export says something that is not true: exit status 1."""


def need(good, sentence):
    if not good:
        raise DoesNotHold(sentence)


def counted(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- 1 bytes ----------------------------------------------------------------------------------

quoted = json.JSONEncoder(ensure_ascii=False).encode


def canonical_text(value):
    """RFC 8785, for all that an export may hold: no fractions, no numbers beyond 2^53 - 1."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join([f"{quoted(key)}:{canonical_text(value[key])}" for key in keys]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([canonical_text(item) for item in value]) + "]"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 2**53):
        raise Malformed(f"no number of an export: {value}")
    return quoted(value)


def canonical(value):
    return canonical_text(value).encode()


def sha256(data):
    return hashlib.sha256(data).digest()


def digest(document):
    return sha256(canonical(document)).hex()


def hmac256(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def lp(data):
    """Length-prefixed, so that no two lists of parts have the same bytes."""
    data = data.encode() if isinstance(data, str) else data
    return len(data).to_bytes(8, "big") + data


def eight(number):
    return number.to_bytes(8, "big")


# --- 2 lottery --------------------------------------------------------------------------------


def seed_of(conflict_digest, k, entropy, beacon_value, nonces):
    """Everything that the draws depend on, in one hash. Nonces are (owner, bytes)."""
    parts = [b"fairlead/seed/v1", conflict_digest, eight(k), entropy, beacon_value]
    for owner, nonce in sorted(nonces):
        parts += [owner, nonce]
    return sha256(b"".join(lp(part) for part in parts))


def turn_seed_of(chain, turn, entropy, beacon_value, nonces):
    """The same of a turn: nothing that the conflict says is in it."""
    parts = [b"fairlead/seed/v2", chain, eight(turn), entropy, beacon_value]
    for owner, nonce in sorted(nonces):
        parts += [owner, nonce]
    return sha256(b"".join(lp(part) for part in parts))


def fair_number(n, seed, stage, k):
    """A number below n, each equally likely: draw k of a stage."""
    counter = 0
    while True:
        message = b"fairlead/lottery/v1\0" + stage + b"\0" + eight(k) + eight(counter)
        x = int.from_bytes(hmac256(seed, message)[:8], "big")
        if x < 2**64 - (2**64 % n):  # else the lowest numbers would be a little more likely
            return x % n
        counter += 1


def pseudonym(secret, chain, k, kind, parts):
    """What a name is called in one outcome; only its owner's secret connects the two."""
    key = hmac256(secret, lp("fairlead/pseudonym/v1") + lp(bytes.fromhex(chain)) + lp(eight(k)))
    return kind[0] + "-" + hmac256(key, b"".join(map(lp, [kind, *parts]))).hex()[:32]


# --- 3 decision -------------------------------------------------------------------------------


def heaps_of(size, missing):
    """Runs that any rule takes, heaps of the others, and whether the heap that is drawn stays.

    Each run is in one heap, and the heaps are equally likely: every GPU is as likely as the next.
    """
    spare = sum(size.values()) - missing
    order = sorted(size, key=lambda run: (-size[run], run))
    needed = [run for run in order if size[run] > spare]  # without it all others are not enough
    order, missing = order[len(needed) :], missing - sum(size[run] for run in needed)
    if missing <= 0:
        return needed, [], False
    left, rest, heaps = deque(order), sum(size[run] for run in order), []
    while rest >= missing:  # heaps that are enough: the largest run left, then the smallest
        heaps.append([left.popleft()])
        total = size[heaps[-1][0]]
        while total < missing:
            heaps[-1].append(left.pop())
            total += size[heaps[-1][-1]]
        rest -= total
    if len(heaps) > 1:
        heaps[-1] += left
        return needed, heaps, False
    heaps, total = [], spare
    for run in order:  # there are no two: heaps that can be spared
        if total + size[run] > spare:
            heaps.append([])
            total = 0
        heaps[-1].append(run)
        total += size[run]
    return needed, heaps, True


Cut = namedtuple("Cut", "run kind tier draw leases gpus")  # gpus: of the leases in scope


def difference(lease, scope):
    """What puts a lease out of scope; None for a candidate."""
    if lease.flavor != scope.flavor:
        return "flavor"
    if any(lease.location.get(key) != scope.location[key] for key in scope.location):
        return "location"
    cap = scope.cap
    if cap and not (lease.budget == cap.budget and lease.envelope in cap.envelopes):
        return "payer"
    return None


def by_group(lease):
    return -lease.group, lease.id


class Resolve:
    """Tier by tier: spares, steps of malleable runs, the lottery; until the deficit is met."""

    def __init__(self, conflict, seed, weighting="owners"):
        self.conflict, self.seed, self.deficit = conflict, seed, conflict.deficit_gpus
        self.weighting = weighting  # between whom the lottery is fair: owners, tokens or stake
        self.runs = {run.id: run for run in conflict.runs}
        self.open = {run: {} for run in sorted(self.runs)}  # run -> lease id -> lease
        for lease in conflict.leases:
            self.open[lease.run][lease.id] = lease
        scope = conflict.scope
        self.inside = {lease.id for lease in conflict.leases if not difference(lease, scope)}
        self.cuts, self.draws, self.first_tokens, self.freed = [], [], {}, 0
        self.first_odds = {}  # under stake: run -> (so many times, one in)

    def gpus(self, leases):
        return sum(lease.gpus for lease in leases if lease.id in self.inside)

    def tier(self, run):
        """Fixed from the input; unfunded if any of its candidates is."""
        mine = [lease for lease in self.open[run].values() if lease.id in self.inside]
        if not all(lease.funded for lease in mine):
            return "unfunded"
        return ("nominated" if self.runs[run].nominated else "funded") if mine else None

    def cut(self, run, kind, tier, leases, draw=None):
        leases = sorted(leases, key=by_group)
        for lease in leases:
            del self.open[run][lease.id]
        self.cuts.append(Cut(run, kind, tier, draw, leases, self.gpus(leases)))
        self.freed += self.cuts[-1].gpus

    def drop_spares(self, runs, tier):
        for run in runs:
            for lease in sorted(self.open[run].values(), key=by_group):
                candidate = lease.role == "spare" and lease.id in self.inside
                if candidate and self.freed < self.deficit:
                    self.cut(run, "DropSpare", tier, [lease])

    def steps(self, run):
        """All steps by which a run can shrink: (GPUs above its minimum before, run, groups)."""
        malleable, found = self.runs[run].malleable, []
        if not malleable:
            return found
        active = [lease for lease in self.open[run].values() if lease.role == "active"]
        outside = {lease.group for lease in active if lease.id not in self.inside}
        size = Counter()
        for lease in active:
            size[lease.group] += lease.gpus
        above = sum(size.values()) - malleable.min_gpus
        taken, total = set(), 0
        for group in sorted(set(size) - outside, reverse=True):
            taken.add(group)
            total += size[group]
            if total <= above and total % malleable.step_gpus == 0:
                found.append((above, run, taken))
                above, taken, total = above - total, set(), 0
        return found

    def shrink(self, runs, tier):
        """A step at a time, of the run with the most above its minimum, ties by run id.

        Each step leaves its run less above, so that this is the order of all steps together.
        """
        steps = [step for run in runs for step in self.steps(run)]
        for _, run, groups in sorted(steps, key=lambda step: (-step[0], step[1])):
            if self.freed < self.deficit:
                gone = [lease for lease in self.open[run].values() if lease.group in groups]
                self.cut(run, "Shrink", tier, gone)

    def preempt(self, runs, tier):
        """Tokens are whole runs. An owner is drawn, then one of its tokens; or a heap of tokens."""
        tokens = {}
        for run in runs:
            if not self.inside.isdisjoint(self.open[run]):
                tokens.setdefault(self.runs[run].owner, []).append(run)
        if not tokens or self.freed >= self.deficit:
            return
        self.first_tokens = self.first_tokens or {each: list(tokens[each]) for each in tokens}
        stake = self.weighting == "stake"
        lost = self.drawn_heap([run for each in tokens for run in tokens[each]]) if stake else []
        while lost if stake else tokens and self.freed < self.deficit:
            index, owners = len(self.draws), sorted(tokens)
            if stake:
                token = lost.pop(0)
                owner = self.runs[token].owner
            else:
                owner, token = self.drawn(tokens, owners, index)
            self.draws.append(
                {
                    "index": index,
                    "tier": tier,
                    "owners": owners,
                    "owner": owner,
                    "tokens": list(tokens[owner]),
                    "token": token,
                }
            )
            self.cut(token, "RandomPreempt", tier, self.open[token].values(), draw=index)
            tokens[owner].remove(token)
            if not tokens[owner]:
                del tokens[owner]

    def drawn(self, tokens, owners, index):
        """In the urn is every owner once, or, where tokens are equal, once for each of them."""
        urn = owners
        if self.weighting == "tokens":
            urn = [owner for owner in owners for _ in tokens[owner]]
        owner = urn[fair_number(len(urn), self.seed, b"owner", index)]
        return owner, tokens[owner][fair_number(len(tokens[owner]), self.seed, b"token", index)]

    def drawn_heap(self, runs):
        """Every run that is lost where every GPU is as likely as the next."""
        size = {run: self.gpus(self.open[run].values()) for run in runs}
        missing = min(self.deficit - self.freed, sum(size.values()))
        needed, heaps, spares = heaps_of(size, missing)
        odds = (len(heaps) - 1 if spares else 1, len(heaps)) if heaps else (0, 1)
        self.first_odds = self.first_odds or {
            run: (1, 1) if run in needed else odds for run in size
        }
        number = fair_number(len(heaps), self.seed, b"heap", len(self.draws)) if heaps else 0
        gone = [heap for place, heap in enumerate(heaps) if (place == number) != spares]
        return sorted(needed + [run for heap in gone for run in heap])

    def give_back(self):
        """Withdraw, from the last structural cut back, what is not needed; returns what stays."""
        drawn = {draw["token"] for draw in self.draws}
        stays, shrunk = set(), {}  # places in self.cuts; run -> groups that stay cut
        for place in reversed(range(len(self.cuts))):
            cut = self.cuts[place]
            groups, later = {lease.group for lease in cut.leases}, shrunk.get(cut.run, set())
            # No holes: a step waits for the later steps of its run, a spare for its group.
            held = cut.run in drawn or (later if cut.kind == "Shrink" else later & groups)
            if not held and self.freed - cut.gpus >= self.deficit:
                self.freed -= cut.gpus
            else:
                stays.add(place)
                if cut.kind == "Shrink":
                    shrunk[cut.run] = later | groups
        return stays

    def lines(self, places):
        return [
            {
                "lease": lease.id,
                "run": cut.run,
                "kind": cut.kind,
                "gpus": lease.gpus,
                "in_scope": lease.id in self.inside,
                "tier": cut.tier,
                "draw": cut.draw,
            }
            for cut in map(self.cuts.__getitem__, sorted(places))
            for lease in cut.leases
        ]

    def result(self):
        """The output of `gpu.resolve`."""
        missing = self.deficit - self.gpus(self.conflict.leases)
        if missing <= 0:  # else nothing is done at all
            tiers = {run: self.tier(run) for run in self.open}
            for tier in ("unfunded", "nominated", "funded"):
                runs = [run for run in tiers if tiers[run] == tier]
                self.drop_spares(runs, tier)
                self.shrink(runs, tier)
                self.preempt(runs, tier)
        stays = self.give_back()
        return {
            "resolved": missing <= 0,
            "deficit_gpus": self.deficit,
            "freed_gpus": self.freed,
            "actions": self.lines(stays),
            "draws": self.draws,
            "withdrawn": self.lines(set(range(len(self.cuts))) - stays),
            "conflict_digest": digest(self.conflict),
            "shortfall_gpus": max(0, missing),
        }


def notice_of(conflict, left_out, weighting):
    """What is announced before the draw: candidates, exclusions, the odds of the first draw."""
    why = {lease.id: difference(lease, conflict.scope) for lease in conflict.leases}
    excluded = [{"lease": lease, "reason": why[lease]} for lease in why if why[lease]]
    resolve = Resolve(conflict, bytes(32), weighting)  # who has a token does not depend on the seed
    resolve.result()
    owners = resolve.first_tokens
    every = sum(map(len, owners.values()))
    one_in = {
        owner: len(owners) * len(owners[owner]) if weighting == "owners" else every
        for owner in owners
    }
    tokens = [
        {"one_in": one_in[owner], "owner": owner, "token": token}
        for owner in owners
        for token in owners[owner]
    ]
    if weighting == "stake":
        for row in tokens:
            row["times"], row["one_in"] = resolve.first_odds[row["token"]]
    return {
        "candidates": sorted(lease for lease in why if not why[lease]),
        "exclusions": sorted(excluded + left_out, key=lambda row: row["lease"]),
        "tokens": sorted(tokens, key=lambda row: row["token"]),
    }


# --- 4 log ------------------------------------------------------------------------------------


def leaf_hash(entry):
    return sha256(b"\x00" + canonical(entry))


def node_hash(left, right):
    return sha256(b"\x01" + left + right)


def split(size):
    """The largest power of two below size: where RFC 9162 divides a tree."""
    return 1 << ((size - 1).bit_length() - 1)


def take(proof):
    need(proof, "a proof is too short")
    return proof.pop()


def root_over(leaf, index, size, proof):
    """The root of a tree of that size with that leaf; uses up the proof from its end."""
    if size == 1:
        return leaf
    left, sibling = split(size), take(proof)
    if index < left:
        return node_hash(root_over(leaf, index, left, proof), sibling)
    return node_hash(sibling, root_over(leaf, index - left, size - left, proof))


def two_roots(old_root, old, new, proof, whole=True):
    """The roots over the first `old` and over all `new` leaves; uses up the proof."""
    if old == new:
        same = old_root if whole else take(proof)
        return same, same
    left, sibling = split(new), take(proof)
    if old <= left:
        first, both = two_roots(old_root, old, left, proof, whole)
        return first, node_hash(both, sibling)
    first, both = two_roots(old_root, old - left, new - left, proof, False)
    return node_hash(sibling, first), node_hash(sibling, both)


# Ed25519: the points of -x² + y² = 1 + D x² y² modulo P, as (X, Y, Z, T) with x = X/Z, y = Y/Z,
# xy = T/Z.
P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def add_points(a, b):
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = f - e, h - g, h + g, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(number, point):
    total = (0, 1, 1, 0)
    while number:
        if number & 1:
            total = add_points(total, point)
        point, number = add_points(point, point), number >> 1
    return total


def point_from(data):
    """32 bytes are y and, in the highest bit, whether x is odd. None if there is no such point."""
    y, odd = int.from_bytes(data, "little") % 2**255, data[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != square or (x == 0 and odd):
        return None
    x = P - x if x % 2 != odd else x
    return x, y, 1, x * y % P


def point_bytes(point):
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = point_from((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def signature_holds(key, message, signature):
    """S·B - h·A must encode to R, for h the hash of R, key and message (RFC 8032, 5.1.7)."""
    r, s, a = signature[:32], int.from_bytes(signature[32:], "little"), point_from(key)
    if a is None or s >= ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % ORDER
    minus_a = (P - a[0], a[1], 1, P - a[3])
    return point_bytes(add_points(multiply(s, BASE), multiply(h, minus_a))) == r


# --- 5 beacon ---------------------------------------------------------------------------------
# BLS12-381, as drand's quicknet signs: signatures are points of G1, keys are points of G2. Numbers
# of Fp2 are (a, b) for a + b·u with u² = -1; those of Fp12 the coefficients of powers of w, with
# w⁶ = 1 + u; points of G1 are written over Fp2 too. None is the point at infinity.

NETWORKS = {  # name: first round, period, public key
    "drand-quicknet": (
        1692803367000,
        3000,
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d1064"
        "510d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ec"
        "e45a",
    )
}
Q = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
R = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
LOOP = 0xD201000000010000
G2 = (
    "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
    "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
)
# The isogeny of RFC 9380, E.2: A and B, then the coefficients of four polynomials, constants first.
# fmt: off
ISOGENY = (
    "00144698a3b8e9433d693a02c96d4982b0ea985383ee66a8d8e8981aefd881ac98936f8da0e0f97f5cf428082d584c1d"
    "12e2908d11688030018b12e8753eee3b2016c1f0f24f4070a0b9c14fcef35ef55a23215a316ceaa5d1cc48e98e172be0"
    "11a05f2b1e833340b809101dd99815856b303e88a2d7005ff2627b56cdb4e2c85610c2d5f2e62d6eaeac1662734649b7"
    "17294ed3e943ab2f0588bab22147a81c7c17e75b2f6a8417f565e33c70d1e86b4838f2a6f318c356e834eef1b3cb83bb"
    "0d54005db97678ec1d1048c5d10a9a1bce032473295983e56878e501ec68e25c958c3e3d2a09729fe0179f9dac9edcb0"
    "1778e7166fcc6db74e0609d307e55412d7f5e4656a8dbf25f1b33289f1b330835336e25ce3107193c5b388641d9b6861"
    "0e99726a3199f4436642b4b3e4118e5499db995a1257fb3f086eeb65982fac18985a286f301e77c451154ce9ac8895d9"
    "1630c3250d7313ff01d1201bf7a74ab5db3cb17dd952799b9ed3ab9097e68f90a0870d2dcae73d19cd13c1c66f652983"
    "0d6ed6553fe44d296a3726c38ae652bfb11586264f0f8ce19008e218f9c86b2a8da25128c1052ecaddd7f225a139ed84"
    "17b81e7701abdbe2e8743884d1117e53356de5ab275b4db1a682c62ef0f2753339b7c8f8c8f475af9ccb5618e3f0c88e"
    "080d3cf1f9a78fc47b90b33563be990dc43b756ce79f5574a2c596c928c5d1de4fa295f296b74e956d71986a8497e317"
    "169b1f8e1bcfa7c42e0c37515d138f22dd2ecb803a0c5c99676314baf4bb1b7fa3190b2edc0327797f241067be390c9e"
    "10321da079ce07e272d8ec09d2565b0dfa7dccdde6787f96d50af36003b14866f69b771f8c285decca67df3f1605fb7b"
    "06e08c248e260e70bd1e962381edee3d31d79d7e22c837bc23c0bf1bc24c6b68c24b1b80b64d391fa9c8ba2e8ba2d229"
    "08ca8d548cff19ae18b2e62f4bd3fa6f01d5ef4ba35b48ba9c9588617fc8ac62b558d681be343df8993cf9fa40d21b1c"
    "12561a5deb559c4348b4711298e536367041e8ca0cf0800c0126c2588c48bf5713daa8846cb026e9e5c8276ec82b3bff"
    "0b2962fe57a3225e8137e629bff2991f6f89416f5a718cd1fca64e00b11aceacd6a3d0967c94fedcfcc239ba5cb83e19"
    "03425581a58ae2fec83aafef7c40eb545b08243f16b1655154cca8abc28d6fd04976d5243eecf5c4130de8938dc62cd8"
    "13a8e162022914a80a6f1d5f43e7a07dffdfc759a12062bb8d6b44e833b306da9bd29ba81f35781d539d395b3532a21e"
    "0e7355f8e4e667b955390f7f0506c6e9395735e9ce9cad4d0a43bcef24b8982f7400d24bc4228f11c02df9a29f6304a5"
    "0772caacf16936190f3e0c63e0596721570f5799af53a1894e2e073062aede9cea73b3538f0de06cec2574496ee84a3a"
    "14a7ac2a9d64a8b230b3f5b074cf01996e7f63c21bca68a81996e1cdf9822c580fa5b9489d11e2d311f7d99bbdcc5a5e"
    "0a10ecf6ada54f825e920b3dafc7a3cce07f8d1d7161366b74100da67f39883503826692abba43704776ec3a79a1d641"
    "095fc13ab9e92ad4476d6e3eb3a56680f682b4ee96f7d03776df533978f31c1593174e4b4b7865002d6384d168ecdd0a"
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001"
    "090d97c81ba24ee0259d1f094980dcfa11ad138e48a869522b52af6c956543d3cd0c7aee9b3ba3c2be9845719707bb33"
    "134996a104ee5811d51036d776fb46831223e96c254f383d0f906343eb67ad34d6c56711962fa8bfe097e75a2e41c696"
    "00cc786baa966e66f4a384c86a3b49942552e2d658a31ce2c344be4b91400da7d26d521628b00523b8dfe240c72de1f6"
    "01f86376e8981c217898751ad8746757d42aa7b90eeb791c09e4a3ec03251cf9de405aba9ec61deca6355c77b0e5f4cb"
    "08cc03fdefe0ff135caf4fe2a21529c4195536fbe3ce50b879833fd221351adc2ee7f8dc099040a841b6daecf2e8fedb"
    "16603fca40634b6a2211e11db8f0a6a074a7d0d4afadb7bd76505c3d3ad5544e203f6326c95a807299b23ab13633a5f0"
    "04ab0b9bcfac1bbcb2c977d027796b3ce75bb8ca2be184cb5231413c4d634f3747a87ac2460f415ec961f8855fe9d6f2"
    "0987c8d5333ab86fde9926bd2ca6c674170a05bfe3bdd81ffd038da6c26c842642f64550fedfe935a15e4ca31870fb29"
    "09fc4018bd96684be88c9e221e4da1bb8f3abd16679dc26c1e8b6e6a1f20cabe69d65201c78607a360370e577bdba587"
    "0e1bba7a1186bdb5223abde7ada14a23c42a0ca7915af6fe06985e7ed1e4d43b9b3f7055dd4eba6f2bafaaebca731c30"
    "19713e47937cd1be0dfd0b8f1d43fb93cd2fcbcb6caf493fd1183e416389e61031bf3a5cce3fbafce813711ad011c132"
    "18b46a908f36f6deb918c143fed2edcc523559b8aaf0c2462e6bfe7f911f643249d9cdf41b44d606ce07c8a4d0074d8e"
    "0b182cac101b9399d155096004f53f447aa7b12a3426b08ec02710e807b4633f06c851c1919211f20d4c04f00b971ef8"
    "0245a394ad1eca9b72fc00ae7be315dc757b3b080d4c158013e6632d3c40659cc6cf90ad1c232a6442d9d3f5db980133"
    "05c129645e44cf1102a159f748c4a3fc5e673d81d7e86568d9ab0f5d396a7ce46ba1049b6579afb7866b1e715475224b"
    "15e6be4e990f03ce4ea50b3b42df2eb5cb181d8f84965a3957add4fa95af01b2b665027efec01c7704b456be69c8b604"
    "16112c4c3a9c98b252181140fad0eae9601a6de578980be6eec3232b5be72e7a07f3688ef60c206d01479253b03663c1"
    "1962d75c2381201e1a0cbd6c43c348b885c84ff731c4d59ca4a10356f453e01f78a4260763529e3532f6102c2e49a03d"
    "058df3306640da276faaae7d6e8eb15778c4855551ae7f310c35a5dd279cd2eca6757cd636f96f891e2538b53dbf67f2"
    "16b7d288798e5395f20d23bf89edb4d1d115c5dbddbcd30e123da489e726af41727364f2c28297ada8d26d98445f5416"
    "0be0e079545f43e4b00cc912f8228ddcc6d19c9f0f69bbb0542eda0fc9dec916a20b15dc0fd2ededda39142311a5001d"
    "08d9e5297186db2d9fb266eaac783182b70152c65550d881c5ecd87b6f0f5a6449f38db9dfa9cce202c6477faaf9b7ac"
    "166007c08a99db2fc3ba8734ace9824b5eecfdfa8d0cf8ef5dd365bc400a0051d5fa9c01a58b1fb93d1a1399126a775c"
    "16a3ef08be3ea7ea03bcddfabba6ff6ee5a4375efa1f4fd7feb34fd206357132b920f5b00801dee460ee415a15812ed9"
    "1866c8ed336c61231a1be54fd1d74cc4f9fb0ce4c6af5920abc5750c4bf39b4852cfe2f7bb9248836b233d9d55535d4a"
    "167a55cda70a6e1cea820597d94a84903216f763e13d87bb5308592e7ea7d4fbc7385ea3d529b35e346ef48bb8913f55"
    "04d2f259eea405bd48f010a01ad2911d9c6dd039bb61a6290e591b36e636a5c871a5c29f4f83060400f8b49cba8f6aa8"
    "0accbb67481d033ff5852c1e48c50c477f94ff8aefce42d28c0f9a88cea7913516f968986f7ebbea9684b529e2561092"
    "0ad6b9514c767fe3c3613144b45f1496543346d98adf02267d5ceef9a00d9b8693000763e3b90ac11e99b138573345cc"
    "02660400eb2e4f3b628bdd0d53cd76f2bf565b94e72927c1cb748df27942480e420517bd8714cc80d1fadc1326ed06f7"
    "0e0fa1d816ddc03e6b24255e0d7819c171c40f65e273b853324efcd6356caa205ca2f570f13497804415473a1d634b8f"
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001"
)
# fmt: on
ISO = [int(ISOGENY[at : at + 96], 16) for at in range(0, len(ISOGENY), 96)]
A, B, MAPS_OF_X, MAPS_OF_Y = ISO[0], ISO[1], (ISO[2:14], ISO[14:25]), (ISO[25:41], ISO[41:57])


def f2(a, b):
    return (a % Q, b % Q)


def f2_sub(a, b):
    return f2(a[0] - b[0], a[1] - b[1])


def f2_mul(a, b):
    return f2(a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])


def f2_div(a, b):
    inverse = pow(b[0] * b[0] + b[1] * b[1], -1, Q)
    return f2_mul(a, (b[0] * inverse, -b[1] * inverse))


def raised(value, exponent, one, times):
    result = one
    for bit in bin(exponent)[2:]:
        result = times(result, result)
        result = times(result, value) if bit == "1" else result
    return result


def f2_pow(value, exponent):
    return raised(value, exponent, (1, 0), f2_mul)


def f2_root(value):
    """A square root, or None; Q is 3 modulo 4 (RFC 9380, I.3)."""
    half = f2_pow(value, (Q - 3) // 4)
    root = f2_mul(half, value)
    sign = f2_mul(half, root)
    turn = (0, 1) if sign == (Q - 1, 0) else f2_pow(f2(1 + sign[0], sign[1]), (Q - 1) // 2)
    root = f2_mul(turn, root)
    return root if f2_mul(root, root) == value else None


def slope_of(a, b):
    if a == b:
        return f2_div(f2_mul((3, 0), f2_mul(a[0], a[0])), f2(2 * a[1][0], 2 * a[1][1]))
    return f2_div(f2_sub(b[1], a[1]), f2_sub(b[0], a[0]))


def sum_of(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] != b[1] or a[1] == (0, 0)):
        return None
    slope = slope_of(a, b)
    x = f2_sub(f2_sub(f2_mul(slope, slope), a[0]), b[0])
    return x, f2_sub(f2_mul(slope, f2_sub(a[0], x)), a[1])


def times_point(number, point):
    return raised(point, number, None, sum_of)


def group_point(data, b):
    """A compressed point of the group of order R on y² = x³ + b; None for anything else."""
    if data[0] >> 6 != 2:
        return None
    numbers = [int.from_bytes(bytes([data[0] & 31]) + data[1:48], "big")]
    if b[1]:
        numbers.insert(0, int.from_bytes(data[48:], "big"))
    x = (numbers[0], numbers[1] if b[1] else 0)
    cube = f2_mul(f2_mul(x, x), x)
    y = f2_root(f2(cube[0] + b[0], cube[1] + b[1])) if max(x) < Q else None
    if y is None:
        return None
    if ((y[1] or y[0]) > Q // 2) != bool(data[0] & 32):
        y = f2(-y[0], -y[1])
    return (x, y) if times_point(R, (x, y)) is None else None


def polynomial(coefficients, x):
    total = 0
    for each in reversed(coefficients):
        total = (total * x + each) % Q
    return total


def mapped(u):
    """A number to a point (RFC 9380, 6.6.2 and 6.6.3)."""
    t = 11 * u * u % Q
    below = (t * t + t) % Q
    x = (-B * (below + 1) * pow(A * below, -1, Q) if below else B * pow(11 * A, -1, Q)) % Q
    square = (x**3 + A * x + B) % Q
    if pow(square, (Q - 1) // 2, Q) == Q - 1:  # no square
        x = t * x % Q
        square = (x**3 + A * x + B) % Q
    y = pow(square, (Q + 1) // 4, Q)
    y = y if y % 2 == u % 2 else -y
    over, under = (polynomial(each, x) for each in MAPS_OF_X)
    y_over, y_under = (polynomial(each, x) for each in MAPS_OF_Y)
    return (over * pow(under, -1, Q) % Q, 0), (y * y_over * pow(y_under, -1, Q) % Q, 0)


def hashed_point(message):
    """The message as a point of G1 (RFC 9380, 5.3.1 and 8.8.1)."""
    tag = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
    tag += bytes([len(tag)])
    first = sha256(bytes(64) + message + b"\0\x80\0" + tag)
    blocks, block = b"", bytes(32)
    for number in range(1, 5):
        block = sha256(bytes(a ^ b for a, b in zip(first, block)) + bytes([number]) + tag)
        blocks += block
    points = [mapped(int.from_bytes(blocks[at : at + 64], "big") % Q) for at in (0, 64)]
    return times_point(LOOP + 1, sum_of(*points))


def f12_mul(a, b):
    total = [0] * 23
    for i, x in enumerate(a):
        for j, y in enumerate(b) if x else ():
            total[i + j] += x * y
    for power in range(22, 11, -1):  # w¹² = 2w⁶ - 2
        total[power - 6] += 2 * total[power]
        total[power - 12] -= 2 * total[power]
    return [each % Q for each in total[:12]]


ONE = [1] + [0] * 11


def pairing(point, twisted):
    """The loop of the pairing of a point of G1 and one of G2, without the final power."""
    (px, _), (py, _) = point
    result, at = ONE, twisted
    for bit in bin(LOOP)[3:]:
        result = f12_mul(result, result)
        for other in (at, twisted) if bit == "1" else (at,):
            slope, line = slope_of(at, other), [0] * 12
            constant = f2_sub(f2_mul(slope, at[0]), at[1])
            for power, (a, b) in ((0, constant), (2, f2_mul(slope, (-px, 0))), (3, (py, 0))):
                line[power], line[power + 6] = (a - b) % Q, b
            result, at = f12_mul(result, line), sum_of(at, other)
    return result


def beacon_holds(key, number, signature):
    """e(signature, g2) = e(hash of the round, key): their quotient is 1 after the final power."""
    if len(key) != 96 or len(signature) != 48:
        return False
    key, point = group_point(key, (4, 4)), group_point(signature, (4, 0))
    if key is None or point is None:
        return False
    x, y = group_point(bytes.fromhex(G2), (4, 4))
    both = f12_mul(
        pairing(point, (x, f2(-y[0], -y[1]))), pairing(hashed_point(sha256(eight(number))), key)
    )
    # (Q¹² - 1) / R = (Q⁶ - 1)(Q² + 1) · rest. To the power of Q², w becomes w times a root of 1; to
    # that of Q⁶ it becomes -w, so that 1 is left where no odd power of w is.
    small = raised(both, (Q**4 - Q**2 + 1) // R, ONE, f12_mul)
    root = f2_pow((1, 1), (Q**2 - 1) // 6)[0]
    turned = [each * pow(root, power, Q) % Q for power, each in enumerate(small)]
    return not any(f12_mul(turned, small)[1::2])


# --- 6 form -----------------------------------------------------------------------------------
# name=type; a type with * is a list of it, with ? may be null, a digit is the least whole number,
# a letter and a dash a pseudonym. An object has these fields and no others; with +, it may. A field
# with ! may be missing.

# fmt: off
FORMS = {
    "export": "format=text chain=hash k=0 scope=scope previous=proved commit=proved draw=proved? "
              "void=proved? conflict=conflict notice=notice result=any? closures=proved* "
              "openings=opening* head=head keys=keys consistency=link*",
    "scope": "flavor=text location=texts cap=cap?",
    "cap": "budget=b- envelopes=e-* name=c-",
    "conflict": "scope=scope deficit_gpus=0 runs=run* leases=lease*",
    "run": "id=r- owner=o- malleable=malleable? nominated=bool",
    "malleable": "min_gpus=1 step_gpus=1",
    "lease": "id=l- run=r- role=role group=0 gpus=1 flavor=text location=texts funded=bool "
             "budget=b- envelope=e-",
    "notice": "candidates=l-* exclusions=exclusion* tokens=token*",
    "exclusion": "lease=l- reason=text",
    "token": "one_in=1 owner=o- token=r- +",
    "proved": "entry=entry proof=hash*",
    "entry": "author=text body=any effect=text? input_digest=hash? kind=text plan_id=text? "
             "reasons=text* seq=1 time_ms=0 version=0",
    "head": "ledger=text epoch=0 size=1 root=hash time_ms=0 key_id=id signature=signature",
    "link": "old_size=1 old_root=hash new_size=1 new_root=hash proof=hash*",
    "opening": "owner=text secret=hash entry=proved names=name*",
    "name": "kind=kind parts=text*",
    "nonce": "owner=o- nonce=hex",
    "beacon": "source=text round=0",
    "round": "source=text round=1 public_key=network genesis_ms=0 period_ms=1",
    "carry": "beacon=round? nonces=nonce*",
    "given": "entry=proved key=proved",
    # the bodies of entries
    "gpu.resolve.scope": "chain=hash flavor=text location=texts capped=bool next_commitment=hash +",
    "gpu.resolve.commit": "chain=hash k=0 previous_seq=1 scope=scope deficit_gpus=0 "
                          "conflict_digest=hash notice_digest=hash nonces=nonce* beacon=beacon? +",
    "gpu.resolve.draw": "chain=hash k=0 commit_seq=1 commit_head=head entropy=hash label=text "
                        "beacon_value=hex? seed=hash? result_digest=hash? next_commitment=hash +",
    "lease.close": "lease=text run=text reason=text end_ms=0 outcome=1 +",
    "owner.pseudonym": "commitment=hash owner=text +",
    "owner.key": "owner=text public_key=hash signature=signature approval=signature?",
    "gpu.resolve.nonce": "owner=text nonce=hex size=0 signature=signature",
    "key.rotated": "key_id=id new_key_id=id public_key=hash signature=signature",
    "ledger.epoch": "epoch=1 key_id=id lost=any? reason=text root=hash signature=signature size=1",
}
FORMS["gpu.resolve.void"] = "reason=text " + FORMS["gpu.resolve.draw"]
# Outcomes with a turn, and exports since then: these fields, and no others.
FORMS["export/2"] = FORMS["export"].replace("opening*", "opening/2*") + " changes=proved*"
FORMS["opening/2"] = FORMS["opening"] + " nonce=given?"
FORMS["gpu.resolve.commit/2"] = FORMS["gpu.resolve.commit"].replace("beacon=beacon? +", "beacon="
    "round? turn=0 continued=bool owner_weighting=text blobs=sizes")
FORMS["gpu.resolve.draw/2"] = FORMS["gpu.resolve.draw"][:-1] + "turn=0 blobs!=sizes"
FORMS["gpu.resolve.void/2"] = FORMS["gpu.resolve.void"][:-1] + "turn=0 carry=carry blobs!=sizes"
TEXTS = {
    "text": "(?s).*", "hash": "[0-9a-f]{64}", "hex": "([0-9a-f]{2})+", "id": "[0-9a-f]{16}",
    "signature": "[0-9a-f]{128}", "network": "[0-9a-f]{192}", "role": "active|spare",
    "kind": "run|lease|budget|envelope|cap", **{kind: kind + "[0-9a-f]{32}" for kind in
    ("o-", "r-", "l-", "b-", "e-", "c-")},
}
MAPS = {"texts": ("text", "text"), "keys": ("id", "hash"), "sizes": ("hash", "1")}
# fmt: on


def check_form(value, form, path):
    """Refuse whatever does not have the form, with its path."""
    good = True
    if form.endswith("?"):
        return value is None or check_form(value, form[:-1], path)
    if form.endswith("*"):
        good = isinstance(value, list)
        for index, item in enumerate(value if good else ()):
            check_form(item, form[:-1], f"{path}[{index}]")
    elif form in TEXTS:
        good = isinstance(value, str) and re.fullmatch(TEXTS[form], value)
    elif form in ("0", "1"):
        good = type(value) is int and value >= int(form)
    elif form == "bool":
        good = isinstance(value, bool)
    elif not isinstance(value, dict):
        good = False
    elif form in MAPS:
        for key in value:
            check_form(key, MAPS[form][0], f"{path}.{key}")
            check_form(value[key], MAPS[form][1], f"{path}.{key}")
    elif form not in FORMS:  # the body of an entry of another kind
        good = form == "any"
    else:
        fields = dict(field.split("=") for field in FORMS[form].split() if field != "+")
        maybe = {name[:-1]: fields.pop(name) for name in list(fields) if name[-1] == "!"}
        fields.update({name: maybe[name] for name in maybe if name in value})
        good = set(value) == set(fields) or (FORMS[form][-1] == "+" and set(value) > set(fields))
        for name in fields if good else ():
            check_form(value[name], fields[name], f"{path}.{name}")
        if good and form == "entry":
            later = "/2" if "turn" in value["body"] else ""
            check_form(value["body"], value["kind"] + later, f"{path}.body")
    if not good:
        raise Malformed(f"{path} is not as an export has it")
    return True


def rises(keys):
    """Sorted, and nothing twice."""
    keys = list(keys)
    return all(first < second for first, second in zip(keys, keys[1:]))


def parts_of(name):
    return 2 if name.kind in ("envelope", "cap") else 1  # these are named with their budget


class Doc(dict):
    """A JSON object whose fields are attributes."""

    __getattr__ = dict.__getitem__


def read_export(data):
    """The document in a file that is its canonical JSON and a line feed, and not a byte else."""
    try:
        x = json.loads(data.decode(), object_hook=Doc)
        same = canonical(x) + b"\n" == data
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the file is not JSON in UTF-8: {error}") from None
    if not same:
        raise Malformed("the file is not canonical JSON and one line feed; it was edited")
    return x


def check_export(x):
    """The form, and what a form cannot say."""
    later = isinstance(x, dict) and x.get("format") == FORMAT
    check_form(x, "export/2" if later else "export", "$")
    runs = [run.id for run in x.conflict.runs]
    places = {"commit": x.commit, "draw": x.draw, "void": x.void}
    if not (
        (later or (x.format == "fairlead-outcome/1" and "turn" not in x.commit.entry.body))
        and all(not x[name] or x[name].entry.kind == "gpu.resolve." + name for name in places)
        and not (x.draw and x.void)
        and x.previous.entry.kind in ("gpu.resolve.scope", "gpu.resolve.draw", "gpu.resolve.void")
        and all(each.entry.kind == "lease.close" for each in x.closures)
        and all(each.entry.entry.kind == "owner.pseudonym" for each in x.openings)
        and all(each.entry.kind in CHANGES for each in x.get("changes", ()))
        and all(given.entry.entry.kind == "gpu.resolve.nonce" for given in given_in(x))
        and all(given.key.entry.kind == "owner.key" for given in given_in(x))
        and len({"turn" in each.entry.body for each in (x.commit, x.draw, x.void) if each}) == 1
    ):
        raise Malformed("an entry is of the wrong kind")
    if not (
        rises(runs)
        and rises(lease.id for lease in x.conflict.leases)
        and {lease.run for lease in x.conflict.leases} <= set(runs)
        and rises(x.scope.cap.envelopes if x.scope.cap else ())
        and rises(each.owner for each in x.commit.entry.body.nonces)
        and rises(each.entry.seq for each in x.closures)
        and rises(each.entry.seq for each in x.get("changes", ()))
        and rises(row.lease for row in x.notice.exclusions)
        and rises(each.owner for each in x.openings)
        and all(rises((name.kind, name.parts) for name in each.names) for each in x.openings)
        and all(len(name.parts) == parts_of(name) for each in x.openings for name in each.names)
    ):
        raise Malformed("a list is not sorted, names something twice, or something unknown")
    if weighting_of(x.commit.entry) not in VERSIONS:
        raise Malformed("the commitment does not name the lottery's weighting")


FORMAT = "fairlead-outcome/2"
CHANGES = ("key.rotated", "ledger.epoch")
VERSIONS = {"owners": 1, "tokens": 2, "stake": 3}  # of the rules
SYSTEM = "fairlead"  # the author of what the control plane does by itself
BY_PEOPLE = ("gpu.resolve.void", "lease.close", "owner.key", "gpu.resolve.nonce", *CHANGES)
LEFT_OUT = ("beneficiary", "ending", "min-runtime", "cooldown", "funded")  # in scope, and spared


def given_in(x):
    return [each.nonce for each in x.openings if each.get("nonce")]


def weighting_of(commit):
    """How the lottery weights its tokens. Early commitments do not say: owners are equal."""
    found = commit.body.get("owner_weighting", "owners")
    return found if isinstance(found, str) else ""


# --- 7 checks ---------------------------------------------------------------------------------


class Checks:
    """One method per check: it raises DoesNotHold, or says in a sentence what it found."""

    ALL = (
        "proofs",
        "entries",
        "consistency",
        "digests",
        "order",
        "commitment",
        "seed",
        "decision",
        "openings",
        "scope",
        "closures",
        "signatures",
        "kept",
    )

    def __init__(self, x, say, kept_heads, kept_keys, networks, owner_keys):
        self.x, self.say, self.kept_heads, self.kept_keys = x, say, kept_heads, kept_keys
        self.networks, self.owner_keys = networks, owner_keys
        self.previous, self.commit = x.previous.entry, x.commit.entry
        self.weighting = weighting_of(self.commit)
        answer = x.draw or x.void
        self.answer = answer.entry if answer else None  # None: not drawn yet
        self.said = answer.entry.body if answer else None
        self.opened = {}  # (kind, pseudonym) -> (parts of the name, secret)
        self.turn = self.commit.body.get("turn")  # None: the first protocol
        self.label = "operator-trusted"  # what is left of the label after all checks
        shown = [each for each in (x.previous, x.commit, x.draw, x.void) if each]
        shown += x.closures + [each.entry for each in x.openings]
        self.shown = shown + [each for given in given_in(x) for each in (given.entry, given.key)]

    def proofs(self):
        """Every entry is in the tree of the head."""
        x, size = self.x, self.x.head.size
        shown = self.shown + x.get("changes", [])
        for each in shown:
            seq, proof = each.entry.seq, list(map(bytes.fromhex, each.proof))
            need(seq <= size, f"entry {seq} is beyond the head, which has {size}")
            root = root_over(leaf_hash(each.entry), seq - 1, size, proof)
            need(not proof and root.hex() == x.head.root, f"entry {seq} is not in the log")
        self.say(f"All {len(shown)} entries shown are in the log of {size} entries.")

    def entries(self):
        """Each entry is there once, by its author, and not earlier than those before it."""
        shown = self.shown + self.x.get("changes", [])
        entries = sorted((each.entry for each in shown), key=lambda entry: entry.seq)
        heads = [self.x.head] + ([self.said.commit_head] if self.answer else [])
        for first, second in zip(entries, entries[1:]):
            need(first.seq < second.seq, f"entry {second.seq} is shown twice")
            good = first.time_ms <= second.time_ms
            need(good, f"entry {second.seq} says that it is earlier than entry {first.seq}")
        for entry in entries:
            for head in heads:
                good = head.time_ms >= entry.time_ms or head.size < entry.seq
                good = good and (head.time_ms <= entry.time_ms or head.size >= entry.seq)
                need(good, f"the head of {head.size} entries has a time that is not theirs")
            free = entry.kind in BY_PEOPLE
            need(free or entry.author == SYSTEM, f"entry {entry.seq} has another author")
            need(not entry.reasons, f"entry {entry.seq} gives reasons, which its kind has none of")
            good = (entry.input_digest is None) == (entry.kind != "gpu.resolve.commit")
            need(good, f"entry {entry.seq} has an input, or none, unlike its kind")
            ruled = entry.kind in ("gpu.resolve.commit", "gpu.resolve.draw", "gpu.resolve.void")
            need(ruled or entry.version == 1, f"entry {entry.seq} is of a version unknown here")
        effects = Counter((entry.plan_id, entry.effect) for entry in entries)
        for plan, effect in effects:
            twice = effects[plan, effect] > 1 and (plan, effect) != (None, None)
            need(not twice, f"{plan} has several entries for {effect}; a ledger has one")

    def consistency(self):
        """The log only grew: since the head under the commitment, and since heads kept."""
        head = (self.x.head.size, self.x.head.root)
        self.trees = {head}
        for link in self.x.consistency:
            old, new = (link.old_size, link.old_root), (link.new_size, link.new_root)
            need(head in (old, new) and old[0] <= new[0], "a consistency proof is of other heads")
            proof = list(map(bytes.fromhex, link.proof))
            roots = two_roots(bytes.fromhex(old[1]), old[0], new[0], proof)
            good = not proof and [root.hex() for root in roots] == [old[1], new[1]]
            need(good, f"the log of {new[0]} entries does not continue that of {old[0]}")
            self.trees |= {old, new}
        if self.answer:
            then = self.said.commit_head
            good = (then.size, then.root) in self.trees and then.ledger == self.x.head.ledger
            need(good, "the head under the commitment does not lead to the head")
            good = self.commit.seq <= then.size < self.answer.seq
            need(good, "the commitment was not under a head before its outcome")
            need(then.size <= self.x.head.size, "the head is older than that of the commitment")
            self.say(
                f"The commitment was under a head of {then.size} entries before entry "
                f"{self.answer.seq} revealed the outcome; the log only grew."
            )

    def digests(self):
        """The documents are those that the entries name."""
        x, body, conflict = self.x, self.commit.body, self.x.conflict
        good = digest(conflict) == body.conflict_digest == self.commit.input_digest
        need(good, "the conflict is not the one that was frozen")
        good = body.scope == conflict.scope == x.scope
        good = good and body.deficit_gpus == conflict.deficit_gpus
        need(good, "scope or deficit are not those of the conflict")
        need(digest(x.notice) == body.notice_digest, "the notice is not the one that was given")
        recorded = self.said.result_digest if self.said else None
        good = recorded == (None if x.result is None else digest(x.result))
        need(good, "the result is not the one that was recorded")
        if self.turn is not None:
            named = {"commit": (conflict, x.notice), "answer": (x.result,) if x.result else ()}
            for entry, documents in ((self.commit, "commit"), (self.answer, "answer")):
                sizes = {digest(each): len(canonical(each)) for each in named[documents]}
                good = not entry or entry.body.get("blobs", {}) == sizes
                need(good, f"entry {entry.seq if entry else 0} names documents that are not these")
        self.say(
            f"Entry {self.commit.seq} froze the conflict at {when(self.commit)}: "
            f"{conflict.deficit_gpus} GPUs missing, {len(conflict.runs)} runs with "
            f"{len(conflict.leases)} leases."
        )

    def order(self):
        """One sequence per scope; each outcome after the one before, and answered once."""
        x, before, body = self.x, self.previous.body, self.commit.body
        for entry, effect in ((self.commit, "commit"), (self.answer, "outcome")):
            if entry:
                named = (entry.body.chain, entry.body.k, entry.plan_id, entry.effect)
                good = named == (x.chain, x.k, f"resolve.{x.chain[:16]}.{x.k}", effect)
                need(good, f"entry {entry.seq} is of another outcome")
                good = entry.version == VERSIONS[self.weighting]
                need(good, "the rules are of a version unknown here")
        good = before.chain == x.chain and body.previous_seq == self.previous.seq < self.commit.seq
        need(good, "the commitment does not follow the entry before in its sequence")
        # By plan and effect: a ledger has one entry of those, so there is one entropy to choose.
        plan, effect = f"resolve.{x.chain[:16]}.{x.k - 1}", "outcome"
        if self.previous.kind == "gpu.resolve.scope":
            plan, effect = f"resolve.{x.chain[:16]}", "scope"
            place = x.scope.location, bool(x.scope.cap)
            place = place if self.turn is None else ({}, False)  # one sequence per flavor
            good = (before.flavor, before.location, before.capped) == (x.scope.flavor, *place)
            good = good and x.k == 0
        else:
            good = before.k == x.k - 1
        if self.turn is not None:
            self.turns(before, body)
        good = good and (self.previous.plan_id, self.previous.effect) == (plan, effect)
        need(good, "the entry before is of another scope or outcome")
        if self.answer:
            good = self.said.commit_seq == self.commit.seq < self.answer.seq
            need(good, "the outcome answers another commitment")

    def turns(self, before, body):
        """A turn ends with a draw. After a void it goes on with the same luck."""
        kind, turn = self.previous.kind, before.get("turn")
        good = kind == "gpu.resolve.scope" or turn is not None
        need(good, "the outcome before is of no turn")
        carry = before.carry if kind == "gpu.resolve.void" else None
        good = body.turn == (0 if kind == "gpu.resolve.scope" else turn + (carry is None))
        need(good, "the outcome is of another turn")
        need(body.continued == (carry is not None), "it continues a void, or says so without one")
        luck = {"beacon": body.beacon, "nonces": body.nonces}
        need(carry is None or carry == luck, "a void was followed by another beacon or nonces")
        need(not self.answer or self.said.turn == body.turn, "the outcome answers another turn")
        if self.x.k > body.turn:
            self.say(f"Before it, {self.x.k - body.turn} outcomes of this sequence were voided.")

    def commitment(self):
        """The entropy is the one whose hash was out before the conflict."""
        before = self.previous.body
        if self.turn is not None and self.previous.kind == "gpu.resolve.void":
            good = sha256(bytes.fromhex(before.entropy)).hex() == before.next_commitment
            need(good, "the void before it hands on another entropy than it discloses")
        if not self.answer:
            self.say("Its entropy is not revealed: no run may have been preempted for it yet.")
            return
        good = sha256(bytes.fromhex(self.said.entropy)).hex() == self.previous.body.next_commitment
        need(good, "the entropy is not the one promised before the conflict")
        if self.turn is not None:
            same = self.said.next_commitment == self.previous.body.next_commitment
            need(same == bool(self.x.void), "a void must hand on its entropy, a draw a new one")
        self.say(
            f"The hash of its entropy was out since {when(self.previous)} (entry "
            f"{self.previous.seq})."
        )

    def seed(self):
        """The seed follows from what was fixed, and the label is the true one."""
        if not self.answer:
            return
        said, beacon, nonces = self.said, self.commit.body.beacon, self.commit.body.nonces
        owners = {run.owner for run in self.x.conflict.runs}
        continued = self.turn is not None and self.commit.body.continued
        good = continued or all(each.owner in owners for each in nonces)
        need(good, "a nonce is of an owner without a run in the conflict: a free salt")
        label = self.true_label()
        need(said.label == label, f"the outcome is called {said.label}, and is {label}")
        if self.turn is not None and self.x.void:
            luck = [{"beacon": each, "nonces": nonces} for each in (beacon, None)]
            good = said.carry in luck[: 1 if said.beacon_value else 2]
            need(good, "the void does not hand on its beacon and its nonces")
        if beacon and said.beacon_value is None:
            good = self.x.void and said.seed is None and said.result_digest is None
            need(good, "there is an outcome without the beacon that it was to depend on")
            self.say("It was voided before the value of its round was recorded.")
            return
        need(beacon or said.beacon_value is None, "there is a beacon that was not announced")
        luck = bytes.fromhex(said.entropy), bytes.fromhex(said.beacon_value or "")
        given = [(each.owner, bytes.fromhex(each.nonce)) for each in nonces]
        if self.turn is None:
            fixed = bytes.fromhex(self.commit.body.conflict_digest), self.x.k
            seed = seed_of(*fixed, *luck, given)
        else:
            seed = turn_seed_of(bytes.fromhex(self.x.chain), self.turn, *luck, given)
        need(said.seed == seed.hex() and self.x.result is not None, "the seed is another one")
        public = f"round {beacon.round} of {beacon.source}" if beacon else "no beacon"
        self.say(f"The seed follows from entropy, {len(nonces)} nonces and {public}.")
        if beacon:
            self.beacon(beacon, said.beacon_value)

    def true_label(self):
        """What the entries support; what that is worth to you, later checks find."""
        beacon, nonces = self.commit.body.beacon, self.commit.body.nonces
        if self.turn is None:
            return "verifiable" if beacon or nonces else "operator-trusted"
        if self.commit.body.continued:  # a void disclosed the entropy before this conflict
            return "operator-trusted"
        return "beacon" if beacon else "owner-nonced" if nonces else "operator-trusted"

    def beacon(self, beacon, value):
        """The round is signed by its network, and was to come when the conflict was frozen."""
        if self.turn is None:
            self.say(f"That round is said to be {value}; it has no signature, so compare it.")
            return
        key, number = bytes.fromhex(beacon.public_key), beacon.round
        good = beacon_holds(key, number, bytes.fromhex(value))
        need(good, f"round {number} is not signed by the network that it is said to be of")
        due = beacon.genesis_ms + (number - 1) * beacon.period_ms
        good = self.commit.body.continued or self.commit.time_ms < due
        need(good, "the round had happened before the conflict was frozen")
        network = (beacon.genesis_ms, beacon.period_ms, beacon.public_key)
        known = {NETWORKS[name][2]: (name, NETWORKS[name]) for name in NETWORKS}
        same = known.get(beacon.public_key, (beacon.source, network)) == (beacon.source, network)
        need(same, f"{known.get(beacon.public_key, '?')[0]} has other rounds than this says")
        if NETWORKS.get(beacon.source) == network or beacon.public_key in self.networks:
            self.label = self.said.label
            self.say(f"Round {number} is signed by {beacon.source}, and came after the conflict.")
        else:
            need(beacon.source not in NETWORKS, f"this is not the network {beacon.source}")
            self.say(
                f"Round {number} is signed by a network that is unknown here, {beacon.public_key}: "
                "who has its secret knew the round. Name it with --network if you trust it."
            )

    def decision(self):
        """Everything decided again."""
        x, known = self.x, {lease.id: lease.run for lease in self.x.conflict.leases}
        left_out = [row for row in x.notice.exclusions if row.lease not in known]
        good = x.notice == notice_of(x.conflict, left_out, self.weighting)
        need(good, "candidates, exclusions or odds were not announced as they were")
        at_stake = {known[lease] for lease in x.notice.candidates}
        good = at_stake == {run.id for run in x.conflict.runs}
        need(good, "there is a run without a candidate in the conflict: a free salt")
        for row in left_out:
            need(row.reason in LEFT_OUT, f"lease {row.lease} was left out for no reason there is")
            self.say(f"Lease {row.lease} was left out: {row.reason}.")
        labels = {key for lease in x.conflict.leases for key in lease.location}
        good = self.turn is None or labels <= set(x.scope.location)
        need(good, "a lease has a label that decides nothing")
        if x.result is None:
            return
        if self.weighting == "tokens":
            self.say("Every run was as likely as the next, however many its owner had.")
        if self.weighting == "stake":
            self.say("Every GPU was as likely as the next, however its owner divided them.")
        result = Resolve(x.conflict, bytes.fromhex(self.said.seed), self.weighting).result()
        need(canonical(result) == canonical(x.result), "decided again, the result is another")
        self.say(
            "Decided again, the result is the same: "
            f"{counted(result['freed_gpus'], 'GPU')} freed, "
            f"{counted(len(result['actions']), 'lease')} cut, "
            f"{counted(len(result['draws']), 'draw')}."
        )
        if x.void:
            self.say(f"It was voided, no run was preempted. The reason given: {self.said.reason}.")

    def openings(self):
        """Your pseudonyms follow from a secret that was fixed before the conflict."""
        x, cap = self.x, self.x.scope.cap
        index = x.k if self.turn is None else self.turn
        owner_of = {run.id: run.owner for run in x.conflict.runs}
        owners, nonces = set(owner_of.values()), self.commit.body.nonces
        owner_of.update({lease.id: owner_of[lease.run] for lease in x.conflict.leases})
        there = {*owner_of, *(row.lease for row in x.notice.exclusions)}
        there.update(name for lease in x.conflict.leases for name in (lease.budget, lease.envelope))
        there.update((cap.budget, cap.name, *cap.envelopes) if cap else ())
        for each in x.openings:
            entry, owner, secret = each.entry.entry, each.owner, bytes.fromhex(each.secret)
            fixed = sha256(lp("fairlead/owner/v1") + lp(secret)).hex()
            good = (entry.body.owner, entry.body.commitment) == (owner, fixed)
            need(good, f"the secret of {owner} is not the one that was fixed")
            good = (entry.plan_id, entry.effect) == (f"owner.{owner}", "pseudonym")
            need(good, f"the secret of {owner} is fixed by an entry of another plan")
            need(entry.seq < self.commit.seq, f"the secret of {owner} was fixed too late")
            me = pseudonym(secret, x.chain, index, "owner", [owner])
            need(each.names or me in owners, f"nothing of {owner} is in this outcome")
            for name in each.names:
                hidden = pseudonym(secret, x.chain, index, name.kind, name.parts)
                good = hidden in there and owner_of.get(hidden, me) == me
                need(good, f"{name.kind} {'/'.join(name.parts)} of {owner} is not here")
                self.opened[name.kind, hidden] = (name.parts, secret)
            shown = {hidden for _, hidden in self.opened}
            good = all(each in shown for each in owner_of if owner_of[each] == me)
            need(good, f"there are runs or leases of {owner} that are not opened")
            self.say(
                f"{owner} is {me} here; its pseudonyms are fixed since {when(entry)} (entry "
                f"{entry.seq}), which should be before its first run."
            )
            nonce = [each.nonce for each in nonces if each.owner == me]
            self.say(f"The nonce of {owner} in the seed: {nonce[0] if nonce else 'none'}.")
            if self.turn is not None:
                self.nonce(each, owner, nonce)

    def nonce(self, opening, owner, nonce):
        """Your nonce is the one that you signed, with the key that you registered."""
        given = opening.nonce
        need(bool(given) == bool(nonce), f"there is a nonce of {owner} that {owner} did not sign")
        if not given:
            return
        entry, key = given.entry.entry, given.key.entry
        said, plan, public = entry.body, f"owner.{owner}", key.body.public_key
        good = (said.owner, said.nonce, key.body.owner) == (owner, nonce[0], owner)
        good = good and said.size < entry.seq < self.commit.seq and key.seq < entry.seq
        good = good and (entry.plan_id, entry.effect) == (plan, f"nonce {said.size}")
        good = good and key.plan_id == plan and re.fullmatch("key [0-9]+", key.effect or "")
        need(good, f"the nonce of {owner} is from another entry")
        parts = ["fairlead/owner-key/v1", self.x.head.ledger, owner, bytes.fromhex(public)]
        message, signature = b"".join(map(lp, parts)), bytes.fromhex(key.body.signature)
        good = signature_holds(bytes.fromhex(public), message, signature)
        good = good and (key.effect == "key 0") == (key.body.approval is None)
        need(good, f"key {public} was not registered by its holder")
        parts = ["fairlead/nonce/v1", self.x.head.ledger, owner, bytes.fromhex(said.nonce)]
        message = b"".join(map(lp, [*parts, eight(said.size)]))
        good = signature_holds(bytes.fromhex(public), message, bytes.fromhex(said.signature))
        need(good, f"{owner} did not sign the nonce that is in the seed")
        need(not self.owner_keys or public in self.owner_keys, f"{public} is not your key")
        self.say(
            f"{owner} signed that nonce with key {public} when the log had {said.size} entries; "
            "compare both with what you did."
        )
        if self.said and self.said.label == "owner-nonced":
            self.label = "owner-nonced"

    def scope(self):
        """The sequence is named after its scope, so that a scope cannot have two."""
        scope, cap, salt = self.x.scope, self.x.scope.cap, b""
        if cap and self.turn is None:
            hidden = [("budget", cap.budget), ("cap", cap.name)]
            hidden += [("envelope", each) for each in cap.envelopes]
            if not all(each in self.opened for each in hidden):
                self.say("The scope is a cap of another's budget; you cannot check its name.")
                return
            budget, name, *envelopes = (self.opened[each][0][-1] for each in hidden)
            salt = hmac256(self.opened[hidden[0]][1], lp("fairlead/chain-salt/v1"))
            clear = {"budget": budget, "name": name, "envelopes": sorted(envelopes)}
            scope = {**scope, "cap": clear}
        chain = sha256(lp("fairlead/chain/v1") + lp(salt) + lp(canonical(scope))).hex()
        if self.turn is not None:
            chain = sha256(lp("fairlead/chain/v2") + lp(scope["flavor"])).hex()
        need(chain == self.x.chain, "the sequence is not the one of this scope")

    def closures(self):
        """Your leases ended as the outcome says, and no other lease in its name."""
        actions = self.x.result.actions if self.x.draw else []
        names = {hidden: parts[0] for (_, hidden), (parts, _) in self.opened.items()}
        cut = {names[each.lease]: each for each in actions if each.lease in names}
        ended = {}
        for entry in (each.entry for each in self.x.closures):
            body, action = entry.body, cut.get(entry.body.lease)
            good = action and (body.reason, body.run) == (action.kind, names.get(action.run))
            good = good and body.outcome == self.commit.seq and self.answer.seq < entry.seq
            good = good and (entry.plan_id, entry.effect) == (body.lease, "close")
            good = good and body.end_ms <= entry.time_ms
            need(good, f"lease {body.lease} was not to end like this")
            ended[body.lease] = f"ended {when(entry)}"
        for lease, action in cut.items():
            draw = "" if action.draw is None else f" in draw {action.draw}"
            end = ended.get(lease, "not ended yet")
            self.say(f"Yours: lease {lease}, {action.gpus} GPUs, {action.kind}{draw}; {end}.")

    def signatures(self):
        """The heads are signed."""
        heads = [self.x.head] + ([self.said.commit_head] if self.answer else [])
        keys = self.x["keys"]
        need({head.key_id for head in heads} == set(keys), "a key is missing or useless")
        for head in heads:
            key, signature = bytes.fromhex(keys[head.key_id]), bytes.fromhex(head.signature)
            need(sha256(key).hex()[:16] == head.key_id, "a key does not have the id it is given")
            unsigned = {name: head[name] for name in head if name != "signature"}
            good = signature_holds(key, b"fairlead/head/v1\n" + canonical(unsigned), signature)
            need(good, f"the signature of the head of {head.size} entries does not hold")
        self.changes()
        by = " and ".join(sorted(keys))
        self.say(f"The heads of ledger {self.x.head.ledger} are signed with key {by}.")

    def changes(self):
        """The head has the key and epoch of the commitment's, but for changes that are shown."""
        head = then = self.x.head
        if self.answer:
            then = self.said.commit_head
        key, epoch = (then.key_id, self.x["keys"][then.key_id]), then.epoch
        for entry in (each.entry for each in self.x.get("changes", ())):
            unsigned = {name: entry.body[name] for name in entry.body if name != "signature"}
            said = {"ledger": head.ledger, "statement": {"kind": entry.kind, **unsigned}}
            message = b"fairlead/statement/v1\n" + canonical(said)
            good = entry.body.key_id == key[0] and entry.seq > then.size
            good = good and (entry.plan_id, entry.effect) == (None, None)
            signature = bytes.fromhex(entry.body.signature)
            good = good and signature_holds(bytes.fromhex(key[1]), message, signature)
            need(good, f"entry {entry.seq} is not signed with the key in force")
            if entry.kind == "key.rotated":
                key = (entry.body.new_key_id, entry.body.public_key)
                good = sha256(bytes.fromhex(key[1])).hex()[:16] == key[0]
            else:
                epoch += 1
                good = (entry.body.epoch, entry.body.size) == (epoch, entry.seq - 1)
            need(good, f"entry {entry.seq} introduces another key or epoch than it says")
        need(
            (head.key_id, head.epoch) == (key[0], epoch) and self.x["keys"][head.key_id] == key[1],
            "the head has another key or epoch, and no entry says why; ask for a newer export",
        )

    def kept(self):
        """It is the log that you saw; without anything kept, all could have been made up."""
        for size, root in self.kept_heads:
            ask = f"nothing leads to your head; ask for an export with --head {size}:{root}"
            need(size in dict(self.trees), ask)
            good = (size, root) in self.trees
            need(good, f"this is not the log that you saw when it had {size} entries")
            self.say(f"This is the log that you saw when it had {size} entries.")
        heads = {"the head": self.x.head}
        if self.answer:
            heads["the head under the commitment"] = self.said.commit_head
        for key in self.kept_keys:
            ids = [each for each in self.x["keys"] if key in (each, self.x["keys"][each])]
            signed = [name for name in heads if heads[name].key_id in ids]
            need(signed, f"{key} did not sign this")
            self.say(f"The key that you know, {key}, signed {' and '.join(signed)}.")
        if not self.kept_heads and not self.kept_keys:
            self.say(
                "You named no head and no key that you kept: this is true in itself, and may "
                "still be another story than others are told."
            )


def when(entry):
    seconds = min(entry.time_ms // 1000, 253402300799)  # the year 9999
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def plain(sentence):
    """A line as it may be printed: names and reasons are others' words, and could redraw it."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in sentence)


Verdict = namedtuple("Verdict", "code check account")


def verify(data, kept_heads=(), kept_keys=(), networks=(), owner_keys=()):
    """Check the bytes of an export: a code, the check that failed, and an account."""
    account = []
    code, check = look(data, account.append, kept_heads, kept_keys, networks, owner_keys)
    return Verdict(code, check, list(map(plain, account)))


def look(data, say, *kept):
    check = "bytes"
    try:
        x = read_export(data)
        check = "form"
        check_export(x)
        place = canonical_text(x.scope.location)
        say(f"Outcome {x.k} of {x.scope.flavor} {place}, sequence {x.chain[:16]}.")
        checks = Checks(x, say, *kept)
        for check in Checks.ALL:
            getattr(checks, check)()
    except Malformed as error:
        say(f"CANNOT BE CHECKED ({check}): {error}.")
        return 2, check
    except DoesNotHold as error:
        say(f"DOES NOT HOLD ({check}): {error}.")
        return 1, check
    if not checks.said:
        say("Everything holds; the outcome is open.")
        return 0, ""
    recorded = checks.said.label
    if recorded != checks.label:
        why = "none of its nonces is yours" if recorded == "owner-nonced" else "see above"
        why = "its protocol let the operator choose" if recorded == "verifiable" else why
        say(f"It is recorded as {recorded}; to you it is {checks.label}: {why}.")
    say(f"Everything holds; this outcome is {checks.label}.")
    return 0, ""


def main(arguments):
    parser = argparse.ArgumentParser(description="Check an exported outcome of a lottery.")
    parser.add_argument("outcome")
    parser.add_argument("--head", action="append", metavar="SIZE:ROOT", default=[])
    parser.add_argument("--key", action="append", metavar="HEX", default=[])
    parser.add_argument("--network", action="append", metavar="HEX", default=[])
    parser.add_argument("--owner-key", action="append", metavar="HEX", default=[])
    options = parser.parse_args(arguments)
    heads = [re.fullmatch("([1-9][0-9]{0,15}):([0-9a-f]{64})", head) for head in options.head]
    if not all(heads):
        parser.error("a head is SIZE:ROOT, the root in hex")
    try:
        with open(options.outcome, "rb") as file:
            data = file.read()
    except OSError as error:
        parser.error(f"{options.outcome}: {error.strerror}")
    kept = [(int(head[1]), head[2]) for head in heads], options.key
    verdict = verify(data, *kept, options.network, options.owner_key)
    sys.stdout.reconfigure(errors="backslashreplace")
    print("\n".join(verdict.account))
    return verdict.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
