#!/usr/bin/env python3
"""Check the outcome of a Fairlead lottery without Fairlead, and without trust in who sent it.

    python3 fairlead_verify.py outcome.json [--head SIZE:ROOT]... [--key HEX]...

`outcome.json` comes from `fairlead audit outcome N --export`. Name with --head every head of the
ledger that you kept, and with --key the operator's key (or key id) that you know: only what you
kept yourself can show that you are told the same story as everybody else.
Exit status: 0 everything holds; 1 something does not; 2 this is no export, or was edited.

One file, standard library, Python 3.9 or later; read it from top to bottom in ten minutes:
    1 bytes      how documents become bytes, and bytes become hashes
    2 chance     the seed, and a fair number from it
    3 decision   who gives way: the rules of `gpu.resolve`, run again
    4 log        Merkle proofs (RFC 9162) and signatures (Ed25519, RFC 8032)
    5 form       which fields an export has
    6 checks     in the order in which they are reported
docs/reference/outcome-export.md has the exact form, docs/concepts/lottery.md the reasons.
"""

import argparse
import hashlib
import hmac
import json
import re
import sys
from collections import Counter, namedtuple
from datetime import datetime, timezone


class Malformed(Exception):
    """This is not an export: exit status 2."""


class DoesNotHold(Exception):
    """The export says something that is not true: exit status 1."""


def need(good, sentence):
    if not good:
        raise DoesNotHold(sentence)


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


# --- 2 chance ---------------------------------------------------------------------------------


def seed_of(conflict_digest, k, entropy, beacon_value, nonces):
    """Everything that the draws depend on, in one hash. Nonces are (owner, bytes)."""
    parts = [b"fairlead/seed/v1", conflict_digest, eight(k), entropy, beacon_value]
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
        self.weighting = weighting  # between whom the lottery is fair: owners or tokens
        self.runs = {run.id: run for run in conflict.runs}
        self.open = {run: {} for run in sorted(self.runs)}  # run -> lease id -> lease
        for lease in conflict.leases:
            self.open[lease.run][lease.id] = lease
        scope = conflict.scope
        self.inside = {lease.id for lease in conflict.leases if not difference(lease, scope)}
        self.cuts, self.draws, self.first_tokens, self.freed = [], [], {}, 0

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
        """Tokens are whole runs. An owner is drawn, then one of its tokens.

        In the urn is every owner once, or, where tokens are equal, once for each of its tokens.
        """
        tokens = {}
        for run in runs:
            if not self.inside.isdisjoint(self.open[run]):
                tokens.setdefault(self.runs[run].owner, []).append(run)
        while tokens and self.freed < self.deficit:
            self.first_tokens = self.first_tokens or {each: list(tokens[each]) for each in tokens}
            index, owners = len(self.draws), sorted(tokens)
            urn = owners
            if self.weighting == "tokens":
                urn = [owner for owner in owners for _ in tokens[owner]]
            owner = urn[fair_number(len(urn), self.seed, b"owner", index)]
            mine = list(tokens[owner])
            token = mine[fair_number(len(mine), self.seed, b"token", index)]
            self.draws.append(
                {
                    "index": index,
                    "tier": tier,
                    "owners": owners,
                    "owner": owner,
                    "tokens": mine,
                    "token": token,
                }
            )
            self.cut(token, "RandomPreempt", tier, self.open[token].values(), draw=index)
            tokens[owner].remove(token)
            if not tokens[owner]:
                del tokens[owner]

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
    resolve = Resolve(conflict, bytes(32))  # who has a token does not depend on the seed
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


