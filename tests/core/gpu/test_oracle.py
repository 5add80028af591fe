"""The core agrees with an implementation that shares nothing with it but the specification."""

import json
import random
from collections import Counter
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.core.gpu import Change, Tier
from fairlead.core.reasons import CoverRefusal
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from tests.core.gpu import cases, oracle

SAMPLE = 400  # `make soak` compares 20 000


def compare(count: int, seed: int) -> dict[str, int]:
    """Decide `count` random documents twice; returns how often each outcome was met."""
    met: Counter[str] = Counter()
    for case in range(count):
        rng = random.Random(f"{seed}/{case}")  # any failing case can be run alone
        document = cases.random_doc(rng)
        ours = KINDS["gpu.cover"].run(json.dumps(document).encode()).result
        theirs = oracle.decide(document)
        assert comparable(ours) == comparable(theirs), f"case {case}"
        met.update(outcomes(ours))
        spoiled = cases.spoil(rng, document)
        assert bad_path(spoiled) == oracle.refuse(spoiled), f"case {case}, spoiled"
        met["bad input"] += oracle.refuse(spoiled) is not None
    return dict(sorted(met.items()))


def comparable(result: dict[str, Any]) -> bytes:
    """The canonical bytes, without the sentence and the order in which caps are blamed."""
    refusal = result["refusal"]
    if refusal is not None:
        binding = sorted(refusal["binding"], key=canonical)
        result = {**result, "refusal": {**refusal, "message": "", "binding": binding}}
    return canonical(result)


def outcomes(result: dict[str, Any]) -> set[str]:
    """What the result is an example of: its tiers, or its code and its remedy."""
    refusal = result["refusal"]
    if refusal is None:
        return {line["tier"] for line in result["plan"]}
    remedy = refusal["remedy"]
    return {refusal["code"], remedy["change"] if remedy else "no remedy"}


def bad_path(document: dict[str, Any]) -> str | None:
    """Where the border refuses a document; None where it does not."""
    try:
        KINDS["gpu.cover"].run(json.dumps(document).encode())
    except BadInput as error:
        return error.path
    return None


def test_same_decision_as_the_independent_implementation() -> None:
    """Plans, codes, shortfalls, caps and remedies; every tier, code and kind of remedy is met."""
    met = compare(SAMPLE, seed=7)
    assert {*Tier, *CoverRefusal, *Change} <= set(met)
