"""Whether chance is fair: frequencies of many seeds, judged by chi-square.

`make test` judges a sample of seeds, `make soak` the 20 000 that the promise names.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from math import sqrt

from fairlead.core.gpu import Conflict, ConflictLease, ConflictRun, Role, Scope, resolve
from fairlead.core.lottery import OwnerWeighting

# One owner with one gang, one with two, one with five: what a lottery of tokens would not treat
# alike. Gangs differ in their number of leases, which must not matter either.
GANGS = {"a": ("a1",), "b": ("b1", "b2"), "c": ("c1", "c2", "c3", "c4", "c5")}


def conflict(draws: int) -> Conflict:
    """So large a deficit that exactly this many gangs are drawn: each has 8 GPUs in scope."""
    runs, leases = [], []
    for owner, names in GANGS.items():
        for name, parts in zip(names, (1, 2, 4, 8, 1), strict=False):
            runs.append(ConflictRun(name, owner))
            leases += [
                ConflictLease(
                    f"{name}.{part}",
                    name,
                    Role.ACTIVE,
                    part,
                    8 // parts,
                    "H100",
                    {},
                    True,
                    "x",
                    "y",
                )
                for part in range(parts)
            ]
    return Conflict(Scope("H100"), 8 * draws, tuple(runs), tuple(leases))


def count(
    seeds: int, *, draw: int, weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> tuple[Counter[str], Counter[str]]:
    """How often each owner and each token came in this draw, over so many seeds."""
    owners: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    given = conflict(draw + 1)
    for number in range(seeds):
        seed = sha256(f"seed {number}".encode()).digest()
        (only,) = resolve(given, seed, owner_weighting=weighting).rounds
        owners[only.draws[draw].owner] += 1
        tokens[only.draws[draw].token] += 1
    return owners, tokens


def chi_square(met: Mapping[str, int], expected: Mapping[str, float]) -> tuple[float, float]:
    """The statistic, and the value that chance passes once in ten thousand times.

    The critical value is Wilson and Hilferty's; 3.719 is the normal quantile of 0.9999.
    """
    assert set(met) <= set(expected)
    total = sum(met.values())
    found = sum(
        (met.get(name, 0) - total * share) ** 2 / (total * share)
        for name, share in expected.items()
    )
    freedom = len(expected) - 1
    spread = 2 / (9 * freedom)
    return found, freedom * (1 - spread + 3.719 * sqrt(spread)) ** 3


def judge(seeds: int) -> dict[str, float]:
    """Owners and tokens of the first draw, tokens under `tokens`, owners of the second draw."""
    owners, tokens = count(seeds, draw=0)
    equal = dict.fromkeys(GANGS, 1 / 3)
    odds = {name: 1 / 3 / len(names) for names in GANGS.values() for name in names}
    _, weighted = count(seeds, draw=0, weighting=OwnerWeighting.TOKENS)
    # After one draw, owner a is out with a chance of 1/3; then b and c have a half each.
    second, _ = count(seeds, draw=1)
    found = {}
    for name, met, expected in (
        ("owners", owners, equal),
        ("tokens", tokens, odds),
        ("tokens, equally weighted", weighted, dict.fromkeys(odds, 1 / 8)),
        ("owners of the second draw", second, {"a": 2 / 9, "b": 7 / 18, "c": 7 / 18}),
    ):
        statistic, critical = chi_square(met, expected)
        assert statistic < critical, f"{name}: {statistic:.1f} is beyond {critical:.1f}, {met}"
        found[name] = round(statistic, 2)
    return {"seeds": seeds, **found}