# --- 5 form -----------------------------------------------------------------------------------
# name=type; a type with * is a list of it, with ? may be null, a digit is the least whole number,
# a letter and a dash a pseudonym. An object has these fields and no others; with +, it may.

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
    "token": "one_in=1 owner=o- token=r-",
    "proved": "entry=entry proof=hash*",
    "entry": "author=text body=any effect=text? input_digest=hash? kind=text plan_id=text? "
             "reasons=text* seq=1 time_ms=0 version=0",
    "head": "ledger=text epoch=0 size=1 root=hash time_ms=0 key_id=id signature=signature",
    "link": "old_size=1 old_root=hash new_size=1 new_root=hash proof=hash*",
    "opening": "owner=text secret=hash entry=proved names=name*",
    "name": "kind=kind parts=text*",
    "nonce": "owner=o- nonce=hex",
    "beacon": "source=text round=0",
    # the bodies of entries
    "gpu.resolve.scope": "chain=hash flavor=text location=texts capped=bool next_commitment=hash +",
    "gpu.resolve.commit": "chain=hash k=0 previous_seq=1 scope=scope deficit_gpus=0 "
                          "conflict_digest=hash notice_digest=hash nonces=nonce* beacon=beacon? +",
    "gpu.resolve.draw": "chain=hash k=0 commit_seq=1 commit_head=head entropy=hash label=text "
                        "beacon_value=hex? seed=hash? result_digest=hash? next_commitment=hash +",
    "lease.close": "lease=text run=text reason=text outcome=1 +",
    "owner.pseudonym": "commitment=hash owner=text +",
}
FORMS["gpu.resolve.void"] = "reason=text " + FORMS["gpu.resolve.draw"]
TEXTS = {
    "text": "(?s).*", "hash": "[0-9a-f]{64}", "hex": "([0-9a-f]{2})+", "id": "[0-9a-f]{16}",
    "signature": "[0-9a-f]{128}", "role": "active|spare",
    "kind": "run|lease|budget|envelope|cap", **{kind: kind + "[0-9a-f]{32}" for kind in
    ("o-", "r-", "l-", "b-", "e-", "c-")},
}
MAPS = {"texts": ("text", "text"), "keys": ("id", "hash")}
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
        good = set(value) == set(fields) or (FORMS[form][-1] == "+" and set(value) > set(fields))
        for name in fields if good else ():
            check_form(value[name], fields[name], f"{path}.{name}")
        if good and form == "entry":
            check_form(value["body"], value["kind"], f"{path}.body")
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
    check_form(x, "export", "$")
    runs = [run.id for run in x.conflict.runs]
    places = {"commit": x.commit, "draw": x.draw, "void": x.void}
    if not (
        x.format == "fairlead-outcome/1"
        and all(not x[name] or x[name].entry.kind == "gpu.resolve." + name for name in places)
        and not (x.draw and x.void)
        and x.previous.entry.kind in ("gpu.resolve.scope", "gpu.resolve.draw", "gpu.resolve.void")
        and all(each.entry.kind == "lease.close" for each in x.closures)
        and all(each.entry.entry.kind == "owner.pseudonym" for each in x.openings)
    ):
        raise Malformed("an entry is of the wrong kind")
    if not (
        rises(runs)
        and rises(lease.id for lease in x.conflict.leases)
        and {lease.run for lease in x.conflict.leases} <= set(runs)
        and rises(x.scope.cap.envelopes if x.scope.cap else ())
        and rises(each.owner for each in x.commit.entry.body.nonces)
        and rises(each.entry.seq for each in x.closures)
        and rises(each.owner for each in x.openings)
        and all(rises((name.kind, name.parts) for name in each.names) for each in x.openings)
        and all(len(name.parts) == parts_of(name) for each in x.openings for name in each.names)
    ):
        raise Malformed("a list is not sorted, names something twice, or something unknown")
    if weighting_of(x.commit.entry) not in VERSIONS:
        raise Malformed("the commitment does not say between whom chance is fair")


VERSIONS = {"owners": 1, "tokens": 2}  # of the rules


def weighting_of(commit):
    """Between whom chance is fair. Early commitments do not say: owners are equal."""
    found = commit.body.get("owner_weighting", "owners")
    return found if isinstance(found, str) else ""


# --- 6 checks ---------------------------------------------------------------------------------


