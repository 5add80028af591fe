"""The published vectors: by the written definition, and by core."""

import json
from hashlib import sha256

from fairlead.core.canonical import canonical
from fairlead.core.lottery import (
    Draw,
    Pot,
    Stage,
    derive_seed,
    entropy_hash,
    message,
    unfold,
    uniform_below,
)
from fairlead.schema.kinds import KINDS
from tests.core.lottery import definition
from tests.core.lottery.fill_vectors import FILE, fill

VECTORS = json.loads(FILE.read_text())


def test_the_published_vectors_are_those_of_the_definition() -> None:
    """They were not edited, and the definition in the tests did not move."""
    assert fill() == VECTORS


def test_core_makes_the_published_seeds() -> None:
    """Down to the bytes that are hashed."""
    for vector in VECTORS["seeds"]:
        given = {
            "conflict_digest": vector["conflict_digest"],
            "sequence": vector["sequence"],
            "entropy": bytes.fromhex(vector["entropy"]),
            "beacon": bytes.fromhex(vector["beacon"] or ""),
            "nonces": {each["owner"]: bytes.fromhex(each["nonce"]) for each in vector["nonces"]},
        }
        hashed = sha256(bytes.fromhex(vector["preimage"]))
        assert hashed.hexdigest() == vector["seed"], vector["name"]
        assert derive_seed(**given).hex() == vector["seed"], vector["name"]
        assert entropy_hash(given["entropy"]) == vector["entropy_hash"]


def test_core_makes_the_published_draws() -> None:
    """Messages, picks, and hashes that are thrown away."""
    for vector in VECTORS["draws"]:
        stage, index = Stage(vector["stage"]), int(vector["index"])
        for attempt in vector["tries"]:
            assert message(stage, index, attempt["counter"]).hex() == attempt["message"]
        seed = bytes.fromhex(vector["seed"])
        found = uniform_below(int(vector["n"]), seed=seed, stage=stage, index=index)
        assert str(found) == vector["pick"]
    assert max(len(vector["tries"]) for vector in VECTORS["draws"]) > 1


def test_core_plays_the_published_lotteries() -> None:
    """Owners and tokens in order, and who is drawn."""
    for vector in VECTORS["lotteries"]:
        seed, tokens = bytes.fromhex(vector["seed"]), vector["tokens"]
        pot = Pot(tokens)
        draws = [pot.draw(seed, index) for index in range(vector["count"])]
        told = [
            {
                "index": draw.index,
                "owners": owners,
                "owner": draw.owner,
                "tokens": names,
                "token": draw.token,
            }
            for draw, owners, names in unfold(tokens, draws)
        ]
        assert told == vector["draws"]
        assert draws[0] == Draw(0, told[0]["owner"], told[0]["token"])


def test_gpu_resolve_draws_the_published_outcomes() -> None:
    """From the conflict to the victims: digest, seed, draws."""
    for vector in VECTORS["outcomes"]:
        document = {**vector["conflict"], "seed": vector["seed"]}
        result = KINDS["gpu.resolve"].run(json.dumps(document).encode()).result
        assert canonical(vector["conflict"]).decode() == vector["canonical"]
        assert result["conflict_digest"] == vector["conflict_digest"]
        assert [{**draw, "tier": "funded"} for draw in vector["draws"]] == result["draws"]
        drawn = [draw["token"] for draw in vector["draws"]]
        assert [action["run"] for action in result["actions"]] == drawn


def test_the_definition_throws_away_half_of_the_hashes_at_worst() -> None:
    """n = 2^63 + 1: the worst n there is still ends."""
    lengths = [len(definition.tries("aa" * 32, "owner", k, 2**63 + 1)) for k in range(200)]
    assert 1.7 < sum(lengths) / 200 < 2.3
