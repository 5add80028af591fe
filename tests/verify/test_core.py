"""Fairlead's own core gives the published vectors: what is verified outside is what runs inside."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.audit import check_consistency, check_inclusion
from fairlead.core.canonical import canonical
from fairlead.core.lottery import OwnerWeighting, Stage, bls, derive_seed, uniform_below
from fairlead.core.lottery.pseudonym import outcome_key, pseudonym
from fairlead.core.lottery.seed import derive_turn_seed
from fairlead.ledger.signatures import signature_holds
from fairlead.schema.gpu import VERSIONS
from fairlead.schema.replay import SHIPPED
from tests.verify.build import Document
from tests.verify.test_verify import VECTORS, expected, unhex


def seed(row: Document) -> str:
    return derive_seed(
        conflict_digest=row["conflict_digest"],
        sequence=row["k"],
        entropy=unhex(row["entropy"]),
        beacon=unhex(row["beacon_value"]),
        nonces={each["owner"]: unhex(each["nonce"]) for each in row["nonces"]},
    ).hex()


def number(row: Document) -> int:
    stage = Stage(row["stage"])
    return uniform_below(row["n"], seed=unhex(row["seed"]), stage=stage, index=row["k"])


def hidden(row: Document) -> str:
    key = outcome_key(unhex(row["secret"]), row["chain"], row["k"])
    return pseudonym(key, row["kind"], row["parts"])


def included(row: Document) -> bool:
    return check_inclusion(
        leaf=unhex(row["leaf"]),
        index=row["index"],
        size=row["size"],
        proof=[unhex(each) for each in row["proof"]],
        root=unhex(row["root"]),
    )


def consistent(row: Document) -> bool:
    return check_consistency(
        old_size=row["old_size"],
        old_root=unhex(row["old_root"]),
        new_size=row["new_size"],
        new_root=unhex(row["new_root"]),
        proof=[unhex(each) for each in row["proof"]],
    )


def resolved(row: Document) -> Document:
    document = {**row["conflict"], "seed": row["seed"]}
    version = VERSIONS[OwnerWeighting(row.get("owner_weighting", "owners"))]
    return SHIPPED["gpu.resolve", version].run(json.dumps(document).encode()).result


def turn_seed(row: Document) -> str:
    return derive_turn_seed(
        chain=row["chain"],
        turn=row["turn"],
        entropy=unhex(row["entropy"]),
        beacon=unhex(row["beacon_value"]),
        nonces={each["owner"]: unhex(each["nonce"]) for each in row["nonces"]},
    ).hex()


ANSWERS: dict[str, Callable[[Document], Any]] = {
    "canonical": lambda row: canonical(row["value"]).decode(),
    "fair_number": number,
    "seed": seed,
    "turn_seed": turn_seed,
    "beacon": lambda row: bls.signature_holds(
        unhex(row["public_key"]), row["round"], unhex(row["signature"])
    ),
    "pseudonym": hidden,
    "ed25519": lambda row: signature_holds(
        unhex(row["public_key"]), unhex(row["message"]), row["signature"]
    ),
    "inclusion": included,
    "consistency": consistent,
    "resolve": resolved,
}


@pytest.mark.parametrize("section", ANSWERS)
def test_core_gives_the_published_vectors(section: str) -> None:
    """Bytes, numbers, seeds, pseudonyms, signatures, proofs and decisions."""
    rows = VECTORS[section]
    assert [ANSWERS[section](row) for row in rows] == [expected(section, row) for row in rows]
