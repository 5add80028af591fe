"""Random and hostile `gpu.resolve` documents, valid ones and ones with a single defect.

Small, so that everything collides: sizes are equal, ids sort differently as numbers, as code points
and as UTF-16, groups lie half out of scope, and the deficit is drawn around what can be freed.
"""

import copy
import random
from typing import Any

Document = dict[str, Any]

# "10" sorts before "9"; the last two change places when compared as UTF-16; some need escapes.
RUNS = (
    "10",
    "9",
    "2",
    "ns/b",
    "ns/a",
    "ns/a ",
    "N",
    "é",
    "e\u0301",
    'q"\\',
    "\u0001",
    "\uff5e",
    "\U0001f600",
)
OWNERS = ("team-b", "team-a", "9", "10", "\uff5e", "\U0001f600")
STYLES = ("mixed", "mixed", "ties", "spares", "steps", "fixed", "holes", "giveback", "giveback")
RUBBISH = (
    None,
    "",
    "x",
    0,
    -1,
    1.0,
    0.5,
    True,
    [],
    {},
    [""],
    ["x", "x"],
    {"k": 1},
    float("nan"),
    "g" * 64,
    "0" * 63,
    "0" * 65,
    "F" * 64,
    2**53,
    "Active",
    [None],
    "\u0000",
)


def random_doc(rng: random.Random) -> Document:
    """A small document in which everything of the contract may happen."""
    style = rng.choice(STYLES)
    scope = _scope(rng)
    runs = [_run(rng, run, style) for run in rng.sample(RUNS, rng.randint(1, 7))]
    leases: list[Document] = []
    for run in runs:
        leases += _leases(rng, run, scope, style)
    _name(rng, leases)
    rng.shuffle(runs)
    rng.shuffle(leases)
    free = sum(lease["gpus"] for lease in leases if _near(lease, scope))
    return {
        "scope": scope,
        "deficit_gpus": _deficit(rng, free),
        "seed": rng.randbytes(32).hex(),
        "runs": runs,
        "leases": leases,
    }


def _scope(rng: random.Random) -> Document:
    location = rng.choice(
        (
            {},
            {"region": "w"},
            {"cluster": "a"},
            {"region": "w", "cluster": "a"},
            {"domain": "d1"},
            {"cluster": "*"},
            {"region": "w", "\uff5e": "1", "\U0001f600": "2"},
        )
    )
    scope: Document = {"flavor": "H100", "location": dict(location)}
    if rng.random() < 0.3:
        scope["cap"] = {
            "budget": "b",
            "name": "all",
            "envelopes": rng.choice((["x"], ["x", "y"], ["y", "x"], ["y", "y"], [])),
        }
    elif rng.random() < 0.5:
        scope["cap"] = None
    return scope


def _run(rng: random.Random, name: str, style: str) -> Document:
    run: Document = {"id": name, "owner": rng.choice(OWNERS[: rng.choice((1, 3, 6))])}
    malleable = {"steps": 0.95, "giveback": 0.6, "ties": 0.7, "fixed": 0}.get(style, 0.5)
    if rng.random() < malleable:
        run["malleable"] = {
            "min_gpus": 4 if style == "ties" else rng.choice((1, 1, 2, 4, 5, 8, 12, 40)),
            "step_gpus": 4 if style == "ties" else rng.choice((1, 2, 2, 3, 4, 4, 6, 8, 7)),
        }
        if style == "giveback":
            run["malleable"] = {"min_gpus": rng.choice((1, 2, 4)), "step_gpus": rng.choice((1, 2))}
    elif rng.random() < 0.5:
        run["malleable"] = None
    if rng.random() < 0.4:
        run["nominated"] = rng.random() < 0.6
    return run


