"""`python -m tests.core.lottery.fill_vectors`: the published vectors, from the definition."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.core.lottery import definition

FILE = Path(__file__).resolve().parents[2] / "data" / "lottery" / "vectors.json"
HALF = 2**63 + 1  # just over half of the hashes are whole: about every other one is thrown away


def sha(text: str) -> str:
    """32 bytes that can be made again."""
    return sha256(text.encode()).hexdigest()


def seed_cases() -> list[dict[str, Any]]:
    """Inputs of seeds."""
    plain = {
        "conflict_digest": sha("conflict"),
        "sequence": 0,
        "entropy": sha("entropy"),
        "beacon": None,
        "nonces": [],
    }
    given = {"team-b": "0102", "team-a": "", "\U0001d11e": "ff", "\uffff": "00"}
    nonces = [{"owner": owner, "nonce": nonce} for owner, nonce in given.items()]
    return [
        {"name": "the operator's entropy alone", **plain},
        {"name": "a large sequence number", **plain, "sequence": 2**53 - 1},
        {"name": "a beacon", **plain, "beacon": sha("beacon")},
        {"name": "nonces, given out of order; owners by code point", **plain, "nonces": nonces},
        {"name": "both", **plain, "sequence": 41, "beacon": sha("beacon"), "nonces": nonces[:1]},
    ]


def draw_cases() -> list[dict[str, Any]]:
    """Inputs of draws. n and pick are text: they may pass what a double can count."""
    sizes = (1, 2, 3, 10, 1000, 2**32, HALF, 2**64 - 1, 2**64)
    cases = [
        (sha("draws"), stage, k, n) for n in sizes for stage, k in (("owner", 0), ("token", 7))
    ]
    cases += [("00" * 32, "owner", 2**64 - 1, 5), ("ff" * 32, "token", 1, HALF)]
    return [
        {"seed": seed, "stage": stage, "index": str(k), "n": str(n)} for seed, stage, k, n in cases
    ]


def lottery_cases() -> list[dict[str, Any]]:
    """Whole lotteries: tokens by owner, and how many are drawn."""
    tokens = {"team-b": ["ns/10", "ns/9", "ns/a"], "team-a": ["x"], "Team": ["y", "z"]}
    return [
        {"seed": sha("lottery"), "tokens": tokens, "count": 6},
        {"seed": sha("again"), "tokens": tokens, "count": 3},
    ]


def outcome_cases() -> list[dict[str, Any]]:
    """A whole outcome: fixed gangs only, so that nothing but chance decides."""
    owners = {"ns/a1": "team-a", "ns/a2": "team-a", "ns/b1": "team-b", "ns/c1": "team-c"}
    conflict = {
        "scope": {"flavor": "H100", "location": {"cluster": "a"}, "cap": None},
        "deficit_gpus": 10,
        "runs": [
            {"id": name, "owner": owner, "malleable": None, "nominated": False}
            for name, owner in owners.items()
        ],
        "leases": [
            {
                "id": f"{name}/0",
                "run": name,
                "role": "active",
                "group": 0,
                "gpus": 4,
                "flavor": "H100",
                "location": {"region": "us-west", "cluster": "a"},
                "funded": True,
                "budget": "b",
                "envelope": "west",
            }
            for name in owners
        ],
    }
    return [
        {
            "conflict": conflict,
            "sequence": 12,
            "entropy": sha("entropy 12"),
            "beacon": None,
            "nonces": [{"owner": "team-b", "nonce": "c0ffee"}],
        }
    ]


def fill() -> dict[str, Any]:
    """All vectors with their answers."""
    seeds, draws, lotteries = seed_cases(), draw_cases(), lottery_cases()
    for each in seeds:
        each["entropy_hash"] = sha256(bytes.fromhex(each["entropy"])).hexdigest()
        each["preimage"] = definition.preimage(each).hex()
        each["seed"] = definition.seed(each)
    for each in draws:
        at = (each["seed"], each["stage"], int(each["index"]), int(each["n"]))
        each["tries"] = definition.tries(*at)
        each["pick"] = str(definition.pick(*at))
    for each in lotteries:
        each["draws"] = definition.play(each["seed"], each["tokens"], each["count"])
    outcomes = outcome_cases()
    for each in outcomes:
        each["canonical"] = definition.canonical(each["conflict"])
        each["conflict_digest"] = sha(each["canonical"])
        each["seed"] = definition.seed(each)
        tokens: dict[str, list[str]] = {}
        for run in each["conflict"]["runs"]:
            tokens.setdefault(run["owner"], []).append(run["id"])
        each["draws"] = definition.play(each["seed"], tokens, 3)  # three gangs of 4 make 10
    return {"seeds": seeds, "draws": draws, "lotteries": lotteries, "outcomes": outcomes}


if __name__ == "__main__":
    FILE.write_text(json.dumps(fill(), indent=1) + "\n")
