"""Chance in a resolve: fair to owners and tokens, and the same everywhere for the same seed."""

import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from fairlead.core.gpu import CutTier, forecast, resolve
from fairlead.core.gpu.conflict import Round
from fairlead.core.lottery import Draw, OwnerWeighting
from tests.core.gpu import chance
from tests.core.gpu.conflicts import conflict_of, document, lease, run

SAMPLE = 2_000  # `make soak` judges 20 000
PROGRAM = """
import random
from fairlead.core.canonical import digest
from tests.core.gpu.conflicts import decide, random_doc
print(digest([decide(random_doc(random.Random(f"process {case}"))) for case in range(60)]))
"""


def test_owners_and_tokens_are_drawn_as_often_as_they_should() -> None:
    """Whatever the number and the size of an owner's gangs."""
    assert chance.judge(SAMPLE)["seeds"] == SAMPLE


def test_the_chi_square_would_notice() -> None:
    """Ten per cent too often is beyond chance in a sample; a fair die is not."""
    fair, loaded = Counter[str](), Counter[str]()
    rng = random.Random(1)
    for _ in range(SAMPLE):
        fair[rng.choice("abc")] += 1
        loaded[rng.choices("abc", (1.25, 1, 1))[0]] += 1
    expected = dict.fromkeys("abc", 1 / 3)
    statistic, critical = chance.chi_square(fair, expected)
    assert statistic < critical
    statistic, critical = chance.chi_square(loaded, expected)
    assert statistic > critical


def test_a_hash_modulo_n_without_rejection_would_be_biased() -> None:
    """Why hashes are thrown away: one byte modulo 96 favours the first 64 numbers, visibly."""
    met: Counter[str] = Counter()
    for number in range(20_000):
        met["low" if sha256(number.to_bytes(4, "big")).digest()[0] % 96 < 64 else "high"] += 1
    statistic, critical = chance.chi_square(met, {"low": 2 / 3, "high": 1 / 3})
    assert statistic > critical


def digest_in_a_process(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return done.stdout.decode().strip()


def test_the_same_seed_draws_the_same_victims_in_every_process() -> None:
    """Under three hash seeds: actions, draws and digests of sixty random conflicts."""
    with ThreadPoolExecutor(2) as pool:
        digests = set(pool.map(digest_in_a_process, ("0", "1", "4242")))
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_by_stakes_every_run_that_is_lost_is_a_draw_of_its_own() -> None:
    """All of the unfunded tier is needed. Of two funded runs one is lost: draws are numbered on."""
    owners = {"u": "a", "x": "b", "y": "a"}
    leases = [lease("u", "u", 2, funded=False), lease("x", "x"), lease("y", "y")]
    made = conflict_of(document(3, [run(*row) for row in owners.items()], leases))
    found = resolve(made, bytes(32), owner_weighting=OwnerWeighting.STAKE)
    lost = found.rounds[1].draws[0].token
    assert lost in "xy"
    assert found.rounds == (
        Round(CutTier.UNFUNDED, {"a": ("u",)}, (Draw(0, "a", "u"),)),
        Round(CutTier.FUNDED, {"a": ("y",), "b": ("x",)}, (Draw(1, owners[lost], lost),)),
    )
    assert [(row.lease, row.draw) for row in found.actions] == [("u", 0), (lost, 1)]
    risk = forecast(made, owner_weighting=OwnerWeighting.STAKE).risks[1]
    assert [(odds.owner, odds.token) for odds in risk.odds] == [("a", "y"), ("b", "x")]
