"""Short ways to write `gpu.resolve` documents, and random ones in which everything may happen."""

import json
import random
from collections.abc import Iterable
from typing import Any

from fairlead.schema.border import check_shape, parse_json
from fairlead.schema.gpu import ResolveDocument, to_conflict
from fairlead.schema.kinds import KINDS

Document = dict[str, Any]
HERE = {"region": "us-west", "cluster": "a"}
ELSEWHERE = {"region": "us-west", "cluster": "b"}
ZEROS = "00" * 32


def run(
    name: str, owner: str = "team", *, least: int | None = None, step: int = 1, **fields: Any
) -> Document:
    """A fixed run, or one that shrinks to `least` by `step`."""
    malleable = None if least is None else {"min_gpus": least, "step_gpus": step}
    return {"id": name, "owner": owner, "malleable": malleable, "nominated": False, **fields}


def lease(
    name: str, of: str, gpus: int = 1, *, group: int = 0, spare: bool = False, **fields: Any
) -> Document:
    """An active lease of H100 in cluster a, paid by b/west."""
    return {
        "id": name,
        "run": of,
        "role": "spare" if spare else "active",
        "group": group,
        "gpus": gpus,
        "flavor": "H100",
        "location": HERE,
        "funded": True,
        "budget": "b",
        "envelope": "west",
        **fields,
    }


def document(
    deficit: int,
    runs: Iterable[Document],
    leases: Iterable[Document],
    *,
    seed: str = ZEROS,
    cap: Document | None = None,
    **scope: Any,
) -> Document:
    """The whole input; the scope is cluster a unless told otherwise."""
    return {
        "scope": {"flavor": "H100", "location": {"cluster": "a"}, "cap": cap, **scope},
        "deficit_gpus": deficit,
        "seed": seed,
        "runs": list(runs),
        "leases": list(leases),
    }


def decide(given: Document) -> Document:
    """Through the border and the core."""
    return KINDS["gpu.resolve"].run(json.dumps(given).encode()).result


def resolve(
    deficit: int, runs: Iterable[Document], leases: Iterable[Document], **fields: Any
) -> Document:
    """Decide a document written in place."""
    return decide(document(deficit, runs, leases, **fields))


def conflict_of(given: Document) -> Any:
    """Core's conflict of a document."""
    data = json.dumps(given).encode()
    return to_conflict(check_shape(parse_json(data), ResolveDocument))


def cuts(result: Document, key: str = "actions") -> list[tuple[str, str]]:
    """(kind, lease) in order of application."""
    return [(each["kind"], each["lease"]) for each in result[key]]


def in_scope(given: Document, held: Document) -> bool:
    """The contract's words, once more."""
    scope = given["scope"]
    cap = scope.get("cap")
    return (
        held["flavor"] == scope["flavor"]
        and all(held["location"].get(key) == value for key, value in scope["location"].items())
        and (
            cap is None
            or (held["budget"] == cap["budget"] and held["envelope"] in cap["envelopes"])
        )
    )


def candidates(given: Document) -> list[Document]:
    """The leases in scope."""
    return [held for held in given["leases"] if in_scope(given, held)]


# Orders by code point that other orders get wrong: numbers as text, accents, and two characters
# that UTF-16 sorts the other way round.
NAMES = ("run-10", "run-9", "Run", "ns/é", "ns/e", "\U0001d11e", "\uffff", "z", "a b", "0")
OWNERS = ("team-a", "team-b", "Team-c", "\U0001d11e", "\uffff")


def random_doc(rng: random.Random) -> Document:
    """A small conflict: tiers, spares, steps, out-of-scope leases, caps, any deficit."""
    names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
    owners = rng.sample(OWNERS, rng.randint(1, len(OWNERS)))
    plain = rng.random() < 0.4  # everything in scope and funded: the common case
    runs, leases = [], []
    for name in names:
        runs.append(_run(rng, name, rng.choice(owners)))
        leases += _leases(rng, name, plain=plain)
    for number, held in enumerate(rng.sample(leases, len(leases))):
        held["id"] = f"l{number}"
    cap = None
    if rng.random() < 0.2:
        cap = {
            "budget": "b",
            "name": "all",
            "envelopes": rng.choice((["west"], ["east", "west"], [])),
        }
    location = rng.choice(({"cluster": "a"}, {"cluster": "a"}, {"region": "us-west"}, {}))
    given = document(0, runs, leases, seed=rng.randbytes(32).hex(), cap=cap, location=location)
    total = sum(held["gpus"] for held in candidates(given))
    given["deficit_gpus"] = rng.choice((rng.randint(0, total + 2), rng.randint(0, total), total))
    return given


def _run(rng: random.Random, name: str, owner: str) -> Document:
    made = run(name, owner, nominated=rng.random() < 0.2)
    if rng.random() < 0.6:
        made["malleable"] = {
            "min_gpus": rng.choice((1, 1, 2, 4, 8, 30)),
            "step_gpus": rng.choice((1, 1, 2, 3, 4)),
        }
    return made


def _leases(rng: random.Random, name: str, *, plain: bool) -> list[Document]:
    made = []
    for group in rng.sample(range(13), rng.randint(0, 5)):
        for _ in range(rng.randint(1, 3)):
            held = lease("", name, rng.choice((1, 1, 2, 4)), group=group)
            held["role"] = "spare" if rng.random() < 0.3 else "active"
            if not plain:
                held["location"] = rng.choice((HERE, HERE, HERE, ELSEWHERE, {"cluster": "a"}, {}))
                held["flavor"] = "A100" if rng.random() < 0.05 else "H100"
                held["funded"] = rng.random() < 0.9
                held["envelope"] = rng.choice(("west", "west", "east"))
                held["budget"] = rng.choice(("b", "b", "b", "c"))
            made.append(held)
    return made
