"""Chance in a resolve: fair to owners and tokens, and the same everywhere for the same seed."""

import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from tests.core.gpu import chance

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
