"""The outcomes that the verifiers are tried on: true ones, edited ones, and signed lies."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fairlead.core.lottery.beacon import QUICKNET
from tests.verify.build import Case, Document, bytes_of

Edit = Callable[[Document], Any]


def lease(
    name: str, run: str, *, role: str = "active", group: int = 0, gpus: int = 4, **more: Any
) -> Document:
    """A lease of the small world."""
    return {
        "id": name,
        "run": run,
        "role": role,
        "group": group,
        "gpus": gpus,
        "flavor": "H100",
        "location": {"region": "us-west", "cluster": "a"},
        "funded": True,
        "budget": "shared",
        "envelope": "west",
        **more,
    }


def run(
    name: str, owner: str, *, malleable: Document | None = None, nominated: bool = False
) -> Document:
    """A run of the small world."""
    return {"id": name, "owner": owner, "malleable": malleable, "nominated": nominated}


SCOPE: Document = {"flavor": "H100", "location": {"cluster": "a"}, "cap": None}
PAYERS = {"shared": "org", "own": "vision"}
STEPS = {"min_gpus": 4, "step_gpus": 4}
SMALL = {
    "scope": SCOPE,
    "deficit_gpus": 13,
    "runs": [run("vision/train", "vision"), run("speech/tune", "speech", malleable=STEPS)],
    "leases": [
        lease("v0", "vision/train"),
        lease("v1", "vision/train", role="spare", group=1),
        lease("s0", "speech/tune"),
        lease("s1", "speech/tune", group=1),
    ],
}
ELSEWHERE = {"region": "us-west", "cluster": "b"}
WIDE = {
    "scope": SCOPE,
    "deficit_gpus": 23,
    "runs": [
        *SMALL["runs"],
        run("vision/eval", "vision", nominated=True),
        run("robots/π", "robots"),
        run("robots/9", "robots"),
    ],
    "leases": [
        *SMALL["leases"],
        lease("v2", "vision/train", group=2, location=ELSEWHERE),
        lease("e0", "vision/eval", funded=False, flavor="A100"),
        lease("e1", "vision/eval", group=1, gpus=2, budget="own"),
        lease("π", "robots/π", gpus=8),
        lease("r9", "robots/9", gpus=8, location={"region": "us-west"}),
        lease("r10", "robots/9", gpus=8),
    ],
}
CAPPED = {
    **WIDE,
    "leases": [*WIDE["leases"], lease("e2", "vision/eval", group=2, gpus=1)],
    "scope": {
        **SCOPE,
        "location": {},
        "cap": {"budget": "shared", "name": "all", "envelopes": ["west", "east"]},
    },
}
TEAMS = {
    "scope": SCOPE,
    "deficit_gpus": 8,
    "runs": [run("speech/0", "speech"), *(run(f"vision/{i}", "vision") for i in range(9))],
    "leases": [lease("s0", "speech/0"), *(lease(f"v{i}", f"vision/{i}") for i in range(9))],
}  # one team has nine times the runs of the other
BEACON = {**QUICKNET.at(1_000).document()}
VALUE = (
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b1957"
    "6350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
)  # what quicknet signed
BEFORE = QUICKNET.at(1_000).due_ms - 1_000_000
OLD_BEACON = {"source": "drand/quicknet", "round": 12_345}
OLD_VALUE = bytes_of("beacon").hex()
NONCES = {"vision": bytes_of("nonce")[:16].hex(), "robots": "00", "speech": "ff" * 40}

TINY = Case(
    {
        "scope": {**SCOPE, "location": {}},
        "deficit_gpus": 1,
        "runs": [run("r", "o")],
        "leases": [lease("l", "r", location={}, budget="b", envelope="e")],
    },
    {"b": "o"},
    tenants=("o",),
    filler=0,
)
BASE = Case(SMALL, PAYERS, tenants=("vision",), filler=1)
AFTER_VOID = replace(BASE, k=2, voids=1, carry={"beacon": None, "nonces": []})
TRUE: dict[str, Case] = {
    "a spare, a step and a draw": BASE,
    "for the public": replace(BASE, tenants=()),
    "of several owners": Case(WIDE, PAYERS, tenants=("robots", "speech", "vision"), k=3),
    "with a nonce": Case(WIDE, PAYERS, tenants=("vision",), nonces=NONCES),
    "with a beacon and nonces": Case(
        WIDE,
        PAYERS,
        tenants=("speech",),
        k=1,
        nonces=NONCES,
        beacon=BEACON,
        beacon_value=VALUE,
        start_ms=BEFORE,
    ),
    "under a cap, for its owner": Case(CAPPED, PAYERS, tenants=("org",)),
    "under a cap, for a borrower": Case(CAPPED, PAYERS, tenants=("robots",)),
    "somebody left out": replace(
        BASE, left_out={"v9": ("vision", "ending"), "w1": ("winner", "beneficiary")}
    ),
    "voided": replace(BASE, ending="void"),
    "voided without its beacon": replace(BASE, ending="void", beacon=BEACON, start_ms=BEFORE),
    "voided with a nonce": replace(BASE, ending="void", nonces={"speech": "00"}),
    "after a void": AFTER_VOID,
    "after two voids, voided": replace(AFTER_VOID, k=3, voids=2, ending="void"),
    "after a void, with its beacon": replace(
        AFTER_VOID,
        beacon=BEACON,
        beacon_value=VALUE,
        carry={"beacon": BEACON, "nonces": []},
        start_ms=BEFORE,
    ),
    "after a restored backup": replace(BASE, epochs=2),
    "of the first protocol": replace(BASE, turns=False),
    "of the first protocol, with a beacon and nonces": Case(
        WIDE,
        PAYERS,
        tenants=("speech",),
        k=1,
        nonces=NONCES,
        beacon=OLD_BEACON,
        beacon_value=OLD_VALUE,
        turns=False,
    ),
    "of the first protocol, under a cap": Case(CAPPED, PAYERS, tenants=("org",), turns=False),
    "of the first protocol, voided": replace(BASE, ending="void", turns=False),
    "open": replace(BASE, ending="open"),
    "not closed yet": replace(BASE, closed=False),
    "after a rotation of keys": replace(BASE, rotate=True),
    "with kept heads": replace(BASE, kept_sizes=(1, 2, 5, 8)),
    "nothing to do": replace(BASE, clear={**SMALL, "deficit_gpus": 0}),
    "not enough to cut": replace(BASE, clear={**SMALL, "deficit_gpus": 999}),
    "owners are said to be equal": replace(BASE, weighting="owners"),
    "tokens are equal": Case(TEAMS, PAYERS, tenants=("vision",), weighting="tokens"),
    "GPUs are equal": Case(WIDE, PAYERS, tenants=("robots",), weighting="stake"),
    "GPUs are equal, most are lost": Case(
        {**TEAMS, "deficit_gpus": 30}, PAYERS, tenants=("vision",), weighting="stake", k=2
    ),
    "tokens are equal, voided": Case(
        TEAMS, PAYERS, tenants=("speech",), weighting="tokens", ending="void"
    ),
}


def large(leases: int) -> Case:
    """Many runs of many owners, some of them elsewhere."""
    rng = random.Random("a large outcome")
    owners = [f"team-{number}" for number in range(7)]
    runs = [
        run(
            f"ns/run-{number}",
            rng.choice(owners),
            malleable=STEPS if number % 3 else None,
            nominated=number % 5 == 0,
        )
        for number in range(leases // 4)
    ]
    every = [
        lease(
            f"lease-{number}",
            rng.choice(runs)["id"],
            group=rng.randrange(12),
            role="spare" if number % 6 == 0 else "active",
            funded=number % 11 != 0,
            location=ELSEWHERE if number % 9 == 0 else {"region": "us-west", "cluster": "a"},
        )
        for number in range(leases)
    ]
    used = {each["run"] for each in every}
    runs = [each for each in runs if each["id"] in used]
    clear = {"scope": SCOPE, "deficit_gpus": 2 * leases, "runs": runs, "leases": every}
    return Case(clear, PAYERS, tenants=sorted({each["owner"] for each in runs})[1:3], k=7)


def put(*path: Any, value: Any) -> Edit:
    """An edit that sets one place, or changes it with a function."""

    def edit(document: Document) -> Document:
        inner = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value(inner[path[-1]]) if callable(value) else value
        return document

    return edit


def without(*path: Any) -> Edit:
    """An edit that takes one place away."""

    def edit(document: Document) -> Document:
        inner = document
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]
        return document

    return edit


def reverse(items: list[Any]) -> list[Any]:
    """The other way round."""
    return items[::-1]


def victim_instead(result: Document) -> Document:
    """Another run is said to have been drawn."""
    told = copy.deepcopy(result)
    last = told["draws"][-1]
    others = [each["run"] for each in told["actions"] if each["run"] != last["token"]]
    last["token"] = others[0]
    return told


# Told with the signing key, so that every hash and signature holds; the check that finds them out.
LIES: dict[str, tuple[Case, str]] = {
    "a salt in the conflict": (
        replace(BASE, lies={"conflict": put("leases", 0, "salt", value="1")}),
        "form",
    ),
    "a clear name in the conflict": (
        replace(BASE, lies={"conflict": put("leases", 0, "budget", value="shared")}),
        "form",
    ),
    "a repeated lease": (
        replace(BASE, lies={"conflict": lambda x: put("leases", value=x["leases"][:1] * 2)(x)}),
        "form",
    ),
    "a run of nobody, with nothing": (
        replace(BASE, clear={**SMALL, "runs": [*SMALL["runs"], run("salt", "speech")]}),
        "decision",
    ),
    "envelopes in an order of its own": (
        replace(
            BASE, clear=CAPPED, lies={"conflict": put("scope", "cap", "envelopes", value=reverse)}
        ),
        "form",
    ),
    "another conflict than was decided": (
        replace(BASE, lies={"conflict": put("leases", 0, "funded", value=False)}),
        "decision",
    ),
    "another entropy than promised": (replace(BASE, entropy="drawn again"), "commitment"),
    "a second sequence for the scope": (replace(BASE, sequence="second"), "scope"),
    "a second sequence for the cap": (
        replace(BASE, clear=CAPPED, tenants=("org",), sequence="second"),
        "scope",
    ),
    "a seed of its own": (replace(BASE, lies={"draw": put("seed", value="ab" * 32)}), "seed"),
    "called a beacon's": (replace(BASE, lies={"draw": put("label", value="beacon")}), "seed"),
    "a beacon after the fact": (
        replace(BASE, lies={"draw": put("beacon_value", value="ab")}),
        "seed",
    ),
    "a nonce of somebody without a run": (
        replace(BASE, nonces={"vision": "00", "org": "01"}),
        "seed",
    ),
    "no beacon after all": (replace(BASE, beacon=BEACON, start_ms=BEFORE), "seed"),
    "another victim": (replace(BASE, lies={"result": victim_instead}), "decision"),
    "one lease fewer": (
        replace(BASE, lies={"result": put("actions", value=lambda all_: all_[:-1])}),
        "decision",
    ),
    "better odds announced": (
        replace(BASE, lies={"notice": put("tokens", 0, "one_in", value=7)}),
        "decision",
    ),
    "a candidate not announced": (
        replace(BASE, lies={"notice": put("candidates", value=lambda all_: all_[1:])}),
        "decision",
    ),
    "drawn by owners, and said to be by tokens": (
        Case(TEAMS, PAYERS, k=3, weighting="tokens", played="owners"),
        "decision",
    ),
    "drawn by tokens, and said to be by owners": (
        Case(TEAMS, PAYERS, k=3, weighting="owners", played="tokens"),
        "decision",
    ),
    "another weighting under the same rules": (
        replace(BASE, lies={"commit": put("owner_weighting", value="tokens")}),
        "order",
    ),
    "the other rules with the same weighting": (
        Case(
            TEAMS,
            PAYERS,
            weighting="tokens",
            lies={"commit": put("owner_weighting", value="owners")},
        ),
        "order",
    ),
    "a weighting of its own": (
        replace(BASE, lies={"commit": put("owner_weighting", value="friends")}),
        "form",
    ),
    "another scope announced": (
        replace(BASE, lies={"commit": put("scope", "location", value={})}),
        "digests",
    ),
    "another deficit announced": (
        replace(BASE, lies={"commit": put("deficit_gpus", value=1)}),
        "digests",
    ),
    "another notice announced": (
        replace(BASE, lies={"commit": put("notice_digest", value="ab" * 32)}),
        "digests",
    ),
    "an outcome skipped": (replace(BASE, k=2, lies={"commit": put("k", value=3)}), "order"),
    "of another sequence": (replace(BASE, lies={"draw": put("chain", value="ab" * 32)}), "order"),
    "after another entry": (replace(BASE, lies={"commit": put("previous_seq", value=1)}), "order"),
    "answers another commitment": (
        replace(BASE, lies={"draw": put("commit_seq", value=1)}),
        "order",
    ),
    "no head between commitment and draw": (replace(BASE, late=("commit",)), "consistency"),
    "a head of another ledger": (
        replace(BASE, lies={"draw": put("commit_head", "ledger", value="another")}),
        "consistency",
    ),
    "a head that is not signed": (
        replace(BASE, lies={"draw": put("commit_head", "signature", value="ab" * 64)}),
        "signatures",
    ),
    "secrets chosen when the conflict was known": (replace(BASE, late=("owner",)), "openings"),
    "a lease ended that was not cut": (
        replace(BASE, lies={"close": put("lease", value="v7")}),
        "closures",
    ),
    "ended for another reason": (
        replace(BASE, lies={"close": put("reason", value="Cancelled")}),
        "closures",
    ),
    "ended in the name of another outcome": (
        replace(BASE, lies={"close": put("outcome", value=1)}),
        "closures",
    ),
}

# Edits of the file, made canonical again.
EDITS: dict[str, Edit] = {
    "another format": put("format", value="fairlead-outcome/1"),
    "a field more": put("note", value="hello"),
    "a field less": without("notice"),
    "another number of the outcome": put("k", value=1),
    "another scope": put("scope", "location", value={}),
    "another sequence": put("chain", value="ab" * 32),
    "another root": put("head", "root", value="ab" * 32),
    "a longer log": put("head", "size", value=lambda size: size + 1),
    "another key": put("keys", value=lambda keys: dict.fromkeys(keys, "ab" * 32)),
    "a useless key": put("keys", "ab" * 8, value="ab" * 32),
    "no key": put("keys", value={}),
    "another signature": put("head", "signature", value="ab" * 64),
    "an inclusion proof too long": put("draw", "proof", value=lambda all_: [*all_, "ab" * 32]),
    "an inclusion proof too short": put("draw", "proof", value=lambda all_: all_[1:]),
    "an inclusion proof in another order": put("commit", "proof", value=reverse),
    "no consistency": put("consistency", value=[]),
    "a consistency proof too short": put("consistency", 0, "proof", value=lambda all_: all_[1:]),
    "a consistency proof of other heads": put("consistency", 0, "new_size", value=2),
    "another commitment": put("commit", "entry", "body", "conflict_digest", value="ab" * 32),
    "another entropy": put("draw", "entry", "body", "entropy", value="ab" * 32),
    "another author": put("draw", "entry", "author", value="somebody"),
    "another deficit": put("conflict", "deficit_gpus", value=12),
    "a lease less": put("conflict", "leases", value=lambda all_: all_[1:]),
    "leases in another order": put("conflict", "leases", value=reverse),
    "another notice": put("notice", "tokens", value=[]),
    "another result": put("result", "freed_gpus", value=1),
    "no result": put("result", value=None),
    "no draw": put("draw", value=None),
    "drawn and voided": lambda x: put("void", value=x["draw"])(x),
    "openings of nobody": put("openings", value=[]),
    "another secret": put("openings", 0, "secret", value="ab" * 32),
    "another owner": put("openings", 0, "owner", value="somebody"),
    "another name": put("openings", 0, "names", 0, "parts", value=["v8"]),
    "a name without parts": put("openings", 0, "names", 0, "parts", value=[]),
    "names in another order": put("openings", 0, "names", value=reverse),
    "a text for a number": put("head", "size", value="21"),
    "a number for a text": put("head", "ledger", value=1),
    "a truth value for a number": put("k", value=False),
    "capital letters": put("openings", 0, "secret", value=str.upper),
}