def _leases(rng: random.Random, run: Document, scope: Document, style: str) -> list[Document]:
    """A run's groups: numbered with gaps, some only spares, some half elsewhere."""
    here = {"spares": 0.9, "holes": 0.5, "ties": 1}.get(style, 0.8)
    unfunded = rng.choice((0, 0, 0, 0.2, 1))
    # A large gang that is drawn after others gave what they could makes their cuts superfluous.
    sizes = (1, 2, 2, 4, 4, 8, 3)
    if style == "giveback":
        sizes = (1, 2, 2, 4) if run.get("malleable") else (8, 16)
    leases = []
    for group in rng.sample(range(13), rng.choice((0, 1, 2, 3, 3, 4, 5))):
        near = rng.random() < here
        shapes = ["active"] * rng.choice((1, 1, 1, 2)) + ["spare"] * rng.choice((0, 0, 1, 2))
        if style == "spares" and rng.random() < 0.7:
            shapes = ["spare"] * rng.randint(1, 3)
        for role in shapes:
            strays = style == "holes" or rng.random() < 0.1
            inside = near if not strays or rng.random() < 0.6 else not near
            leases.append(
                {
                    "run": run["id"],
                    "role": role,
                    "group": group,
                    "gpus": 4 if style == "ties" else rng.choice(sizes),
                    **_place(rng, scope, inside=inside),
                    "funded": rng.random() >= unfunded,
                }
            )
    return leases


def _place(rng: random.Random, scope: Document, *, inside: bool) -> Document:
    """Where a lease is and who pays: in scope, or not for one of the reasons there are."""
    location = {"region": "w", "cluster": rng.choice("ab"), "domain": rng.choice(("d1", "d2"))}
    location.update(scope["location"])
    cap = scope.get("cap")
    envelopes = cap["envelopes"] if cap else []
    place: Document = {
        "flavor": scope["flavor"],
        "location": location,
        "budget": "b",
        "envelope": rng.choice(envelopes or ["x", "y"]),
    }
    if not inside:
        why = rng.choice(("flavor", "value", "missing", "budget", "envelope"))
        key = rng.choice(sorted(scope["location"]) or ["region"])
        if why == "flavor":
            place["flavor"] = rng.choice(("A100", "h100", "H100 "))
        elif why == "value":
            location[key] = rng.choice(("elsewhere", "", "W"))
        elif why == "missing":
            del location[key]
        else:
            place[why] = "other"
    return place


def _name(rng: random.Random, leases: list[Document]) -> None:
    """Lease ids that sort in no useful way, unique over the document."""
    style = rng.choice(("number", "padded", "text"))
    numbers = rng.sample(range(200), len(leases))
    for lease, number in zip(leases, numbers, strict=True):
        lease["id"] = {
            "number": str(number),
            "padded": f"l{number:03}",
            "text": f"{rng.choice(RUNS)}#{number}",
        }[style]


def _near(lease: Document, scope: Document) -> bool:
    """Roughly in scope: good enough to draw a deficit by."""
    same = all(lease["location"].get(key) == value for key, value in scope["location"].items())
    return same and lease["flavor"] == scope["flavor"]


def _deficit(rng: random.Random, free: int) -> int:
    """Nothing, a little, most, exactly everything, one more or one less, far too much."""
    share = rng.randint(0, max(0, free))
    return max(
        0, rng.choice((0, 1, 4, share, share, share, share, free - 1, free, free + 1, 10**6))
    )


# --- documents with one defect --------------------------------------------------------------


def spoil(rng: random.Random, document: Document) -> Document:
    """The document with one random field removed, added, repeated or replaced by rubbish."""
    spoiled = copy.deepcopy(document)
    holders = list(_objects(spoiled))
    holder = rng.choice(holders)
    action = rng.randrange(4)
    lists = [value for each in holders for value in each.values() if isinstance(value, list)]
    lists = [value for value in lists if value]
    if action == 0:
        holder["bogus"] = 1
    elif action == 1 and holder:
        del holder[rng.choice(sorted(holder))]
    elif action == 2 or not lists:
        holder[rng.choice(sorted(holder) or ["seed"])] = rng.choice(RUBBISH)
    else:
        chosen = rng.choice(lists)
        chosen.append(copy.deepcopy(rng.choice(chosen)))
    return spoiled


def _objects(value: Any) -> Any:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
