"""`gpu.resolve` agrees with an implementation that shares nothing with it but the specification."""

import json
import random
from collections import Counter
from itertools import pairwise
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from tests.core.gpu import resolve_cases, resolve_oracle

SAMPLE = 500  # `make soak` compares 20 000
EVERYTHING = {
    "resolved",
    "not resolved",
    "nothing to do",
    "bad input",
    "DropSpare",
    "Shrink",
    "RandomPreempt",
    "DropSpare withdrawn",
    "Shrink withdrawn",
    "Shrink out of scope",
    "RandomPreempt out of scope",
    "several groups in a step",
    "draw in unfunded",
    "draw in nominated",
    "draw in funded",
    "draws in several tiers",
    "choice of owners",
    "choice of tokens",
    "drawn after it shrank",
    "capped",
}


def compare(count: int, seed: int) -> dict[str, int]:
    """Decide `count` random documents twice; returns how often each outcome was met."""
    met: Counter[str] = Counter()
    for case in range(count):
        rng = random.Random(f"{seed}/{case}")  # any failing case can be run alone
        document = resolve_cases.random_doc(rng)
        ours = KINDS["gpu.resolve"].run(json.dumps(document).encode()).result
        theirs = resolve_oracle.decide(document)
        assert canonical(ours) == canonical(theirs), f"case {seed}/{case}"
        met.update(outcomes(document, ours))
        spoiled = resolve_cases.spoil(rng, document)
        refused = resolve_oracle.refuse(spoiled)
        assert bad_path(spoiled) == refused, f"case {seed}/{case}, spoiled"
        met["bad input"] += refused is not None
    return dict(sorted(met.items()))


def outcomes(document: dict[str, Any], result: dict[str, Any]) -> set[str]:
    """What the result is an example of."""
    actions, draws = result["actions"], result["draws"]
    drawn, tiers = {draw["token"] for draw in draws}, {draw["tier"] for draw in draws}
    met = {"resolved" if result["resolved"] else "not resolved"}
    met |= {"nothing to do"} if not document["deficit_gpus"] else set()
    met |= {"capped"} if document["scope"].get("cap") else set()
    met |= {line["kind"] for line in actions}
    met |= {f"{line['kind']} withdrawn" for line in result["withdrawn"]}
    met |= {f"{line['kind']} out of scope" for line in actions if not line["in_scope"]}
    met |= {f"draw in {tier}" for tier in tiers}
    met |= {"draws in several tiers"} if len(tiers) > 1 else set()
    met |= {"choice of owners" for draw in draws if len(draw["owners"]) > 1}
    met |= {"choice of tokens" for draw in draws if len(draw["tokens"]) > 1}
    met |= {
        "drawn after it shrank"
        for line in actions
        if line["kind"] == "Shrink" and line["run"] in drawn
    }
    group = {lease["id"]: lease["group"] for lease in document["leases"]}
    met |= {
        "several groups in a step"
        for one, two in pairwise(actions)
        if (one["run"], one["kind"], two["kind"]) == (two["run"], "Shrink", "Shrink")
        and group[one["lease"]] != group[two["lease"]]
    }
    return met


def bad_path(document: dict[str, Any]) -> str | None:
    """Where the border refuses a document; None where it does not."""
    try:
        KINDS["gpu.resolve"].run(json.dumps(document).encode())
    except BadInput as error:
        return error.path
    return None


def test_same_decision_as_the_independent_implementation() -> None:
    """Actions, draws, give-back, digests and refusals; every sort of outcome is met."""
    met = compare(SAMPLE, seed=5)
    assert set(met) >= EVERYTHING