class Checks:
    """One method per check: it raises DoesNotHold, or says in a sentence what it found."""

    ALL = (
        "proofs",
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

    def __init__(self, x, say, kept_heads, kept_keys):
        self.x, self.say, self.kept_heads, self.kept_keys = x, say, kept_heads, kept_keys
        self.previous, self.commit = x.previous.entry, x.commit.entry
        self.weighting = weighting_of(self.commit)
        answer = x.draw or x.void
        self.answer = answer.entry if answer else None  # None: not drawn yet
        self.said = answer.entry.body if answer else None
        self.opened = {}  # (kind, pseudonym) -> (parts of the name, secret)

    def proofs(self):
        """Every entry is in the tree of the head."""
        x, size = self.x, self.x.head.size
        shown = [each for each in (x.previous, x.commit, x.draw, x.void) if each]
        shown += x.closures + [each.entry for each in x.openings]
        for each in shown:
            seq, proof = each.entry.seq, list(map(bytes.fromhex, each.proof))
            need(seq <= size, f"entry {seq} is beyond the head, which has {size}")
            root = root_over(leaf_hash(each.entry), seq - 1, size, proof)
            need(not proof and root.hex() == x.head.root, f"entry {seq} is not in the log")
        self.say(f"All {len(shown)} entries shown are in the log of {size} entries.")

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
            good = (before.flavor, before.location) == (x.scope.flavor, x.scope.location)
            good = good and x.k == 0 and before.capped == bool(x.scope.cap)
        else:
            good = before.k == x.k - 1
        good = good and (self.previous.plan_id, self.previous.effect) == (plan, effect)
        need(good, "the entry before is of another scope or outcome")
        if self.answer:
            good = self.said.commit_seq == self.commit.seq < self.answer.seq
            need(good, "the outcome answers another commitment")

    def commitment(self):
        """The entropy is the one whose hash was out before the conflict."""
        if not self.answer:
            self.say("Its entropy is not revealed: nobody may have been cut for it yet.")
            return
        good = sha256(bytes.fromhex(self.said.entropy)).hex() == self.previous.body.next_commitment
        need(good, "the entropy is not the one promised before the conflict")
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
        good = all(each.owner in owners for each in nonces)
        need(good, "there is a nonce of somebody without a run in the conflict: a free salt")
        label = "verifiable" if beacon or nonces else "operator-trusted"
        need(said.label == label, f"the outcome is called {said.label}, and is {label}")
        if beacon and said.beacon_value is None:
            good = self.x.void and said.seed is None and said.result_digest is None
            need(good, "there is an outcome without the beacon that it was to depend on")
            self.say("The beacon's round never came, so there is no outcome to disclose.")
            return
        need(beacon or said.beacon_value is None, "there is a beacon that was not announced")
        fixed = bytes.fromhex(self.commit.body.conflict_digest), self.x.k
        luck = bytes.fromhex(said.entropy), bytes.fromhex(said.beacon_value or "")
        seed = seed_of(*fixed, *luck, [(each.owner, bytes.fromhex(each.nonce)) for each in nonces])
        need(said.seed == seed.hex() and self.x.result is not None, "the seed is another one")
        public = f"round {beacon.round} of {beacon.source}" if beacon else "no beacon"
        self.say(f"The seed follows from conflict, entropy, {len(nonces)} nonces and {public}.")
        if beacon:
            self.say(f"That round is said to be {said.beacon_value}; compare it with the source.")

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
            self.say(f"Lease {row.lease} was left out: {row.reason}.")
        if x.result is None:
            return
        if self.weighting == "tokens":
            self.say("Every run was as likely as the next, however many its owner had.")
        result = Resolve(x.conflict, bytes.fromhex(self.said.seed), self.weighting).result()
        need(canonical(result) == canonical(x.result), "decided again, the result is another")
        self.say(
            f"Decided again, the result is the same: {result['freed_gpus']} GPUs freed, "
            f"{len(result['actions'])} leases cut, {len(result['draws'])} draws."
        )
        if x.void:
            self.say(f"It was voided, nobody was cut. The reason given: {self.said.reason}.")

    def openings(self):
        """Your pseudonyms follow from a secret that was fixed before the conflict."""
        x, cap = self.x, self.x.scope.cap
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
            need(entry.seq < self.commit.seq, f"the secret of {owner} was fixed too late")
            me = pseudonym(secret, x.chain, x.k, "owner", [owner])
            need(each.names or me in owners, f"nothing of {owner} is in this outcome")
            for name in each.names:
                hidden = pseudonym(secret, x.chain, x.k, name.kind, name.parts)
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

    def scope(self):
        """The sequence is named after its scope, so that a scope cannot have two."""
        scope, cap, salt = self.x.scope, self.x.scope.cap, b""
        if cap:
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
        by = " and ".join(sorted(keys))
        self.say(f"The heads of ledger {self.x.head.ledger} are signed with key {by}.")

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


def verify(data, kept_heads=(), kept_keys=()):
    """Check the bytes of an export: a code, the check that failed, and an account."""
    account = []
    code, check = look(data, account.append, kept_heads, kept_keys)
    return Verdict(code, check, list(map(plain, account)))


def look(data, say, kept_heads, kept_keys):
    check = "bytes"
    try:
        x = read_export(data)
        check = "form"
        check_export(x)
        place = canonical_text(x.scope.location)
        say(f"Outcome {x.k} of {x.scope.flavor} {place}, sequence {x.chain[:16]}.")
        checks = Checks(x, say, kept_heads, kept_keys)
        for check in Checks.ALL:
            getattr(checks, check)()
    except Malformed as error:
        say(f"CANNOT BE CHECKED ({check}): {error}.")
        return 2, check
    except DoesNotHold as error:
        say(f"DOES NOT HOLD ({check}): {error}.")
        return 1, check
    label = f"this outcome is {checks.said.label}" if checks.said else "the outcome is open"
    say(f"Everything holds; {label}.")
    return 0, ""


def main(arguments):
    parser = argparse.ArgumentParser(description="Check an exported outcome of a lottery.")
    parser.add_argument("outcome")
    parser.add_argument("--head", action="append", metavar="SIZE:ROOT", default=[])
    parser.add_argument("--key", action="append", metavar="HEX", default=[])
    options = parser.parse_args(arguments)
    heads = [re.fullmatch("([1-9][0-9]{0,15}):([0-9a-f]{64})", head) for head in options.head]
    if not all(heads):
        parser.error("a head is SIZE:ROOT, the root in hex")
    try:
        with open(options.outcome, "rb") as file:
            data = file.read()
    except OSError as error:
        parser.error(f"{options.outcome}: {error.strerror}")
    verdict = verify(data, [(int(head[1]), head[2]) for head in heads], options.key)
    sys.stdout.reconfigure(errors="backslashreplace")
    print("\n".join(verdict.account))
    return verdict.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
